"""The durable record of jobs (R25, R26): what was submitted, and what became of it.

    jobs/<job id>.json       a job that is to run, from before its submission is answered until its result is stored
    versions/<job id>/<n>.json  the versions of a hot-restarted job, and the restart's progress; the highest n counts
    cancelled/<job id>.json  a client was told that the job is cancelled; from now on it is only brought to its end
    results/<job id>.json    how a job ended; `dirty` until everything of it is cleaned up
    triggers/<job id>/<id>.json    a savepoint, a stop or a checkpoint that a client was told is under way
    operations/<job id>/<id>.json  its outcome; the last 32 of each job
    checkpoints/<job id>/<n> the pointer to completed checkpoint n; only with several daemons (`CheckpointStore`)

A job's record is never overwritten: a request that the network delayed would undo what came after it.

A job with a result never runs again, whatever other records exist. So the result is deleted last. A record that cannot
be read is reported and left alone; the others are used anyway (R27).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import msgspec
import structlog
from msgspec.structs import replace

from minflinkd.checkpoint.statistics import CheckpointStatistics
from minflinkd.dispatcher.versions import Version, Versions
from minflinkd.jobgraph.model import JobGraph
from minflinkd.rpc.jobs import JobDetails
from minflinkd.runtime.crash_points import CrashPoint, reach
from minflinkd.runtime.errors import MALFORMED, ErrorInfo, InvalidId
from minflinkd.runtime.ids import JobId, parse_job_id
from minflinkd.runtime.units import decode_unit, encode_unit
from minflinkd.storage.interface import ObjectNotFound, StorageCorrupt
from minflinkd.storage.location import Location
from minflinkd.storage.parallel import for_each

log = structlog.get_logger(__name__)

VERSION = 1
READS = 16  # at a time
KEPT_OUTCOMES = 32  # operations of a job that have ended
T = TypeVar("T")


class StoredJob(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VERSION
    job_id: JobId
    submitted_ms: int
    graph: JobGraph  # as submitted; after reading, that of the current version
    owner: str = ""  # who has submitted it; empty in records from before this was recorded
    submission: dict[str, float] = {}  # seconds since the submission, by phase
    cancelled: bool = False  # set by its mark
    versions: Versions | None = None  # from their own record

    def history(self) -> Versions:
        return self.versions or Versions(current=Version(graph=self.graph))


@dataclass(frozen=True)
class Unreadable:
    """A record that cannot be read and is set aside."""

    job_id: JobId
    path: str
    reason: str


class StoredResult(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VERSION
    dirty: bool  # something of the job may still be left to clean up
    details: JobDetails
    checkpoints: CheckpointStatistics = CheckpointStatistics()
    retained: bool = False  # the job's checkpoints belong to their user from now on: nobody else deletes them
    kept: tuple[int, ...] | None = None  # the checkpoints that are retained; None: all that exist


class Asked(StrEnum):
    """What a client can ask of a job under a trigger id."""

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    STOP = "stop"  # with a savepoint
    DRAIN = "drain"  # the same, after the job has run to its end
    CANCEL = "cancel"  # the same as STOP, but the job is CANCELED


class StoredTrigger(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VERSION
    job_id: JobId
    trigger_id: str
    what: Asked
    requested_ms: int
    savepoint: str = ""  # its future URI, if one was requested


class StoredOutcome(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VERSION
    job_id: JobId
    trigger_id: str
    location: str = ""  # of the savepoint; for a checkpoint, its id
    error: ErrorInfo | None = None


class JobStore:
    def __init__(self, location: Location, *, shared: bool = False) -> None:
        """`shared`: several daemons use this store; the leader writes."""
        self._checkpoints = location.child("checkpoints") if shared else None
        self._jobs = location.child("jobs")
        self._cancelled = location.child("cancelled")
        self._results = location.child("results")
        self._versions = location.child("versions")
        self._triggers = location.child("triggers")
        self._operations = location.child("operations")

    def pointers(self, job_id: JobId) -> Location | None:
        """Return the directory of the job's pointers to completed checkpoints. None: their metadata is enough."""
        return None if self._checkpoints is None else self._checkpoints.child(job_id)

    async def put_job(self, job: StoredJob) -> None:
        """Store a job. It is durable on return. Raises StorageError."""
        await self._jobs.child(f"{job.job_id}.json").write_bytes(_encode(job))

    async def put_versions(self, job_id: JobId, number: int, versions: Versions) -> None:
        """Store the versions.

        They are durable on return: whoever reads the job finds these, or those of a higher number.

        A number is used once. After an error it is not known whether it counts, until a higher one exists. Raises
        StorageError.
        """
        await self._versions.child(job_id, _version_file(number)).write_bytes(_encode(versions))

    async def drop_versions(self, job_id: JobId, before: int) -> None:
        """Delete the records with lower numbers, which do not count. Raises StorageError."""
        directory = self._versions.child(job_id)
        await directory.delete_children(_version_file(n) for n in await _version_numbers(directory) if n < before)

    async def last_version_number(self, job_id: JobId) -> int:
        """Return the highest number; 0 if there is none. Raises StorageError."""
        return max(await _version_numbers(self._versions.child(job_id)), default=0)

    async def mark_cancelled(self, job_id: JobId) -> None:
        """Mark the job as cancelled. The mark is durable on return. Raises StorageError."""
        await self._cancelled.child(f"{job_id}.json").write_bytes(b"{}")

    async def delete_job(self, job_id: JobId) -> None:
        """Delete a job that was not accepted after all, or that has a result. Idempotent."""
        await self._jobs.child(f"{job_id}.json").delete()
        await self._versions.child(job_id).delete_tree()
        if (pointers := self.pointers(job_id)) is not None:
            await pointers.delete_tree()
        await self._cancelled.child(f"{job_id}.json").delete()  # last: the job must not come back uncancelled

    async def put_result(self, result: StoredResult) -> None:
        """Store a result. It is durable on return, and the job is not to run any more."""
        await self._results.child(f"{result.details.job_id}.json").write_bytes(_encode(result))
        reach(CrashPoint.END_WRITTEN)
        await self.delete_job(result.details.job_id)

    async def delete_result(self, job_id: JobId) -> None:
        """Forget the job completely. Idempotent."""
        await self.delete_job(job_id)  # first: what is left of it must not come back to life
        await self._triggers.child(job_id).delete_tree()
        await self._operations.child(job_id).delete_tree()
        await self._results.child(f"{job_id}.json").delete()

    async def put_trigger(self, trigger: StoredTrigger) -> None:
        """Store that an operation is under way. The record is durable on return. Raises StorageError."""
        await self._triggers.child(trigger.job_id, f"{trigger.trigger_id}.json").write_bytes(_encode(trigger))

    async def drop_trigger(self, trigger: StoredTrigger) -> None:
        """Delete the record of an operation under way: its outcome is stored. Idempotent. Raises StorageError."""
        await self._triggers.child(trigger.job_id, f"{trigger.trigger_id}.json").delete()

    async def triggers(self) -> list[StoredTrigger]:
        """Return the operations that were under way. Some may have an outcome. Raises StorageError."""
        places: list[tuple[JobId, Location]] = []
        for path in await self._relative(self._triggers):
            with contextlib.suppress(InvalidId):
                places.append((parse_job_id(path.partition("/")[0]), self._triggers.child(path)))
        found = await for_each(places, lambda place: _read(*place, StoredTrigger), limit=READS)
        return [trigger for trigger in found if isinstance(trigger, StoredTrigger)]

    async def put_outcome(self, outcome: StoredOutcome) -> None:
        """Store the outcome of an operation. It is durable on return. Raises StorageError."""
        await self._operations.child(outcome.job_id, f"{outcome.trigger_id}.json").write_bytes(_encode(outcome))

    async def outcome(self, job_id: JobId, trigger_id: str) -> StoredOutcome | None:
        """Return the outcome of an operation; None if it is not known. Raises StorageError."""
        found = await _read(job_id, self._operations.child(job_id, f"{trigger_id}.json"), StoredOutcome)
        return found if isinstance(found, StoredOutcome) else None

    async def drop_old_outcomes(self, job_id: JobId) -> None:
        """Delete all but the job's last `KEPT_OUTCOMES` outcomes. Raises StorageError."""
        directory = self._operations.child(job_id)
        entries = sorted([e async for e in directory.list()], key=lambda e: (e.modified_ms, e.path))
        if old := entries[:-KEPT_OUTCOMES]:
            await directory.delete_children([directory.relative(entry.path) for entry in old])

    async def jobs(self) -> list[StoredJob | Unreadable]:
        """Return all jobs that are to run: those without a result."""
        ended = {job_id for job_id, _ in await self._names(self._results)}
        names = [(job_id, place) for job_id, place in await self._names(self._jobs) if job_id not in ended]
        cancelled = {job_id for job_id, _ in await self._names(self._cancelled)}
        restarted = {parts.partition("/")[0] for parts in await self._relative(self._versions)}

        async def read(name: tuple[JobId, Location]) -> StoredJob | Unreadable | None:
            record = await _read(*name, StoredJob)
            if not isinstance(record, StoredJob):
                return record
            record = replace(record, cancelled=record.job_id in cancelled)
            return await self._with_versions(record) if record.job_id in restarted else record

        found = await for_each(names, read, limit=READS)
        return [record for record in found if record is not None]

    async def _with_versions(self, job: StoredJob) -> StoredJob | Unreadable:
        """Add the job's versions.

        If the last record is unreadable, the current version is unknown and the job is set aside.
        """
        directory = self._versions.child(job.job_id)
        for number in sorted(await _version_numbers(directory), reverse=True):
            versions = await _read(job.job_id, directory.child(_version_file(number)), Versions)
            if isinstance(versions, Unreadable):
                return versions
            if versions is not None:
                return replace(job, graph=versions.current.graph, versions=versions)
        return job

    async def _relative(self, directory: Location) -> list[str]:
        return [directory.relative(entry.path) async for entry in directory.list()]

    async def result_ids(self) -> list[JobId]:
        """Return the jobs that have a result, the one that ended last first. Raises StorageError."""
        return [job_id for job_id, _ in reversed(await self._names(self._results))]

    async def results(self, of: Sequence[JobId]) -> list[StoredResult | Unreadable]:
        """Return the results of these jobs, without those that have gone. Raises StorageError."""
        names = [(job_id, self._results.child(f"{job_id}.json")) for job_id in of]
        found = await for_each(names, lambda name: _read(*name, StoredResult), limit=READS)
        return [record for record in found if record is not None]

    async def _names(self, directory: Location) -> list[tuple[JobId, Location]]:
        """Return the records of jobs, the oldest first."""
        names: list[tuple[JobId, Location]] = []
        entries = [entry async for entry in directory.list()]
        for entry in sorted(entries, key=lambda entry: (entry.modified_ms, entry.path)):
            name = directory.relative(entry.path)
            try:
                job_id = parse_job_id(name.removesuffix(".json"))
            except InvalidId:
                job_id = None
            if job_id is not None and name.endswith(".json"):
                names.append((job_id, directory.child(name)))
            else:
                log.warning("a file that is no job", path=entry.path)
        return names


def _encode(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=encode_unit), indent=1)


def _version_file(number: int) -> str:
    return f"{number:08d}.json"


async def _version_numbers(directory: Location) -> list[int]:
    names = [directory.relative(entry.path) async for entry in directory.list()]
    return [int(stem) for name in names if (stem := name.removesuffix(".json")).isdecimal()]


async def _read(job_id: JobId, place: Location, kind: type[T]) -> T | Unreadable | None:
    try:
        record = msgspec.json.decode(await place.read_bytes(), type=kind, dec_hook=decode_unit)
    except ObjectNotFound:
        return None
    except (*MALFORMED, StorageCorrupt) as error:
        reason = str(error)
    else:
        reason = _why_not(record, job_id, place)
    if not reason:
        return record
    log.error("a stored job cannot be read and is set aside", path=place.uri, error=reason)
    return Unreadable(job_id, place.uri, reason)


def _why_not(record: object, job_id: JobId, place: Location) -> str:
    """Return why a record does not count; empty if it does.

    Somebody may have copied or renamed it. Two records of one job would start it twice.
    """
    if (version := getattr(record, "version", VERSION)) > VERSION:
        return f"it has format {version}, and this minflinkd reads {VERSION}: install a later one"
    own = record.details.job_id if isinstance(record, StoredResult) else getattr(record, "job_id", job_id)
    if own != job_id:
        return f"it is the record of job {own}: a copy, or renamed"
    stem = place.uri.rpartition("/")[2].removesuffix(".json")
    if isinstance(record, StoredTrigger | StoredOutcome) and record.trigger_id != stem:
        return f"it is the record of operation {record.trigger_id}: a copy, or renamed"
    return ""
