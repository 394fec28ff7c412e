"""The flights job through its versions. The offsets at which versions took over tell which one must count each day."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from minflinkd.checkpoint import layout, metadata
from minflinkd.rest.schemas import HotRestartInfo, JobInfo
from tests.cluster import Cluster
from tests.faults.hot_restarts import drained, restarted
from tests.flights_job import FlightsJob, Version
from tests.windows_job import leftovers

DAYS = 5  # days that are there before a version is asked to make way, and again right after


@dataclass
class CountedFlights:
    """A flights job and its history. `version` is the current one.

    `counted`: the version that counted each day, for the days that earlier versions counted.
    """

    cluster: Cluster
    flights: FlightsJob
    version: Version = field(default_factory=Version)
    counted: list[Version] = field(default_factory=list)
    job_id: str = ""

    async def busy(self) -> None:
        """Wait until the current version has counted flights, and give it more of them to count."""
        self.flights.release(DAYS)
        await self.cluster.await_job(self.job_id, _counts, "has counted flights")
        self.flights.release(DAYS)

    def next(self, number: int, **change: Any) -> tuple[Version, Path]:
        """Return a version with a change, and its job file."""
        new = replace(self.version, number=number, **change)
        return new, self.flights.write(new)

    async def restart(self, **change: Any) -> None:
        """Make a hot restart that nothing disturbs."""
        new, file = self.next(self.version.number + 1, **change)
        done = await restarted(self.cluster, self.job_id, file)
        assert done.state == "completed", done
        await self.taken_over(new, done)

    async def taken_over(self, new: Version, done: HotRestartInfo) -> None:
        assert done.checkpoint_id is not None
        days = self._days_in(done.checkpoint_id)
        assert days > len(self.counted)
        self.counted += [self.version] * (days - len(self.counted))
        self.version = new

    def _days_in(self, checkpoint_id: int) -> int:
        """Return how many days a checkpoint covers, by the source offset that it records."""
        file = self.cluster.state / "checkpoints" / self.job_id / layout.metadata_file(checkpoint_id)
        tasks = metadata.decode(file.read_bytes()).tasks
        (offset,) = (task.source_offsets["flights"] for task in tasks if "flights" in task.source_offsets)
        return int(json.loads(offset)["logOffset"]) + 1


def _counts(job: JobInfo) -> bool:
    return job.state == "RUNNING" and all(vertex.minflinkd.batches > 1 for vertex in job.vertices)


@contextlib.asynccontextmanager
async def counted_flights(cluster: Cluster, base: Path, *, exchange: bool = False) -> AsyncIterator[CountedFlights]:
    """A running flights job. At the end its output must be that of a batch.

    The batch applies each version from the offset at which it took over.
    """
    found = CountedFlights(cluster, FlightsJob(base, exchange))
    flights = found.flights
    flights.release(DAYS)
    found.job_id = await cluster.submit(flights.write(found.version))
    try:
        yield found
        await drained(cluster, found.job_id, base / "savepoints", source="flights", files=flights.released)
    finally:
        await cluster.cancel_all()
    counted = found.counted + [found.version] * (flights.released - len(found.counted))
    assert flights.result() == flights.batch(counted)
    assert flights.writers() == sorted(flights.writers()), "no version wrote after the next"
    assert leftovers(flights.output) == []
