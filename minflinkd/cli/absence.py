"""Whether a drained TaskManager that the daemon does not list has ended (A15b). Pure.

The daemon lists those that are registered. One that runs is missing there for a moment if the daemon is restarted or
another one leads. So its absence means its end only under the leader that has listed it, or if it does not register
with a later leader in the time that this takes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto

RECONNECTING = 10.0  # seconds; more than the pauses between two tries to connect and to register


@dataclass(frozen=True)
class Look:
    """What the daemon has shown of the TaskManager."""

    epoch: int  # of the leader that has answered
    drained: bool | None  # None: it is not registered
    lives: bool = False  # it is not registered, but its process is known to be there


@dataclass(frozen=True)
class Watch:
    epoch: int  # of the leader that has listed it last
    asked: int  # epoch of the leader that has taken the request to drain it; 0: none has
    missing: tuple[int, float] | None = None  # it is not registered with the leader of this epoch, since this time


class Verdict(Enum):
    THERE = auto()
    UNKNOWN = auto()  # it is not registered, and may come back
    DRAIN = auto()  # the leader has not been asked to drain it, and it does not know that it is drained
    UNDONE = auto()  # the leader was asked, and somebody has undone it
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
