"""Whether more slots have made a job quicker. Pure.

They do not if a few keys have most rows, if a source has fewer partitions than slots, or if a sink takes the time. Then
still more slots would be wasted. What the micro-batches since the change took is compared with what they would have
taken before, and with what they should take now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from minflinkd.autoscaler.cost import Cost
from minflinkd.autoscaler.demand import GroupDemand
from minflinkd.autoscaler.readings import Batch, effective
from minflinkd.runtime.ids import TaskId

ENOUGH: Final = 6  # micro-batches since the change
VISIBLE: Final = 0.1  # of what they would have taken before: below it, nothing can be seen
LEAST: Final = 0.25  # of the time that was to be saved
OVER: Final = 600.0  # seconds after which nobody looks any more: the rows are too few to see anything


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A group that got more slots, and what its heaviest task cost before."""

    group: str
    task: TaskId
    name: str
    before: int
    after: int
    partitions: int
    cost: Cost
    at: float


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """More slots than `slots` did not help a group. It gets no more until `until`."""

    group: str
    slots: int
    until: float
    why: str


def trial_of(demand: GroupDemand, after: int, now: float) -> Trial | None:
    """Return what to look at after a change; None if there is nothing to compare with."""
    task = demand.heaviest
    if task.cost is None or after <= demand.width:
        return None
    return Trial(
        group=demand.group,
        task=task.task,
        name=task.name,
        before=demand.width,
        after=after,
        partitions=task.partitions,
        cost=task.cost,
        at=now,
    )


def gain(trial: Trial, batches: Sequence[Batch]) -> float | None:
    """Return which share of the time that was to be saved was saved; None if that cannot be told yet."""
    since = [b for b in batches if b.at > trial.at and b.width == trial.after and b.batches]
    if len(since) < ENOUGH:
        return None
    before, after = effective(trial.before, trial.partitions), effective(trial.after, trial.partitions)
    took = sum(b.seconds for b in since)
    new = sum(trial.cost.seconds(b.last_rows, b.slots) for b in since)
    old = sum(trial.cost.seconds(b.last_rows, b.slots * before / after) for b in since)
    if old - new < VISIBLE * old:
        return None
    return (old - took) / (old - new)
