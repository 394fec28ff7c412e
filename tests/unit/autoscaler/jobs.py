"""Readings of a job with one task, or several, for tests of the autoscaler."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from minflinkd.autoscaler.decision import decide
from minflinkd.autoscaler.readings import Batch, Change, JobReading, TaskReading
from minflinkd.autoscaler.state import Decision, Limits, State, accepted
from minflinkd.runtime.ids import TaskId

LIMITS = Limits(target=0.7, least=1, most=8, cool_down=60.0, down_delay=300.0, catch_up=300.0)
T = TaskId("t")


def batch(at: float, load: float, seconds: float, *, width: int = 2, **more: Any) -> Batch:
    """Return what a reading has shown of one micro-batch with `load` rows on each of its slots."""
    shown = Batch(
        at=at,
        began=at - seconds,
        period=seconds,
        batches=1,
        rows=round(load * width),
        busy=seconds,
        seconds=seconds,
        last_rows=load * width,
        slots=width,
        width=width,
        outside=0.1,
        parallel=None,
        backlog=None,
        load=load,
    )
    return replace(shown, **more)


def reading(task: str = "t", **more: Any) -> TaskReading:
    base = {"name": task, "group": "default", "attempt": "1", "slots": 2, "batches": 0, "rows": 0, "busy": 0.0}
    return TaskReading(task=TaskId(task), **{**base, **more})


@dataclass
class Job:
    """A job whose only task has a micro-batch every 5 s, looked at after each. `costs`: fixed, and of a row."""

    slots: int = 2
    costs: tuple[float, float] = (0.4, 0.002)
    limits: Limits = LIMITS
    now: float = 1000.0
    batches: int = 0
    rows: int = 0
    busy: float = 0.0
    state: State = field(default_factory=State)
    change: Change | None = None
    hold: str = ""
    more: dict[str, Any] = field(default_factory=dict)  # of the task's readings
    room: dict[str, int] = field(default_factory=dict)
    last: Decision | None = None

    def look(self, rate: float) -> Decision:
        """Process what comes in within 5 s at this rate, and decide."""
        self.now += 5.0
        rows = round(rate * 5)
        seconds = self.costs[0] + rows * self.costs[1] / self.slots
        self.batches, self.rows, self.busy = self.batches + 1, self.rows + rows, self.busy + min(seconds, 5.0)
        task = reading(
            slots=self.slots,
            batches=self.batches,
            rows=self.rows,
            busy=self.busy,
            began=self.now - 5.0,
            batch_seconds=seconds,
            batch_rows=float(rows),
            outside=0.1,
            **self.more,
        )
        seen = JobReading(
            at=self.now, tasks=(task,), interval=5.0, hold=self.hold, last_change=self.change, room=self.room
        )
        self.state, self.last = decide(self.state, seen, self.limits)
        return self.last

    def looks(self, rates: Iterable[float]) -> Decision:
        """Return the first decision that changes something, or the last one."""
        decision: Decision | None = None
        for rate in rates:
            decision = self.look(rate)
            if decision.wanted:
                break
        assert decision is not None
        return decision

    def learn(self) -> None:
        """See micro-batches of several sizes, so that it is known what a row costs."""
        for rate in (100, 200, 300, 400, 300, 200, 100, 300, 400, 200):
            self.look(rate)

    def apply(self, *, error: str = "") -> None:
        """Carry out what was decided last; with an error, it comes to nothing."""
        assert self.last is not None
        number = 1 if self.change is None else self.change.number + 1
        self.state = accepted(self.state, number)
        self.change = Change(number=number, at=self.now, error=error)
        if not error:
            self.slots = self.last.wanted["default"]
