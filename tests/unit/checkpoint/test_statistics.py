"""Counts, summaries, and Flink's JSON."""

from __future__ import annotations

import pytest
from msgspec import json, structs

from minflinkd.checkpoint import statistics as s
from minflinkd.checkpoint.causes import CheckpointKind, FailureCause, Refusal
from minflinkd.checkpoint.flink_json import (
    config_to_flink_json,
    details_to_flink_json,
    subtasks_to_flink_json,
    summary,
    to_flink_json,
)
from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.rpc.snapshot import MergingFigures
from minflinkd.runtime.errors import NotFound
from tests.unit.checkpoint.builders import A1, B1, ERROR, NOON, A, B, snapshot


def record(number: int, status: s.CheckpointStatus = s.CheckpointStatus.COMPLETED, ms: int = 100) -> s.CheckpointRecord:
    ended = status is s.CheckpointStatus.COMPLETED
    aligned = {"wait_ms": 30.0, "alignment_ms": 20.0, "alignment_bytes": 4096, "files_uploaded": 1}
    a = structs.replace(snapshot(number, A, A1, full=1000, uploaded=200), **aligned)
    b = structs.replace(snapshot(number, B, B1, full=500, uploaded=50), **aligned)
    tasks = (s.TaskRecord.of(a, NOON + ms // 2), s.TaskRecord.of(b, NOON + ms))
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
        failed_task=B if failed else None,
        missing=() if ended else (B,),
        path=f"file:///c/chk-{number}/_metadata" if ended else "",
        files_created=2 if ended else 1,
    )


def after(*records: s.CheckpointRecord) -> s.CheckpointStatistics:
    statistics = s.CheckpointStatistics()
    for one in records:
        statistics = s.recorded(statistics, one)
    return statistics


def test_a_checkpoint_is_counted_once_however_often_it_is_reported() -> None:
    """A checkpoint is counted as in progress first, then as ended (C30)."""
    statistics = after(record(1, s.CheckpointStatus.IN_PROGRESS), record(1, s.CheckpointStatus.IN_PROGRESS), record(1))
    assert to_flink_json(statistics)["counts"] == {
        "restored": 0,
        "total": 1,
        "in_progress": 0,
        "completed": 1,
        "failed": 0,
    }


def test_failures_are_counted_by_cause_and_the_last_one_is_shown() -> None:
    """Causes are shown and counted (C23, C30)."""
    statistics = after(record(1, s.CheckpointStatus.FAILED), record(2, s.CheckpointStatus.FAILED), record(3))
    assert statistics.failed_by_cause == {FailureCause.DECLINED: 2}
    failed = to_flink_json(statistics)["latest"]["failed"]
    assert (failed["id"], failed["failure_timestamp"]) == (2, NOON + 900)
    assert failed["failure_message"] == "task b: declined: [user-code] it broke"
    assert (failed["minflinkd"]["cause"], failed["minflinkd"]["failed-task"]) == ("declined", "b")
    assert failed["end_to_end_duration"] == 900


def test_the_history_is_bounded_and_newest_first() -> None:
    """The last ten are kept, and those in progress come first (C30)."""
    statistics = after(*(record(n) for n in range(1, 21)), record(21, s.CheckpointStatus.IN_PROGRESS))
    assert [shown["id"] for shown in to_flink_json(statistics)["history"]] == list(range(21, 10, -1))
    assert len(statistics.durations_ms) == 20


def test_the_summary_has_flinks_quantiles() -> None:
    """The summary has min, avg, max, p50, p95 and p99 of duration and bytes (C30)."""
    shown = to_flink_json(after(*(record(n, ms=n * 10) for n in range(1, 102))))["summary"]
    duration = shown["end_to_end_duration"]
    assert (duration["min"], duration["avg"], duration["max"]) == (10, 510, 1010)
    assert (duration["p50"], duration["p95"], duration["p99"]) == (510, 960, 1000)
    assert shown["state_size"]["max"] == 1500
    assert shown["checkpointed_size"]["max"] == 250
    assert set(summary(()).values()) == {0}


def test_details_show_every_task() -> None:
    """Details are shown for each checkpoint and task (C30)."""
    shown = details_to_flink_json(after(record(1)), 1)
    assert shown["external_path"] == "file:///c/chk-1/_metadata"
    assert shown["tasks"]["a"]["minflinkd"] == {
        "trigger-timestamp": NOON,
        "wait": 30.0,
        "alignment": 20.0,
        "unaligned": False,
        "sync": 1.0,
        "async": 20.0,
        "files": 1,
        "files-uploaded": 1,
        "physical-files": 1,
    }
    assert shown["tasks"]["a"]["alignment_buffered"] == 4096
    assert (shown["alignment_buffered"], shown["minflinkd"]["alignment"]) == (8192, 20.0)
    assert shown["tasks"]["a"]["end_to_end_duration"] == 50
    assert shown["tasks"]["b"]["checkpointed_size"] == 50
    with pytest.raises(NotFound):
        details_to_flink_json(after(record(1)), 2)


def test_a_task_that_has_not_acknowledged_is_shown_as_well() -> None:
    """Whoever looks at a hanging checkpoint sees for which task it waits (C30)."""
    statistics = after(record(1, s.CheckpointStatus.IN_PROGRESS))
    shown = details_to_flink_json(statistics, 1)["tasks"]
    assert [(task, shown[task]["num_acknowledged_subtasks"]) for task in shown] == [("a", 1), ("b", 0)]
    assert shown["b"]["latest_ack_timestamp"] == -1
    subtask = subtasks_to_flink_json(statistics, 1)["tasks"]["b"]["subtasks"][0]
    assert subtask == {"index": 0, "status": "pending_or_failed"}


def test_a_tasks_part_is_one_subtask_with_flinks_fields() -> None:
    """The fields are sync, async, alignment and start delay (C30)."""
    shown = subtasks_to_flink_json(after(record(1)), 1)["tasks"]["a"]
    assert shown["subtasks"] == [
        {
            "index": 0,
            "status": "completed",
            "ack_timestamp": NOON + 50,
            "end_to_end_duration": 50,
            "checkpointed_size": 200,
            "state_size": 1000,
            "checkpoint": {"sync": 1, "async": 20},
            "alignment": {"buffered": 4096, "processed": 0, "persisted": 0, "duration": 20},
            "start_delay": 30,
            "unaligned_checkpoint": False,
            "aborted": False,
        }
    ]
    assert shown["summary"]["checkpoint_duration"]["async"]["max"] == 20
    assert shown["summary"]["alignment"]["buffered"]["avg"] == 4096
    with pytest.raises(NotFound):
        subtasks_to_flink_json(after(record(1)), 2)


def test_what_flink_has_no_field_for_is_beside_its_fields() -> None:
    """Other fields are failures by cause and in a row, refusals, and failures before there was an id (C23, C30)."""
    statistics = s.set_up_failed(after(record(1, s.CheckpointStatus.FAILED)), FailureCause.TRIGGER_FAILURE)
    statistics = s.refused(s.refused(statistics, Refusal.TOO_SOON), Refusal.TOO_SOON)
    statistics = structs.replace(statistics, consecutive_failures=1, consecutive_trigger_failures=2, interval_ms=5000)
    shown = to_flink_json(statistics)
    assert shown["counts"]["failed"] == 2
    own = shown["minflinkd"]
    assert {name: own[name] for name in own.keys() - {"files", "calls"}} == {
        "failed-by-cause": {"declined": 1, "trigger-failure": 1},
        "refused": {"too-soon": 2},
        "consecutive-failures": 1,
        "consecutive-trigger-failures": 2,
        "interval": 5000,
    }


def test_files_and_calls_to_the_storage_are_shown() -> None:
    """The figures are those of the job and each checkpoint, with the TaskManagers' part if they measured it (F10)."""
    one = record(1)
    merging = MergingFigures(creates=2, create_ms=10.0, closes=2, close_ms=40.0, compactions=1, bytes_rewritten=77)
    tasks = (structs.replace(one.tasks[0], merging=merging), one.tasks[1])
    files = s.FileFigures(physical=2, logical=5, bytes_stored=130, bytes_referenced=100)
    one = structs.replace(one, tasks=tasks, files=files, calls={"list": s.Calls(count=1, ms=3.0)})
    statistics = structs.replace(after(one), files=files, files_deleted=4, calls={"delete": s.Calls(count=4, ms=8.0)})
    shown = to_flink_json(statistics)
    counted = {"physical": 2, "logical": 5, "bytes-stored": 130, "bytes-referenced": 100}
    counted |= {"amplification": 1.3, "deleting": 0}
    more = {"created": 2, "deleted": 4, "compactions": 1, "bytes-rewritten": 77}
    assert shown["minflinkd"]["files"] == {**counted, **more}
    assert shown["minflinkd"]["calls"] == {"delete": {"count": 4, "ms": 8.0, "average": 2.0}}
    own = shown["latest"]["completed"]["minflinkd"]
    assert own["files"] == counted
    assert own["calls"] == {
        "close": {"count": 2, "ms": 40.0, "average": 20.0},
        "create": {"count": 2, "ms": 10.0, "average": 5.0},
        "list": {"count": 1, "ms": 3.0, "average": 3.0},
    }
    assert (own["compactions"], own["bytes-rewritten"]) == (1, 77)
    unmeasured = to_flink_json(after(record(1)))["latest"]["completed"]["minflinkd"]["calls"]
    assert unmeasured["create"] == {"count": 2, "ms": -1, "average": -1.0}


def test_how_long_the_publication_took_is_added_when_it_is_over() -> None:
    """A checkpoint is complete before its sinks have committed (C30)."""
    statistics = after(record(1), record(2))
    assert to_flink_json(statistics)["latest"]["completed"]["minflinkd"]["notify"] == -1
    shown = to_flink_json(s.published(statistics, 2, 12.5))
    assert shown["latest"]["completed"]["minflinkd"]["notify"] == 12.5
    assert [checkpoint["minflinkd"]["notify"] for checkpoint in shown["history"]] == [12.5, -1]


def test_statistics_that_an_earlier_version_stored_are_read() -> None:
    """The results of ended jobs contain them (F9)."""
    task = {"task_id": "a", "acknowledged_ms": NOON, "sync_ms": 1, "async_ms": 1, "segments": 1, "physical_files": 1}
    sizes = {"bytes_full": 1, "bytes_uploaded": 1}
    ended = {"checkpoint_id": 1, "kind": "final", "status": "COMPLETED", "triggered_ms": NOON, "num_tasks": 1}
    old = {"completed": 1, "history": [{**ended, "tasks": [{**task, **sizes}]}]}
    read = json.decode(json.encode(old), type=s.CheckpointStatistics)
    assert to_flink_json(read)["history"][0]["id"] == 1


def test_the_last_restore_is_shown() -> None:
    """A restore is counted, and its source is shown (C30)."""
    restore = s.RestoreRecord(checkpoint_id=4, restored_ms=NOON, path="file:///c/chk-4/_metadata")
    shown = to_flink_json(s.restored(after(), restore))
    assert shown["counts"]["restored"] == 1
    assert shown["latest"]["restored"] == {
        "id": 4,
        "restore_timestamp": NOON,
        "is_savepoint": False,
        "external_path": "file:///c/chk-4/_metadata",
    }


def test_the_configuration_is_shown_in_milliseconds() -> None:
    """A switched-off interval is Flink's largest long (C30)."""
    shown = config_to_flink_json(CheckpointOptions(interval=1.5, tolerable_failed=2, alignment_timeout=4.0))
    assert (shown["unaligned_checkpoints"], shown["aligned_checkpoint_timeout"]) == (True, 4000)
    assert (shown["mode"], shown["interval"], shown["timeout"]) == ("exactly_once", 1500, 600_000)
    assert shown["tolerable_failed_checkpoints"] == 2
    assert config_to_flink_json(CheckpointOptions())["interval"] == 2**63 - 1


def test_a_savepoint_is_shown_as_one_and_the_last_one_by_itself() -> None:
    """Flink's fields are `is_savepoint`, `checkpoint_type` and `latest.savepoint` (C24, C30)."""
    savepoint = structs.replace(record(1), kind=CheckpointKind.SAVEPOINT)
    shown = to_flink_json(after(savepoint, record(2)))
    assert [(c["id"], c["is_savepoint"], c["checkpoint_type"]) for c in shown["history"]] == [
        (2, False, "CHECKPOINT"),
        (1, True, "SAVEPOINT"),
    ]
    assert (shown["latest"]["savepoint"]["id"], shown["latest"]["completed"]["id"]) == (1, 2)
    assert to_flink_json(after(record(1)))["latest"]["savepoint"] is None
