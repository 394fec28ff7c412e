"""The parent of a session's Python workers: pyspark's daemon, which has imported pandas before it forks them.

Example: a job with a pandas function gets its first workers. Each is a fork, and has pandas at once. Pyspark's own
daemon forks before anything is imported, so each worker would import pandas for itself: half a second of a processor,
and 50 MB.

Pyspark imports nothing before it forks, for fear of threads: a fork has only the thread that calls it, and a lock that
another thread holds stays locked for ever. pandas and pyarrow start one thread, jemalloc's, which expects forks; those
of OpenBLAS are not started, since Spark sets OMP_NUM_THREADS to the processors of one Spark task. Pyarrow's own threads
start with its first computation, in the worker.
"""

from __future__ import annotations

import contextlib
import gc
import os

from pyspark.daemon import manager


def import_ahead() -> None:
    """Import what nearly every Python worker needs. A library that is missing, or cannot be imported, is left out."""
    with contextlib.suppress(Exception):
        import pyspark.worker  # noqa: F401
    with contextlib.suppress(Exception):
        import numpy as np

        # Otherwise all workers would draw the same numbers. Python's own generator is seeded anew in each fork.
        os.register_at_fork(after_in_child=np.random.seed)
    with contextlib.suppress(Exception):
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401
    gc.collect()
    gc.freeze()  # otherwise the first collection in a worker writes to all pages that it shares with the others


if __name__ == "__main__":
    import_ahead()
    manager()
