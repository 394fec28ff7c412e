"""Whether a drained TaskManager that the daemon does not list has ended (A15b). Pure.

The daemon lists the TaskManagers that are registered. After a restart of the daemon, or under a new leader, a
TaskManager that runs is missing from the list for a moment. So a missing TaskManager has ended only in two cases: the
same leader listed it before, or it does not register with a later leader within the time that registration takes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto

RECONNECTING = 10.0  # seconds; more than the pauses between two attempts to connect and to register


@dataclass(frozen=True)
class Look:
    """What the daemon has shown of the TaskManager."""

    epoch: int  # of the leader that answered
    drained: bool | None  # None: it is not registered
    lives: bool = False  # it is not registered, but its process is known to run


@dataclass(frozen=True)
class Watch:
    epoch: int  # of the leader that listed it last
    asked: int  # epoch of the leader that accepted the request to drain it; 0: none has
    missing: tuple[int, float] | None = None  # since when it is not registered with the leader of this epoch


class Verdict(Enum):
    THERE = auto()
    UNKNOWN = auto()  # it is not registered, and may come back
    DRAIN = auto()  # it is not draining, and this leader has not been asked to drain it
    UNDONE = auto()  # this leader was asked, and somebody has undone the drain
    ENDED = auto()


def look_at(watch: Watch, look: Look, now: float, patience: float) -> tuple[Watch, Verdict]:
    """`patience`: seconds in which a TaskManager that runs registers with a new leader."""
    if look.drained is not None:
        watch = replace(watch, epoch=look.epoch, missing=None)
        if look.drained:
            return watch, Verdict.THERE
        return watch, Verdict.UNDONE if watch.asked == look.epoch else Verdict.DRAIN
    if look.lives:
        return replace(watch, missing=None), Verdict.UNKNOWN
    if look.epoch == watch.epoch:
        return watch, Verdict.ENDED
    if watch.missing is None or watch.missing[0] != look.epoch:
        return replace(watch, missing=(look.epoch, now)), Verdict.UNKNOWN
    return watch, Verdict.ENDED if now - watch.missing[1] > patience else Verdict.UNKNOWN
