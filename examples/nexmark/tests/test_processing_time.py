"""Nexmark's query 12 on a few rows: windows of the clock, which the test moves."""

from __future__ import annotations

from pathlib import Path

import pytest

from minflinkd.testing import StartJob

pytestmark = [pytest.mark.spark, pytest.mark.slow]
JOB = Path(__file__).parents[1] / "q12.yaml"


def test_bids_are_counted_in_ten_seconds_of_the_clock(minflinkd_job: StartJob) -> None:
    job = minflinkd_job(JOB, clock="2026-01-01T00:00:03")
    job.feed("bid", {"bidder": 7}, {"bidder": 7})
    job.advance_clock(by="6 s")
    job.feed("bid", {"bidder": 7})
    job.advance_clock(by=2)
    job.feed("bid", {"bidder": 7})
    job.finish()
    since = "2026-01-01T00:00:00", "2026-01-01T00:00:10"
    job.assert_rows("out", [{"starttime": at, "bid_count": n} for at, n in zip(since, (3, 1), strict=True)])
