"""The ported jobs on a few rows, without a broker and without a database."""

from __future__ import annotations

from pathlib import Path

import pytest

from minflinkd.testing import StartJob

pytestmark = [pytest.mark.spark, pytest.mark.slow]
JOBS = Path(__file__).parents[1]


def test_views_are_counted_by_page_and_minute(minflinkd_job: StartJob) -> None:
    """The columns of a Kafka source are known; a value is bytes, as it is there."""
    job = minflinkd_job(JOBS / "kafka.yaml")
    times = ("10:00:01", "10:00:59", "10:01:00")
    job.feed("messages", *({"value": f'{{"page": "/a", "time": "2026-01-01T{time}"}}'} for time in times))
    job.finish()
    expected = [{"minute": "2026-01-01T10:00", "page": "/a", "views": 2}, {"minute": "2026-01-01T10:01", "views": 1}]
    job.assert_rows("out", [{"page": "/a"} | row for row in expected])


def test_a_customers_total_is_updated_with_each_order(minflinkd_job: StartJob) -> None:
    """In output mode update each micro-batch has the rows that changed."""
    job = minflinkd_job(JOBS / "upsert.yaml")
    job.feed("orders", {"customer": "ann", "amount": 3}, {"customer": "bob", "amount": 1})
    job.feed("orders", {"customer": "ann", "amount": 4})
    job.process()
    first, second = job.batches("out")
    assert sorted(row["customer"] for row in first) == ["ann", "bob"]
    assert second == [{"customer": "ann", "orders": 2, "amount": 7}]
