"""Tracks which segments are live, and in which physical files they lie (F4, F5). Pure and immutable.

It counts what checkpoints refer to, and decides nothing. A file without a live segment *may* be deleted, and the
coordinator asks only after a checkpoint has been processed as a whole. The registry is never stored: `Registry.of`
builds it from the metadata of the retained checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from msgspec.structs import replace

from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.rpc.snapshot import StateFile, StateHandle, TaskSnapshot
from minflinkd.runtime.ids import TaskId

Registered = tuple[TaskId, StateHandle]
Content = tuple[TaskId, int, str]  # owner, length and checksum


@dataclass(frozen=True)
class LiveSegments:
    """Number and total bytes of the live segments in one physical file."""

    count: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Registry:
    """Counts references to segments.

    `live`: how many state files of registered checkpoints are this segment. `by_content`: the segments with the same
    bytes, in the order of their registration. `files`: exactly the files with a live segment.
    """

    live: Mapping[Registered, int] = field(default_factory=dict)
    by_content: Mapping[Content, tuple[StateHandle, ...]] = field(default_factory=dict)
    files: Mapping[str, LiveSegments] = field(default_factory=dict)

    @classmethod
    def of(cls, checkpoints: Iterable[CompletedCheckpoint]) -> Self:
        """Build the registry of the checkpoints in a store, in the order of their ids."""
        registry = cls()
        for checkpoint in checkpoints:
            registry = registry.with_(checkpoint)
        return registry

    @property
    def segments(self) -> int:
        return sum(live.count for live in self.files.values())

    @property
    def bytes(self) -> int:
        return sum(live.bytes for live in self.files.values())

    def known(self, task: TaskId, handle: StateHandle) -> StateHandle | None:
        """Return the registered segment with the same bytes; the latest if they were rewritten."""
        found = self.by_content.get(_content(task, handle))
        return found[-1] if found else None

    def registered(self, snapshot: TaskSnapshot) -> TaskSnapshot:
        """Replace the snapshot's own copies of segments with the registered ones (F4).

        Segments that the task has rewritten on purpose stay: they replace the registered ones (F6).
        """
        rewritten = frozenset(snapshot.rewritten)

        def settled(file: StateFile) -> StateFile:
            known = None if file.handle.file in rewritten else self.known(snapshot.task_id, file.handle)
            return file if known is None or known == file.handle else StateFile(file.path, known)

        return replace(snapshot, files=tuple(map(settled, snapshot.files)))

    def located(self, snapshot: TaskSnapshot, available: frozenset[str]) -> TaskSnapshot:
        """Replace segments in files of earlier checkpoints that are not `available` with registered ones.

        A task keeps naming its own copy of a segment, even after that was dropped for a registered one.
        """
        own = frozenset(snapshot.physical_files)

        def found(file: StateFile) -> StateFile:
            if file.handle.file in own or file.handle.file in available:
                return file
            return StateFile(file.path, self.known(snapshot.task_id, file.handle) or file.handle)

        return replace(snapshot, files=tuple(map(found, snapshot.files)))

    def with_(self, checkpoint: CompletedCheckpoint) -> Self:
        live, contents, files = dict(self.live), dict(self.by_content), dict(self.files)
        for task, handle in _references(checkpoint):
            count = live[task, handle] = live.get((task, handle), 0) + 1
            if count == 1:
                content, others = _content(task, handle), files.get(handle.file, LiveSegments())
                contents[content] = (*contents.get(content, ()), handle)
                files[handle.file] = LiveSegments(others.count + 1, others.bytes + handle.length)
        return type(self)(live, contents, files)

    def without(self, checkpoint: CompletedCheckpoint) -> Self:
        """Return the registry without a registered checkpoint."""
        live, contents, files = dict(self.live), dict(self.by_content), dict(self.files)
        for task, handle in _references(checkpoint):
            live[task, handle] -= 1
            if live[task, handle]:
                continue
            del live[task, handle]
            content, others = _content(task, handle), files[handle.file]
            contents[content] = tuple(other for other in contents[content] if other != handle)
            if not contents[content]:
                del contents[content]
            files[handle.file] = LiveSegments(others.count - 1, others.bytes - handle.length)
            if not files[handle.file].count:
                del files[handle.file]
        return type(self)(live, contents, files)


def _references(checkpoint: CompletedCheckpoint) -> Iterable[Registered]:
    return ((task.task_id, file.handle) for task in checkpoint.tasks for file in task.files)


def _content(task: TaskId, handle: StateHandle) -> Content:
    return (task, handle.length, handle.checksum)
