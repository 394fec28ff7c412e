"""The exchanges of one running attempt: its inputs, its output, and the gate between them (C1 - C5, J8 - J10).

One lock covers publishing a micro-batch, cutting a checkpoint, and telling Spark how far it may read. So a barrier
comes after exactly the micro-batches in its snapshot, and no micro-batch reads past a barrier that holds its input.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.exchange import gate as g
from minflinkd.taskmanager.exchange.input import Input
from minflinkd.taskmanager.exchange.log import END_OF_TIME_MS, Entry, EntryKind, ExchangeDamaged, LogWriter

UNREAD = "inputs"  # directory within a snapshot
WATERMARK = ".watermark"  # file in there: the last watermark of the output
LAST_BATCH_PATIENCE = 10.0  # seconds that a cut for a stop waits for the micro-batch in progress
REMEMBERED = 64  # cuts of which it is not known yet whether their checkpoints complete


class CheckpointEnded(Exception):
    """The checkpoint was aborted, or a later one was cut. This attempt takes no part in it."""


@dataclass(frozen=True)
class _Closing:
    """A stop checkpoint that waits for the micro-batch in progress, until `deadline`.

    If `planned`, Spark is still planning that micro-batch, which has yet to begin.
    """

    checkpoint_id: int
    oldest: int
    deadline: float
    planned: bool


@dataclass(frozen=True)
class CutState:
    """A cut that was made: what the snapshot must hold besides Spark's files."""

    cut: g.Cut
    batch_id: int  # the last published micro-batch
    output: int  # the sequence number of the barrier in the output, if there is an output
    files: tuple[tuple[str, int], ...]  # unread entries and their data: path in the snapshot, bytes
    input_ended: bool  # no more input follows
    watermark_ms: int | None = None  # the last one in the output


@dataclass(frozen=True)
class StartingPoint:
    """Where an attempt begins: at a restored snapshot, or afresh.

    Checkpoints before `oldest` have ended: tasks upstream may have run on, and what they have written may contain such
    barriers.
    """

    positions: Mapping[VertexId, int]  # in the inputs
    batch_id: int = -1  # the last micro-batch before
    promised: int | None = None  # the watermark of the output, in milliseconds
    oldest: int = 0


class TaskChannels:
    """The exchanges of one attempt. Thread-safe: micro-batches come from the query's thread, snapshots from others."""

    def __init__(
        self,
        inputs: tuple[Input, ...],
        output: LogWriter | None,
        start: StartingPoint,
        *,
        hold: bool,
        aligned_timeout: float | None,
        clock: Callable[[], float],
    ) -> None:
        positions, promised = start.positions, start.promised
        self.inputs = inputs
        self.output = output
        self.published = start.batch_id
        self._positions = positions
        self._hold = hold
        self._clock = clock
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._targets: dict[int, Path] = {}
        self._stops: set[int] = set()
        self._ended = False
        self._cuts: dict[int, CutState | Exception] = {}
        self._barriers: dict[int, Mapping[VertexId, int]] = {}  # of cuts: where a restart from them would read
        self._in_progress = False  # a micro-batch has begun and is not published
        self._closing: _Closing | None = None
        self._closed_after: int | None = None  # the stop checkpoint that was cut: nothing is published after it
        self._gate = g.Gate(
            channels={i.vertex: g.Channel(positions[i.vertex], min(positions[i.vertex], i.first)) for i in inputs},
            hold=hold,
            aligned_timeout=aligned_timeout,
            floor=start.oldest,
        )
        self._watermark_ms = promised
        if output is not None and promised is not None:  # repeat it: an idle task would not emit it again
            output.append(Entry(kind=EntryKind.WATERMARK, watermark_ms=promised))
        for i in inputs:  # barriers in between, which were passed before, are skipped
            if positions[i.vertex] < i.first and not i.restored.exists():
                raise ExchangeDamaged(f"input {i.vertex} stands at {positions[i.vertex]} and begins at {i.first}")

    @property
    def closed_after(self) -> int | None:
        """The stop checkpoint that was cut. No micro-batch was published after it."""
        with self._lock:
            return self._closed_after

    @property
    def no_positions(self) -> dict[VertexId, int]:
        """The positions where the attempt began, for inputs on which Spark has reported nothing yet."""
        return dict(self._positions)

    # --- what Spark may read ---------------------------------------------------------------------------------------

    def readable(self, vertex: VertexId, start: int | None) -> int:
        """Return how far Spark may read, starting where an earlier micro-batch ended. Raises ExchangeDamaged.

        `start` is None for a query without offsets. Entries after a barrier are hidden until its checkpoint is cut or
        has ended (C2).
        """
        with self._lock:
            self._scan()
            begin = self._positions[vertex] if start is None else start
            return self._input(vertex).readable(begin, hold=self._hold)

    def data_files(self, vertex: VertexId, start: int | None, end: int) -> list[Path]:
        """Return the data of the entries in between, except those already processed. Raises ExchangeDamaged."""
        with self._lock:
            return self._input(vertex).data_files(self._positions[vertex] if start is None else start, end)

    def _input(self, vertex: VertexId) -> Input:
        return next(i for i in self.inputs if i.vertex == vertex)

    # --- micro-batches -------------------------------------------------------------------------------------------

    def begin(self) -> bool:
        """Begin a micro-batch, and return whether it may be processed.

        While the attempt stops with a checkpoint, only the micro-batch that Spark was planning may be processed.
        """
        with self._lock:
            closing = self._closing
            if self._closed_after is not None or (closing is not None and not closing.planned):
                return False
            if closing is not None:
                self._closing = replace(closing, planned=False)
            self._in_progress = True
            return True

    def publish(self, batch_id: int, positions: Mapping[VertexId, int], entry: Entry | None) -> bool:
        """Publish a processed micro-batch. It ends at `positions` in the inputs; `entry` is its output.

        A repeated one appears only once (J9). Returns False, and does nothing, after the cut of a stop checkpoint.
        Raises ExchangeDamaged.
        """
        with self._changed:
            if batch_id <= self.published:
                self._in_progress = False
                self._close_in_time()
                self._changed.notify_all()
                return True
            if self._closed_after is not None:
                return False
            self._scan()
            if self.output is not None and entry is not None:
                self.output.append(entry)
                self._watermark_ms = entry.watermark_ms or self._watermark_ms
            self.published = batch_id
            self._in_progress = False
            now = self._clock()
            for i in self.inputs:
                i.take_in(positions[i.vertex], now)
                i.consumed(positions[i.vertex])
            self._feed(g.Advanced(positions))
            self._close_in_time()
            self._changed.notify_all()
        return True

    def poll(self) -> None:
        """Look at the inputs, even if no micro-batch or checkpoint does. Raises ExchangeDamaged."""
        with self._lock:
            self._scan()
            self._feed(g.Tick())

    def put_watermark(self, watermark_ms: int) -> None:
        """Tell the readers of an idle task that event time advances."""
        with self._lock:
            if self.output is not None and watermark_ms > (self._watermark_ms or 0):
                self.output.append(Entry(kind=EntryKind.WATERMARK, watermark_ms=watermark_ms))
                self._watermark_ms = watermark_ms

    def put_end(self) -> None:
        """Mark the end: all input is processed, and no more timers fire."""
        with self._lock:
            self._ended = True
            if self.output is not None:
                self.output.append(Entry(kind=EntryKind.END, watermark_ms=END_OF_TIME_MS))

    def watermarks(self) -> dict[VertexId, int]:
        """Return the watermark of each input that has one. An idle input does not hold back the others.

        Idle inputs advance with the active ones. If all are idle, they advance with the furthest, as in Flink: the last
        one to become idle had held back the others.
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
        """Whether the passing of time alone may advance the watermarks."""
        return any(i.may_idle for i in self.inputs)

    def all_ended(self) -> bool:
        with self._lock:
            return all(i.ended for i in self.inputs)

    def backlog(self) -> int:
        """Return the bytes in the output that some reader still needs."""
        with self._lock:
            return self.output.backlog() if self.output is not None else 0

    @property
    def replayable(self) -> bool:
        """Whether the readers of the output can restart alone."""
        with self._lock:
            return self.output is not None and self.output.replayable

    def drop_consumed(self) -> None:
        """Delete what is in the output only for readers that restart: the disk is nearly full."""
        with self._lock:
            if self.output is not None:
                self.output.drop_consumed()

    # --- checkpoints ---------------------------------------------------------------------------------------------

    def trigger(
        self, checkpoint_id: int, target: Path, *, oldest: int = 0, stop: bool = False, planned: int = -1
    ) -> None:
        """Trigger a checkpoint. If it becomes unaligned, the unread entries of each input are linked into `target`.

        With `stop`, no further micro-batch begins. The one in progress belongs to the cut if it ends in time: otherwise
        the attempt's successor would have to repeat it. `planned` is the last micro-batch that Spark has begun to plan.
        If the task has inputs, their barriers determine the cut.

        Checkpoints before `oldest` have ended. If the attempt has stopped at one of them, it continues: this checkpoint
        failed, and the abort was lost. It cannot have completed: nobody triggers another one after that.
        """
        with self._lock:
            if self._closed_after is not None and self._closed_after < oldest:
                self._closed_after = None
            self._targets[checkpoint_id] = target
            if stop:
                self._stops.add(checkpoint_id)
            is_planned = planned > self.published and not self._in_progress
            if stop and not self.inputs and (self._in_progress or is_planned):
                self._closing = _Closing(checkpoint_id, oldest, self._clock() + LAST_BATCH_PATIENCE, is_planned)
            else:
                self._trigger(checkpoint_id, oldest)
            self._changed.notify_all()

    def _trigger(self, checkpoint_id: int, oldest: int) -> None:
        self._feed(g.Triggered(checkpoint_id, oldest))
        for ended in [number for number in self._targets if self._has_ended(number)]:
            del self._targets[ended]
            self._stops.discard(ended)

    def _close_in_time(self) -> None:
        closing = self._closing
        if closing is None:
            return
        if self._clock() >= closing.deadline or not (self._in_progress or closing.planned):
            self._closing = None
            self._trigger(closing.checkpoint_id, closing.oldest)

    def _has_ended(self, checkpoint_id: int) -> bool:
        waits = self._closing is not None and self._closing.checkpoint_id == checkpoint_id
        return not waits and g.has_ended(self._gate, checkpoint_id)

    def await_cut(self, checkpoint_id: int, timeout: float) -> CutState | None:
        """Wait for the cut of a triggered checkpoint. Return None if it was not made within `timeout` seconds.

        Raises ExchangeDamaged, OSError, CheckpointEnded.
        """
        with self._changed:
            self._scan()
            self._feed(g.Tick())
            self._close_in_time()
            if checkpoint_id not in self._cuts and not self._has_ended(checkpoint_id):
                self._changed.wait(timeout)
            made = self._cuts.pop(checkpoint_id, None)
            if made is None and self._has_ended(checkpoint_id):
                raise CheckpointEnded(f"checkpoint {checkpoint_id} was aborted, or a later one overtook it")
        if isinstance(made, Exception):
            raise made
        return made

    def abort(self, checkpoint_id: int) -> None:
        """Abort a checkpoint: before or after the cut, or even before the trigger. Idempotent."""
        with self._changed:
            self._feed(g.Aborted(checkpoint_id))
            self._cuts.pop(checkpoint_id, None)
            self._barriers.pop(checkpoint_id, None)
            self._targets.pop(checkpoint_id, None)
            self._stops.discard(checkpoint_id)
            if self._closed_after == checkpoint_id:
                self._closed_after = None
            if self._closing is not None and self._closing.checkpoint_id == checkpoint_id:
                self._closing = None
            self._changed.notify_all()

    def confirm(self, checkpoint_id: int) -> None:
        """The checkpoint is complete. Tell the inputs where the next attempt would begin to read. Idempotent."""
        with self._lock:
            if (barriers := self._barriers.get(checkpoint_id)) is None:
                return
            self._barriers = {number: at for number, at in self._barriers.items() if number > checkpoint_id}
            for i in self.inputs:
                i.covered(barriers[i.vertex])

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
            barrier = Entry(
                kind=EntryKind.BARRIER, checkpoint_id=number, watermark_ms=self._watermark_ms, ended=self._ended
            )
            sequence = self.output.append(barrier)
        self._barriers[number] = cut.barriers
        if len(self._barriers) > REMEMBERED:
            del self._barriers[min(self._barriers)]
        if number in self._stops:
            self._stops.discard(number)
            self._closed_after = number
        self._cuts[number] = CutState(cut, self.published, sequence, tuple(files), self._ended, self._watermark_ms)
        self._changed.notify_all()


def no_channels() -> TaskChannels:
    """Return the channels of an attempt that exchanges nothing, or is not up yet."""
    return TaskChannels((), None, StartingPoint({}), hold=True, aligned_timeout=None, clock=time.monotonic)
