"""What a job's first attempts start from, unless the job starts empty.

It is a checkpoint or savepoint of any job (C25), or the offsets of the job's sources (C26).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace as copy

from minflinkd.checkpoint import offsets as record
from minflinkd.checkpoint import source_logs as logs
from minflinkd.checkpoint.external import (
    External,
    NoCheckpointThere,
    discard_external,
    newest_below,
    parent,
    read_external,
    read_to_discard,
)
from minflinkd.checkpoint.kept_logs import kept_logs
from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.checkpoint.state_matching import match_tasks
from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.model import JobGraph, Restore, RestoreMode, Task
from minflinkd.rpc.messages import TaskRestore
from minflinkd.rpc.snapshot import TaskSnapshot
from minflinkd.runtime.ids import AttemptId, ResourceId, TaskId
from minflinkd.storage.interface import ObjectNotFound
from minflinkd.storage.registry import Storages


@dataclass(frozen=True)
class Start:
    """A start. The sinks of `checkpoint` may owe output, which is published before the tasks start."""

    path: str
    restores: Mapping[TaskId, TaskRestore] = field(default_factory=dict)
    checkpoint: CompletedCheckpoint | None = None
    checkpoint_id: int | None = None  # of the checkpoint that the state comes from


@dataclass(frozen=True)
class Origin:
    """What the job starts from until it has a checkpoint of its own.

    It is only read. The job's own checkpoints hold nothing of it.
    """

    storages: Storages
    graph: JobGraph

    @property
    def is_claimed(self) -> bool:
        restore = self.graph.restore
        return restore is not None and restore.path is not None and restore.mode is RestoreMode.CLAIM

    async def find(self) -> Start | None:
        """Return what the job starts from, or None if it starts empty.

        Raises what `read_external` does, OffsetsUnreadable, and StateNotMatched if the state does not fit.
        """
        restore = self.graph.restore
        if restore is None:
            return None
        if restore.offsets is None:
            assert restore.path is not None
            origin = await read_external(self.storages, restore.path)
            number = origin.checkpoint.checkpoint_id
            return Start(origin.directory.uri, self._states(origin, restore), origin.checkpoint, number)
        if isinstance(restore.offsets, dict):
            texts = {source: record.text(offset) for source, offset in restore.offsets.items()}
            return Start("offsets", dict(self._at_offsets(texts)))
        assert restore.path is not None
        return await latest_offsets(self.storages, restore.path, self)

    def _states(self, origin: External, restore: Restore) -> dict[TaskId, TaskRestore]:
        allowed = restore.allow_non_restored_state
        tasks = {task.id: [vertex.id for vertex in task.vertices] for task in chain(self.graph)}
        matched = match_tasks(origin.checkpoint.tasks, tasks, allow_non_restored=allowed)
        return {
            task: TaskRestore(
                checkpoint_id=snapshot.checkpoint_id,
                snapshot=copy(snapshot, input_ended=False),  # this job has its own input
                allow_non_restored=allowed,
                root=origin.root.uri,
            )
            for task, snapshot in matched.items()
        }

    def at_checkpoint(self, origin: External) -> Start:
        """Start at the checkpoint's offsets, with the logs of its file sources and what its sinks owe: no state."""
        snapshots = origin.checkpoint.tasks
        own = {
            name: text
            for snapshot in snapshots
            for name, text in snapshot.source_offsets.items()
            if name not in snapshot.inputs
        }
        restores = {task: _with_logs(restore, origin) for task, restore in self._at_offsets(own)}
        owed = [transaction for snapshot in snapshots for transaction in snapshot.transactions]
        everywhere = {vertex.id for vertex in self.graph.vertices}
        for task in chain(self.graph):  # commit what its sinks owe even if it has no source
            mine = {vertex.id for vertex in task.vertices}
            due = tuple(t for t in owed if t.sink in mine)
            if task.id not in restores and not due:
                continue
            gone = tuple(t for t in owed if t.sink not in everywhere)  # refused where the sink is looked for
            restore = restores.get(task.id) or TaskRestore(checkpoint_id=0, snapshot=_nothing(task))
            held = {path for transaction in due for token in transaction.tokens for path in token.files}
            rows = tuple(file for snapshot in snapshots for file in snapshot.files if file.path in held)
            snapshot = copy(restore.snapshot, transactions=(*due, *gone), files=(*restore.snapshot.files, *rows))
            restores[task.id] = copy(restore, snapshot=snapshot, root=origin.root.uri)
        return Start(origin.directory.uri, restores, origin.checkpoint)

    def at_record(self, path: str, offsets: record.Offsets, newest: External | None) -> Start:
        """Start at recorded offsets. File sources have the logs of `newest`, the job's newest checkpoint."""
        ends = logs.sources_with_logs(newest.checkpoint.tasks) if newest is not None else {}
        found, useless = logs.positions(offsets, ends)
        texts = {source: record.text(offset) for source, offset in found.items()}
        restores = dict(self._at_offsets(texts))
        if newest is not None and ends:
            restores = {task: _with_logs(restore, newest, useless) for task, restore in restores.items()}
        return Start(path, restores)

    def _at_offsets(self, texts: Mapping[str, str]) -> Iterator[tuple[TaskId, TaskRestore]]:
        """Yield what each task with sources starts from. Skip sources that the job no longer has."""
        for task in chain(self.graph):
            mine = {source: text for source, text in texts.items() if logs.vertex_of(source) in _sources(task)}
            if mine:
                yield task.id, TaskRestore(checkpoint_id=0, snapshot=_nothing(task), offsets=mine)

    async def discard(self) -> None:
        """Delete the claimed checkpoint, which is no longer needed. Idempotent. Raises StorageError."""
        assert self.graph.restore is not None
        assert self.graph.restore.path is not None
        try:
            origin = await read_to_discard(self.storages, self.graph.restore.path)
        except NoCheckpointThere:
            return
        await discard_external(origin)


async def latest_offsets(storages: Storages, path: str, origin: Origin) -> Start:
    """Return a start at the offsets of a savepoint or checkpoint, or at those recorded in a job's directory.

    The record lags a little. If there is a later checkpoint, that one counts: what it published must not be read again.
    Otherwise the newest checkpoint is only asked for the logs of file sources. If the job has ended and its checkpoints
    are deleted, what was kept of the last one takes its place.

    Raises NoCheckpointThere, CorruptMetadata, MetadataTooNew, OffsetsUnreadable, UnknownScheme, StorageError.
    """
    place = storages.at(path.rstrip("/"))
    directory = parent(place) if place.name == record.FILE else place
    try:
        recorded = await record.read_offsets(directory)
    except ObjectNotFound:
        return origin.at_checkpoint(await read_external(storages, path))
    newest = await newest_below(directory)
    kept = await kept_logs(directory)
    if kept is not None and (newest is None or kept.checkpoint.checkpoint_id > newest.checkpoint.checkpoint_id):
        newest = kept
    if newest is not None and newest.checkpoint.checkpoint_id > recorded.published:
        return origin.at_checkpoint(newest)
    return origin.at_record(path, recorded, newest)


def _sources(task: Task) -> set[str]:
    return {vertex.id for vertex in task.vertices if vertex.source is not None}


def _with_logs(restore: TaskRestore, origin: External, without: Collection[str] = ()) -> TaskRestore:
    """Add the logs that `origin` has of the restore's sources, except those in the vertices `without`."""
    vertices = {logs.vertex_of(source) for source in restore.offsets}.difference(without)
    found = logs.logs_of(origin.checkpoint.tasks, vertices)
    snapshot = copy(restore.snapshot, operators=found.operators, files=found.files)
    return copy(restore, snapshot=snapshot, root=origin.root.uri)


def _nothing(task: Task) -> TaskSnapshot:
    return TaskSnapshot(
        task_id=task.id, attempt_id=AttemptId(""), resource_id=ResourceId(""), checkpoint_id=0, batch_id=-1
    )
