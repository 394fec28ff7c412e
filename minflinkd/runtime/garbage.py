"""Makes garbage collection rare and short in a process with many long-lived objects: it stops the event loop (A4).

Reference counts free immutable states; only cycles wait for a collection, and they are few. With 1,000 TaskManagers
and 500 jobs, a full collection took 0.4 s, every few seconds. A collection takes as long as there are objects in the
generations that it looks at: some 3 ms for 10,000.
"""

from __future__ import annotations

import gc

_YOUNG = 5_000  # additional objects before the youngest generation is collected
_MIDDLE = 1  # collections of the youngest generation before one of the middle
_OLD = 1_000  # collections of the middle generation before one of the oldest


def collect_seldom() -> None:
    """Call before anything starts: what is imported is permanent and is never examined again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)


def keep_all() -> None:
    """Call once everything is up, which may be hundreds of jobs: what exists now is permanent, too.

    It does not look for cycles first, because that would take longest just now. Those of the start stay.
    """
    gc.freeze()
