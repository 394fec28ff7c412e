"""When a job counts as restarting repeatedly, and when it has proved healthy again."""

from __future__ import annotations

import pytest

from minflinkd.jobmaster.scheduler.streak import LEAST, MOST, NO_FAILURES, Failure, Streak
from minflinkd.rpc.jobs import FailureRecord
from minflinkd.runtime.errors import ErrorInfo

DAY = 86_400.0


def failure(at: float) -> Failure:
    return Failure(at, FailureRecord(timestamp_ms=0, error=ErrorInfo(code="user-code", message="poison")))


def after(*runs: float, pause: float = 1.0, checkpoints: bool = True) -> Streak:
    """Return the streak of a job that runs this long before each failure. It is checked whenever it may be healthy."""
    streak, now = NO_FAILURES, 0.0
    for seconds in runs:
        running_since, now = now, now + seconds
        if streak.failures and streak.is_over(running_since, now, checkpointed=checkpoints):
            streak = NO_FAILURES
        streak = streak.with_failure(failure(now), running_since)
        now += pause
    return streak


def test_a_poison_record_makes_a_row_of_failures() -> None:
    """Each attempt fails within seconds, however long the job ran before it met the record."""
    assert after(3 * DAY, 2, 3, 2, 4).failures == 5
    assert after(1, 1, 1).failures == 3


def test_a_taskmanager_that_is_lost_every_day_never_makes_a_row() -> None:
    assert after(*[DAY] * 30).failures == 1


def test_a_session_that_fills_its_memory_in_two_minutes_makes_a_row_although_checkpoints_complete() -> None:
    """No single time separates a slow leak from health, so the limit depends on how long the job ran before."""
    assert after(120, 125, 110, 130).failures == 4


def test_two_tasks_that_fail_while_the_job_comes_up_are_a_row() -> None:
    streak = NO_FAILURES
    for at in (5.0, 7.0):
        streak = streak.with_failure(failure(at), None)
    assert (streak.failures, streak.since, streak.probation) == (2, 5.0, LEAST)
    assert streak.last == failure(7.0)


def test_a_job_that_runs_has_not_proved_healthy_before_it_has_completed_a_checkpoint() -> None:
    """Until then the next failure would throw it back to the same point as the last one."""
    streak = after(1, 1, 1)
    assert not streak.is_over(100.0, 100.0 + LEAST, checkpointed=False)
    assert streak.is_over(100.0, 100.0 + LEAST, checkpointed=True)
    assert not streak.is_over(100.0, 99.9 + LEAST, checkpointed=True)
    assert after(60, 60, 60, checkpoints=False).failures == 3


@pytest.mark.parametrize(("running_since", "ran"), [(None, 0.0), (100.0, 0.0), (99.5, 0.5), (40.0, 60.0), (100.5, 0.0)])
def test_a_failure_tells_how_long_the_job_ran_before_it(running_since: float | None, ran: float) -> None:
    """Not at all while it was coming up, or if clocks disagree."""
    assert NO_FAILURES.with_failure(failure(100.0), running_since).ran == ran


def test_ten_minutes_without_a_failure_are_enough() -> None:
    """A job that failed after hours does not need hours to count as healthy."""
    assert after(DAY).probation == MOST
    assert after(601, 601, 601).failures == 1
