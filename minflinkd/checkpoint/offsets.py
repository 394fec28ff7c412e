"""Where each source of a job stands, in plain form and apart from checkpoints (C26).

`offsets.json` beside the checkpoints of a job:

    {"version": 1, "job_id": ..., "recorded_ms": ..., "tasks": {<task>: {
        "processed": {<source>: <Spark's offset>},     up to the last micro-batch that has ended
        "published": {<source>: <Spark's offset>},     up to the last checkpoint that its sinks have published
        "checkpoint_id": ...,                          that one; null before the first
        "staged": true}}}                              whether a sink of the job publishes with checkpoints

If sinks publish with checkpoints, input that was processed but not published is lost with the state. In that case a job
that starts anew begins at the published offsets, otherwise at the processed ones. Pure, except for reading the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from minflinkd.checkpoint import layout
from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.runtime.errors import MALFORMED, MinflinkError
from minflinkd.runtime.ids import JobId, TaskId
from minflinkd.storage.location import Location

FILE = layout.OFFSETS
VERSION = 1


class OffsetsUnreadable(MinflinkError):
    """The recorded offsets are damaged, or were written by a later version."""

    code = "offsets-unreadable"


class TaskOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """Maps each source (the id of its vertex) to Spark's offset, as a JSON value."""

    processed: dict[str, Any] = {}
    published: dict[str, Any] = {}
    checkpoint_id: int | None = None
    staged: bool = False

    @property
    def latest(self) -> dict[str, Any]:
        """The offsets from which no output is missing."""
        return self.published if self.staged else self.published | self.processed


class Offsets(msgspec.Struct, frozen=True, kw_only=True):
    job_id: JobId
    recorded_ms: int = 0
    version: int = VERSION
    tasks: dict[TaskId, TaskOffsets] = {}

    @property
    def published(self) -> int:
        """The latest checkpoint that any task has published; 0 before the first."""
        return max((task.checkpoint_id or 0 for task in self.tasks.values()), default=0)

    def latest(self) -> dict[str, Any]:
        return {source: offset for task in self.tasks.values() for source, offset in task.latest.items()}


def advanced(
    offsets: Offsets,
    processed: Mapping[TaskId, Mapping[str, str]],
    published: CompletedCheckpoint | None,
    sources: Mapping[TaskId, frozenset[str]],
    staged: Mapping[TaskId, bool],
    now_ms: int,
) -> Offsets:
    """Return the offsets with what is known now; the same object if nothing is new.

    What is not known (any more) stays as it was. `sources`: the source vertices of each task. Any other offset belongs
    to an exchange, which starts anew.
    """
    snapshots = {task.task_id: task for task in published.tasks} if published is not None else {}
    tasks: dict[TaskId, TaskOffsets] = {}
    for task, holds in staged.items():
        before = offsets.tasks.get(task, TaskOffsets())
        snapshot = snapshots.get(task)
        shown = before.published | (_values(snapshot.source_offsets, sources[task]) if snapshot is not None else {})
        # An attempt that has had no input yet reports nothing, and the record may be older than its checkpoint.
        passed = {source: offset for source, offset in shown.items() if is_later(offset, before.processed.get(source))}
        tasks[task] = TaskOffsets(
            processed=before.processed | passed | _values(processed.get(task, {}), sources[task]),
            published=shown,
            checkpoint_id=snapshot.checkpoint_id if snapshot is not None else before.checkpoint_id,
            staged=holds,
        )
    if tasks == offsets.tasks:
        return offsets
    return msgspec.structs.replace(offsets, tasks=tasks, recorded_ms=now_ms)


def _values(texts: Mapping[str, str], sources: frozenset[str]) -> dict[str, Any]:
    return {source: value(text) for source, text in texts.items() if source.partition("#")[0] in sources}


def is_later(offset: Any, before: Any) -> bool:
    """Whether an offset is further than another one of the same source: no number is less, and one is more.

    Example: `{"clicks": {"0": 17, "1": 4}}` is later than `{"clicks": {"0": 12, "1": 4}}`. None is before any offset.
    """
    if before is None:
        return offset is not None
    steps = list(_steps(offset, before))
    return min(steps, default=0) >= 0 and max(steps, default=0) > 0


def _steps(offset: Any, before: Any) -> Iterator[float]:
    """Yield by how much each number is more; -1 for what cannot be compared."""
    if isinstance(offset, dict) and isinstance(before, dict):
        for key in before:
            yield from _steps(offset.get(key), before[key])
        yield from (1.0 for key in offset if key not in before)
    elif isinstance(offset, int | float) and isinstance(before, int | float):
        yield offset - before
    elif offset != before:
        yield -1.0


def value(text: str) -> Any:
    """Decode an offset. Most offsets are JSON; one that is not is kept as text."""
    try:
        return msgspec.json.decode(text)
    except MALFORMED:
        return text


def text(offset: Any) -> str:
    """Return the offset as Spark wrote it."""
    return offset if isinstance(offset, str) else msgspec.json.encode(offset).decode()


def encode(offsets: Offsets) -> bytes:
    return msgspec.json.format(msgspec.json.encode(offsets), indent=1)


async def read_offsets(directory: Location) -> Offsets:
    """Read the offsets of the job with checkpoints in `directory`.

    Raises ObjectNotFound, OffsetsUnreadable, StorageError.
    """
    place = directory.child(FILE)
    data = await place.read_bytes()
    try:
        found = msgspec.json.decode(data, type=Offsets)
    except MALFORMED as error:
        raise OffsetsUnreadable(f"{place.uri} cannot be read: {error}") from error
    if found.version > VERSION:
        raise OffsetsUnreadable(f"{place.uri} has version {found.version}", hint="read it with a later minflinkd")
    return found
