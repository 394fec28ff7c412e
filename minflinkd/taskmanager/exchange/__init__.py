"""Exchanges between tasks (J8 - J11): the log of entries, who may read how far, and the gate that aligns barriers.

Nothing here depends on Spark. The session child writes and reads the data; the supervisor carries it to other
TaskManagers.
"""
