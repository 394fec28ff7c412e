"""Shows a job's checkpoints in Flink's JSON (C30). What Flink has no field for is under `minflinkd`.

Tasks have the ids of Flink's job vertices here. Each keeps its own id as `minflinkd.task-id`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import asdict

from minflinkd.checkpoint.causes import CheckpointKind
from minflinkd.checkpoint.damage import DamageRecord
from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.checkpoint.statistics import (
    HISTORY,
    Calls,
    CheckpointRecord,
    CheckpointStatistics,
    CheckpointStatus,
    FileFigures,
    RestoreRecord,
    TaskRecord,
    summary,
)
from minflinkd.rest.plan import vertex_id
from minflinkd.runtime.errors import NotFound
from minflinkd.runtime.ids import TaskId


def statistics_json(statistics: CheckpointStatistics) -> dict[str, Any]:
    """Return the answer to `GET /jobs/:jobid/checkpoints`."""
    completed, failed = statistics.latest_completed, statistics.latest_failed
    savepoint, in_progress = statistics.latest_savepoint, len(statistics.in_progress)
    return {
        "counts": {
            "restored": statistics.restored,
            "total": statistics.completed + statistics.failed + in_progress,
            "in_progress": in_progress,
            "completed": statistics.completed,
            "failed": statistics.failed,
        },
        "summary": {
            "checkpointed_size": _summary(statistics.sizes_uploaded),
            "state_size": _summary(statistics.sizes_full),
            "end_to_end_duration": _summary(statistics.durations_ms),
            "alignment_buffered": _summary(statistics.sizes_aligned),
            "processed_data": _summary(()),
            "persisted_data": _summary(()),
        },
        "latest": {
            "completed": _checkpoint(completed) if completed else None,
            "savepoint": _checkpoint(savepoint) if savepoint else None,
            "failed": _checkpoint(failed) if failed else None,
            "restored": _restored(statistics.latest_restored),
        },
        "history": [_checkpoint(record) for record in _all(statistics)],
        "minflinkd": {
            "failed-by-cause": {cause.value: count for cause, count in sorted(statistics.failed_by_cause.items())},
            "refused": {reason.value: count for reason, count in sorted(statistics.refused.items())},
            "consecutive-failures": statistics.consecutive_failures,
            "consecutive-trigger-failures": statistics.consecutive_trigger_failures,
            "interval": statistics.interval_ms,
            "damaged": [_damaged(record) for record in statistics.damaged],
            "verified": statistics.verified_ms,
            "files": {
                **_files(statistics.files),
                "created": statistics.files_created,
                "deleted": statistics.files_deleted,
                "compactions": statistics.compactions,
                "bytes-rewritten": statistics.bytes_rewritten,
            },
            "calls": _calls(statistics.calls),
        },
    }


def details_json(statistics: CheckpointStatistics, checkpoint_id: int) -> dict[str, Any]:
    """Return the answer to `GET /jobs/:jobid/checkpoints/details/:checkpointid`. Raises NotFound."""
    record = _find(statistics, checkpoint_id)
    tasks = {vertex_id(task.task_id): _task(record, task) for task in record.tasks}
    missing = {vertex_id(task_id): _missing_task(record, task_id) for task_id in record.missing}
    return {**_checkpoint(record), "tasks": {**tasks, **missing}}


def subtasks_json(statistics: CheckpointStatistics, checkpoint_id: int, vertex: str) -> dict[str, Any]:
    """Return the answer to `GET .../details/:checkpointid/subtasks/:vertexid`. Raises NotFound.

    `vertex`: the id of the job vertex, or the task's own id.
    """
    record = _find(statistics, checkpoint_id)
    for task in record.tasks:
        if vertex in (task.task_id, vertex_id(task.task_id)):
            return {**_task(record, task), **_as_one_subtask(record, task)}
    for task_id in record.missing:
        if vertex in (task_id, vertex_id(task_id)):
            nothing = {"summary": None, "subtasks": [{"index": 0, "status": "pending_or_failed"}]}
            return {**_missing_task(record, task_id), **nothing}
    raise NotFound(f"checkpoint {checkpoint_id} has no task {vertex[:80]!r}")


def config_json(options: CheckpointOptions) -> dict[str, Any]:
    """Return the answer to `GET /jobs/:jobid/checkpoints/config`. Flink writes "off" as the largest long."""
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
        "unaligned_checkpoints": options.alignment_timeout > 0,
        "tolerable_failed_checkpoints": options.tolerable_failed,
        "aligned_checkpoint_timeout": _ms(options.alignment_timeout),
        "checkpoints_after_tasks_finish": True,
        "state_changelog_enabled": False,
        "changelog_periodic_materialization_interval": 0,
        "changelog_storage": "",
        "minflinkd": {
            "num-retained": options.num_retained,
            "master-hooks": list(options.hooks),
            "on-damage": options.on_damage.value,
            "scrub-interval": _ms(options.scrub_interval),
        },
    }


def _summary(values: Sequence[float]) -> dict[str, float]:
    return asdict(summary(values))


def _damaged(record: DamageRecord) -> dict[str, Any]:
    return {
        "id": record.checkpoint_id,
        "found": record.found_ms,
        "files": [{"file": one.file, "why": one.why} for one in record.damage],
        "given-up-for": record.restored,
    }


def _files(figures: FileFigures) -> dict[str, Any]:
    return {
        "physical": figures.physical,
        "logical": figures.logical,
        "bytes-stored": figures.bytes_stored,
        "bytes-referenced": figures.bytes_referenced,
        "amplification": round(figures.amplification, 4),
        "deleting": figures.deleting,
    }


def _calls(calls: Mapping[str, Calls]) -> dict[str, Any]:
    return {
        kind: {"count": made.count, "ms": round(made.ms, 3), "average": round(made.average_ms, 3)}
        for kind, made in sorted(calls.items())
    }


def _all(statistics: CheckpointStatistics) -> Iterable[CheckpointRecord]:
    return sorted((*statistics.in_progress, *statistics.history), key=lambda r: -r.checkpoint_id)


def _find(statistics: CheckpointStatistics, checkpoint_id: int) -> CheckpointRecord:
    latest = (statistics.latest_completed, statistics.latest_failed)
    for record in (*_all(statistics), *(r for r in latest if r is not None)):
        if record.checkpoint_id == checkpoint_id:
            return record
    raise NotFound(
        f"checkpoint {checkpoint_id} is not among the last {HISTORY} of this job",
        hint="GET /jobs/:jobid/checkpoints lists them",
    )


def _checkpoint(record: CheckpointRecord) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "className": record.status.value.lower(),
        "id": record.checkpoint_id,
        "status": record.status.value,
        "is_savepoint": record.kind is CheckpointKind.SAVEPOINT,
        "savepointFormat": "CANONICAL" if record.kind is CheckpointKind.SAVEPOINT else None,
        "trigger_timestamp": record.triggered_ms,
        "latest_ack_timestamp": record.latest_ack_ms,
        "checkpointed_size": record.bytes_uploaded,
        "state_size": record.bytes_full,
        "end_to_end_duration": record.duration_ms,
        "alignment_buffered": record.alignment_bytes,
        "processed_data": 0,
        "persisted_data": sum(task.alignment_bytes for task in record.tasks if task.unaligned),
        "num_subtasks": record.num_tasks,
        "num_acknowledged_subtasks": len(record.tasks),
        "checkpoint_type": _type(record),
        "tasks": {},
        "minflinkd": {
            "kind": record.kind.value,
            "alignment": round(record.alignment_ms, 3),
            "metadata": round(record.metadata_ms, 3),
            "notify": round(record.notify_ms, 3),
            "warning": record.warning,
            "files": None if record.files is None else _files(record.files),
            "calls": _calls({**record.calls, "create": record.creates, "close": record.closes}),
            "compactions": record.compactions,
            "bytes-rewritten": record.bytes_rewritten,
        },
    }
    if record.status is CheckpointStatus.COMPLETED:
        shown |= {"external_path": record.path, "discarded": False}
    elif record.status is CheckpointStatus.FAILED:
        shown |= {"failure_timestamp": record.failed_ms, "failure_message": _why(record)}
        shown["minflinkd"] |= {"cause": record.cause, "failed-task": record.failed_task}
    return shown


def _type(record: CheckpointRecord) -> str:
    if record.kind is CheckpointKind.SAVEPOINT:
        return "SAVEPOINT"
    return "UNALIGNED_CHECKPOINT" if any(task.unaligned for task in record.tasks) else "CHECKPOINT"


def _why(record: CheckpointRecord) -> str:
    text = f"{record.cause}: {record.error}" if record.error else str(record.cause)
    return f"task {record.failed_task}: {text}" if record.failed_task is not None else text


def _task(record: CheckpointRecord, task: TaskRecord) -> dict[str, Any]:
    """Return Flink's fields for the task, and those that Flink shows only per subtask.

    Here a task is one query, so it has exactly one subtask.
    """
    return {
        "id": record.checkpoint_id,
        "status": record.status.value,
        "latest_ack_timestamp": task.acknowledged_ms,
        "checkpointed_size": task.bytes_uploaded,
        "state_size": task.bytes_full,
        "end_to_end_duration": max(0, task.acknowledged_ms - record.triggered_ms),
        "alignment_buffered": task.alignment_bytes,
        "processed_data": 0,
        "persisted_data": task.alignment_bytes if task.unaligned else 0,
        "num_subtasks": 1,
        "num_acknowledged_subtasks": 1,
        "minflinkd": {
            "trigger-timestamp": record.triggered_ms,
            "wait": round(task.wait_ms, 3),
            "alignment": round(task.alignment_ms, 3),
            "unaligned": task.unaligned,
            "sync": round(task.sync_ms, 3),
            "async": round(task.async_ms, 3),
            "files": task.segments,
            "files-uploaded": task.files_uploaded,
            "physical-files": task.physical_files,
            "task-id": task.task_id,
        },
    }


def _missing_task(record: CheckpointRecord, task_id: TaskId) -> dict[str, Any]:
    return {
        "id": record.checkpoint_id,
        "status": record.status.value,
        "latest_ack_timestamp": -1,
        "checkpointed_size": 0,
        "state_size": 0,
        "end_to_end_duration": -1,
        "alignment_buffered": 0,
        "processed_data": 0,
        "persisted_data": 0,
        "num_subtasks": 1,
        "num_acknowledged_subtasks": 0,
        "minflinkd": {"trigger-timestamp": record.triggered_ms, "task-id": task_id},
    }


def _as_one_subtask(record: CheckpointRecord, task: TaskRecord) -> dict[str, Any]:
    duration = max(0, task.acknowledged_ms - record.triggered_ms)
    alignment = {
        "buffered": task.alignment_bytes,
        "processed": 0,
        "persisted": task.alignment_bytes if task.unaligned else 0,
        "duration": round(task.alignment_ms),
    }
    times = {"sync": round(task.sync_ms), "async": round(task.async_ms)}
    return {
        "summary": {
            "checkpointed_size": _summary((task.bytes_uploaded,)),
            "state_size": _summary((task.bytes_full,)),
            "end_to_end_duration": _summary((duration,)),
            "checkpoint_duration": {name: _summary((ms,)) for name, ms in times.items()},
            "alignment": {name: _summary((value,)) for name, value in alignment.items()},
            "start_delay": _summary((round(task.wait_ms),)),
        },
        "subtasks": [
            {
                "index": 0,
                "status": "completed",
                "ack_timestamp": task.acknowledged_ms,
                "end_to_end_duration": duration,
                "checkpointed_size": task.bytes_uploaded,
                "state_size": task.bytes_full,
                "checkpoint": times,
                "alignment": alignment,
                "start_delay": round(task.wait_ms),
                "unaligned_checkpoint": task.unaligned,
                "aborted": record.status is CheckpointStatus.FAILED,
            }
        ],
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


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
