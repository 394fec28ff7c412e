"""The garbage collector in a process that holds much for long: seldom, lest it stops the event loop (A4).

Immutable states are freed by their reference counts; only cycles wait for a collection, and they are few. A collection
of everything took 0.4 s with 1,000 TaskManagers and 500 jobs, every few seconds.
"""

from __future__ import annotations

import gc

_YOUNG = 20_000  # objects more than there were: a collection of the youngest
_MIDDLE = 10  # collections of the youngest
_OLD = 50  # collections of the middle generation


def collect_seldom() -> None:
    """Once everything is up: what is there now stays, and is not looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
