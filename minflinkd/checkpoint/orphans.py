"""Physical files that no checkpoint refers to, over all jobs of a checkpoint directory (F7).

<root>/<job id>/<physical file>    may be an orphan; nothing else is ever examined, least of all a savepoint

The coordinator of a running job knows which files it needs. For any other directory, the metadata in it decides. Such a
directory may belong to a job that ended with retained checkpoints, or to a job that another daemon runs. This daemon
cannot tell which. So a directory is left alone if anything was written in it within the grace period, or if it changes
during the sweep.
"""

from __future__ import annotations

import posixpath
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from minflinkd.checkpoint import layout
from minflinkd.checkpoint.metadata import CorruptMetadata, MetadataTooNew
from minflinkd.checkpoint.store import read_checkpoint
from minflinkd.rpc.jobs import JobOrphans, OrphanFile
from minflinkd.runtime.errors import Consequence, InvalidId, MinflinkError
from minflinkd.runtime.ids import JobId, parse_job_id
from minflinkd.storage.interface import Entry, ObjectNotFound
from minflinkd.storage.location import Location

BATCH = 500  # files deleted at a time; leadership is checked again before each batch

RECENT = "something was written in it within the grace period: a job that this daemon does not know may be running"
CHANGED = "its checkpoints changed meanwhile: a job that this daemon does not know is running"
UNREADABLE = "metadata in it cannot be read, and may refer to any of its files"


class NotLeading(MinflinkError):
    """Another leader may need files that nothing here refers to (A11)."""

    code = "not-leading"
    consequence = Consequence.RETRYABLE


@dataclass
class Directory:
    """The listed contents of one job's directory."""

    files: list[OrphanFile] = field(default_factory=list)  # physical ones
    metadata: set[str] = field(default_factory=set)
    newest_ms: int = 0

    def add(self, name: str, entry: Entry) -> None:
        self.newest_ms = max(self.newest_ms, entry.modified_ms)
        if layout.is_metadata_file(name):
            self.metadata.add(name)
        elif layout.is_physical_file(name):
            self.files.append(OrphanFile(name, entry.size, entry.modified_ms))


async def list_jobs(root: Location, only: JobId | None = None) -> dict[JobId, Directory]:
    """Return the directories of jobs below `root`. Raises StorageError."""
    found: dict[JobId, Directory] = {}
    async for job_id, name, entry in _entries(root, only):
        found.setdefault(job_id, Directory()).add(name, entry)
    return found


async def orphans_of(job_id: JobId, place: Location, listed: Directory, *, before_ms: int) -> JobOrphans:
    """Return the orphans of a job that does not run here. Raises StorageError."""
    if listed.newest_ms >= before_ms:
        return JobOrphans(job_id=job_id, skipped=RECENT)
    try:
        needed = await referenced(place, listed.metadata)
    except ObjectNotFound:
        return JobOrphans(job_id=job_id, skipped=CHANGED)
    except (CorruptMetadata, MetadataTooNew):
        return JobOrphans(job_id=job_id, skipped=UNREADABLE)
    return chosen(job_id, listed.files, {file.name for file in listed.files} - needed, before_ms=before_ms)


async def referenced(place: Location, metadata: Iterable[str]) -> frozenset[str]:
    """Return the physical files that the checkpoints and savepoints in a job's directory refer to.

    Raises ObjectNotFound, CorruptMetadata, MetadataTooNew, StorageError.
    """
    found: set[str] = set()
    for name in sorted(metadata):
        checkpoint = await read_checkpoint(place.child(name))
        beside = posixpath.dirname(name)
        root = beside if checkpoint.self_contained else posixpath.dirname(beside)
        found |= {posixpath.join(root, file) for file in checkpoint.physical_files()}
    return frozenset(found)


def chosen(job_id: JobId, files: Iterable[OrphanFile], unreferenced: Iterable[str], *, before_ms: int) -> JobOrphans:
    """Return the unreferenced files that are old enough. Pure."""
    names, present = frozenset(unreferenced), tuple(files)
    old = tuple(file for file in present if file.name in names and file.modified_ms < before_ms)
    return JobOrphans(job_id=job_id, files=old, kept=len(present) - len(old))


async def delete_orphans(
    found: JobOrphans, place: Location, listed: Directory | None, *, leads: Callable[[], bool]
) -> JobOrphans:
    """Delete the orphans if the directory is still as `listed`.

    `listed` is None if the job's coordinator answers for the directory. Raises NotLeading, StorageError; files deleted
    before the error stay deleted.
    """
    if listed is not None and found.files:
        again = Directory()
        async for entry in place.list():
            again.add(place.relative(entry.path), entry)
        if again.metadata != listed.metadata or again.newest_ms != listed.newest_ms:
            return JobOrphans(job_id=found.job_id, skipped=CHANGED)
    await delete_in_batches([file.name for file in found.files], place.delete_children, leads=leads)
    return found


async def delete_in_batches(
    names: Sequence[str], delete: Callable[[Sequence[str]], Awaitable[None]], *, leads: Callable[[], bool]
) -> None:
    """Delete files in batches. Raises NotLeading, StorageError; files deleted before the error stay deleted."""
    for start in range(0, len(names), BATCH):
        require_leadership(leads)
        await delete(names[start : start + BATCH])


def require_leadership(leads: Callable[[], bool]) -> None:
    """Raises NotLeading."""
    if not leads():
        raise NotLeading("it is not certain that this daemon leads", hint="ask the leader")


async def sweep(
    root: Location,
    *,
    of_running: Callable[[JobId, int], Awaitable[JobOrphans | None]],
    before_ms: int,
    leads: Callable[[], bool],
    only: JobId | None = None,
    dry_run: bool = True,
) -> tuple[JobOrphans, ...]:
    """Find the orphans of all jobs, and delete them unless `dry_run`. Raises NotLeading, StorageError.

    If `of_running` returns None for a job, the metadata in its directory decides.
    """
    require_leadership(leads)
    jobs: Mapping[JobId, Directory] = await list_jobs(root, only)
    results = []
    for job_id, listed in sorted(jobs.items()):
        place = root.child(job_id)
        found = running = await of_running(job_id, before_ms)
        if found is None:
            found = await orphans_of(job_id, place, listed, before_ms=before_ms)
        if not dry_run:
            found = await delete_orphans(found, place, listed if running is None else None, leads=leads)
        results.append(found)
    return tuple(results)


async def _entries(root: Location, only: JobId | None) -> AsyncIterator[tuple[JobId, str, Entry]]:
    async for entry in (root if only is None else root.child(only)).list():
        directory, _, name = root.relative(entry.path).partition("/")
        try:
            yield parse_job_id(directory), name, entry
        except InvalidId:
            continue  # not ours, perhaps savepoints
