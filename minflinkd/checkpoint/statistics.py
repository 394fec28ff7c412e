"""What is shown of a job's checkpoints (C30): frozen records, pure functions over them, Flink's JSON.

Responsible for counting and summing up; the coordinator says what happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from minflinkd.checkpoint.causes import CheckpointKind, FailureCause, Refusal
from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.rpc.snapshot import TaskSnapshot
from minflinkd.runtime.errors import ErrorInfo, NotFound
from minflinkd.runtime.ids import TaskId

HISTORY = 10  # checkpoints shown one by one
SAMPLES = 1000  # completed checkpoints that the summaries cover


class CheckpointStatus(StrEnum):
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One task's part of a checkpoint. Times of day in milliseconds since 1970, durations in milliseconds."""

    task_id: TaskId
    acknowledged_ms: int
    sync_ms: float
    async_ms: float
    bytes_full: int
    bytes_uploaded: int
    segments: int
    physical_files: int

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

    @property
    def latest_ack_ms(self) -> int:
        """-1 before the first one."""
        return max((task.acknowledged_ms for task in self.tasks), default=-1)

    @property
    def duration_ms(self) -> int:
        """To the last acknowledgement, or to the failure. Never negative, also where the clock was set back."""
        end = self.failed_ms if self.status is CheckpointStatus.FAILED else self.latest_ack_ms
        return max(0, end - self.triggered_ms)

    @property
    def bytes_full(self) -> int:
        return sum(task.bytes_full for task in self.tasks)

    @property
    def bytes_uploaded(self) -> int:
        return sum(task.bytes_uploaded for task in self.tasks)


class RestoreRecord(msgspec.Struct, frozen=True, kw_only=True):
    checkpoint_id: int
    restored_ms: int
    path: str = ""


class CheckpointStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Everything since this coordinator began."""

    completed: int = 0
    failed: int = 0
    restored: int = 0
    failed_by_cause: dict[FailureCause, int] = {}
    refused: dict[Refusal, int] = {}
    consecutive_failures: int = 0
    consecutive_trigger_failures: int = 0
    in_progress: tuple[CheckpointRecord, ...] = ()
    history: tuple[CheckpointRecord, ...] = ()  # ended, newest first
    latest_completed: CheckpointRecord | None = None
    latest_failed: CheckpointRecord | None = None
    latest_restored: RestoreRecord | None = None
    durations_ms: tuple[int, ...] = ()  # of completed ones, oldest first
    sizes_full: tuple[int, ...] = ()
    sizes_uploaded: tuple[int, ...] = ()


def recorded(statistics: CheckpointStatistics, record: CheckpointRecord) -> CheckpointStatistics:
    """With what became of a checkpoint."""
    others = tuple(r for r in statistics.in_progress if r.checkpoint_id != record.checkpoint_id)
    if record.status is CheckpointStatus.IN_PROGRESS:
        return msgspec.structs.replace(statistics, in_progress=(*others, record))
    ended = msgspec.structs.replace(statistics, in_progress=others, history=(record, *statistics.history)[:HISTORY])
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
        durations_ms=(*statistics.durations_ms, record.duration_ms)[-SAMPLES:],
        sizes_full=(*statistics.sizes_full, record.bytes_full)[-SAMPLES:],
        sizes_uploaded=(*statistics.sizes_uploaded, record.bytes_uploaded)[-SAMPLES:],
    )


def set_up_failed(statistics: CheckpointStatistics, cause: FailureCause) -> CheckpointStatistics:
    """A checkpoint that failed before it had an id: counted, but there is nothing to show of it."""
    by_cause = {**statistics.failed_by_cause, cause: statistics.failed_by_cause.get(cause, 0) + 1}
    return msgspec.structs.replace(statistics, failed=statistics.failed + 1, failed_by_cause=by_cause)


def restored(statistics: CheckpointStatistics, record: RestoreRecord) -> CheckpointStatistics:
    return msgspec.structs.replace(statistics, restored=statistics.restored + 1, latest_restored=record)


def refused(statistics: CheckpointStatistics, reason: Refusal) -> CheckpointStatistics:
    counts = {**statistics.refused, reason: statistics.refused.get(reason, 0) + 1}
    return msgspec.structs.replace(statistics, refused=counts)


# --- Flink's JSON ------------------------------------------------------------------------------------------------


def summary(values: Sequence[int]) -> dict[str, float]:
    """Flink's StatsSummaryDto; of nothing, all zero."""
    ordered = sorted(values)
    quantiles = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
    if not ordered:
        return dict.fromkeys(["min", "max", "avg", *quantiles], 0)
    return {
        "min": ordered[0],
        "max": ordered[-1],
        "avg": sum(ordered) // len(ordered),
        **{name: _quantile(ordered, q) for name, q in quantiles.items()},
    }


def to_flink_json(statistics: CheckpointStatistics) -> dict[str, Any]:
    """`GET /jobs/:jobid/checkpoints`."""
    completed, failed = statistics.latest_completed, statistics.latest_failed
    in_progress = len(statistics.in_progress)
    return {
        "counts": {
            "restored": statistics.restored,
            "total": statistics.completed + statistics.failed + in_progress,
            "in_progress": in_progress,
            "completed": statistics.completed,
            "failed": statistics.failed,
        },
        "summary": {
            "checkpointed_size": summary(statistics.sizes_uploaded),
            "state_size": summary(statistics.sizes_full),
            "end_to_end_duration": summary(statistics.durations_ms),
            "alignment_buffered": summary(()),
            "processed_data": summary(()),
            "persisted_data": summary(()),
        },
        "latest": {
            "completed": _checkpoint(completed) if completed else None,
            "savepoint": None,
            "failed": _checkpoint(failed) if failed else None,
            "restored": _restored(statistics.latest_restored),
        },
        "history": [_checkpoint(record) for record in _all(statistics)],
    }


def details_to_flink_json(statistics: CheckpointStatistics, checkpoint_id: int) -> dict[str, Any]:
    """`GET /jobs/:jobid/checkpoints/details/:checkpointid`. Raises NotFound."""
    latest = (statistics.latest_completed, statistics.latest_failed)
    for record in (*_all(statistics), *(r for r in latest if r is not None)):
        if record.checkpoint_id == checkpoint_id:
            tasks = {task.task_id: _task(record, task) for task in record.tasks}
            return {**_checkpoint(record), "tasks": tasks}
    raise NotFound(
        f"checkpoint {checkpoint_id} is not among the last {HISTORY} of this job",
        hint="GET /jobs/:jobid/checkpoints lists them",
    )


def config_to_flink_json(options: CheckpointOptions) -> dict[str, Any]:
    """`GET /jobs/:jobid/checkpoints/config`. Flink writes "off" as the largest long."""
    return {
        "mode": options.mode.value.replace("-", "_"),
        "interval": _ms(options.interval) if options.interval > 0 else 2**63 - 1,
        "timeout": _ms(options.timeout),
        "min_pause": _ms(options.min_pause),
        "max_concurrent": options.max_concurrent,
        "externalization": {
            "enabled": options.retain_on_cancellation,
            "delete_on_cancellation": not options.retain_on_cancellation,
        },
        "state_backend": "rocksdb",
        "checkpoint_storage": "FileSystemCheckpointStorage",
        "unaligned_checkpoints": False,
        "tolerable_failed_checkpoints": options.tolerable_failed,
        "aligned_checkpoint_timeout": 0,
        "checkpoints_after_tasks_finish": True,
        "state_changelog_enabled": False,
        "changelog_periodic_materialization_interval": 0,
        "changelog_storage": "",
    }


def _all(statistics: CheckpointStatistics) -> Iterable[CheckpointRecord]:
    return sorted((*statistics.in_progress, *statistics.history), key=lambda r: -r.checkpoint_id)


def _checkpoint(record: CheckpointRecord) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "className": record.status.value.lower(),
        "id": record.checkpoint_id,
        "status": record.status.value,
        "is_savepoint": False,
        "savepointFormat": None,
        "trigger_timestamp": record.triggered_ms,
        "latest_ack_timestamp": record.latest_ack_ms,
        "checkpointed_size": record.bytes_uploaded,
        "state_size": record.bytes_full,
        "end_to_end_duration": record.duration_ms,
        "alignment_buffered": 0,
        "processed_data": 0,
        "persisted_data": 0,
        "num_subtasks": record.num_tasks,
        "num_acknowledged_subtasks": len(record.tasks),
        "checkpoint_type": "CHECKPOINT",
        "tasks": {},
    }
    if record.status is CheckpointStatus.COMPLETED:
        shown |= {"external_path": record.path, "discarded": False}
    elif record.status is CheckpointStatus.FAILED:
        text = str(record.error) if record.error else ""
        message = f"{record.cause}: {text}" if text else str(record.cause)
        shown |= {"failure_timestamp": record.failed_ms, "failure_message": message}
    return shown


def _task(record: CheckpointRecord, task: TaskRecord) -> Mapping[str, Any]:
    """Flink's fields, and what it shows only per subtask: here a task is one query, so one part."""
    return {
        "id": record.checkpoint_id,
        "status": record.status.value,
        "latest_ack_timestamp": task.acknowledged_ms,
        "checkpointed_size": task.bytes_uploaded,
        "state_size": task.bytes_full,
        "end_to_end_duration": max(0, task.acknowledged_ms - record.triggered_ms),
        "alignment_buffered": 0,
        "processed_data": 0,
        "persisted_data": 0,
        "num_subtasks": 1,
        "num_acknowledged_subtasks": 1,
        "sync_duration": round(task.sync_ms, 3),
        "async_duration": round(task.async_ms, 3),
        "segments": task.segments,
        "physical_files": task.physical_files,
    }


def _restored(record: RestoreRecord | None) -> dict[str, Any] | None:
    if record is None:
        return None
    return {
        "id": record.checkpoint_id,
        "restore_timestamp": record.restored_ms,
        "is_savepoint": False,
        "external_path": record.path,
    }


def _quantile(ordered: Sequence[int], q: float) -> float:
    """Between the two nearest samples."""
    position = q * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return round(ordered[below] + (ordered[above] - ordered[below]) * (position - below), 3)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
