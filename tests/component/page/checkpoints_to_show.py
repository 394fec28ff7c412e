"""Statistics of checkpoints for the page to show: many that were good, one that failed, and a savepoint."""

from __future__ import annotations

from msgspec.structs import replace

from minflinkd.checkpoint.causes import CheckpointKind, FailureCause
from minflinkd.checkpoint.statistics import CheckpointRecord, CheckpointStatistics, CheckpointStatus
from minflinkd.runtime.errors import ErrorInfo
from tests.unit.rest.checkpoint_statistics import COMPLETE, COMPLETED, STARTED

LAST = 62  # its id
EVERY_MS = 30_000


def checkpoints(now_ms: int) -> CheckpointStatistics:
    """Return what is known after 62 checkpoints, the last of them 40 s ago."""
    records = tuple(_record(LAST - n, now_ms - 40_000 - n * EVERY_MS) for n in range(10))
    good = [one for one in records if one.status is CheckpointStatus.COMPLETED]
    return replace(
        COMPLETE,
        completed=61,
        failed=1,
        failed_by_cause={FailureCause.STORAGE: 1},
        consecutive_failures=0,
        consecutive_trigger_failures=0,
        in_progress=(),
        history=records,
        latest_completed=good[0],
        latest_savepoint=next(one for one in good if one.kind is CheckpointKind.SAVEPOINT),
        latest_failed=next(one for one in records if one.status is CheckpointStatus.FAILED),
        latest_restored=replace(COMPLETE.latest_restored, checkpoint_id=41, restored_ms=now_ms - 1_890_000),
        interval_ms=EVERY_MS,
        damaged=(),
    )


def _record(number: int, triggered_ms: int) -> CheckpointRecord:
    by = triggered_ms - COMPLETED.triggered_ms
    took = 1 + (number * 7) % 5  # times longer than the pattern
    tasks = tuple(
        replace(
            task,
            acknowledged_ms=triggered_ms + (task.acknowledged_ms - STARTED - 4000) * took,
            wait_ms=task.wait_ms * took,
            async_ms=task.async_ms * took * 3,
            bytes_full=31_000_000 + number * 90_000,
            bytes_uploaded=2_400_000 * took,
        )
        for task in COMPLETED.tasks
    )
    made = replace(COMPLETED, checkpoint_id=number, triggered_ms=COMPLETED.triggered_ms + by, tasks=tasks, warning="")
    if number == LAST - 5:
        error = ErrorInfo(code="storage", message="PUT s3://lake/chk-57/flights: the storage does not answer (503)")
        failed = replace(made, status=CheckpointStatus.FAILED, tasks=tasks[:1], failed_ms=triggered_ms + 10_000)
        return replace(failed, cause=FailureCause.STORAGE, error=error, missing=(tasks[1].task_id,), path="")
    if number == LAST - 2:
        return replace(made, kind=CheckpointKind.SAVEPOINT, savepoint="s3://lake/savepoints/savepoint-0f0f0f-9c1e77")
    return made
