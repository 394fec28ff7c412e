"""The flights job on a few rows, without a daemon: what docs/testing.md explains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minflinkd.testing import InvalidJobGraph, StartJob

JOB = Path(__file__).parents[1] / "flights.yaml"


def flight(time: str, delay: float | None = 0.0, carrier: str = "AA", origin: str = "JFK") -> dict[str, Any]:
    return {"carrier": carrier, "origin": origin, "dest": "BOS", "time": time, "dep_delay": delay, "distance": 187}


@pytest.mark.spark
def test_an_hour_is_counted_once_the_watermark_has_passed_it(minflinkd_job: StartJob) -> None:
    """A window is written when event time has passed its end; a flight that never left does not count."""
    job = minflinkd_job(JOB)
    job.feed("flights", flight("2026-01-01T10:05", 20), flight("2026-01-01T10:50", 0), flight("2026-01-01T10:55", None))
    job.process()
    assert job.rows("out") == []
    job.advance_watermark("2026-01-01T11:00")
    job.assert_rows("out", [{"hour": "2026-01-01T10:00", "carrier": "AA", "flights": 2, "mean_delay": 10.0, "late": 1}])


@pytest.mark.spark
@pytest.mark.slow
def test_a_flight_that_is_a_day_late_is_dropped(minflinkd_job: StartJob) -> None:
    """The watermark allows one day: a flight of two days before finds its hour written already."""
    job = minflinkd_job(JOB, inputs={"flights": [flight("2026-01-01T10:05"), flight("2026-01-03T12:00")]})
    job.feed("flights", flight("2026-01-01T10:40"))
    job.finish()
    job.assert_rows("out", [{"hour": f"2026-01-0{day}", "flights": 1} for day in ("1T10:00", "3T12:00")])


@pytest.mark.spark
def test_delays_are_classified(minflinkd_job: StartJob) -> None:
    """The rows of a vertex between source and sink can be read as well."""
    job = minflinkd_job(JOB, inputs={"flights": [flight("2026-01-01T10:05", minutes) for minutes in (-3, 14, 15, 60)]})
    classes = [row["delay_class"] for row in job.rows("clean")]
    assert classes == ["early", "on time", "late", "very late"]


@pytest.mark.spark
@pytest.mark.slow
def test_a_param_limits_the_job_to_one_airport(minflinkd_job: StartJob) -> None:
    job = minflinkd_job(JOB, params={"origin": "EWR"})
    job.feed("flights", flight("2026-01-01T10:05", origin="EWR"), flight("2026-01-01T10:10", origin="LGA"))
    job.finish()
    job.assert_rows("out", [{"flights": 1}], committed=True)


@pytest.mark.spark
def test_nothing_is_lost_or_counted_twice_when_the_job_is_killed(minflinkd_job: StartJob) -> None:
    """What came after the checkpoint is read again, and what the checkpoint covers is not."""
    job = minflinkd_job(JOB, views=["clean"])
    job.feed("flights", flight("2026-01-01T10:05"))
    job.checkpoint()
    job.feed("flights", flight("2026-01-01T10:20"), flight("2026-01-01T10:30"))
    job.advance_watermark("2026-01-01T11:00")
    job.assert_rows("out", [{"flights": 3}])
    assert job.committed("out") == []

    job.kill()
    assert job.rows("out") == []

    job.restore()
    job.checkpoint()
    job.assert_rows("out", [{"flights": 3}], committed=True)
    assert len(job.rows("clean")) == 3


@pytest.mark.spark
@pytest.mark.slow
def test_a_new_version_goes_on_with_the_counts(minflinkd_job: StartJob) -> None:
    job = minflinkd_job(JOB, inputs={"flights": [flight("2026-01-01T10:05")]})
    job.hot_restart(params={"origin": "EWR"})
    job.feed("flights", flight("2026-01-01T10:10", origin="EWR"), flight("2026-01-01T10:15", origin="LGA"))
    job.finish()
    job.assert_rows("out", [{"hour": "2026-01-01T10:00", "flights": 2}])


@pytest.mark.spark
@pytest.mark.slow
def test_a_version_that_cannot_go_on_with_the_counts_is_refused(minflinkd_job: StartJob, tmp_path: Path) -> None:
    """Windows of two hours cannot go on with windows of one hour; the job goes on as it is."""
    (tmp_path / "flights.py").write_bytes((JOB.parent / "flights.py").read_bytes())
    (tmp_path / "flights.yaml").write_text(JOB.read_text().replace("'1 hour'), carrier", "'2 hours'), carrier"))
    job = minflinkd_job(JOB, inputs={"flights": [flight("2026-01-01T10:05")]})
    with pytest.raises(InvalidJobGraph) as refused:
        job.hot_restart(tmp_path / "flights.yaml")
    assert refused.value.faults[0].path.startswith("vertices.hourly")
    job.finish()
    job.assert_rows("out", [{"flights": 1}])
