"""The TaskManager: a supervisor process that offers slots, and its session child with one SparkSession.

Everything here belongs to the supervisor, except `session/`, which runs in the child and is the only code that imports
pyspark.
"""
