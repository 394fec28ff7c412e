"""What the diagnosis is told of the past (E19a, E16)."""

from __future__ import annotations

from minflinkd.metrics.history.book import HistoryBook
from minflinkd.metrics.history.series import FINE_MS, TASK
from minflinkd.rest.past import Past
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.ids import JobId, TaskId

JOB = JobId("a" * 32)


def test_the_last_hour_of_a_task_is_told_by_the_minute() -> None:
    book, clock = HistoryBook(), SystemClock()
    now = clock.epoch_ms()
    past = book.heard_of(JOB, "clicks", now)
    assert past is not None
    slot = now // FINE_MS
    for number in range(60):
        row = [1000.0 + number if name == "state_rows" else None for name in TASK.names]
        book.put(past, slot - 60 + number, [None] * len(past.track.layout.names), {"counts": row})
    found = Past(book, clock).of_tasks(JOB)[TaskId("counts")]
    known = found.known("state_rows")
    assert found.step_ms == 60_000
    assert len(found.series["state_rows"]) in (60, 61)
    assert 4 <= len(known) <= 6, "five minutes were measured"
    assert known == sorted(known)
    assert found.known("backpressured") == []


def test_a_job_that_was_never_measured_has_no_past() -> None:
    past = Past(HistoryBook(), SystemClock())
    assert past.of_tasks(JOB) == {}
    assert past.of_cluster().known("loop_lag") == []
