"""The clicks job on a few rows, without a daemon: two sources, a join, and two sinks that are tasks of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minflinkd.testing import JobUnderTest, StartJob

pytestmark = [pytest.mark.spark, pytest.mark.slow]
JOB = Path(__file__).parents[1] / "clicks.yaml"


def click(number: int, time: str, user: str = "ann", campaign: str = "spring") -> dict[str, Any]:
    return {"click_id": number, "user": user, "url": f"http://shop/?utm_campaign={campaign}", "time": time}


def purchase(number: int, time: str, user: str = "ann") -> dict[str, Any]:
    return {"order_id": number, "user": user, "amount": 10, "time": time}


@pytest.fixture
def job(minflinkd_job: StartJob) -> JobUnderTest:
    return minflinkd_job(JOB)


def test_a_click_that_comes_twice_counts_once(job: JobUnderTest) -> None:
    job.feed("clicks", click(1, "2026-01-01T10:00:01"), click(2, "2026-01-01T10:00:02"))
    job.feed("clicks", click(1, "2026-01-01T10:00:01"), click(3, "2026-01-01T10:01:00"))
    job.finish()
    expected = [{"minute": "2026-01-01T10:00", "clicks": 2}, {"minute": "2026-01-01T10:01", "clicks": 1}]
    job.assert_rows("per_minute_out", expected, committed=True)


def test_a_purchase_belongs_to_the_clicks_of_the_half_hour_before(job: JobUnderTest) -> None:
    job.feed("clicks", click(1, "2026-01-01T10:00"), click(2, "2026-01-01T10:10"), click(3, "2026-01-01T10:10", "bob"))
    job.feed("purchases", purchase(7, "2026-01-01T10:35"))
    job.process()
    job.assert_rows("attributed_out", [{"order_id": 7, "click_id": 2, "campaign": "spring"}])


def test_both_outputs_survive_a_kill_together(job: JobUnderTest) -> None:
    """The checkpoint is one for all tasks, also for those that read an exchange."""
    job.feed("clicks", click(1, "2026-01-01T10:00"))
    job.checkpoint()
    job.feed("clicks", click(1, "2026-01-01T10:00"), click(2, "2026-01-01T10:00:30"))
    job.feed("purchases", purchase(7, "2026-01-01T10:05"))
    job.process()
    job.restore()
    job.finish()
    job.assert_rows("per_minute_out", [{"clicks": 2}], committed=True)
    job.assert_rows("attributed_out", [{"order_id": 7, "click_id": n} for n in (1, 2)], committed=True)
