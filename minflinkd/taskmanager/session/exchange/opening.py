"""Opens the exchanges of an attempt: waits for its inputs, and continues where a snapshot left them (C14, J9)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql.types import StructType

from minflinkd.checkpoint.state_matching import Reason, StateNotMatched
from minflinkd.jobgraph.model import CheckpointMode
from minflinkd.runtime.errors import Consequence, Kind, MinflinkError
from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.child.protocol import InputChannel, RunTask
from minflinkd.taskmanager.exchange.channels import UNREAD, WATERMARK, StartingPoint, TaskChannels
from minflinkd.taskmanager.exchange.input import RESTORED, Input
from minflinkd.taskmanager.exchange.log import ENTRIES, LogWriter, begin_reading, read_schema
from minflinkd.taskmanager.session.state import snapshot

PATIENCE = 90.0  # seconds to wait until the tasks upstream are built; they are deployed at the same time


class InputMissing(MinflinkError):
    """A task upstream did not open its exchange in time."""

    code = "exchange-not-opened"
    consequence = Consequence.RETRYABLE
    kind = Kind.EXCHANGE


class Opening:
    """Opens the exchanges of one attempt. `checkpoint` is Spark's directory, as it was restored."""

    def __init__(self, request: RunTask, checkpoint: Path) -> None:
        self._request = request
        restored = request.restored
        self._first = {c.vertex_id: restored.inputs.get(c.vertex_id, 0) if restored else 0 for c in request.inputs}
        self._batch_id = restored.batch_id if restored is not None else -1
        unread = checkpoint / UNREAD
        for channel in request.inputs:
            if (unread / channel.vertex_id).exists():  # unread entries are not Spark's: move them out of its directory
                restored_entries = self._restored(channel.vertex_id)
                restored_entries.parent.mkdir(parents=True, exist_ok=True)
                (unread / channel.vertex_id).rename(restored_entries)
        self._promised = None
        if (unread / WATERMARK).exists():
            self._promised = int((unread / WATERMARK).read_text("utf-8"))
            (unread / WATERMARK).unlink()
        if unread.exists():
            unread.rmdir()

    def await_inputs(self, stopping: threading.Event) -> dict[VertexId, str]:
        """Wait until all tasks upstream are built, and return the schema of each input.

        Raises InputMissing, StateNotMatched, ExchangeDamaged.
        """
        deadline, found = time.monotonic() + PATIENCE, {}
        for channel in self._request.inputs:
            while (schema := read_schema(Path(channel.directory))) is None:
                if stopping.wait(0.005) or time.monotonic() > deadline:
                    raise InputMissing(
                        f"the task that yields {channel.vertex_id} did not open its exchange",
                        hint="the logs of its TaskManager say what it is doing",
                    )
            begin_reading(Path(channel.directory), self._request.task.id, self._first[channel.vertex_id])
            self._check_unread(channel.vertex_id, schema)
            found[channel.vertex_id] = schema
        return found

    def _check_unread(self, vertex: VertexId, schema: str) -> None:
        """Raise StateNotMatched if restored rows have other columns: rows are stored by position, not by name."""
        written = read_schema(self._restored(vertex))  # None: nothing is unread, or its columns were not recorded
        if written is not None and _columns(written) != _columns(schema):
            raise StateNotMatched(
                [
                    Reason(
                        f"the checkpoint is unaligned: it has rows of {vertex} that no task has read, with the columns "
                        f"{', '.join(_columns(written))}, and {vertex} yields {', '.join(_columns(schema))}",
                        "try again when the tasks that read it keep up, or without alignment-timeout",
                    )
                ]
            )

    def output(self, schema: str) -> LogWriter | None:
        """Open the attempt's own exchange and write its schema for the readers; None if it has no exchange."""
        output, restored = self._request.output, self._request.restored
        if output is None:
            return None
        first = restored.output if restored else 0
        writer = LogWriter(Path(output.directory), output.readers, first=first, replay=output.replay)
        writer.describe(schema)
        return writer

    def channels(self, output: LogWriter | None, checkpoint: Path, ordinals: Mapping[int, VertexId]) -> TaskChannels:
        """Open the inputs at the positions where the query continues.

        `checkpoint`: the directory that the query starts from. Its offsets are made to fit where the inputs begin.
        """
        positions = {channel.vertex_id: self._start(channel) for channel in self._request.inputs}
        if self._batch_id >= 0 and ordinals:
            batch = snapshot.read_boundary(checkpoint).committed
            fit_positions(checkpoint, batch, ordinals, self._first, self._has_restored)
            entry = snapshot.read_offsets(checkpoint, batch)
            positions = exchange_positions(entry, ordinals, positions)
        checkpointing = self._request.job.checkpointing
        start = StartingPoint(
            positions,
            batch_id=snapshot.read_boundary(checkpoint).committed if self._batch_id >= 0 else -1,
            promised=self._promised,
            oldest=self._request.oldest,
        )
        return TaskChannels(
            tuple(self._input(channel, positions[channel.vertex_id]) for channel in self._request.inputs),
            output,
            start,
            hold=checkpointing.mode is CheckpointMode.EXACTLY_ONCE,
            aligned_timeout=checkpointing.alignment_timeout or None,
            clock=time.monotonic,
        )

    def _input(self, channel: InputChannel, position: int) -> Input:
        return Input(
            channel.vertex_id,
            Path(channel.directory),
            self._restored(channel.vertex_id),
            reader=self._request.task.id,
            position=position,
            first=self._first[channel.vertex_id],
            idle_timeout=channel.idle_timeout or None,
            oldest=self._request.oldest,
        )

    def _start(self, channel: InputChannel) -> int:
        """Return the position at which a query without offsets begins to read."""
        restored = self._restored(channel.vertex_id) / ENTRIES
        return min((int(path.name) for path in restored.glob("*")), default=self._first[channel.vertex_id])

    def _restored(self, vertex: VertexId) -> Path:
        return Path(self._request.directory) / "inputs" / vertex / RESTORED

    def _has_restored(self, vertex: VertexId) -> bool:
        return self._restored(vertex).exists()


def _columns(schema: str) -> list[str]:
    """Return the columns as they are read. Nullability is left out: any column may be null then."""
    return [f"{field.name} {field.dataType.simpleString()}" for field in StructType.fromJson(json.loads(schema))]


def exchange_positions(
    entry: snapshot.OffsetEntry, ordinals: Mapping[int, VertexId], before: Mapping[VertexId, int]
) -> dict[VertexId, int]:
    """Return where a micro-batch ends in each input. If an input is read several times, its least offset counts."""
    found: dict[VertexId, int] = {}
    for ordinal, vertex in ordinals.items():
        offset = entry.offsets[ordinal] if ordinal < len(entry.offsets) else None
        position = before[vertex] if offset is None else int(json.loads(offset)["position"])
        found[vertex] = min(position, found.get(vertex, position))
    return {**before, **found}


def fit_positions(
    checkpoint: Path,
    batch: int,
    ordinals: Mapping[int, VertexId],
    first: Mapping[VertexId, int],
    has_unread: Callable[[VertexId], bool],
) -> None:
    """Make the last micro-batch end where the restored inputs begin.

    An offset further ahead covers rows of the next epoch that an at-least-once task had already read. These rows come
    again, divided into other entries. An offset further back, without unread entries, leaves out only barriers.
    """
    for number in (batch, batch + 1):  # `batch + 1` exists if an empty micro-batch was planned, see `plan_empty_batch`
        if (checkpoint / "offsets" / str(number)).exists():
            _fit(checkpoint, number, ordinals, first, has_unread)


def _fit(
    checkpoint: Path,
    batch: int,
    ordinals: Mapping[int, VertexId],
    first: Mapping[VertexId, int],
    has_unread: Callable[[VertexId], bool],
) -> None:
    place = checkpoint / "offsets" / str(batch)
    entry = snapshot.read_offsets(checkpoint, batch)
    offsets = list(entry.offsets)
    for ordinal, vertex in ordinals.items():
        known = offsets[ordinal] if ordinal < len(offsets) else None
        if known is None:
            continue
        position = int(json.loads(known)["position"])
        if position > first[vertex] or (position < first[vertex] and not has_unread(vertex)):
            offsets[ordinal] = json.dumps({"position": first[vertex]})
    if offsets != list(entry.offsets):
        new = place.with_name(f".{place.name}.new")
        lines = ["v1", json.dumps(entry.metadata), *("-" if offset is None else offset for offset in offsets)]
        new.write_text("\n".join(lines), "utf-8")
        new.replace(place)  # the old one is a hard link into a snapshot
