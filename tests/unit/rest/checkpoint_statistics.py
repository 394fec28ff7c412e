"""Statistics of checkpoints as a Dispatcher answers them: of an ordinary job, and with everything that can be shown."""

from __future__ import annotations

from minflinkd.checkpoint.causes import CheckpointKind, FailureCause, Refusal
from minflinkd.checkpoint.damage import Damage, DamageRecord
from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.checkpoint.statistics import (
    Calls,
    CheckpointRecord,
    CheckpointStatistics,
    CheckpointStatus,
    FileFigures,
    RestoreRecord,
    TaskRecord,
)
from minflinkd.jobgraph.model import CheckpointMode, OnDamage
from minflinkd.rpc.snapshot import MergingFigures
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import TaskId

STARTED = 1_700_000_000_000
FLIGHTS, OUT = TaskId("flights"), TaskId("out")

ORDINARY_RECORD = CheckpointRecord(
    checkpoint_id=7,
    kind=CheckpointKind.PERIODIC,
    status=CheckpointStatus.COMPLETED,
    triggered_ms=STARTED + 5000,
    num_tasks=2,
    tasks=(
        TaskRecord(
            task_id=FLIGHTS,
            acknowledged_ms=STARTED + 5300,
            sync_ms=4.0,
            async_ms=90.0,
            bytes_full=4096,
            bytes_uploaded=2048,
            segments=9,
            physical_files=1,
            wait_ms=120.0,
            alignment_ms=80.0,
            alignment_bytes=512,
            files_uploaded=3,
        ),
    ),
    path="/state/checkpoints/7",
    missing=(OUT,),
    metadata_ms=7.0,
    notify_ms=15.0,
    warning="it took long",
)

ORDINARY = CheckpointStatistics(
    completed=7,
    failed=1,
    restored=1,
    failed_by_cause={FailureCause.EXPIRED: 1},
    refused={Refusal.TOO_SOON: 2},
    consecutive_failures=2,
    consecutive_trigger_failures=3,
    history=(ORDINARY_RECORD,),
    latest_completed=ORDINARY_RECORD,
    durations_ms=(*[250] * 95, *[300] * 4, 310, 320),
    interval_ms=5000,
    files=FileFigures(physical=3, logical=40, bytes_stored=4608, bytes_referenced=4096, deleting=2),
)

ORDINARY_OPTIONS = CheckpointOptions(interval=5.0)


def _task(task_id: TaskId, acknowledged_ms: int, *, unaligned: bool = False, merged: bool = False) -> TaskRecord:
    merging = MergingFigures(creates=2, create_ms=10.0, closes=2, close_ms=40.0, compactions=1, bytes_rewritten=77)
    return TaskRecord(
        task_id=task_id,
        acknowledged_ms=acknowledged_ms,
        sync_ms=4.25,
        async_ms=90.5,
        bytes_full=4096,
        bytes_uploaded=2048,
        segments=9,
        physical_files=2,
        wait_ms=120.125,
        alignment_ms=80.125,
        alignment_bytes=512,
        unaligned=unaligned,
        files_uploaded=3,
        merging=merging if merged else None,
    )


COMPLETED = CheckpointRecord(
    checkpoint_id=4,
    kind=CheckpointKind.PERIODIC,
    status=CheckpointStatus.COMPLETED,
    triggered_ms=STARTED + 4000,
    num_tasks=2,
    tasks=(_task(FLIGHTS, STARTED + 4200, merged=True), _task(OUT, STARTED + 4300, unaligned=True)),
    path="s3://bucket/checkpoints/chk-4/_metadata",
    metadata_ms=7.5,
    notify_ms=15.25,
    warning="it took longer than the interval",
    files=FileFigures(physical=4, logical=11, bytes_stored=9000, bytes_referenced=8000, deleting=1),
    calls={"metadata": Calls(count=1, ms=7.0), "delete": Calls(count=4, ms=8.0)},
    files_created=3,
)

SAVEPOINT = CheckpointRecord(
    checkpoint_id=3,
    kind=CheckpointKind.SAVEPOINT,
    status=CheckpointStatus.COMPLETED,
    triggered_ms=STARTED + 3000,
    num_tasks=1,
    tasks=(_task(FLIGHTS, STARTED + 3100),),
    path="s3://bucket/checkpoints/chk-3/_metadata",
    files_created=1,
)

FAILED = CheckpointRecord(
    checkpoint_id=5,
    kind=CheckpointKind.MANUAL,
    status=CheckpointStatus.FAILED,
    triggered_ms=STARTED + 5000,
    num_tasks=2,
    tasks=(_task(FLIGHTS, STARTED + 5200),),
    failed_ms=STARTED + 5900,
    cause=FailureCause.DECLINED,
    error=ErrorInfo(code="user-code", message="it broke"),
    missing=(OUT,),
    failed_task=OUT,
    files_created=1,
)

IN_PROGRESS = CheckpointRecord(
    checkpoint_id=6,
    kind=CheckpointKind.FINAL,
    status=CheckpointStatus.IN_PROGRESS,
    triggered_ms=STARTED + 6000,
    num_tasks=2,
    missing=(FLIGHTS, OUT),
)

COMPLETE = CheckpointStatistics(
    completed=12,
    failed=2,
    restored=3,
    failed_by_cause={FailureCause.TRIGGER_FAILURE: 1, FailureCause.DECLINED: 1},
    refused={Refusal.TOO_SOON: 2, Refusal.JOB_STOPS: 1},
    consecutive_failures=1,
    consecutive_trigger_failures=4,
    in_progress=(IN_PROGRESS,),
    history=(FAILED, COMPLETED, SAVEPOINT),
    latest_completed=COMPLETED,
    latest_savepoint=SAVEPOINT,
    latest_failed=FAILED,
    latest_restored=RestoreRecord(checkpoint_id=2, restored_ms=STARTED + 2500, path="s3://bucket/chk-2/_metadata"),
    durations_ms=(100, 300, 250),
    sizes_full=(4096, 8192, 8000),
    sizes_uploaded=(2048, 4096, 1),
    sizes_aligned=(512, 1024, 0),
    interval_ms=5000,
    files=FileFigures(physical=4, logical=11, bytes_stored=9000, bytes_referenced=8000, deleting=1),
    calls={"metadata": Calls(count=12, ms=84.0), "delete": Calls(count=4, ms=8.0), "list": Calls()},
    files_created=5,
    files_deleted=6,
    compactions=1,
    bytes_rewritten=77,
    damaged=(
        DamageRecord(
            checkpoint_id=4, found_ms=STARTED + 4900, damage=(Damage("1-4-tm.seg", "it is missing"),), restored=3
        ),
    ),
    verified_ms=STARTED + 5500,
)
"""Every field that can be shown has a value of its own, where there is one for it."""

COMPLETE_OPTIONS = CheckpointOptions(
    interval=1.5,
    timeout=60.0,
    min_pause=0.5,
    max_concurrent=2,
    num_retained=3,
    on_damage=OnDamage.FALL_BACK_AND_REPEAT,
    scrub_interval=60.0,
    tolerable_failed=4,
    mode=CheckpointMode.AT_LEAST_ONCE,
    alignment_timeout=4.0,
    retain_on_cancellation=True,
    hooks=("lake", "ledger"),
)
