"""The exchanges of one running attempt: its inputs, its output, and the gate between them (C1 - C5, J8 - J10).

A micro-batch is published, and a checkpoint is cut, under one lock: so a barrier lies behind exactly the micro-batches
that its snapshot has. The reading side is another process (Spark asks it how far it may read); what it is allowed lies
in files.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.exchange import gate as g
from minflinkd.taskmanager.exchange.log import (
    DATA,
    END_OF_TIME_MS,
    ENTRIES,
    Entry,
    EntryKind,
    ExchangeDamaged,
    LogReader,
    LogWriter,
    entry_path,
    mark_consumed,
    read_entry,
)

RELEASED = "released"
RESTORED = "restored"
UNREAD = "inputs"  # in a snapshot's directory


@dataclass(frozen=True)
class CutState:
    """A cut as it was made: what the snapshot must hold besides Spark's files."""

    cut: g.Cut
    batch_id: int  # the last published micro-batch
    output: int  # the sequence number of the barrier in the output, where there is one
    files: tuple[tuple[str, int], ...]  # unread entries and their data: path in the snapshot, bytes
    input_ended: bool  # nothing of the input follows


class Input:
    """One exchange that the attempt reads.

    `control` is the attempt's own directory for it: `released/<checkpoint>` lets the reader pass a barrier, `restored/`
    holds entries below `first` that a snapshot brought (laid out as a log).
    """

    def __init__(
        self,
        vertex: VertexId,
        directory: Path,
        control: Path,
        *,
        reader: str,
        position: int,
        first: int,
        idle_timeout: float | None,
    ) -> None:
        self.vertex = vertex
        self.directory = directory
        self.control = control
        self.first = first
        self.watermark_ms: int | None = None
        self.ended = False
        self._reader = reader
        self._idle_timeout = idle_timeout
        self._last_entry: float | None = None
        self._news: deque[tuple[int, Entry]] = deque()  # entries with something to say, not taken in yet
        self._restored = LogReader(control / RESTORED, position) if position < first else None
        self._log = LogReader(directory, first)
        (control / RELEASED).mkdir(parents=True, exist_ok=True)

    def scan(self, now: float) -> list[g.Arrived]:
        """What was written since. Raises ExchangeDamaged."""
        found: list[tuple[int, Entry]] = []
        if self._restored is not None:
            found += self._restored.read()
            if self._restored.position < self.first:
                raise ExchangeDamaged(
                    f"the restored entries of {self.vertex} end at {self._restored.position}, not at {self.first}"
                )
            self._restored = None
        found += self._log.read()
        if found or self._last_entry is None:
            self._last_entry = now
        arrived = []
        for sequence, entry in found:
            if entry.watermark_ms is not None or entry.kind is EntryKind.END:
                self._news.append((sequence, entry))
            barrier = entry.checkpoint_id if entry.kind is EntryKind.BARRIER else None
            arrived.append(g.Arrived(self.vertex, sequence, entry.size, barrier))
        return arrived

    def take_in(self, position: int) -> None:
        """The task has everything below `position`."""
        while self._news and self._news[0][0] < position:
            _, entry = self._news.popleft()
            if entry.kind is EntryKind.END:
                self.ended = True
                self.watermark_ms = END_OF_TIME_MS
            elif entry.watermark_ms is not None:
                self.watermark_ms = max(entry.watermark_ms, self.watermark_ms or entry.watermark_ms)

    def effective_watermark(self, now: float) -> int | None:
        """The end of time while the input is idle for longer than it may hold the others back."""
        idle = self._idle_timeout is not None and self._last_entry is not None
        if idle and now - (self._last_entry or now) > (self._idle_timeout or 0.0):
            return END_OF_TIME_MS
        return self.watermark_ms

    def consumed(self, position: int) -> None:
        mark_consumed(self.directory, self._reader, position)

    def release(self, checkpoint_id: int) -> None:
        with suppress(FileNotFoundError):  # the attempt's directory is gone
            (self.control / RELEASED / str(checkpoint_id)).touch()

    def link_unread(self, first: int, end: int, target: Path) -> list[tuple[str, int]]:
        """Link entries [first, end) with their data, as a log below `target`; relative paths and sizes.

        Raises ExchangeDamaged where one is not there any more.
        """
        made = []
        for sequence in range(first, end):
            source = self.control / RESTORED if sequence < self.first else self.directory
            entry = read_entry(source, sequence)
            if entry is None:
                raise ExchangeDamaged(f"entry {sequence} of {self.vertex} is gone before it could be saved")
            paths = [(entry_path(source, sequence), f"{ENTRIES}/{sequence:012d}")]
            paths += [(source / DATA / file.name, f"{DATA}/{file.name}") for file in entry.files]
            for path, name in paths:
                place = target / name
                place.parent.mkdir(parents=True, exist_ok=True)
                os.link(path, place)
                made.append((name, place.stat().st_size))
        return made


class TaskChannels:
    """Thread-safe: micro-batches come from the query's thread, snapshots from others.

    `batch_id`: the micro-batch that the attempt was restored at, -1 for a fresh one.
    """

    def __init__(
        self,
        inputs: tuple[Input, ...],
        output: LogWriter | None,
        *,
        positions: Mapping[VertexId, int],
        batch_id: int,
        hold: bool,
        aligned_timeout: float | None,
        clock: Callable[[], float],
    ) -> None:
        self.inputs = inputs
        self.output = output
        self.published = batch_id
        self._positions = positions
        self._clock = clock
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._watermark_ms: int | None = None  # the last one in the output
        self._targets: dict[int, Path] = {}
        self._stops: set[int] = set()
        self._ended = False
        self._cuts: dict[int, CutState | Exception] = {}
        self._closed_after: int | None = None  # a checkpoint to stop with: nothing is published behind its cut
        self._gate = g.Gate(
            channels={i.vertex: g.Channel(positions[i.vertex], min(positions[i.vertex], i.first)) for i in inputs},
            hold=hold,
            aligned_timeout=aligned_timeout,
        )
        for i in inputs:  # what lies between is skipped: barriers that were passed before
            if positions[i.vertex] < i.first and not (i.control / RESTORED).exists():
                raise ExchangeDamaged(f"input {i.vertex} stands at {positions[i.vertex]} and begins at {i.first}")

    @property
    def no_positions(self) -> dict[VertexId, int]:
        """Where the attempt began, as long as Spark says nothing of an input."""
        return dict(self._positions)

    # --- micro-batches -------------------------------------------------------------------------------------------

    def publish(self, batch_id: int, positions: Mapping[VertexId, int], entry: Entry | None) -> None:
        """A micro-batch was processed: `positions` are where it ends in the inputs, `entry` is its output.

        A repeated one appears only once (J9). Raises ExchangeDamaged.
        """
        with self._changed:
            if batch_id <= self.published:
                return
            self._scan()
            if self.output is not None and entry is not None:
                self.output.append(entry)
                self._watermark_ms = entry.watermark_ms or self._watermark_ms
            self.published = batch_id
            for i in self.inputs:
                i.take_in(positions[i.vertex])
                i.consumed(positions[i.vertex])
            self._feed(g.Advanced(positions))
            self._changed.notify_all()

    def put_watermark(self, watermark_ms: int) -> None:
        """Tell the readers of an idle task that event time goes on."""
        with self._lock:
            if self.output is not None and watermark_ms > (self._watermark_ms or 0):
                self.output.append(Entry(kind=EntryKind.WATERMARK, watermark_ms=watermark_ms))
                self._watermark_ms = watermark_ms

    def put_end(self) -> None:
        """All input is processed, and nothing more fires."""
        with self._lock:
            self._ended = True
            if self.output is not None:
                self.output.append(Entry(kind=EntryKind.END, watermark_ms=END_OF_TIME_MS))

    def watermarks(self) -> dict[VertexId, int]:
        """Of each input that has one."""
        with self._lock:
            now = self._clock()
            known = {i.vertex: i.effective_watermark(now) for i in self.inputs}
        return {vertex: value for vertex, value in known.items() if value is not None}

    def all_ended(self) -> bool:
        with self._lock:
            return all(i.ended for i in self.inputs)

    def backlog(self) -> int:
        """Bytes in the output that a reader still needs."""
        with self._lock:
            return self.output.backlog() if self.output is not None else 0

    def closed(self) -> bool:
        """Whether the attempt is to process nothing more: it stops with a checkpoint that is cut already."""
        with self._lock:
            return self._closed_after is not None

    # --- checkpoints ---------------------------------------------------------------------------------------------

    def trigger(self, checkpoint_id: int, target: Path, *, oldest: int = 0, stop: bool = False) -> None:
        """`target`: where the unread entries of each input are linked, should the checkpoint become unaligned."""
        with self._lock:
            self._targets[checkpoint_id] = target
            if stop:
                self._stops.add(checkpoint_id)
            self._feed(g.Triggered(checkpoint_id, oldest))

    def await_cut(self, checkpoint_id: int, timeout: float) -> CutState | None:
        """The cut of a triggered checkpoint; None: not within `timeout` seconds. Raises ExchangeDamaged."""
        with self._changed:
            self._scan()
            self._feed(g.Tick())
            if checkpoint_id not in self._cuts:
                self._changed.wait(timeout)
            made = self._cuts.pop(checkpoint_id, None)
        if isinstance(made, Exception):
            raise made
        return made

    def abort(self, checkpoint_id: int) -> None:
        """Idempotent; before or after the cut, and before the trigger."""
        with self._changed:
            self._feed(g.Aborted(checkpoint_id))
            self._cuts.pop(checkpoint_id, None)
            self._targets.pop(checkpoint_id, None)
            if self._closed_after == checkpoint_id:
                self._closed_after = None
            self._changed.notify_all()

    def _scan(self) -> None:
        now = self._clock()
        for i in self.inputs:
            for arrived in i.scan(now):
                self._feed(arrived)

    def _feed(self, event: g.Event) -> None:
        self._gate, commands = g.step(self._gate, event, self._clock())
        for command in commands:
            match command:
                case g.Cut():
                    self._cut(command)
                case g.Release(number):
                    for i in self.inputs:
                        i.release(number)

    def _cut(self, cut: g.Cut) -> None:
        number = cut.checkpoint_id
        target = self._targets.pop(number)
        try:
            files = [
                (f"{UNREAD}/{i.vertex}/{name}", size)
                for i in self.inputs
                if i.vertex in cut.unread
                for name, size in i.link_unread(cut.unread[i.vertex], cut.barriers[i.vertex], target / i.vertex)
            ]
        except (OSError, ExchangeDamaged) as error:
            self._cuts[number] = error
            self._changed.notify_all()
            return
        sequence = 0
        if self.output is not None:
            sequence = self.output.append(Entry(kind=EntryKind.BARRIER, checkpoint_id=number))
        if number in self._stops:
            self._stops.discard(number)
            self._closed_after = number
        self._cuts[number] = CutState(cut, self.published, sequence, tuple(files), self._ended)
        self._changed.notify_all()


def no_channels() -> TaskChannels:
    """Of an attempt that exchanges nothing, or is not up yet."""
    return TaskChannels((), None, positions={}, batch_id=-1, hold=True, aligned_timeout=None, clock=time.monotonic)
