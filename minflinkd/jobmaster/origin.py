"""Where a job's first attempts start from that is not to start empty: a checkpoint or savepoint of anybody (C25), or

the offsets of its sources (C26).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace as copy

from minflinkd.checkpoint import offsets as record
from minflinkd.checkpoint.external import (
    External,
    NoCheckpointThere,
    discard_external,
    newest_below,
    parent,
    read_external,
)
from minflinkd.checkpoint.matching import match_tasks
from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.model import JobGraph, Restore, RestoreMode, Task
from minflinkd.rpc.messages import TaskRestore
from minflinkd.rpc.snapshot import TaskSnapshot
from minflinkd.runtime.ids import AttemptId, ResourceId, TaskId
from minflinkd.storage.interface import ObjectNotFound
from minflinkd.storage.registry import Storages


@dataclass(frozen=True)
class Start:
    """`checkpoint`: whose sinks may owe something, which is published before the tasks start."""

    path: str
    restores: Mapping[TaskId, TaskRestore] = field(default_factory=dict)
    checkpoint: CompletedCheckpoint | None = None
    checkpoint_id: int | None = None  # whose state it is


@dataclass(frozen=True)
class Origin:
    """It counts until the job has a checkpoint of its own, and is only read: that one holds nothing of it."""

    storages: Storages
    graph: JobGraph

    @property
    def is_claimed(self) -> bool:
        restore = self.graph.restore
        return restore is not None and restore.path is not None and restore.mode is RestoreMode.CLAIM

    async def find(self) -> Start | None:
        """None where the job starts empty.

        Raises what `read_external` does, OffsetsUnreadable, and StateNotMatched where the state does not fit.
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
                snapshot=copy(snapshot, input_ended=False),  # this job has input of its own
                allow_non_restored=allowed,
                root=origin.root.uri,
            )
            for task, snapshot in matched.items()
        }

    def at_checkpoint(self, origin: External) -> Start:
        """At its offsets, with the logs of its file sources, and nothing else of it."""
        restores: dict[TaskId, TaskRestore] = {}
        for snapshot in origin.checkpoint.tasks:
            logs = tuple(file for file in snapshot.files if file.path.startswith("sources/"))
            kept = copy(
                snapshot,
                files=logs,
                batch_id=-1,
                input_ended=False,
                inputs={},
                output=0,
                unaligned=False,
            )
            own = {name: text for name, text in snapshot.source_offsets.items() if name not in snapshot.inputs}
            for task, restore in self._at_offsets(own):
                restores[task] = copy(restore, snapshot=kept, root=origin.root.uri)
            owing = {transaction.sink for transaction in snapshot.transactions}
            for other in chain(self.graph):  # what its sinks owe is committed also where no source is beside them
                if other.id not in restores and owing & {vertex.id for vertex in other.vertices}:
                    restores[other.id] = TaskRestore(checkpoint_id=0, snapshot=kept, root=origin.root.uri)
        return Start(origin.directory.uri, restores, origin.checkpoint)

    def at_record(self, path: str, offsets: record.Offsets) -> Start:
        texts = {source: record.text(offset) for source, offset in offsets.latest().items()}
        return Start(path, dict(self._at_offsets(texts)))

    def _at_offsets(self, texts: Mapping[str, str]) -> Iterator[tuple[TaskId, TaskRestore]]:
        """Sources that the job no longer has are left out: what they had read is read."""
        for task in chain(self.graph):
            mine = {source: text for source, text in texts.items() if source.partition("#")[0] in _sources(task)}
            if mine:
                yield task.id, TaskRestore(checkpoint_id=0, snapshot=_nothing(task), offsets=mine)

    async def discard(self) -> None:
        """The claimed one is subsumed. Idempotent. Raises StorageError."""
        assert self.graph.restore is not None
        assert self.graph.restore.path is not None
        try:
            origin = await read_external(self.storages, self.graph.restore.path)
        except NoCheckpointThere:
            return
        await discard_external(origin)


async def latest_offsets(storages: Storages, path: str, origin: Origin) -> Start:
    """Those of a savepoint or checkpoint; or, where the path is a job's directory, those recorded there.

    The record is a little behind: a later checkpoint counts, as what it published is not to be read again.

    Raises NoCheckpointThere, CorruptMetadata, MetadataTooNew, OffsetsUnreadable, UnknownScheme, StorageError.
    """
    place = storages.at(path.rstrip("/"))
    directory = parent(place) if place.name == record.FILE else place
    try:
        recorded = await record.read_offsets(directory)
    except ObjectNotFound:
        return origin.at_checkpoint(await read_external(storages, path))
    newest = await newest_below(directory)
    if newest is not None and newest.checkpoint.checkpoint_id > recorded.published:
        return origin.at_checkpoint(newest)
    return origin.at_record(path, recorded)


def _sources(task: Task) -> set[str]:
    return {vertex.id for vertex in task.vertices if vertex.source is not None}


def _nothing(task: Task) -> TaskSnapshot:
    return TaskSnapshot(
        task_id=task.id, attempt_id=AttemptId(""), resource_id=ResourceId(""), checkpoint_id=0, batch_id=-1
    )
