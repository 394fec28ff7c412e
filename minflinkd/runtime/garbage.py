"""Makes garbage collection rare in a process with many long-lived objects: it stops the event loop (A4).

Reference counts free immutable states; only cycles wait for a collection, and they are few. With 1,000 TaskManagers
and 500 jobs, a full collection took 0.4 s, every few seconds.
"""

from __future__ import annotations

import gc

_YOUNG = 20_000  # additional objects before the youngest generation is collected
_MIDDLE = 10  # collections of the youngest generation before one of the middle
_OLD = 50  # collections of the middle generation before one of the oldest


def collect_seldom() -> None:
    """Call once everything is up: the objects that exist now are permanent and are never examined again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
