"""Who is told of jobs' changes: plugins in the group `minflinkd.listeners`, such as the emitter of OpenLineage events.

`interface.py` is what a plugin sees. `changes.py` decides what has changed, `telling.py` looks and tells.
"""
