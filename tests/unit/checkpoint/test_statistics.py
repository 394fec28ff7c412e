"""Counting, summing up, and Flink's JSON."""

from __future__ import annotations

import pytest

from minflinkd.checkpoint import statistics as s
from minflinkd.checkpoint.causes import CheckpointKind, FailureCause
from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.runtime.errors import NotFound
from tests.unit.checkpoint.builders import A1, B1, ERROR, NOON, A, B, snapshot


def record(number: int, status: s.CheckpointStatus = s.CheckpointStatus.COMPLETED, ms: int = 100) -> s.CheckpointRecord:
    ended = status is s.CheckpointStatus.COMPLETED
    tasks = (
        s.TaskRecord.of(snapshot(number, A, A1, full=1000, uploaded=200), NOON + ms // 2),
        s.TaskRecord.of(snapshot(number, B, B1, full=500, uploaded=50), NOON + ms),
    )
    failed = status is s.CheckpointStatus.FAILED
    return s.CheckpointRecord(
        checkpoint_id=number,
        kind=CheckpointKind.PERIODIC,
        status=status,
        triggered_ms=NOON,
        num_tasks=2,
        tasks=tasks if ended else tasks[:1],
        failed_ms=NOON + 900 if failed else 0,
        cause=FailureCause.DECLINED if failed else None,
        error=ERROR if failed else None,
        path=f"file:///c/chk-{number}/_metadata" if ended else "",
    )


def after(*records: s.CheckpointRecord) -> s.CheckpointStatistics:
    statistics = s.CheckpointStatistics()
    for one in records:
        statistics = s.recorded(statistics, one)
    return statistics


def test_a_checkpoint_is_counted_once_however_often_it_is_reported() -> None:
    """C30: in progress, then ended."""
    statistics = after(record(1, s.CheckpointStatus.IN_PROGRESS), record(1, s.CheckpointStatus.IN_PROGRESS), record(1))
    assert s.to_flink_json(statistics)["counts"] == {
        "restored": 0,
        "total": 1,
        "in_progress": 0,
        "completed": 1,
        "failed": 0,
    }


def test_failures_are_counted_by_cause_and_the_last_one_is_shown() -> None:
    """C23, C30: causes are shown and counted."""
    statistics = after(record(1, s.CheckpointStatus.FAILED), record(2, s.CheckpointStatus.FAILED), record(3))
    assert statistics.failed_by_cause == {FailureCause.DECLINED: 2}
    failed = s.to_flink_json(statistics)["latest"]["failed"]
    assert (failed["id"], failed["failure_timestamp"]) == (2, NOON + 900)
    assert failed["failure_message"] == "declined: [user-code] it broke"
    assert failed["end_to_end_duration"] == 900


def test_the_history_is_bounded_and_newest_first() -> None:
    """C30: the last ten; what runs comes on top."""
    statistics = after(*(record(n) for n in range(1, 21)), record(21, s.CheckpointStatus.IN_PROGRESS))
    assert [shown["id"] for shown in s.to_flink_json(statistics)["history"]] == list(range(21, 10, -1))
    assert len(statistics.durations_ms) == 20


def test_the_summary_has_flinks_quantiles() -> None:
    """C30: min, avg, max, p50, p95, p99 of duration and bytes."""
    shown = s.to_flink_json(after(*(record(n, ms=n * 10) for n in range(1, 102))))["summary"]
    duration = shown["end_to_end_duration"]
    assert (duration["min"], duration["avg"], duration["max"]) == (10, 510, 1010)
    assert (duration["p50"], duration["p95"], duration["p99"]) == (510, 960, 1000)
    assert shown["state_size"]["max"] == 1500
    assert shown["checkpointed_size"]["max"] == 250
    assert set(s.summary(()).values()) == {0}


def test_details_show_every_task() -> None:
    """C30: per checkpoint and task."""
    shown = s.details_to_flink_json(after(record(1)), 1)
    assert shown["external_path"] == "file:///c/chk-1/_metadata"
    assert shown["tasks"]["a"]["sync_duration"] == 1.0
    assert shown["tasks"]["a"]["end_to_end_duration"] == 50
    assert shown["tasks"]["b"]["checkpointed_size"] == 50
    with pytest.raises(NotFound):
        s.details_to_flink_json(after(record(1)), 2)


def test_the_last_restore_is_shown() -> None:
    """C30: counted, with where it came from."""
    restore = s.RestoreRecord(checkpoint_id=4, restored_ms=NOON, path="file:///c/chk-4/_metadata")
    shown = s.to_flink_json(s.restored(after(), restore))
    assert shown["counts"]["restored"] == 1
    assert shown["latest"]["restored"] == {
        "id": 4,
        "restore_timestamp": NOON,
        "is_savepoint": False,
        "external_path": "file:///c/chk-4/_metadata",
    }


def test_the_configuration_is_shown_in_milliseconds() -> None:
    """C30: an interval that is off is Flink's largest long."""
    shown = s.config_to_flink_json(CheckpointOptions(interval=1.5, tolerable_failed=2))
    assert (shown["mode"], shown["interval"], shown["timeout"]) == ("exactly_once", 1500, 600_000)
    assert shown["tolerable_failed_checkpoints"] == 2
    assert s.config_to_flink_json(CheckpointOptions())["interval"] == 2**63 - 1
