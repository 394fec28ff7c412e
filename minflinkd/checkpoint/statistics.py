"""What is known of a job's checkpoints (C30): frozen records, and pure functions that update and summarise them.

The coordinator reports what happened. `rest/checkpoints_json.py` shows it, `rest/measuring.py` makes metrics of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

import msgspec

from minflinkd.checkpoint.causes import CheckpointKind, FailureCause, Refusal
from minflinkd.checkpoint.damage import DamageRecord
from minflinkd.rpc.snapshot import MergingFigures, TaskSnapshot
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import TaskId

HISTORY = 10  # checkpoints listed individually
SAMPLES = 1000  # completed checkpoints that the summaries cover


class CheckpointStatus(StrEnum):
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Flink's StatsSummaryDto, with its names. All values are zero if there are no samples."""

    min: float = 0
    max: float = 0
    avg: float = 0
    p50: float = 0
    p90: float = 0
    p95: float = 0
    p99: float = 0
    p999: float = 0


def summary(values: Sequence[float]) -> Summary:
    ordered = sorted(values)
    if not ordered:
        return Summary()
    return Summary(
        min=ordered[0],
        max=ordered[-1],
        avg=sum(ordered) // len(ordered),
        p50=_quantile(ordered, 0.5),
        p90=_quantile(ordered, 0.9),
        p95=_quantile(ordered, 0.95),
        p99=_quantile(ordered, 0.99),
        p999=_quantile(ordered, 0.999),
    )


def _quantile(ordered: Sequence[float], q: float) -> float:
    """Interpolate between the two nearest samples."""
    position = q * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return round(ordered[below] + (ordered[above] - ordered[below]) * (position - below), 3)


class FileFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The physical files that the retained checkpoints of a job refer to (F6, F10)."""

    physical: int = 0
    logical: int = 0  # live segments in these files
    bytes_stored: int = 0  # of these files
    bytes_referenced: int = 0  # of these segments
    deleting: int = 0  # files that nothing refers to any more and that are still to be deleted, not included above

    @property
    def amplification(self) -> float:
        """Bytes stored per byte referred to; 1 if nothing is referred to."""
        return self.bytes_stored / self.bytes_referenced if self.bytes_referenced else 1.0


class Calls(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one kind to the storage, and the milliseconds they took together (-1: not measured)."""

    count: int = 0
    ms: float = 0.0

    @property
    def average_ms(self) -> float:
        if self.ms < 0:
            return -1.0
        return self.ms / self.count if self.count else 0.0


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One task's part of a checkpoint. Times of day are in milliseconds since 1970, durations in milliseconds."""

    task_id: TaskId
    acknowledged_ms: int
    sync_ms: float
    async_ms: float
    bytes_full: int
    bytes_uploaded: int
    segments: int
    physical_files: int
    wait_ms: float = 0.0  # until the cut could be made, alignment included
    alignment_ms: float = 0.0
    alignment_bytes: int = 0  # held back during the alignment
    unaligned: bool = False
    files_uploaded: int = 0
    merging: MergingFigures | None = None

    @classmethod
    def of(cls, snapshot: TaskSnapshot, acknowledged_ms: int) -> TaskRecord:
        return cls(
            task_id=snapshot.task_id,
            acknowledged_ms=acknowledged_ms,
            sync_ms=snapshot.sync_ms,
            async_ms=snapshot.async_ms,
            bytes_full=snapshot.bytes_full,
            bytes_uploaded=snapshot.bytes_uploaded,
            segments=len(snapshot.files),
            physical_files=len(snapshot.physical_files),
            wait_ms=snapshot.wait_ms,
            alignment_ms=snapshot.alignment_ms,
            alignment_bytes=snapshot.alignment_bytes,
            unaligned=snapshot.unaligned,
            files_uploaded=snapshot.files_uploaded,
            merging=snapshot.merging,
        )


class CheckpointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint as it stood at one moment."""

    checkpoint_id: int
    kind: CheckpointKind
    status: CheckpointStatus
    triggered_ms: int
    num_tasks: int
    tasks: tuple[TaskRecord, ...] = ()  # those that have acknowledged
    failed_ms: int = 0
    cause: FailureCause | None = None
    error: ErrorInfo | None = None
    path: str = ""  # of the metadata, once complete
    savepoint: str = ""  # URI of the copy that belongs to a user, once it is written
    missing: tuple[TaskId, ...] = ()  # tasks that have not acknowledged
    failed_task: TaskId | None = None  # the task that ended it
    metadata_ms: float = 0.0  # from the last acknowledgement until the metadata was written
    notify_ms: float = -1.0  # from then until all tasks had published the checkpoint; -1: not yet
    warning: str = ""  # set if it took longer than the interval; says what to change (C42)
    files: FileFigures | None = None  # of the job, when this checkpoint completed
    calls: dict[str, Calls] = {}  # made by the coordinator since the previous checkpoint completed, by kind of request
    files_created: int = 0  # physical files; tasks may share them

    @property
    def latest_ack_ms(self) -> int:
        """Time of the latest acknowledgement; -1 before the first."""
        return max((task.acknowledged_ms for task in self.tasks), default=-1)

    @property
    def duration_ms(self) -> int:
        """Time to the last acknowledgement or the failure. Never negative, even if the clock was set back."""
        end = self.failed_ms if self.status is CheckpointStatus.FAILED else self.latest_ack_ms
        return max(0, end - self.triggered_ms)

    @property
    def bytes_full(self) -> int:
        return sum(task.bytes_full for task in self.tasks)

    @property
    def bytes_uploaded(self) -> int:
        return sum(task.bytes_uploaded for task in self.tasks)

    @property
    def alignment_bytes(self) -> int:
        return sum(task.alignment_bytes for task in self.tasks)

    @property
    def creates(self) -> Calls:
        """Creation of physical files by TaskManagers."""
        return _calls((m.creates, m.create_ms) for m in self._merging) or Calls(count=self.files_created, ms=-1)

    @property
    def closes(self) -> Calls:
        return _calls((m.closes, m.close_ms) for m in self._merging) or Calls(count=self.files_created, ms=-1)

    @property
    def compactions(self) -> int:
        return sum(merging.compactions for merging in self._merging)

    @property
    def bytes_rewritten(self) -> int:
        return sum(merging.bytes_rewritten for merging in self._merging)

    @property
    def _merging(self) -> list[MergingFigures]:
        return [task.merging for task in self.tasks if task.merging is not None]

    @property
    def alignment_ms(self) -> float:
        """Alignment time of the slowest task; tasks align at the same time."""
        return max((task.alignment_ms for task in self.tasks), default=0.0)


class RestoreRecord(msgspec.Struct, frozen=True, kw_only=True):
    checkpoint_id: int
    restored_ms: int
    path: str = ""


class CheckpointCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts over the whole life of a job. They are kept in the metadata of each checkpoint."""

    completed: int = 0
    failed: int = 0
    restored: int = 0
    failed_by_cause: dict[FailureCause, int] = {}

    def at_least(self, other: CheckpointCounts) -> CheckpointCounts:
        """Merge counts kept at different times or places. The larger value wins, because counts never go back."""
        causes = {**self.failed_by_cause, **other.failed_by_cause}
        return CheckpointCounts(
            completed=max(self.completed, other.completed),
            failed=max(self.failed, other.failed),
            restored=max(self.restored, other.restored),
            failed_by_cause={
                cause: max(self.failed_by_cause.get(cause, 0), other.failed_by_cause.get(cause, 0)) for cause in causes
            },
        )


class CheckpointStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The counts and the latest checkpoints cover the whole job. All else dates from the start of this coordinator."""

    completed: int = 0
    failed: int = 0
    restored: int = 0
    failed_by_cause: dict[FailureCause, int] = {}
    refused: dict[Refusal, int] = {}
    consecutive_failures: int = 0
    consecutive_trigger_failures: int = 0
    in_progress: tuple[CheckpointRecord, ...] = ()
    history: tuple[CheckpointRecord, ...] = ()  # ended, newest first
    latest_completed: CheckpointRecord | None = None  # savepoints included
    latest_savepoint: CheckpointRecord | None = None
    latest_failed: CheckpointRecord | None = None
    latest_restored: RestoreRecord | None = None
    durations_ms: tuple[int, ...] = ()  # of completed ones, oldest first
    sizes_full: tuple[int, ...] = ()
    sizes_uploaded: tuple[int, ...] = ()
    sizes_aligned: tuple[int, ...] = ()
    interval_ms: int = 0  # between two periodic triggers; 0: no periodic checkpoints
    files: FileFigures = FileFigures()
    calls: dict[str, Calls] = {}  # made by the coordinator, by kind of request
    files_created: int = 0  # acknowledged physical files
    files_deleted: int = 0
    compactions: int = 0
    bytes_rewritten: int = 0  # by compactions
    damaged: tuple[DamageRecord, ...] = ()  # retained ones, newest first, as far as known
    verified_ms: int = -1  # when all retained ones were last read; -1: not since this coordinator began


def recorded(statistics: CheckpointStatistics, record: CheckpointRecord) -> CheckpointStatistics:
    """Return the statistics with a checkpoint's new status or outcome."""
    others = tuple(r for r in statistics.in_progress if r.checkpoint_id != record.checkpoint_id)
    if record.status is CheckpointStatus.IN_PROGRESS:
        return msgspec.structs.replace(statistics, in_progress=(*others, record))
    ended = msgspec.structs.replace(
        statistics,
        in_progress=others,
        history=(record, *statistics.history)[:HISTORY],
        files_created=statistics.files_created + record.files_created,
        compactions=statistics.compactions + record.compactions,
        bytes_rewritten=statistics.bytes_rewritten + record.bytes_rewritten,
    )
    if record.status is CheckpointStatus.FAILED:
        by_cause = dict(statistics.failed_by_cause)
        if record.cause is not None:
            by_cause[record.cause] = by_cause.get(record.cause, 0) + 1
        return msgspec.structs.replace(
            ended, failed=statistics.failed + 1, failed_by_cause=by_cause, latest_failed=record
        )
    return msgspec.structs.replace(
        ended,
        completed=statistics.completed + 1,
        latest_completed=record,
        latest_savepoint=record if record.kind is CheckpointKind.SAVEPOINT else statistics.latest_savepoint,
        durations_ms=(*statistics.durations_ms, record.duration_ms)[-SAMPLES:],
        sizes_full=(*statistics.sizes_full, record.bytes_full)[-SAMPLES:],
        sizes_uploaded=(*statistics.sizes_uploaded, record.bytes_uploaded)[-SAMPLES:],
        sizes_aligned=(*statistics.sizes_aligned, record.alignment_bytes)[-SAMPLES:],
    )


def counts(statistics: CheckpointStatistics) -> CheckpointCounts:
    return CheckpointCounts(
        completed=statistics.completed,
        failed=statistics.failed,
        restored=statistics.restored,
        failed_by_cause=statistics.failed_by_cause,
    )


def counted(statistics: CheckpointStatistics, known: CheckpointCounts) -> CheckpointStatistics:
    """Return the statistics with the counts of an earlier coordinator of the job."""
    total = counts(statistics).at_least(known)
    return msgspec.structs.replace(
        statistics,
        completed=total.completed,
        failed=total.failed,
        restored=total.restored,
        failed_by_cause=total.failed_by_cause,
    )


def _calls(measured: Iterable[tuple[int, float]]) -> Calls | None:
    found = list(measured)
    return Calls(count=sum(count for count, _ in found), ms=sum(ms for _, ms in found)) if found else None


def published(statistics: CheckpointStatistics, checkpoint_id: int, notify_ms: float) -> CheckpointStatistics:
    """All tasks have published a completed checkpoint."""
    return _with(statistics, checkpoint_id, lambda record: msgspec.structs.replace(record, notify_ms=notify_ms))


def copied(statistics: CheckpointStatistics, checkpoint_id: int, savepoint: str) -> CheckpointStatistics:
    """A completed checkpoint was copied: the copy is at this URI."""
    return _with(statistics, checkpoint_id, lambda record: msgspec.structs.replace(record, savepoint=savepoint))


def _with(
    statistics: CheckpointStatistics, checkpoint_id: int, change: Callable[[CheckpointRecord], CheckpointRecord]
) -> CheckpointStatistics:
    """Change the records of a completed checkpoint, wherever they are."""

    def known(record: CheckpointRecord) -> CheckpointRecord:
        return change(record) if record.checkpoint_id == checkpoint_id else record

    latest, savepoint = statistics.latest_completed, statistics.latest_savepoint
    return msgspec.structs.replace(
        statistics,
        history=tuple(map(known, statistics.history)),
        latest_completed=None if latest is None else known(latest),
        latest_savepoint=None if savepoint is None else known(savepoint),
    )


def set_up_failed(statistics: CheckpointStatistics, cause: FailureCause) -> CheckpointStatistics:
    """Count a checkpoint that failed before it had an id. There is no record to show."""
    by_cause = {**statistics.failed_by_cause, cause: statistics.failed_by_cause.get(cause, 0) + 1}
    return msgspec.structs.replace(statistics, failed=statistics.failed + 1, failed_by_cause=by_cause)


def restored(statistics: CheckpointStatistics, record: RestoreRecord) -> CheckpointStatistics:
    return msgspec.structs.replace(statistics, restored=statistics.restored + 1, latest_restored=record)


def refused(statistics: CheckpointStatistics, reason: Refusal) -> CheckpointStatistics:
    counts = {**statistics.refused, reason: statistics.refused.get(reason, 0) + 1}
    return msgspec.structs.replace(statistics, refused=counts)
