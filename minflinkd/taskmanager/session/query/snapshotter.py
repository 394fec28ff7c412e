"""The snapshots of one running attempt: its cut, Spark's files at that micro-batch, and what its sinks have staged."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from minflinkd.rpc.plan_sources import lines_with_logs, source_lines, source_names
from minflinkd.rpc.snapshot import PlanNode
from minflinkd.runtime.crash_points import CrashPoint, reach
from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.child.protocol import SnapshotFailed, SnapshotFile, SnapshotTaken, TakeSnapshot
from minflinkd.taskmanager.exchange.channels import UNREAD, WATERMARK, CheckpointEnded, CutState, TaskChannels
from minflinkd.taskmanager.exchange.log import ExchangeDamaged
from minflinkd.taskmanager.placing import link_or_copy
from minflinkd.taskmanager.session.query.real_time import RealTimeBatches
from minflinkd.taskmanager.session.state import snapshot
from minflinkd.taskmanager.session.state.ledger import Ledger

_LOOKS, _PAUSE = 100, 0.02  # for files of a sink whose commit has not been noted yet; seconds


class Snapshotter:
    """Takes snapshots of one attempt. Thread-safe.

    `checkpoint`: Spark's directory of the query. `ended`: whether the query will reach no further boundary. `staged`:
    the directory of the files that sinks have staged for snapshots.
    """

    def __init__(
        self,
        checkpoint: Path,
        operators: tuple[PlanNode, ...],
        channels: TaskChannels,
        ledgers: Sequence[Ledger],
        ended: Callable[[], bool],
        staged: Path,
        real_time: RealTimeBatches | None = None,
    ) -> None:
        """`real_time`: batches that must be ended for a snapshot."""
        self._checkpoint = checkpoint
        self._operators = operators
        self._channels = channels
        self._ledgers = ledgers
        self._ended = ended
        self._staged = staged
        self._real_time = real_time
        self._lock = threading.Lock()
        self._taken: dict[int, int] = {}  # checkpoint -> micro-batch, not confirmed yet
        self._aborted: set[int] = set()

    def take(self, request: TakeSnapshot) -> SnapshotTaken:
        """Take a snapshot. Blocks until the barriers of all inputs are there and the micro-batch is committed.

        Raises SnapshotFailed, with nothing left on disk.
        """
        number, target = request.checkpoint_id, Path(request.target_directory)
        unread = target.with_name(f"{target.name}.{UNREAD}")
        try:
            taken = self._take(request, target, unread)
            with self._lock:
                self._taken[number] = taken.batch_id
            reach(CrashPoint.SYNC)
            return with_staged(taken, number, self._ledgers, self._staged, target)
        except (CheckpointEnded, ExchangeDamaged, SnapshotFailed, OSError) as error:
            self._channels.abort(number)
            with self._lock:
                self._taken.pop(number, None)
            for directory in (unread, target):
                shutil.rmtree(directory, ignore_errors=True)
            if isinstance(error, SnapshotFailed):
                raise
            raise SnapshotFailed(f"checkpoint {number}: {error}") from error

    def _take(self, request: TakeSnapshot, target: Path, unread: Path) -> SnapshotTaken:
        began = time.monotonic()
        deadline = began + request.timeout
        if self._real_time is not None and not request.stop:
            self._real_time.reach_boundary(lambda: self._check_waiting(request, deadline, "the batch did not end"))
        # A micro-batch that Spark has begun to plan may still belong to the cut of a stop checkpoint.
        planned = snapshot.read_boundary(self._checkpoint).started if request.stop else -1
        self._channels.trigger(request.checkpoint_id, unread, oldest=request.oldest, stop=request.stop, planned=planned)
        if self._real_time is not None and request.stop:
            self._real_time.end_batch()  # the cut waits for its end, and no other batch begins
        made = self._await_cut(request, deadline)
        self._await_commit(request, made.batch_id, deadline)
        reached = time.monotonic()
        files: list[SnapshotFile] = []
        offsets = snapshot.NO_OFFSETS
        lines = source_lines(self._operators)
        if made.batch_id >= 0:
            logs = lines_with_logs(self._operators)
            files, offsets = snapshot.link(self._checkpoint, made.batch_id, target, logs)
        if made.files:
            target.mkdir(parents=True, exist_ok=True)
            unread.rename(target / UNREAD)
            files += (SnapshotFile(path, size) for path, size in made.files)
        if made.watermark_ms is not None:
            files.append(_save_watermark(target, made.watermark_ms))
        names = source_names(self._operators)
        return SnapshotTaken(
            batch_id=made.batch_id,
            operators=self._operators,
            wait_ms=(reached - began) * 1000,
            sync_ms=(time.monotonic() - reached) * 1000,
            input_ended=made.input_ended,
            inputs={VertexId(vertex): at for vertex, at in made.cut.barriers.items()},
            output=made.output,
            unaligned=bool(made.cut.unread),
            alignment_ms=made.cut.alignment * 1000,
            alignment_bytes=made.cut.overtaken if made.cut.unread else made.cut.held,
            files=tuple(files),
            source_offsets=snapshot.named_offsets(offsets, {line: names[node.number] for line, node in lines.items()}),
        )

    def abort(self, checkpoint_id: int) -> None:
        """Abort a snapshot, in whatever phase it is, also before it began. Idempotent."""
        with self._lock:
            self._aborted.add(checkpoint_id)
            self._taken.pop(checkpoint_id, None)
        self._channels.abort(checkpoint_id)

    def micro_batch(self, checkpoint_id: int) -> int | None:
        """Return the last micro-batch that an unconfirmed snapshot covers; None if it covers nothing here."""
        with self._lock:
            return self._taken.get(checkpoint_id)

    def confirm(self, checkpoint_id: int) -> None:
        """Forget a complete checkpoint and all before it: everything that they cover is committed."""
        with self._lock:
            self._taken = {number: batch for number, batch in self._taken.items() if number > checkpoint_id}
        self._channels.confirm(checkpoint_id)

    def covered(self) -> int:
        """Return the last micro-batch that a checkpoint, neither confirmed nor aborted yet, may cover; -1: none."""
        with self._lock:
            return max(self._taken.values(), default=-1)

    def _await_cut(self, request: TakeSnapshot, deadline: float) -> CutState:
        """Wait for the barriers of all inputs, and return the task's cut (C1, C2). Raises SnapshotFailed."""
        pause = 0.002
        while True:
            if (made := self._channels.await_cut(request.checkpoint_id, pause)) is not None:
                return made
            self._check_waiting(request, deadline, "the barriers of all inputs did not come")
            pause = min(pause * 1.5, 0.02)

    def _await_commit(self, request: TakeSnapshot, batch_id: int, deadline: float) -> None:
        """Wait until Spark has committed the micro-batch, right after it was published. Raises SnapshotFailed."""
        pause = 0.001
        while snapshot.read_boundary(self._checkpoint).committed < batch_id:
            self._check_waiting(request, deadline, f"micro-batch {batch_id} was not committed")
            time.sleep(pause)
            pause = min(pause * 1.5, 0.02)

    def _check_waiting(self, request: TakeSnapshot, deadline: float, what: str) -> None:
        """Raise SnapshotFailed if there is nothing left to wait for, or no time."""
        if self._ended():
            raise SnapshotFailed("the query ended before its next micro-batch boundary")
        if request.checkpoint_id in self._aborted:
            raise SnapshotFailed(f"checkpoint {request.checkpoint_id} was aborted")
        if time.monotonic() > deadline:
            raise SnapshotFailed(f"{what} within {request.timeout:g} s")


def with_staged(
    taken: SnapshotTaken, number: int, ledgers: Sequence[Ledger], staged: Path, target: Path
) -> SnapshotTaken:
    """Add what the sinks have staged: their transactions, and the files below `staged` that hold rows of them.

    Raises SnapshotFailed, and OSError for disk errors.
    """
    placed: dict[str, SnapshotFile] = {}
    for _ in range(_LOOKS):
        covered = tuple(ledger.cover(number, taken.batch_id) for ledger in ledgers)
        needed = sorted({path for each in covered for token in each.tokens for path in token.files})
        try:
            for path in needed:
                if path not in placed:
                    (target / path).parent.mkdir(parents=True, exist_ok=True)
                    placed[path] = SnapshotFile(path, link_or_copy(staged / path, target / path))
        except FileNotFoundError:  # it has just been committed, and its ledger is about to forget it
            time.sleep(_PAUSE)
            continue
        for path in placed.keys() - set(needed):
            (target / path).unlink()
        held = (placed[path] for path in needed)
        return msgspec.structs.replace(taken, transactions=covered, files=(*taken.files, *held))
    gone = [path for path in needed if not (staged / path).exists()]
    raise SnapshotFailed(f"checkpoint {number}: files that a sink has staged are gone: {', '.join(gone[:3])}")


def _save_watermark(target: Path, watermark_ms: int) -> SnapshotFile:
    place = target / UNREAD / WATERMARK
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(str(watermark_ms), "utf-8")
    return SnapshotFile(f"{UNREAD}/{WATERMARK}", place.stat().st_size)
