"""A model of one query: micro-batches that take a fixed time, and a time that grows with rows and shrinks with slots.

Time is a number here. Rows come in at a rate that a curve says, and wait until a micro-batch takes them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from minflinkd.autoscaler.readings import TaskReading, effective
from minflinkd.runtime.ids import TaskId

Rate = Callable[[float], float]  # rows per second at a moment

TICK = 0.25  # seconds within which the rate does not change


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What the query is like. Times in seconds."""

    fixed: float = 0.4
    per_row: float = 0.002  # on one slot
    serial: float = 0.0  # of each row, in which slots do not help
    partitions: int = 64  # which its slots compute one after another
    tells_partitions: bool = False
    noise: float = 0.05  # relative standard deviation of a micro-batch's time
    interval: float = 0.0  # least time between the begins of two micro-batches
    bound: float | None = None  # rows that a micro-batch takes at most
    tells_backlog: bool = True


@dataclass
class Query:
    costs: Costs
    rate: Rate
    rng: random.Random
    slots: int
    now: float = 0.0
    waiting: float = 0.0  # rows that came in, and are in no finished micro-batch
    batches: int = 0
    rows: float = 0.0
    busy: float = 0.0
    attempt: int = 0
    last: tuple[float, float] = (0.0, 0.0)  # seconds and rows of the last micro-batch
    _ends: float | None = None
    _began: float = 0.0
    _taken: float = 0.0
    _last_began: float = 0.0

    def advance(self, until: float) -> None:
        """Let the query run until then."""
        while self.now < until - 1e-9:
            step = min(TICK, until - self.now)
            self.waiting += self.rate(self.now) * step
            self.now += step
            if self._ends is not None and self.now >= self._ends:
                self._finish()
            if self._ends is None and self.waiting >= 1 and self.now >= self._began + self.costs.interval:
                self._begin()

    def resize(self, slots: int) -> None:
        """Use this many slots from the next micro-batch on."""
        self.slots = slots

    def restart(self, slots: int, pause: float) -> None:
        """Start again with this many slots. The micro-batch that ran is repeated."""
        self.attempt, self.slots, self.batches, self.rows, self.busy = self.attempt + 1, slots, 0, 0.0, 0.0
        self._ends, self._began = None, self.now + pause - self.costs.interval

    def seconds(self, rows: float, slots: int) -> float:
        """Return how long a micro-batch takes, without noise."""
        costs = self.costs
        return costs.fixed + rows * (costs.serial + costs.per_row / effective(slots, costs.partitions))

    def _begin(self) -> None:
        self._taken = self.waiting if self.costs.bound is None else min(self.waiting, self.costs.bound)
        noise = self.rng.lognormvariate(0.0, self.costs.noise)
        self._began, self._ends = self.now, self.now + noise * self.seconds(self._taken, self.slots)

    def _finish(self) -> None:
        assert self._ends is not None
        took = self._ends - self._began
        self.last = (took, self._taken)
        self.batches, self.rows, self.busy = self.batches + 1, self.rows + self._taken, self.busy + took
        self.waiting -= self._taken
        self._ends, self._last_began = None, self._began

    def reading(self) -> TaskReading:
        seconds, rows = self.last
        runs = self.now - self._began if self._ends is not None else 0.0
        return TaskReading(
            task=TaskId("q"),
            name="q",
            group="default",
            attempt=str(self.attempt),
            slots=self.slots,
            partitions=self.costs.partitions if self.costs.tells_partitions else 0,
            batches=self.batches,
            rows=round(self.rows),
            busy=self.busy,
            began=self._last_began,
            batch_seconds=seconds,
            batch_rows=rows,
            outside=min(0.3 * self.costs.fixed, seconds),
            running_for=runs if runs >= 10 else 0.0,
            backlog=round(self.waiting) if self.costs.tells_backlog else None,
            limited=self.costs.bound is not None,
            bound=self.costs.bound,
        )
