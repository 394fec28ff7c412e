"""The durable record of jobs (R25, R26): what was submitted, and what became of it.

    jobs/<job id>.json       a job that is to run, from before its submission is answered until its result is stored
    results/<job id>.json    how a job ended; `dirty` until everything of it is cleaned up

A record that cannot be read is reported and left alone; the others are used all the same (R27).
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
import structlog

from minflinkd.checkpoint.statistics import CheckpointStatistics
from minflinkd.jobgraph.model import JobGraph
from minflinkd.rpc.jobs import JobDetails
from minflinkd.runtime.errors import InvalidId
from minflinkd.runtime.ids import JobId, parse_job_id
from minflinkd.runtime.units import decode_unit, encode_unit
from minflinkd.storage.interface import ObjectNotFound, StorageCorrupt
from minflinkd.storage.location import Location

log = structlog.get_logger(__name__)

VERSION = 1
T = TypeVar("T")


class StoredJob(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VERSION
    job_id: JobId
    submitted_ms: int
    graph: JobGraph
    submission: dict[str, float] = {}  # seconds since the submission, by phase


class StoredResult(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VERSION
    dirty: bool  # something of the job may still lie around
    details: JobDetails
    checkpoints: CheckpointStatistics = CheckpointStatistics()


class JobStore:
    def __init__(self, location: Location) -> None:
        self._jobs = location.child("jobs")
        self._results = location.child("results")

    async def put_job(self, job: StoredJob) -> None:
        """Durable when it returns. Raises StorageError."""
        await self._jobs.child(f"{job.job_id}.json").write_bytes(_encode(job))

    async def delete_job(self, job_id: JobId) -> None:
        """A job that was not accepted after all. Idempotent."""
        await self._jobs.child(f"{job_id}.json").delete()

    async def put_result(self, result: StoredResult) -> None:
        """Durable when it returns; the job itself is then no longer to run."""
        name = f"{result.details.job_id}.json"
        await self._results.child(name).write_bytes(_encode(result))
        await self._jobs.child(name).delete()

    async def delete_result(self, job_id: JobId) -> None:
        await self._results.child(f"{job_id}.json").delete()

    async def jobs(self) -> list[StoredJob]:
        """All jobs that are to run: those without a result."""
        ended = {job_id for job_id, _ in await self._names(self._results)}
        return [
            job
            for job_id, place in await self._names(self._jobs)
            if job_id not in ended and (job := await _read(place, StoredJob)) is not None
        ]

    async def results(self) -> list[StoredResult]:
        found = [await _read(place, StoredResult) for _, place in await self._names(self._results)]
        return [result for result in found if result is not None]

    async def _names(self, directory: Location) -> list[tuple[JobId, Location]]:
        names: list[tuple[JobId, Location]] = []
        async for entry in directory.list():
            name = directory.relative(entry.path)
            try:
                names.append((parse_job_id(name.removesuffix(".json")), directory.child(name)))
            except InvalidId:
                log.warning("a file that is no job", path=entry.path)
        return names


def _encode(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=encode_unit), indent=1)


async def _read(place: Location, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(await place.read_bytes(), type=kind, dec_hook=decode_unit)
    except ObjectNotFound:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError, StorageCorrupt) as error:
        log.error("a stored job cannot be read and is set aside", path=place.uri, error=str(error))
        return None
