"""The JSON of `/jobs/:jobid/autoscaler`. Flink has no such path."""

from __future__ import annotations

from minflinkd.rest.schemas.answer import Answer


class AutoscaledGroup(Answer, frozen=True, kw_only=True, rename="kebab"):
    """A slot sharing group. Rates in rows per second, of its heaviest task."""

    group: str
    slots: int
    wanted: float  # slots with which it is used as much as it is to be
    utilization: float  # of its slots, by what comes in; above 1, it cannot keep up
    task: str
    rate: float  # of what comes in
    capacity: float | None = None  # that its slots could process; null: not known yet
    backlog: int | None = None  # records that wait; null: nobody knows
    sure: bool = False  # whether what its rows cost is known, rather than a bound of it


class AutoscalerChange(Answer, frozen=True, kw_only=True, rename="kebab"):
    """A rescale that the autoscaler has asked for: a hot restart with this number."""

    number: int
    requested: int
    state: str
    vertices: dict[str, tuple[int, int]]  # the parallelism before and after
    why: str


class AutoscalerInfo(Answer, frozen=True, kw_only=True, rename="kebab"):
    """`verdict`: stays, scale-up, scale-down, waits, limited; empty: nothing was decided yet. Times as elsewhere."""

    enabled: bool
    verdict: str = ""
    why: str = ""
    decided: int | None = None
    ready: int | None = None  # the end of the cool-down
    min: int = 1
    max: int = 1
    target_utilization: float = 0.0
    groups: tuple[AutoscaledGroup, ...] = ()
    changes: tuple[AutoscalerChange, ...] = ()  # newest first, of the last 32 hot restarts
