"""What a task tells of its micro-batches for the diagnosis: times, rows, and what it waits for (E19a)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from minflinkd.rpc.messages import BatchWork, TaskMetrics
from minflinkd.taskmanager.session.exchange.backpressure import Backpressure
from minflinkd.taskmanager.session.query import progress
from minflinkd.taskmanager.session.query.metrics import advance, with_times
from minflinkd.taskmanager.session.query.progress import Progress
from minflinkd.taskmanager.session.query.work import Stage, slowest

AT = 1_760_000_000_000


def report(batch_id: int = 0, *, at: int = AT, **changes: Any) -> dict[str, Any]:
    made = {
        "batchId": batch_id,
        "timestamp": datetime.fromtimestamp(at / 1000, UTC).isoformat().replace("+00:00", "Z"),
        "durationMs": {"triggerExecution": 1000, "latestOffset": 300, "getBatch": 100, "addBatch": 500},
        "stateOperators": [
            {"commitTimeMs": 800, "numShufflePartitions": 4, "numRowsDroppedByWatermark": 3},
            {"commitTimeMs": 400, "numShufflePartitions": 4},
        ],
        "eventTime": {"max": "2025-10-09T08:53:00.000Z", "watermark": "2025-10-09T08:50:00.000Z"},
    }
    return made | changes


def told(before: TaskMetrics, found: dict[str, Any], rows: dict[str, int]) -> TaskMetrics:
    return with_times(advance(before, found), before, found, rows)


def test_the_time_of_state_commits_is_told() -> None:
    """Spark adds the commits of all partitions, which happen at the same time."""
    assert told(TaskMetrics(), report(), {"clicks": 5}).commit_ms == 300.0


def test_late_rows_add_up_over_micro_batches() -> None:
    first = told(TaskMetrics(), report(), {})
    assert told(first, report(1), {}).late_rows == 6


def test_a_source_keeps_the_time_of_its_last_rows() -> None:
    first = told(TaskMetrics(), report(), {"clicks": 5, "refunds": 1})
    second = told(first, report(1, at=AT + 5000), {"clicks": 2, "refunds": 0})
    assert second.source_rows_ms == {"clicks": AT + 5000, "refunds": AT}


def test_the_time_at_which_the_watermark_moved_is_kept_while_it_stands() -> None:
    first = told(TaskMetrics(), report(), {})
    second = told(first, report(1, at=AT + 5000), {})
    moved = {"max": "2025-10-09T08:59:00.000Z", "watermark": "2025-10-09T08:56:00.000Z"}
    third = told(second, report(2, at=AT + 9000, eventTime=moved), {})
    assert [each.watermark_moved_ms for each in (first, second, third)] == [AT, AT, AT + 9000]
    assert third.newest_ms is not None
    assert third.watermark_ms is not None
    assert third.newest_ms - third.watermark_ms == 180_000


@pytest.mark.parametrize(
    "ill", [{"timestamp": "yesterday"}, {"timestamp": None}, {"eventTime": None}, {"durationMs": None}]
)
def test_a_report_without_what_is_wanted_tells_less_and_is_no_error(ill: dict[str, Any]) -> None:
    """Spark's reports differ by source and version."""
    assert told(TaskMetrics(), report(**ill), {"clicks": 1}).batch_id == 0


class Query:
    def recentProgress(self) -> list[Any]:  # noqa: N802
        return []


def test_a_micro_batch_that_runs_for_long_is_told_and_forgotten_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """No report of Spark's comes until it has ended."""
    found: list[TaskMetrics] = []
    attempt = Progress(found.append, Backpressure())
    attempt.began()
    attempt.report(Query(), {}, 0)
    assert found == []
    monkeypatch.setattr(progress, "LONG", 0.0)
    attempt.report(Query(), {}, 0)
    attempt.report(Query(), {}, 0)
    [one] = found
    assert one.batch_since_ms is not None
    attempt.finished(0, {})
    attempt.report(Query(), {}, 0)
    assert found[-1].batch_since_ms is None


def test_the_disk_that_a_task_waits_for_is_told_at_once() -> None:
    pressure = Backpressure()
    held = pressure.output(0)
    pressure.hold("1 MiB are free in /x, 2 MiB must stay free")
    full = pressure.output(0)
    assert pressure.is_news(full, held.within(TaskMetrics()))
    assert full.within(TaskMetrics()).waits_for_space.startswith("1 MiB")
    pressure.hold()
    assert pressure.is_news(pressure.output(0), full.within(TaskMetrics()))
    pressure.let_go()
    assert pressure.output(0).within(TaskMetrics()).waits_for_space == ""


def test_what_partitions_did_is_added_to_what_was_told() -> None:
    found: list[TaskMetrics] = []
    attempt = Progress(found.append, Backpressure())
    work = BatchWork(batch_id=3, batch_ms=900.0, partitions=4)
    attempt.add(work)
    assert found == [replace(TaskMetrics(), work=work)]


def stage(tasks: int, longest_ms: float) -> Stage:
    return Stage(tasks=tasks, task_ms=longest_ms, longest_ms=longest_ms, rows=100.0, most_rows=90)


def test_a_sinks_second_look_at_one_partition_does_not_hide_that_the_others_are_quick() -> None:
    """A collect sink counts the rows of all partitions, and reads the last rows of one."""
    count, tail, small = stage(4, 850.0), stage(1, 900.0), stage(8, 20.0)
    assert slowest([tail, count, small]) == count
    assert slowest([stage(1, 900.0), small]) == stage(1, 900.0)
