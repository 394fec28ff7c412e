"""Checkpoints in Flink's JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import json, structs

from minflinkd.checkpoint import statistics as s
from minflinkd.checkpoint.causes import CheckpointKind, FailureCause, Refusal
from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.rest import checkpoints_json
from minflinkd.rest.plan import vertex_id
from minflinkd.rpc.snapshot import MergingFigures
from minflinkd.runtime.errors import NotFound
from tests.unit.checkpoint.builders import NOON, A, B
from tests.unit.checkpoint.records import after, record


def plain(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that returns what a client reads."""
    return lambda *of: json.decode(json.encode(make(*of)))


statistics_json, details_json = plain(checkpoints_json.statistics_json), plain(checkpoints_json.details_json)
subtasks_json, config_json = plain(checkpoints_json.subtasks_json), plain(checkpoints_json.config_json)


def test_the_last_failure_is_shown_with_its_cause() -> None:
    """Causes are shown (C23, C30)."""
    statistics = after(record(1, s.CheckpointStatus.FAILED), record(2, s.CheckpointStatus.FAILED), record(3))
    failed = statistics_json(statistics)["latest"]["failed"]
    assert (failed["id"], failed["failure_timestamp"]) == (2, NOON + 900)
    assert failed["failure_message"] == "task b: declined: [user-code] it broke"
    assert (failed["minflinkd"]["cause"], failed["minflinkd"]["failed-task"]) == ("declined", "b")
    assert failed["end_to_end_duration"] == 900


def test_checkpoints_in_progress_come_first() -> None:
    """The newest is first (C30)."""
    statistics = after(*(record(n) for n in range(1, 21)), record(21, s.CheckpointStatus.IN_PROGRESS))
    shown = statistics_json(statistics)
    assert [checkpoint["id"] for checkpoint in shown["history"]] == list(range(21, 10, -1))
    assert shown["counts"] == {"restored": 0, "total": 21, "in_progress": 1, "completed": 20, "failed": 0}


def test_details_show_every_task() -> None:
    """Details are shown for each checkpoint and task (C30)."""
    shown = details_json(after(record(1)), 1)
    assert shown["external_path"] == "file:///c/chk-1/_metadata"
    a, b = shown["tasks"][vertex_id(A)], shown["tasks"][vertex_id(B)]
    assert a["minflinkd"] == {
        "trigger-timestamp": NOON,
        "wait": 30.0,
        "alignment": 20.0,
        "unaligned": False,
        "sync": 1.0,
        "async": 20.0,
        "files": 1,
        "files-uploaded": 1,
        "physical-files": 1,
        "task-id": "a",
    }
    assert a["alignment_buffered"] == 4096
    assert (shown["alignment_buffered"], shown["minflinkd"]["alignment"]) == (8192, 20.0)
    assert a["end_to_end_duration"] == 50
    assert b["checkpointed_size"] == 50
    with pytest.raises(NotFound):
        details_json(after(record(1)), 2)


def test_a_task_that_has_not_acknowledged_is_shown_as_well() -> None:
    """Whoever looks at a hanging checkpoint sees for which task it waits (C30)."""
    statistics = after(record(1, s.CheckpointStatus.IN_PROGRESS))
    a, b = details_json(statistics, 1)["tasks"].values()
    assert (a["minflinkd"]["task-id"], a["num_acknowledged_subtasks"]) == ("a", 1)
    assert (b["minflinkd"]["task-id"], b["num_acknowledged_subtasks"]) == ("b", 0)
    assert b["latest_ack_timestamp"] == -1
    part = subtasks_json(statistics, 1, "b")
    assert part["subtasks"] == [{"className": "pending", "index": 0, "status": "pending_or_failed"}]
    assert part["minflinkd"]["task-id"] == "b"


def test_a_tasks_part_is_one_subtask_with_flinks_fields() -> None:
    """The fields are sync, async, alignment and start delay (C30)."""
    shown = subtasks_json(after(record(1)), 1, vertex_id(A))
    assert shown["subtasks"] == [
        {
            "className": "completed",
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
        subtasks_json(after(record(1)), 2, "a")
    with pytest.raises(NotFound, match="no task 'c'"):
        subtasks_json(after(record(1)), 1, "c")


def test_what_flink_has_no_field_for_is_beside_its_fields() -> None:
    """Other fields are failures by cause and in a row, refusals, and failures before there was an id (C23, C30)."""
    statistics = s.set_up_failed(after(record(1, s.CheckpointStatus.FAILED)), FailureCause.TRIGGER_FAILURE)
    statistics = s.refused(s.refused(statistics, Refusal.TOO_SOON), Refusal.TOO_SOON)
    statistics = structs.replace(statistics, consecutive_failures=1, consecutive_trigger_failures=2, interval_ms=5000)
    shown = statistics_json(statistics)
    assert shown["counts"]["failed"] == 2
    own = shown["minflinkd"]
    assert {name: own[name] for name in own.keys() - {"files", "calls"}} == {
        "failed-by-cause": {"declined": 1, "trigger-failure": 1},
        "refused": {"too-soon": 2},
        "consecutive-failures": 1,
        "consecutive-trigger-failures": 2,
        "interval": 5000,
        "damaged": [],
        "verified": -1,
    }


def test_files_and_calls_to_the_storage_are_shown() -> None:
    """The figures are those of the job and each checkpoint, with the TaskManagers' part if they measured it (F10)."""
    one = record(1)
    merging = MergingFigures(creates=2, create_ms=10.0, closes=2, close_ms=40.0, compactions=1, bytes_rewritten=77)
    tasks = (structs.replace(one.tasks[0], merging=merging), one.tasks[1])
    files = s.FileFigures(physical=2, logical=5, bytes_stored=130, bytes_referenced=100)
    one = structs.replace(one, tasks=tasks, files=files, calls={"list": s.Calls(count=1, ms=3.0)})
    statistics = structs.replace(after(one), files=files, files_deleted=4, calls={"delete": s.Calls(count=4, ms=8.0)})
    shown = statistics_json(statistics)
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
    unmeasured = statistics_json(after(record(1)))["latest"]["completed"]["minflinkd"]["calls"]
    assert unmeasured["create"] == {"count": 2, "ms": -1, "average": -1.0}


def test_the_last_restore_is_shown() -> None:
    """A restore is counted, and its source is shown (C30)."""
    restore = s.RestoreRecord(checkpoint_id=4, restored_ms=NOON, path="file:///c/chk-4/_metadata")
    shown = statistics_json(s.restored(after(), restore))
    assert shown["counts"]["restored"] == 1
    assert shown["latest"]["restored"] == {
        "id": 4,
        "restore_timestamp": NOON,
        "is_savepoint": False,
        "external_path": "file:///c/chk-4/_metadata",
    }


def test_the_configuration_is_shown_in_milliseconds() -> None:
    """A switched-off interval is Flink's largest long (C30)."""
    shown = config_json(CheckpointOptions(interval=1.5, tolerable_failed=2, alignment_timeout=4.0))
    assert (shown["unaligned_checkpoints"], shown["aligned_checkpoint_timeout"]) == (True, 4000)
    assert (shown["mode"], shown["interval"], shown["timeout"]) == ("exactly_once", 1500, 600_000)
    assert shown["tolerable_failed_checkpoints"] == 2
    assert config_json(CheckpointOptions())["interval"] == 2**63 - 1


def test_a_savepoint_is_shown_as_one_and_the_last_one_by_itself() -> None:
    """Flink's fields are `is_savepoint`, `checkpoint_type` and `latest.savepoint` (C24, C30)."""
    savepoint = structs.replace(record(1), kind=CheckpointKind.SAVEPOINT)
    shown = statistics_json(after(savepoint, record(2)))
    assert [(c["id"], c["is_savepoint"], c["checkpoint_type"]) for c in shown["history"]] == [
        (2, False, "CHECKPOINT"),
        (1, True, "SAVEPOINT"),
    ]
    assert (shown["latest"]["savepoint"]["id"], shown["latest"]["completed"]["id"]) == (1, 2)
    assert statistics_json(after(record(1)))["latest"]["savepoint"] is None


def test_a_savepoint_is_where_its_copy_is() -> None:
    """The checkpoint that it was copied from goes as all others do, so its path would soon lead nowhere (C24)."""
    statistics = after(structs.replace(record(1), kind=CheckpointKind.SAVEPOINT))
    before = statistics_json(statistics)["latest"]["savepoint"]
    assert (before["external_path"], before["minflinkd"]["savepoint"]) == (record(1).path, "")
    shown = statistics_json(s.copied(statistics, 1, "file:///s/savepoint-1"))
    for one in (*shown["history"], shown["latest"]["savepoint"], shown["latest"]["completed"]):
        assert (one["external_path"], one["minflinkd"]["savepoint"]) == ("file:///s/savepoint-1",) * 2
