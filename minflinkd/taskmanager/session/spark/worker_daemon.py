"""The parent of a session's Python workers: pyspark's daemon, which has imported pandas before it forks them.

Example: a job with a pandas function gets its first workers. Each is a fork, and has pandas at once. Pyspark's own
daemon forks before anything is imported, so each worker would import pandas for itself: half a second of a processor,
and 33 MiB of memory.

Pyspark imports nothing before it forks, for fear of threads: a fork has only the thread that calls it, and a lock that
another thread holds stays locked for ever. pandas and pyarrow start one thread, jemalloc's, which expects forks.
OpenBLAS expects them too, and starts none while OMP_NUM_THREADS is 1, as Spark sets it for tasks of one processor.
Pyarrow's own threads start with its first computation, in the worker.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys

from pyspark.daemon import manager


def import_ahead() -> None:
    """Import what nearly every Python worker needs. A library that is missing, or cannot be imported, is left out."""
    with contextlib.redirect_stdout(sys.stderr):  # standard output is where Spark reads the port
        with contextlib.suppress(Exception):
            import pyspark.worker  # noqa: F401
        with contextlib.suppress(Exception):
            _import_numpy()
        with contextlib.suppress(Exception):
            import pyarrow  # noqa: F401
        with contextlib.suppress(Exception):
            import pandas  # noqa: F401
    gc.collect()
    gc.freeze()  # otherwise the first collection in a worker writes to all pages that it shares with the others


def _import_numpy() -> None:
    import numpy as np

    here = os.getpid()

    def seed() -> None:
        if os.getppid() == here:  # not in processes that a worker forks: their numbers are the user's own affair
            np.random.seed()

    # Otherwise all workers would draw the same numbers. Python's own generator is seeded anew in each fork.
    os.register_at_fork(after_in_child=seed)


if __name__ == "__main__":
    import_ahead()
    manager()
