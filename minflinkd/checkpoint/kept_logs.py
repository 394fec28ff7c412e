"""What is kept of a job's last checkpoint when its checkpoints are deleted: the logs of its file sources (C26).

    <directory of the job>/source-logs/_logs                  a checkpoint's metadata, with offsets and logs only
    <directory of the job>/source-logs/<epoch>-<n>-...seg     the logs' entries, compressed

Together with `offsets.json` this is all that a start from recorded offsets needs. An entry has the name that it had in
the checkpoint, and `.gz`. It is unpacked where the query starts (`taskmanager.session.restore.offsets`).
"""

from __future__ import annotations

import asyncio
import gzip
import secrets

from msgspec.structs import replace

from minflinkd.checkpoint import layout
from minflinkd.checkpoint.external import External
from minflinkd.checkpoint.metadata import CompletedCheckpoint, CorruptMetadata, MetadataTooNew, encode
from minflinkd.checkpoint.savepoints import checked_segments
from minflinkd.checkpoint.source_logs import sources_with_logs, vertex_of, with_logs_only
from minflinkd.checkpoint.store import read_checkpoint
from minflinkd.filemerging.segments import physical_file_name, plan_reads
from minflinkd.filemerging.writer import PhysicalFileWriter
from minflinkd.rpc.snapshot import StateFile, StateHandle
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import AttemptId, ResourceId
from minflinkd.storage.interface import ObjectNotFound
from minflinkd.storage.location import Location

MOST = 256 * 1024 * 1024  # bytes of logs before compression: about two million files

_WRITER = ResourceId("tm-source-logs")  # takes the place of the TaskManager in file names


class LogsTooLarge(MinflinkError):
    """The logs of a job's file sources are too large to be kept beside the record of its offsets."""

    code = "source-logs-too-large"


async def keep_logs(root: Location, checkpoint: CompletedCheckpoint, *, most: int = MOST) -> None:
    """Write what is kept of the job's last checkpoint. Nothing if it has no file sources. May be repeated.

    The checkpoint must be published, as nothing is kept of what its sinks owe. Memory: one request of 64 MiB, or the
    largest entry. Raises LogsTooLarge, StorageError.
    """
    vertices = frozenset(map(vertex_of, sources_with_logs(checkpoint.tasks)))
    if not vertices or await _is_kept(root, checkpoint.checkpoint_id):
        return
    tasks = tuple(with_logs_only(task, vertices) for task in checkpoint.tasks)
    wanted = {f"{task.task_id}/{file.path}": file.handle for task in tasks for file in task.files}
    size = sum(handle.length for handle in wanted.values())
    if size > most:
        raise LogsTooLarge(
            f"the logs of the file sources have {size} bytes, and at most {most} are kept",
            hint="retain the job's checkpoints if another job is to start from its offsets",
        )
    token, directory = secrets.token_hex(16), root.child(layout.SOURCE_LOGS)

    def file_name(sequence: int) -> str:
        return physical_file_name(checkpoint.epoch, checkpoint.checkpoint_id, AttemptId(token), _WRITER, sequence)

    async with PhysicalFileWriter(directory, file_name) as writer:
        handles: dict[StateHandle, StateHandle] = {}
        for read in plan_reads(wanted):
            for handle, data in await checked_segments(root, read):
                handles[handle] = await writer.append(await asyncio.to_thread(gzip.compress, data, 6))
        for handle in wanted.values():
            if not handle.length:  # nothing was read for it
                handles[handle] = await writer.append(gzip.compress(b""))
        names = await writer.commit()
        kept = tuple(
            replace(
                task,
                files=tuple(StateFile(file.path + layout.PACKED, handles[file.handle]) for file in task.files),
                physical_files=names,
                file_sizes=dict(writer.sizes),
            )
            for task in tasks
        )
        await root.child(layout.KEPT_LOGS).write_bytes(
            encode(replace(checkpoint, tasks=kept, hooks=(), self_contained=True))
        )


async def _is_kept(root: Location, checkpoint_id: int) -> bool:
    found = await kept_logs(root)
    return found is not None and found.checkpoint.checkpoint_id == checkpoint_id


async def kept_logs(root: Location) -> External | None:
    """Return what was kept of a job's last checkpoint. None if there is nothing readable. Raises StorageError."""
    metadata = root.child(layout.KEPT_LOGS)
    try:
        checkpoint = await read_checkpoint(metadata)
    except (ObjectNotFound, CorruptMetadata, MetadataTooNew):
        return None
    return External(checkpoint, metadata, root.child(layout.SOURCE_LOGS))
