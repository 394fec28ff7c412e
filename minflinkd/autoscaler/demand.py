"""How many slots a job needs for the rows that come in, and for those that wait. Pure.

The rate at which a task could process rows follows from what they cost, not from the time that it is in micro-batches:
a query without a pause always is. Tasks of a slot sharing group use the same slots, so the group needs their sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from minflinkd.autoscaler.cost import Cost, cost_of
from minflinkd.autoscaler.readings import Batch, JobReading, TaskReading, Track, effective
from minflinkd.runtime.ids import TaskId

LONGEST: Final = 10.0  # seconds that a micro-batch may take at most at full load, if its interval is not longer
MOST_FIXED: Final = 0.5  # of the longest micro-batch: with a longer fixed part, slots do not help any more
COMFORT: Final = 2.0  # seconds: a task whose micro-batches are shorter keeps up
RATE: Final = 30.0  # seconds over which rows are counted
FULLY_BUSY: Final = 0.9  # of the time
FULL: Final = 0.95  # of what a micro-batch may take
ALIKE: Final = 0.7  # of the largest of recent micro-batches: they are as large as they may be, if nobody says how large
NATURAL: Final = 3.0  # micro-batches whose rows always wait: that which runs, and what comes meanwhile
NATURAL_TIME: Final = 5.0  # seconds of what comes in that may always wait


@dataclass(frozen=True, kw_only=True)
class TaskDemand:
    """What one task needs. Rates in rows per second."""

    task: TaskId
    name: str
    group: str
    partitions: int  # of its state; 0: it has none
    rate: float  # of what comes in
    processed: float
    capacity: float | None  # that it could process with its present slots; None: not known yet
    backlog: int | None
    excess: float  # records that wait, beyond those of a micro-batch or two
    cost: Cost | None
    slots: float  # for `rate`, fully used
    catching_up: float  # slots for `excess`, within the time for it
    pressing: bool  # its micro-batches are long, or it is behind
    behind: str  # why it is behind; "" if it is not, as far as anybody knows


@dataclass(frozen=True, kw_only=True)
class GroupDemand:
    """What a slot sharing group needs. `wanted`: slots with which it is used as much as it should be.

    These are slots that all have the same number of partitions to compute: see `effective`.
    """

    group: str
    width: int
    tasks: tuple[TaskDemand, ...]
    used: float  # slots that what comes in, and what waits, would use fully
    wanted: float

    @property
    def utilization(self) -> float:
        """Of its present slots; above 1, it cannot keep up."""
        return self.used / self.effective

    @property
    def effective(self) -> float:
        """What its present slots are worth."""
        return effective(self.width, self.heaviest.partitions)

    def fitting(self, wanted: float) -> int:
        """Return the fewest slots that are worth so many."""
        partitions = self.heaviest.partitions
        if wanted <= 1:
            return 1
        return math.ceil(partitions / max(1, math.floor(partitions / wanted))) if partitions else math.ceil(wanted)

    @property
    def sure(self) -> bool:
        """Whether what its rows cost is known, of all tasks that matter."""
        return all(t.cost is not None and t.cost.sure for t in self.tasks if t.slots > 0.1 * self.used)

    @property
    def pressing(self) -> bool:
        return any(task.pressing for task in self.tasks)

    @property
    def behind(self) -> str:
        return next((task.behind for task in self.tasks if task.behind), "")

    @property
    def heaviest(self) -> TaskDemand:
        """The task that needs most."""
        return max(self.tasks, key=lambda task: (task.slots + task.catching_up, task.rate))

    @property
    def rate(self) -> float:
        """What comes in for the heaviest task."""
        return self.heaviest.rate


def demand(
    reading: JobReading, tracks: Mapping[TaskId, Track], *, target: float, catch_up: float
) -> tuple[GroupDemand, ...]:
    """Return what each slot sharing group needs. `target`: how much of its slots it should use.

    `catch_up`: seconds in which what waits is to be processed beside what comes in.
    """
    flows: dict[TaskId, _Flow] = {}
    for task in reading.tasks:
        flows[task.task] = _flow(task, tracks[task.task], reading)
    growth = _growth(reading.tasks, flows)
    tasks = [_task(t, tracks[t.task], flows, growth[t.task], reading, catch_up) for t in reading.tasks]
    found = []
    for group, width in sorted(reading.widths.items()):
        own = tuple(task for task in tasks if task.group == group)
        rows, waiting = sum(t.slots for t in own), sum(t.catching_up for t in own)
        used = rows + waiting
        found.append(GroupDemand(group=group, width=width, tasks=own, used=used, wanted=rows / target + waiting))
    return tuple(found)


@dataclass(frozen=True)
class _Flow:
    """The rows of one task: what it processes, and what comes in as far as it can tell on its own."""

    processed: float
    rate: float
    excess: float
    behind: str
    grows: bool


def _flow(task: TaskReading, track: Track, reading: JobReading) -> _Flow:
    recent = track.recent(reading.at, RATE)
    processed = _rate(recent, ended=True)
    rate, excess, grows = _rate(recent, ended=False), 0.0, False
    if task.backlog is not None:
        change = _backlog_change(recent)
        if task.limited:  # what a bounded micro-batch leaves waits on; another one takes all
            rate = max(0.0, processed + change)
        usual = NATURAL * max((b.rows / max(b.batches, 1) for b in recent), default=0.0)
        excess = max(0.0, task.backlog - max(usual, rate * (NATURAL_TIME + NATURAL * reading.interval)))
        grows = excess > 0 and change > 0.02 * processed
    return _Flow(processed, rate, excess, _behind(task, track, recent, excess, grows=grows), grows)


def _rate(batches: Sequence[Batch], *, ended: bool) -> float:
    """Return the rows per second between the first and the last micro-batch: between their ends, or their begins.

    If a micro-batch takes all that came while the one before it ran, the latter is the rate at which rows come in.
    """
    if len(batches) < 2:
        return 0.0
    first, last = batches[0], batches[-1]
    passed = last.began - first.began + (last.seconds - first.seconds if ended else 0.0)
    if passed <= 0:
        passed = last.at - first.at
    return sum(b.rows for b in batches[1:]) / passed if passed > 0 else 0.0


def _backlog_change(batches: Sequence[Batch]) -> float:
    """Return by how many records per second what waits grows."""
    known = [b for b in batches if b.backlog is not None]
    if len(known) < 2 or known[-1].at <= known[0].at:
        return 0.0
    return ((known[-1].backlog or 0) - (known[0].backlog or 0)) / (known[-1].at - known[0].at)


def _behind(task: TaskReading, track: Track, recent: Sequence[Batch], excess: float, *, grows: bool) -> str:
    if task.held_back:
        return "what reads it is behind"
    if grows:
        return f"{excess:,.0f} more records wait than in a micro-batch, and they become more"
    if task.limited and task.backlog is None and track.busy_share >= FULLY_BUSY and _is_full(task, recent):
        return "it has no pause, its micro-batches are as large as they may be, and nobody knows what waits"
    last = track.batches[-1].seconds if track.batches else 0.0
    if task.running_for > max(LONGEST, 2 * last):
        return f"a micro-batch has run for {task.running_for:.0f} s"
    return ""


def _is_full(task: TaskReading, recent: Sequence[Batch]) -> bool:
    """Whether micro-batches take as much as they may."""
    rows = [b.last_rows for b in recent if b.batches]
    if not rows:
        return False
    return min(rows) >= FULL * task.bound if task.bound is not None else min(rows) >= ALIKE * max(rows)


def _growth(tasks: Sequence[TaskReading], flows: Mapping[TaskId, _Flow]) -> dict[TaskId, float]:
    """Return how many times more rows each task would get if its sources were read as fast as rows come in."""
    found: dict[TaskId, float] = {}
    by_id = {task.task: task for task in tasks}

    def of(name: TaskId, on_the_way: frozenset[TaskId]) -> float:
        if name not in found and name in by_id and name not in on_the_way:
            upstream = [of(each, on_the_way | {name}) for each in by_id[name].upstream]
            flow = flows[name]
            own = flow.rate / flow.processed if flow.processed > 0 else 1.0
            found[name] = max(1.0, *upstream) if upstream else max(1.0, own)
        return found.get(name, 1.0)

    for task in tasks:
        of(task.task, frozenset())
    return found


def _task(
    task: TaskReading,
    track: Track,
    flows: Mapping[TaskId, _Flow],
    growth: float,
    reading: JobReading,
    catch_up: float,
) -> TaskDemand:
    flow, longest = flows[task.task], max(LONGEST, reading.interval)
    rate = flow.processed * growth if task.upstream else flow.rate
    cost = cost_of(track.batches, task.slots, reading.at)
    slots = catching_up = 0.0
    capacity = None
    if cost is not None:
        full = cost.fixed * rate / task.bound if task.bound else 0.0  # of the time, if its micro-batches are full
        usable = 1 - min(max(cost.fixed / longest, full), MOST_FIXED)
        slots, catching_up = rate * cost.per_row / usable, flow.excess / catch_up * cost.per_row / usable
        worth = effective(task.slots, task.partitions)
        capacity = worth * usable / cost.per_row if cost.per_row > 0 else None
    behind = flow.behind
    if any(name in flows and flows[name].behind == "what reads it is behind" for name in task.upstream):
        behind = "what it reads is held back"
    if behind and not flow.grows and track.busy_share >= FULLY_BUSY and not (task.running_for and cost and cost.sure):
        slots = max(slots, effective(task.slots, task.partitions))  # it does what it can, and that is not enough
    recent = track.recent(reading.at, RATE)
    seconds = sum(b.seconds for b in recent) / len(recent) if recent else 0.0
    return TaskDemand(
        task=task.task,
        name=task.name,
        group=task.group,
        partitions=task.partitions,
        rate=rate,
        processed=flow.processed,
        capacity=capacity,
        backlog=task.backlog,
        excess=flow.excess,
        cost=cost,
        slots=slots,
        catching_up=catching_up,
        pressing=bool(behind) or flow.excess > 0 or seconds > max(COMFORT, reading.interval / 2),
        behind=behind,
    )
