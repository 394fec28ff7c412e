"""What the autoscaler says of a job (R62)."""

from __future__ import annotations

from minflinkd.rpc.messages.base import Message
from minflinkd.runtime.ids import TaskId

LIMITED = "limited"  # the verdict on a job that needs more slots than it can get


class GroupNeed(Message, frozen=True):
    """What a slot sharing group has, and what it needs. Rates in rows per second, of its heaviest task.

    `utilization`: of its slots, by what comes in; above 1, it cannot keep up.
    """

    group: str
    slots: int
    wanted: float  # slots with which it is used as much as it is to be
    utilization: float
    task: TaskId
    rate: float  # of what comes in
    capacity: float | None = None  # that its slots could process; None: not known yet
    backlog: int | None = None  # records that wait; None: nobody knows
    sure: bool = False  # whether what its rows cost is known, rather than a bound of it


class AutoscalerStatus(Message, frozen=True):
    """What it has decided last, and why. Times in milliseconds since 1970."""

    enabled: bool
    verdict: str = ""  # stays, scale-up, scale-down, waits, limited; "": nothing was decided yet
    why: str = ""
    decided_ms: int = -1
    ready_ms: int = -1  # the end of the cool-down
    least: int = 1
    most: int = 1
    target: float = 0.0
    groups: tuple[GroupNeed, ...] = ()
    ups: int = 0  # since this daemon leads
    downs: int = 0
