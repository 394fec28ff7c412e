"""What a task tells of its micro-batches for the diagnosis: times, rows, and what it waits for (E19a)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from minflinkd.rpc.messages import BatchWork, Spent, TaskMetrics, TaskPartitions
from minflinkd.rpc.snapshot import NO_ROWS
from minflinkd.taskmanager.session.exchange.backpressure import Backpressure
from minflinkd.taskmanager.session.query import progress
from minflinkd.taskmanager.session.query.metrics import advance, with_times
from minflinkd.taskmanager.session.query.progress import Progress
from minflinkd.taskmanager.session.query.work import partitions, slowest
from minflinkd.taskmanager.session.spark.partitions import Stage, partition_of

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
    attempt.finished(0, NO_ROWS)
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


def stage(tasks: int, longest_ms: int, *, key: int = 0, batch_id: int = 3, all_longest_ms: int = 0) -> Stage:
    return Stage(
        key=key,
        batch_id=batch_id,
        tasks=tasks,
        task_ms=longest_ms,
        longest_ms=longest_ms,
        rows=100,
        most_rows=90,
        all_longest_ms=all_longest_ms,
    )


def test_a_sinks_second_look_at_one_partition_does_not_hide_that_the_others_are_quick() -> None:
    """A collect sink counts the rows of all partitions, and reads the last rows of one."""
    count, tail, small = stage(4, 850), stage(1, 900), stage(8, 20)
    assert slowest([tail, count, small]) == count
    assert slowest([stage(1, 900), small]) == stage(1, 900)


class Book:
    """Has these stages, and tells which of them it was asked for."""

    def __init__(self, *stages: Stage) -> None:
        self._stages = stages

    def stages(self, _: str) -> list[Stage]:
        return list(self._stages)

    def partitions(self, _: str, stage: int) -> TaskPartitions:
        return TaskPartitions(batch_id=stage)


def test_the_deciding_stage_is_that_of_all_micro_batches_together() -> None:
    """In the last one, which had few rows, another stage took longest. Subtasks would change their meaning (E1)."""
    reads = [stage(2, 40, key=0, batch_id=batch, all_longest_ms=300) for batch in (8, 9)]
    sums = [stage(4, 7, key=1, batch_id=batch, all_longest_ms=90_000) for batch in (8, 9)]
    assert partitions(Book(*reads, *sums), "run").batch_id == 1  # type: ignore[arg-type]


def test_before_a_stage_is_complete_the_time_so_far_decides() -> None:
    assert partitions(Book(stage(2, 40, key=0), stage(2, 9000, key=1)), "run").batch_id == 1  # type: ignore[arg-type]
    assert partitions(Book(), "run") == TaskPartitions()  # type: ignore[arg-type]


def test_a_partition_is_read_from_a_line() -> None:
    found = partition_of("3\thost-b\t7\t1\tSUCCESS\t1700000000000\t1\t2\t3\t4\t5\t10\t20\t30\t40\t50")
    assert (found.index, found.host, found.executor, found.attempt) == (3, "host-b", "7", 1)
    assert found.last == Spent(ms=1, rows_in=2, rows_out=3, bytes_in=4, bytes_out=5)
    assert found.total == Spent(ms=10, rows_in=20, rows_out=30, bytes_in=40, bytes_out=50)
