"""What a job shows of itself at one moment, and the micro-batches that follow from several such moments. Pure.

A task tells how many micro-batches it has finished, with how many rows, and how the last one went. A reading every few
seconds may therefore miss micro-batches. Sums over all of them give rates. Only the last one of each reading says what
a micro-batch costs: for a query without a pause the means of several would always say that it is fully busy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from minflinkd.runtime.ids import TaskId

RECENT: Final = 300.0  # seconds for which all micro-batches are remembered
LONG: Final = 7200.0  # seconds for which a few of each load are: what a load costs is good to know when it comes again
FEW: Final = 3  # of each load
MOST_OLD: Final = 60  # of all loads
LOADS: Final = 1.3  # times more rows on a slot: another load
AFTER_START: Final = 2  # micro-batches that say nothing: they are slow
AFTER_CHANGE: Final = 1  # it was planned before
IDLE: Final = 30.0  # seconds without a micro-batch after which no rows come in
SHARED: Final = 6  # readings that say how busy a task is


@dataclass(frozen=True, kw_only=True)
class TaskReading:
    """One task at one moment. Times in seconds, sums since its attempt began."""

    task: TaskId
    name: str
    group: str  # slot sharing group
    attempt: str
    slots: int
    batches: int
    rows: int
    busy: float  # in all micro-batches
    partitions: int = 0  # of its state; 0: it has none, or not known
    began: float | None = None  # when the last micro-batch began, by the clock of its TaskManager; None: not known
    batch_seconds: float = 0.0  # of the last micro-batch, as the next three
    batch_rows: float = 0.0
    outside: float = 0.0  # of `batch_seconds`: planning, offsets and logs, which no slot makes quicker
    parallel: float | None = None  # at most this share was work on slots; None: nobody has looked
    running_for: float = 0.0  # of the micro-batch that runs, if it has run for long
    backlog: int | None = None  # records that wait in its sources; None: nobody knows
    limited: bool = False  # a source bounds what a micro-batch takes
    bound: float | None = None  # rows that it takes at most; None: not known, or not limited
    held_back: bool = False  # its readers are behind
    upstream: tuple[TaskId, ...] = ()


def effective(slots: float, partitions: int) -> float:
    """Return how many times quicker than one slot so many are, if each computes whole partitions one after another.

    Of 8 partitions, 5 slots compute 2 each at most, as 4 slots do. Without partitions it is the number of slots.
    """
    return partitions / math.ceil(partitions / max(slots, 1)) if partitions else slots


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of the job's version, by whomever."""

    number: int
    at: float  # when it was asked for
    over: bool = True
    error: str = ""  # why it came to nothing


@dataclass(frozen=True, kw_only=True)
class JobReading:
    """A job at one moment. Times in seconds since 1970.

    `hold`: why nothing may be changed now; "" if something may. `since`: when all its tasks have last begun to run.
    `room`: slots that a slot sharing group could have where it is; without an entry it is not known.
    """

    at: float
    tasks: tuple[TaskReading, ...]
    interval: float = 0.0  # least time between two micro-batches
    hold: str = ""
    since: float = 0.0
    last_change: Change | None = None
    room: Mapping[str, int] = field(default_factory=dict)

    @property
    def widths(self) -> dict[str, int]:
        """The slots of each slot sharing group: as many as its widest task."""
        found: dict[str, int] = {}
        for task in self.tasks:
            found[task.group] = max(task.slots, found.get(task.group, 0))
        return found


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What one reading has shown of a task: all micro-batches since the one before, and how the last one went."""

    at: float
    began: float  # the last micro-batch
    period: float  # seconds since the reading before that showed any
    batches: int
    rows: int
    busy: float
    seconds: float  # of the last micro-batch, as what follows
    last_rows: float
    slots: float  # that it had to itself: other tasks of its group run beside it
    width: int
    outside: float
    parallel: float | None
    backlog: int | None
    load: float  # rows of the last micro-batch that each of its slots had


@dataclass(frozen=True)
class Track:
    """What is remembered of a task. `last`: the reading that showed its latest micro-batch."""

    last: TaskReading
    at: float
    unusual: int = AFTER_START  # micro-batches that are still passed over
    batches: tuple[Batch, ...] = ()

    @property
    def busy_share(self) -> float:
        """For which share of the time its latest micro-batches ran."""
        latest = self.batches[-SHARED:]
        period = sum(batch.period for batch in latest)
        return min(1.0, sum(batch.busy for batch in latest) / period) if period > 0 else 0.0

    def recent(self, now: float, seconds: float, least: int = 2) -> tuple[Batch, ...]:
        """Return what the last `seconds` have shown, but at least so many readings if there are."""
        within = 0
        while within < len(self.batches) and self.batches[-1 - within].at > now - seconds:
            within += 1
        return self.batches[-max(within, least) :]


def follow(tracks: Mapping[TaskId, Track], reading: JobReading) -> dict[TaskId, Track]:
    """Return the tracks with what a reading of the job adds to them. Those of tasks that it lacks are dropped."""
    found = {}
    for task in reading.tasks:
        known = tracks.get(task.task)
        others = (t for name, t in tracks.items() if name != task.task and t.last.group == task.group)
        beside = sum(other.busy_share for other in others)
        found[task.task] = Track(task, reading.at) if known is None else _followed(known, task, reading.at, beside)
    return found


def _followed(track: Track, task: TaskReading, at: float, beside: float) -> Track:
    last = track.last
    if task.attempt != last.attempt or task.batches < last.batches or task.rows < last.rows:
        return Track(task, at, batches=track.batches)
    unusual = AFTER_CHANGE if task.slots != last.slots else track.unusual
    passed = at - track.at
    if task.batches == last.batches:
        if task.slots != last.slots:
            return Track(task, at, unusual, track.batches)
        if passed < IDLE or task.running_for > 0:
            return replace(track, last=replace(task, rows=last.rows, busy=last.busy))
    elif unusual:
        return Track(task, at, max(0, unusual - (task.batches - last.batches)), track.batches)
    if passed <= 0:
        return track
    idle, slots = task.batches == last.batches, effective(task.slots, task.partitions) / (1 + beside)
    rows = 0.0 if idle else task.batch_rows
    batch = Batch(
        at=at,
        began=at if idle or task.began is None else task.began,
        period=passed,
        batches=task.batches - last.batches,
        rows=task.rows - last.rows,
        busy=task.busy - last.busy,
        seconds=0.0 if idle else task.batch_seconds,
        last_rows=rows,
        slots=slots,
        width=task.slots,
        outside=task.outside,
        parallel=task.parallel,
        backlog=task.backlog,
        load=rows / slots,
    )
    return Track(task, at, 0, _remembered(track.batches, batch))


def _remembered(batches: tuple[Batch, ...], new: Batch) -> tuple[Batch, ...]:
    """Return what is remembered with a new one. What becomes old is left out, unless few of its load are known."""
    if not batches or batches[0].at > new.at - RECENT:
        return (*batches, new)
    first = next((i for i, batch in enumerate(batches) if batch.at > new.at - RECENT), len(batches))
    counts: dict[tuple[int, int], int] = {}
    kept: list[Batch] = []
    for batch in reversed(batches[:first]):
        load = (batch.width, round(math.log(max(batch.load, 1e-9), LOADS)))
        counts[load] = counts.get(load, 0) + 1
        if batch.batches and counts[load] <= FEW and batch.at > new.at - LONG and len(kept) < MOST_OLD:
            kept.append(batch)
    return (*reversed(kept), *batches[first:], new)
