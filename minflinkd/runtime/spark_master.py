"""Whether a Spark master URL runs the executors in the session's own JVM or in processes of a cluster manager."""

from __future__ import annotations


def on_cluster(master: str) -> bool:
    """Whether executors run in a cluster: false for `local`, `local[...]` and an empty URL."""
    return master not in ("", "local") and not master.startswith("local[")
