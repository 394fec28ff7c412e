"""The exchanges of one running attempt: its inputs, its output, and the gate between them (C1 - C5, J8 - J10).

A micro-batch is published, and a checkpoint is cut, under one lock: so a barrier lies behind exactly the micro-batches
that its snapshot has. The reading side is another process (Spark asks it how far it may read); what it is allowed lies
in files.
"""

from __future__ import annotations

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
from minflinkd.taskmanager.placing import link_or_copy

RELEASED = "released"
RESTORED = "restored"
UNREAD = "inputs"  # in a snapshot's directory
WATERMARK = ".watermark"  # in there: the last one of the output


class CheckpointEnded(Exception):
    """It was aborted, or a later one was cut: this attempt has no part in it."""


@dataclass(frozen=True)
class CutState:
    """A cut as it was made: what the snapshot must hold besides Spark's files."""

    cut: g.Cut
    batch_id: int  # the last published micro-batch
    output: int  # the sequence number of the barrier in the output, where there is one
    files: tuple[tuple[str, int], ...]  # unread entries and their data: path in the snapshot, bytes
    input_ended: bool  # nothing of the input follows
    watermark_ms: int | None = None  # the last one in the output


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
        self._active_at: float | None = None  # something that tells of rows or of event time came, or was taken in
        self._active_until = 0  # the entry behind the last such
        self._position = position
        self._news: deque[tuple[int, Entry]] = deque()  # entries with something to say, not taken in yet
        self._restored = LogReader(control / RESTORED, position) if position < first else None
        self._log = LogReader(directory, first)
        (control / RELEASED).mkdir(parents=True, exist_ok=True)

    def scan(self, now: float) -> list[g.Arrived]:
        """What was written since. Raises ExchangeDamaged."""
        found: list[tuple[int, Entry]] = []
        left_over = self._restored is not None  # among what a snapshot brought are barriers of earlier attempts
        if self._restored is not None:
            found += self._restored.read()
            if self._restored.position < self.first:
                raise ExchangeDamaged(
                    f"the restored entries of {self.vertex} end at {self._restored.position}, not at {self.first}"
                )
            self._restored = None
        found += self._log.read()
        if self._active_at is None:
            self._active_at = now
        arrived = []
        for sequence, entry in found:
            if entry.watermark_ms is not None or entry.kind is EntryKind.END:
                self._news.append((sequence, entry))
            if entry.size or entry.kind is EntryKind.WATERMARK:
                self._active_at, self._active_until = now, sequence + 1
            barrier = entry.checkpoint_id if entry.kind is EntryKind.BARRIER else None
            void = left_over and sequence < self.first
            arrived.append(g.Arrived(self.vertex, sequence, entry.size, barrier, void))
        return arrived

    def take_in(self, position: int, now: float) -> None:
        """The task has everything below `position`."""
        if self._position < self._active_until:
            self._active_at = now
        self._position = position
        while self._news and self._news[0][0] < position:
            _, entry = self._news.popleft()
            if entry.kind is EntryKind.END:
                self.ended = True
                self.watermark_ms = END_OF_TIME_MS
            elif entry.watermark_ms is not None:
                self.watermark_ms = max(entry.watermark_ms, self.watermark_ms or entry.watermark_ms)

    @property
    def may_idle(self) -> bool:
        return self._idle_timeout is not None

    def is_idle(self, now: float) -> bool:
        """For longer than it may hold the others back. Rows that wait to be processed are no idleness."""
        if self._idle_timeout is None or self._active_at is None or self._position < self._active_until:
            return False
        return now - self._active_at > self._idle_timeout

    def consumed(self, position: int) -> None:
        mark_consumed(self.directory, self._reader, position)

    def release(self, checkpoint_id: int) -> None:
        with suppress(FileNotFoundError):  # the attempt's directory is gone
            (self.control / RELEASED / str(checkpoint_id)).touch()

    def link_unread(self, first: int, end: int, target: Path) -> list[tuple[str, int]]:
        """Link (else copy) entries [first, end) with their data, as a log below `target`; relative paths and sizes.

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
                link_or_copy(path, place)
                made.append((name, place.stat().st_size))
        return made


class TaskChannels:
    """Thread-safe: micro-batches come from the query's thread, snapshots from others.

    `batch_id`: the micro-batch that the attempt was restored at, -1 for a fresh one; `promised`: the watermark that its
    output had there.
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
        promised: int | None = None,
    ) -> None:
        self.inputs = inputs
        self.output = output
        self.published = batch_id
        self._positions = positions
        self._clock = clock
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
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
        self._watermark_ms = promised
        if output is not None and promised is not None:  # before the attempt: an idle task would not say it again
            output.append(Entry(kind=EntryKind.WATERMARK, watermark_ms=promised))
        for i in inputs:  # what lies between is skipped: barriers that were passed before
            if positions[i.vertex] < i.first and not (i.control / RESTORED).exists():
                raise ExchangeDamaged(f"input {i.vertex} stands at {positions[i.vertex]} and begins at {i.first}")

    @property
    def no_positions(self) -> dict[VertexId, int]:
        """Where the attempt began, as long as Spark says nothing of an input."""
        return dict(self._positions)

    # --- micro-batches -------------------------------------------------------------------------------------------

    def publish(self, batch_id: int, positions: Mapping[VertexId, int], entry: Entry | None) -> bool:
        """A micro-batch was processed: `positions` are where it ends in the inputs, `entry` is its output.

        A repeated one appears only once (J9). False, and nothing happens, while the attempt is `closed`. Raises
        ExchangeDamaged.
        """
        with self._changed:
            if batch_id <= self.published:
                return True
            if self._closed_after is not None:
                return False
            self._scan()
            if self.output is not None and entry is not None:
                self.output.append(entry)
                self._watermark_ms = entry.watermark_ms or self._watermark_ms
            self.published = batch_id
            now = self._clock()
            for i in self.inputs:
                i.take_in(positions[i.vertex], now)
                i.consumed(positions[i.vertex])
            self._feed(g.Advanced(positions))
            self._changed.notify_all()
        return True

    def poll(self) -> None:
        """Look at the inputs, also while no micro-batch and no checkpoint does. Raises ExchangeDamaged."""
        with self._lock:
            self._scan()
            self._feed(g.Tick())

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
        """Of each input that has one. One that is idle holds the others back no more: it goes along with them.

        Where all are idle they go along with the furthest, as in Flink: the last to become idle held the others back.
        """
        with self._lock:
            now = self._clock()
            idle = {i.vertex for i in self.inputs if i.is_idle(now)}
            known = {i.vertex: i.watermark_ms for i in self.inputs if i.watermark_ms is not None}
            active = [i.vertex for i in self.inputs if i.vertex not in idle and not i.ended]
        if active:
            told = [known.get(vertex) for vertex in active]
            together = None if None in told else min(ms for ms in told if ms is not None)
        else:
            together = max((known[vertex] for vertex in idle if vertex in known), default=None)
        if together is not None:
            known |= {vertex: max(together, known.get(vertex, together)) for vertex in idle}
        return known

    @property
    def may_idle(self) -> bool:
        """Whether time alone may move the watermarks."""
        return any(i.may_idle for i in self.inputs)

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
            for ended in [number for number in self._targets if g.has_ended(self._gate, number)]:
                del self._targets[ended]
                self._stops.discard(ended)
            self._changed.notify_all()

    def await_cut(self, checkpoint_id: int, timeout: float) -> CutState | None:
        """The cut of a triggered checkpoint; None: not within `timeout` seconds.

        Raises ExchangeDamaged, OSError, CheckpointEnded.
        """
        with self._changed:
            self._scan()
            self._feed(g.Tick())
            if checkpoint_id not in self._cuts and not g.has_ended(self._gate, checkpoint_id):
                self._changed.wait(timeout)
            made = self._cuts.pop(checkpoint_id, None)
            if made is None and g.has_ended(self._gate, checkpoint_id):
                raise CheckpointEnded(f"checkpoint {checkpoint_id} was aborted, or a later one overtook it")
        if isinstance(made, Exception):
            raise made
        return made

    def abort(self, checkpoint_id: int) -> None:
        """Idempotent; before or after the cut, and before the trigger."""
        with self._changed:
            self._feed(g.Aborted(checkpoint_id))
            self._cuts.pop(checkpoint_id, None)
            self._targets.pop(checkpoint_id, None)
            self._stops.discard(checkpoint_id)
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
        self._cuts[number] = CutState(cut, self.published, sequence, tuple(files), self._ended, self._watermark_ms)
        self._changed.notify_all()


def no_channels() -> TaskChannels:
    """Of an attempt that exchanges nothing, or is not up yet."""
    return TaskChannels((), None, positions={}, batch_id=-1, hold=True, aligned_timeout=None, clock=time.monotonic)
