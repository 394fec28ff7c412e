"""Runs PySpark scripts as jobs: a script is executed, and each query that it starts is recorded instead.

`minflinkd run views.py` adds a module to the job's artifacts that names the script, and uses a `Script`.
"""

from minflinkd.taskmanager.session.scripts.script import Script

__all__ = ["Script"]
