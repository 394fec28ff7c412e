"""Shows a job's checkpoints in Flink's JSON (C30). What Flink has no field for is under `minflinkd`.

Tasks have the ids of Flink's job vertices here. Each keeps its own id as `minflinkd.task-id`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import UNSET
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
from minflinkd.rest.schemas import checkpoints as shown
from minflinkd.runtime.errors import NotFound
from minflinkd.runtime.ids import TaskId


def statistics_json(statistics: CheckpointStatistics) -> shown.Checkpoints:
    """Return the answer to `GET /jobs/:jobid/checkpoints`."""
    completed, failed = statistics.latest_completed, statistics.latest_failed
    savepoint, in_progress = statistics.latest_savepoint, len(statistics.in_progress)
    return shown.Checkpoints(
        counts=shown.CheckpointCounts(
            restored=statistics.restored,
            total=statistics.completed + statistics.failed + in_progress,
            in_progress=in_progress,
            completed=statistics.completed,
            failed=statistics.failed,
        ),
        summary=shown.CheckpointSummary(
            checkpointed_size=_summary(statistics.sizes_uploaded),
            state_size=_summary(statistics.sizes_full),
            end_to_end_duration=_summary(statistics.durations_ms),
            alignment_buffered=_summary(statistics.sizes_aligned),
        ),
        latest=shown.LatestCheckpoints(
            completed=_checkpoint(completed) if completed else None,
            savepoint=_checkpoint(savepoint) if savepoint else None,
            failed=_checkpoint(failed) if failed else None,
            restored=_restored(statistics.latest_restored),
        ),
        history=tuple(_checkpoint(record) for record in _all(statistics)),
        minflinkd=_extras(statistics),
    )


def details_json(statistics: CheckpointStatistics, checkpoint_id: int) -> shown.Checkpoint:
    """Return the answer to `GET /jobs/:jobid/checkpoints/details/:checkpointid`. Raises NotFound."""
    record = _find(statistics, checkpoint_id)
    tasks = {vertex_id(task.task_id): _task(record, task) for task in record.tasks}
    missing = {vertex_id(task_id): _missing_task(record, task_id) for task_id in record.missing}
    return msgspec.structs.replace(_checkpoint(record), tasks=tasks | missing)


def subtasks_json(statistics: CheckpointStatistics, checkpoint_id: int, vertex: str) -> shown.TaskCheckpointDetails:
    """Return the answer to `GET .../details/:checkpointid/subtasks/:vertexid`. Raises NotFound.

    `vertex`: the id of the job vertex, or the task's own id.
    """
    record = _find(statistics, checkpoint_id)
    for task in record.tasks:
        if vertex in (task.task_id, vertex_id(task.task_id)):
            part, subtask = _task(record, task), _subtask(record, task)
            return shown.TaskCheckpointDetails(
                **asdict(part), summary=_subtasks_summary(task, part), subtasks=(subtask,)
            )
    for task_id in record.missing:
        if vertex in (task_id, vertex_id(task_id)):
            nothing = (shown.SubtaskCheckpoint(class_name="pending", status="pending_or_failed"),)
            return shown.TaskCheckpointDetails(**asdict(_missing_task(record, task_id)), subtasks=nothing)
    raise NotFound(f"checkpoint {checkpoint_id} has no task {vertex[:80]!r}")


def config_json(options: CheckpointOptions) -> shown.CheckpointConfig:
    """Return the answer to `GET /jobs/:jobid/checkpoints/config`. Flink writes "off" as the largest long."""
    return shown.CheckpointConfig(
        mode=options.mode.value.replace("-", "_"),
        interval=_ms(options.interval) if options.interval > 0 else 2**63 - 1,
        timeout=_ms(options.timeout),
        min_pause=_ms(options.min_pause),
        max_concurrent=options.max_concurrent,
        externalization=shown.Externalization(
            enabled=options.retain_on_cancellation, delete_on_cancellation=not options.retain_on_cancellation
        ),
        unaligned_checkpoints=options.alignment_timeout > 0,
        tolerable_failed_checkpoints=options.tolerable_failed,
        aligned_checkpoint_timeout=_ms(options.alignment_timeout),
        minflinkd=shown.CheckpointConfigExtras(
            num_retained=options.num_retained,
            master_hooks=options.hooks,
            on_damage=options.on_damage.value,
            scrub_interval=_ms(options.scrub_interval),
        ),
    )


def _summary(values: Sequence[float]) -> shown.StatsSummary:
    return shown.StatsSummary(**asdict(summary(values)))


def _extras(statistics: CheckpointStatistics) -> shown.CheckpointsExtras:
    return shown.CheckpointsExtras(
        failed_by_cause={cause.value: count for cause, count in sorted(statistics.failed_by_cause.items())},
        refused={reason.value: count for reason, count in sorted(statistics.refused.items())},
        consecutive_failures=statistics.consecutive_failures,
        consecutive_trigger_failures=statistics.consecutive_trigger_failures,
        interval=statistics.interval_ms,
        damaged=tuple(_damaged(record) for record in statistics.damaged),
        verified=statistics.verified_ms,
        files=shown.CheckpointFiles(
            **asdict(_files(statistics.files)),
            created=statistics.files_created,
            deleted=statistics.files_deleted,
            compactions=statistics.compactions,
            bytes_rewritten=statistics.bytes_rewritten,
        ),
        calls=_calls(statistics.calls),
    )


def _damaged(record: DamageRecord) -> shown.DamagedCheckpoint:
    return shown.DamagedCheckpoint(
        id=record.checkpoint_id,
        found=record.found_ms,
        files=tuple(shown.DamagedFile(file=one.file, why=one.why) for one in record.damage),
        given_up_for=record.restored,
    )


def _files(figures: FileFigures) -> shown.FileFigures:
    return shown.FileFigures(
        physical=figures.physical,
        logical=figures.logical,
        bytes_stored=figures.bytes_stored,
        bytes_referenced=figures.bytes_referenced,
        amplification=round(figures.amplification, 4),
        deleting=figures.deleting,
    )


def _calls(calls: Mapping[str, Calls]) -> dict[str, shown.StorageCalls]:
    return {
        kind: shown.StorageCalls(count=made.count, ms=round(made.ms, 3), average=round(made.average_ms, 3))
        for kind, made in sorted(calls.items())
    }


def _all(statistics: CheckpointStatistics) -> Iterable[CheckpointRecord]:
    return sorted((*statistics.in_progress, *statistics.history), key=lambda r: -r.checkpoint_id)


def _find(statistics: CheckpointStatistics, checkpoint_id: int) -> CheckpointRecord:
    latest = (statistics.latest_completed, statistics.latest_savepoint, statistics.latest_failed)
    for record in (*_all(statistics), *(r for r in latest if r is not None)):
        if record.checkpoint_id == checkpoint_id:
            return record
    raise NotFound(
        f"checkpoint {checkpoint_id} is not among the last {HISTORY} of this job",
        hint="GET /jobs/:jobid/checkpoints lists them",
    )


def _checkpoint(record: CheckpointRecord) -> shown.Checkpoint:
    completed, failed = record.status is CheckpointStatus.COMPLETED, record.status is CheckpointStatus.FAILED
    savepoint = record.kind is CheckpointKind.SAVEPOINT
    return shown.Checkpoint(
        class_name=record.status.value.lower(),
        id=record.checkpoint_id,
        status=record.status.value,
        is_savepoint=savepoint,
        savepoint_format="CANONICAL" if savepoint else None,
        trigger_timestamp=record.triggered_ms,
        latest_ack_timestamp=record.latest_ack_ms,
        checkpointed_size=record.bytes_uploaded,
        state_size=record.bytes_full,
        end_to_end_duration=record.duration_ms,
        alignment_buffered=record.alignment_bytes,
        persisted_data=sum(task.alignment_bytes for task in record.tasks if task.unaligned),
        num_subtasks=record.num_tasks,
        num_acknowledged_subtasks=len(record.tasks),
        checkpoint_type=_type(record),
        minflinkd=shown.CheckpointExtras(
            kind=record.kind.value,
            alignment=round(record.alignment_ms, 3),
            metadata=round(record.metadata_ms, 3),
            notify=round(record.notify_ms, 3),
            warning=record.warning,
            savepoint=record.savepoint,
            files=None if record.files is None else _files(record.files),
            calls=_calls({**record.calls, "create": record.creates, "close": record.closes}),
            compactions=record.compactions,
            bytes_rewritten=record.bytes_rewritten,
            cause=record.cause if failed else UNSET,
            failed_task=record.failed_task if failed else UNSET,
        ),
        external_path=(record.savepoint or record.path) if completed else UNSET,
        discarded=False if completed else UNSET,
        failure_timestamp=record.failed_ms if failed else UNSET,
        failure_message=_why(record) if failed else UNSET,
    )


def _type(record: CheckpointRecord) -> str:
    if record.kind is CheckpointKind.SAVEPOINT:
        return "SAVEPOINT"
    return "UNALIGNED_CHECKPOINT" if any(task.unaligned for task in record.tasks) else "CHECKPOINT"


def _why(record: CheckpointRecord) -> str:
    text = f"{record.cause}: {record.error}" if record.error else str(record.cause)
    return f"task {record.failed_task}: {text}" if record.failed_task is not None else text


def _task(record: CheckpointRecord, task: TaskRecord) -> shown.TaskCheckpoint:
    return shown.TaskCheckpoint(
        id=record.checkpoint_id,
        status=record.status.value,
        latest_ack_timestamp=task.acknowledged_ms,
        checkpointed_size=task.bytes_uploaded,
        state_size=task.bytes_full,
        end_to_end_duration=max(0, task.acknowledged_ms - record.triggered_ms),
        alignment_buffered=task.alignment_bytes,
        persisted_data=task.alignment_bytes if task.unaligned else 0,
        num_acknowledged_subtasks=1,
        minflinkd=shown.TaskCheckpointExtras(
            trigger_timestamp=record.triggered_ms,
            wait=round(task.wait_ms, 3),
            alignment=round(task.alignment_ms, 3),
            unaligned=task.unaligned,
            sync=round(task.sync_ms, 3),
            async_=round(task.async_ms, 3),
            files=task.segments,
            files_uploaded=task.files_uploaded,
            physical_files=task.physical_files,
            task_id=task.task_id,
        ),
    )


def _missing_task(record: CheckpointRecord, task_id: TaskId) -> shown.TaskCheckpoint:
    return shown.TaskCheckpoint(
        id=record.checkpoint_id,
        status=record.status.value,
        minflinkd=shown.TaskCheckpointExtras(trigger_timestamp=record.triggered_ms, task_id=task_id),
    )


def _subtask(record: CheckpointRecord, task: TaskRecord) -> shown.SubtaskCheckpoint:
    return shown.SubtaskCheckpoint(
        class_name="completed",
        status="completed",
        ack_timestamp=task.acknowledged_ms,
        end_to_end_duration=max(0, task.acknowledged_ms - record.triggered_ms),
        checkpointed_size=task.bytes_uploaded,
        state_size=task.bytes_full,
        checkpoint=shown.SubtaskTimes(sync=round(task.sync_ms), async_=round(task.async_ms)),
        alignment=shown.SubtaskAlignment(
            buffered=task.alignment_bytes,
            processed=0,
            persisted=task.alignment_bytes if task.unaligned else 0,
            duration=round(task.alignment_ms),
        ),
        start_delay=round(task.wait_ms),
        unaligned_checkpoint=task.unaligned,
        aborted=record.status is CheckpointStatus.FAILED,
    )


def _subtasks_summary(task: TaskRecord, part: shown.TaskCheckpoint) -> shown.SubtasksSummary:
    """Flink summarizes a task's subtasks. Here there is one."""
    return shown.SubtasksSummary(
        checkpointed_size=_summary((part.checkpointed_size,)),
        state_size=_summary((part.state_size,)),
        end_to_end_duration=_summary((part.end_to_end_duration,)),
        checkpoint_duration=shown.TimesSummary(
            sync=_summary((round(task.sync_ms),)), async_=_summary((round(task.async_ms),))
        ),
        alignment=shown.AlignmentSummary(
            buffered=_summary((part.alignment_buffered,)),
            processed=_summary((part.processed_data,)),
            persisted=_summary((part.persisted_data,)),
            duration=_summary((round(task.alignment_ms),)),
        ),
        start_delay=_summary((round(task.wait_ms),)),
    )


def _restored(record: RestoreRecord | None) -> shown.RestoredCheckpoint | None:
    if record is None:
        return None
    return shown.RestoredCheckpoint(
        id=record.checkpoint_id, restore_timestamp=record.restored_ms, external_path=record.path
    )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
