"""Savepoints (C24): a completed checkpoint, copied so that it shares nothing with others (docs/savepoints.md).

    <directory>/savepoint-<job>-<random>/_metadata
    <directory>/savepoint-<job>-<random>/<epoch>-<n>-tm-savepoint-<random>-<k>.seg

The job's sinks publish what they had staged before the savepoint is written, so it owes nothing. A savepoint exists
once its metadata exists. A failed copy leaves nothing behind.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from msgspec.structs import replace

from minflinkd.checkpoint import layout
from minflinkd.checkpoint.causes import CheckpointKind
from minflinkd.checkpoint.metadata import CompletedCheckpoint, encode
from minflinkd.filemerging.segments import RangedRead, checksum, physical_file_name, plan_reads
from minflinkd.filemerging.writer import DEFAULT_MAX_FILE_SIZE, PhysicalFileWriter
from minflinkd.rpc.snapshot import StateFile, StateHandle
from minflinkd.runtime.crash_points import CrashPoint, reach
from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.runtime.ids import AttemptId, JobId, ResourceId
from minflinkd.storage.interface import ObjectNotFound, StorageCorrupt
from minflinkd.storage.location import Location

_WRITER = ResourceId("tm-savepoint")  # takes the place of the TaskManager in file names


class SavepointNotWritten(MinflinkError):
    """The checkpoint for the savepoint is complete, but the copy failed."""

    code = "savepoint-not-written"
    consequence = Consequence.RETRYABLE


def new_name(job_id: JobId) -> str:
    """Return a new name for the directory of a savepoint. Use it for one attempt to write the savepoint."""
    return f"savepoint-{job_id[:6]}-{secrets.token_hex(6)}"


async def write_savepoint(
    root: Location,
    checkpoint: CompletedCheckpoint,
    directory: Location,
    name: str = "",
    *,
    max_file_size: int = DEFAULT_MAX_FILE_SIZE,
) -> Location:
    """Copy what `checkpoint` refers to below `root` into a new directory below `directory`, and return that directory.

    `name` is the name of the new directory. If it is empty, `new_name` makes one.

    The caller must make sure that the checkpoint is published and stays until this returns. Memory: one request of 64
    MiB, or the largest state file. Raises StorageError.
    """
    token = secrets.token_hex(16)
    target = directory.child(name or new_name(checkpoint.job_id))

    def file_name(sequence: int) -> str:
        return physical_file_name(checkpoint.epoch, checkpoint.checkpoint_id, AttemptId(token), _WRITER, sequence)

    async with PhysicalFileWriter(target, file_name, max_file_size=max_file_size) as writer:
        checkpoint = _without_published_rows(checkpoint)
        handles = await _copy(root, checkpoint, writer)
        names = await writer.commit()
        reach(CrashPoint.SAVEPOINT_COPIED)
        try:
            savepoint = _relocated(checkpoint, handles, writer.sizes)
            await target.child(layout.METADATA).write_bytes(encode(savepoint))
        except BaseException:
            await target.delete_children([layout.METADATA, *names])
            raise
    return target


async def verify(root: Location, checkpoint: CompletedCheckpoint) -> int:
    """Read every segment and return the number of bytes. Raises StorageCorrupt for the first missing or damaged one."""
    total = 0
    for read in _reads(checkpoint):
        for _, data in await checked_segments(root, read):
            total += len(data)
    return total


def _without_published_rows(checkpoint: CompletedCheckpoint) -> CompletedCheckpoint:
    """Leave out the rows that sinks hold in the checkpoint (K1): a savepoint is written once they are published."""
    tasks = []
    for task in checkpoint.tasks:
        held = {path for owed in task.transactions for token in owed.tokens for path in token.files}
        tasks.append(replace(task, files=tuple(file for file in task.files if file.path not in held)))
    return replace(checkpoint, tasks=tuple(tasks))


def _reads(checkpoint: CompletedCheckpoint) -> list[RangedRead]:
    return plan_reads({f"{task.task_id}/{file.path}": file.handle for task in checkpoint.tasks for file in task.files})


async def _copy(
    root: Location, checkpoint: CompletedCheckpoint, writer: PhysicalFileWriter
) -> dict[StateHandle, StateHandle]:
    handles: dict[StateHandle, StateHandle] = {}
    for read in _reads(checkpoint):
        for handle, data in await checked_segments(root, read):
            handles[handle] = await writer.append(data)
    empty = {file.handle for task in checkpoint.tasks for file in task.files if not file.handle.length}
    for handle in empty:
        handles[handle] = await writer.append(b"")
    return handles


async def checked_segments(root: Location, read: RangedRead) -> list[tuple[StateHandle, bytes]]:
    """Fetch the segments of one request. Raises StorageCorrupt if one is missing or differs from its checksum."""
    try:
        data = b"".join([piece async for piece in root.child(read.file).open_read(read.offset, read.length)])
    except ObjectNotFound as error:
        raise StorageCorrupt(f"the physical file {read.file} is missing in {root.uri}") from error
    found = []
    for segment in read.segments:
        handle = segment.handle
        start = handle.offset - read.offset
        piece = data[start : start + handle.length]
        if checksum(piece) != handle.checksum:
            raise StorageCorrupt(
                f"physical file {handle.file} in {root.uri}, segment {segment.paths[0]}: its checksum differs"
            )
        found.append((handle, piece))
    return found


def _relocated(
    checkpoint: CompletedCheckpoint, handles: dict[StateHandle, StateHandle], sizes: Mapping[str, int]
) -> CompletedCheckpoint:
    tasks = []
    for task in checkpoint.tasks:
        files = tuple(StateFile(file.path, handles[file.handle]) for file in task.files)
        used = {file.handle.file for file in files}
        mine = {name: size for name, size in sizes.items() if name in used}
        tasks.append(replace(task, files=files, transactions=(), physical_files=tuple(mine), file_sizes=mine))
    return replace(checkpoint, kind=CheckpointKind.SAVEPOINT, tasks=tuple(tasks), self_contained=True)
