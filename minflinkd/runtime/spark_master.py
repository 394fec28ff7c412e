"""Where a Spark master URL puts the executors: into the session's own JVM, or into processes of a cluster manager."""

from __future__ import annotations


def on_cluster(master: str) -> bool:
    """False for `local`, `local[...]` and for none."""
    return master not in ("", "local") and not master.startswith("local[")
