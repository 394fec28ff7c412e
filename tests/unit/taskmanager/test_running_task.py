"""What a running attempt reports: its figures, its end, and errors that nobody foresaw."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

from minflinkd.jobgraph.model import Checkpointing, RuntimeMode, Source, Task, Vertex
from minflinkd.rpc.messages import JobContext, TaskMetrics
from minflinkd.rpc.snapshot import RowCounts
from minflinkd.runtime.errors import Consequence, ErrorInfo
from minflinkd.runtime.ids import AttemptId, JobId, TaskId, VertexId
from minflinkd.taskmanager.child.protocol import RunTask
from minflinkd.taskmanager.exchange.channels import no_channels
from minflinkd.taskmanager.session.code.libraries import NO_CODE
from minflinkd.taskmanager.session.plan import bounded
from minflinkd.taskmanager.session.plan.plan import Plan
from minflinkd.taskmanager.session.query import metrics
from minflinkd.taskmanager.session.query import running as query
from minflinkd.taskmanager.session.query.ending import Ending
from minflinkd.taskmanager.session.query.run import SparkRun
from minflinkd.taskmanager.session.query.running import Events, RunningQuery
from minflinkd.taskmanager.session.restore.directory import Start
from minflinkd.taskmanager.session.state.stores import StateStores


@dataclass
class Told:
    finished: list[TaskMetrics] = field(default_factory=list)
    ended: list[TaskMetrics] = field(default_factory=list)
    failed: list[ErrorInfo] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)


@dataclass
class JavaQuery:
    """A Spark query that runs until `over`, with the methods that a task calls."""

    reports: list[dict[str, Any]] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def awaitTermination(self, milliseconds: int) -> bool:  # noqa: N802
        return self.over.wait(milliseconds / 1000)

    def isActive(self) -> bool:  # noqa: N802
        return not self.over.is_set()

    def exception(self) -> Any:
        return SimpleNamespace(isDefined=lambda: False)

    def recentProgress(self) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(batchId=lambda n=r["batchId"]: n, json=lambda r=r: self._json(r)) for r in self.reports]

    def _json(self, report: dict[str, Any]) -> str:
        self.read.append(report["batchId"])
        return json.dumps(report)


@dataclass
class Attempt:
    task: RunningQuery
    ending: Ending
    query: JavaQuery
    told: Told

    def batch(self, epoch: int) -> None:
        """Run a micro-batch of ten rows, and let Spark report it."""
        read = {"numInputRows": 10, "sources": [{"numInputRows": 10}]}
        self.query.reports.append({"batchId": epoch, "durationMs": {"addBatch": 7}, **read})
        self.task.batches.process(None, epoch)  # type: ignore[arg-type]

    def look(self) -> TaskMetrics:
        self.task._report(self.task._gate.run())
        return self.told.finished[-1]


@pytest.fixture
def attempt(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Attempt:
    monkeypatch.setattr(query, "_LAST_WORD", 0.0)
    context = JobContext(
        job_id=JobId("a" * 32),
        name="job",
        params={},
        mode=RuntimeMode.BATCH,
        checkpointing=Checkpointing(),
        checkpoint_root="file:///nowhere",
    )
    vertex = Vertex(id=VertexId("numbers"), source=Source(format="rate"))
    request = RunTask(
        job=context,
        task=Task(id=TaskId("numbers"), vertices=(vertex,), parallelism=1),
        attempt_id=AttemptId("b" * 32),
        directory=str(tmp_path),
    )
    told = Told()
    events = Events(batch_finished=told.finished.append, input_ended=told.ended.append, failed=told.failed.append)
    built: Any = SimpleNamespace(
        engine=SimpleNamespace(session=None, stores=None, partitions=None, callback=None),
        request=request,
        plan=Plan(spark=None, source_names={0: "numbers"}),  # type: ignore[arg-type]
        code=NO_CODE,
        sinks=SimpleNamespace(
            compactions={},
            write=lambda frame, epoch, began_ms, tasks: RowCounts(written={"out": 10}),
            ledgers=(),
            commit=lambda _, batch: told.committed.append(batch),
        ),
        exchange=None,
        channels=no_channels(),
        start=Start(tmp_path / "checkpoint", partitions=1),
    )
    ending, java_query = Ending(), JavaQuery()
    task = RunningQuery(built, events, ending)
    task._gate.start(lambda: SparkRun(SimpleNamespace(_jsq=java_query)), None)  # type: ignore[arg-type]
    return Attempt(task, ending, java_query, told)


@dataclass
class SlowToEnd(JavaQuery):
    """Ends as Spark's do: first it says that it is not active, and some time after that it is off Spark's list."""

    off_the_list: threading.Event = field(default_factory=threading.Event)
    waited_long: threading.Event = field(default_factory=threading.Event)

    def awaitTermination(self, milliseconds: int) -> bool:  # noqa: N802
        if milliseconds > 1000:
            self.waited_long.set()
        self.off_the_list.wait(milliseconds / 1000)
        return not self.isActive()


def test_a_query_counts_as_ended_once_spark_has_taken_it_off_its_list(attempt: Attempt) -> None:
    """Until then Spark refuses to start it again. When its time is over, awaitTermination says what isActive says."""
    java_query = SlowToEnd()
    attempt.task._gate.start(lambda: SparkRun(SimpleNamespace(_jsq=java_query)), None)  # type: ignore[arg-type]
    following = threading.Thread(target=attempt.task._follow)
    following.start()
    java_query.over.set()
    assert java_query.waited_long.wait(10)
    assert following.is_alive()
    java_query.off_the_list.set()
    following.join(10)
    assert not following.is_alive()


def test_rows_of_a_batch_that_ends_during_a_look_are_counted_with_it(attempt: Attempt) -> None:
    """The figures of one report belong to one instant."""
    attempt.batch(0)
    reports = attempt.query.recentProgress

    def slow() -> list[Any]:
        attempt.batch(1)
        return reports()

    attempt.query.recentProgress = slow  # type: ignore[method-assign]
    told = attempt.look()
    assert (told.batches, told.rows_in, told.rows_out) == (2, 20, 20)


def test_a_look_for_rows_that_found_none_is_not_taken_for_the_micro_batch_that_came_later(attempt: Attempt) -> None:
    """Spark reports a look without rows under the number of the next micro-batch."""
    idle = {"batchId": 0, "numInputRows": 0, "sources": [{"numInputRows": 0}], "durationMs": {"latestOffset": 1}}
    attempt.query.reports.append(idle)
    attempt.batch(0)
    *_, executed = attempt.query.reports
    attempt.query.reports = [idle]  # it has written its rows, and Spark has not reported yet what it read
    attempt.task._progress.report(attempt.query, {0: "numbers"}, 0)
    assert attempt.told.finished == []
    assert not attempt.task._progress.has_reported(0)
    attempt.query.reports = [idle, executed]
    told = attempt.look()
    assert (told.batches, told.rows_in, told.rows.read) == (1, 10, {"numbers": 10})


def test_no_batch_is_lost_to_a_late_look_and_none_is_read_twice(attempt: Attempt) -> None:
    for epoch in range(3):
        attempt.batch(epoch)
    assert attempt.look().batches == 3
    for epoch in range(3, 50):
        attempt.batch(epoch)
    told = attempt.look()
    assert (told.batches, told.batch_id, told.rows_in, told.rows_out) == (50, 49, 500, 500)
    assert sorted(attempt.query.read) == list(range(50))


@pytest.mark.parametrize("text", ["+55840-08-14T00:00:00.000Z", "-0500-01-01T00:00:00.000Z", "", None])
def test_a_watermark_of_no_year_of_ours_is_none(text: str | None) -> None:
    before = TaskMetrics(batch_id=0, watermark_ms=7)
    after = metrics.advance(before, {"batchId": 1, "eventTime": {"watermark": text}})
    assert (after.batch_id, after.watermark_ms) == (1, 7)
    known = metrics.advance(before, {"batchId": 1, "eventTime": {"watermark": "1970-01-01T00:00:01.000Z"}})
    assert known.watermark_ms == 1000


def test_a_watermark_that_no_row_has_moved_is_told_apart_from_none() -> None:
    """So that an alert sees that it stands still."""
    unmoved = {"batchId": 0, "eventTime": {"watermark": "1970-01-01T00:00:00.000Z"}}
    assert metrics.advance(TaskMetrics(), unmoved).watermark_ms == 0
    assert metrics.advance(TaskMetrics(watermark_ms=7), unmoved).watermark_ms == 7
    assert metrics.advance(TaskMetrics(), {"batchId": 0, "eventTime": {}}).watermark_ms is None


def test_a_query_that_nobody_watches_any_more_has_failed(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends the watch is reported. Otherwise the task would be RUNNING for ever."""

    def wrong(*_: object) -> TaskMetrics:
        raise ValueError("a report of another kind")

    monkeypatch.setattr(metrics, "advance", wrong)
    attempt.batch(0)
    attempt.task.watch()
    (error,) = attempt.told.failed
    assert error.consequence is Consequence.RETRYABLE
    assert "ValueError: a report of another kind" in error.message


def test_a_bounded_task_that_cannot_be_brought_to_its_end_has_failed(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> bool:
        raise Py4JError("no such method")

    monkeypatch.setattr(bounded, "run_to_end", broken)
    attempt.task.run_to_end()
    (error,) = attempt.told.failed
    assert "no such method" in error.message
    attempt.query.over.set()
    attempt.task.watch()
    assert attempt.told.failed == [error], "told once"


def test_of_a_bounded_query_that_fails_the_watch_says_why(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bool:
        raise Py4JError("the query failed")

    monkeypatch.setattr(bounded, "run_to_end", broken)
    attempt.query.over.set()
    attempt.task.watch()
    attempt.task.run_to_end()
    assert [error.code for error in attempt.told.failed] == ["query-ended"]


def test_a_stop_is_no_failure(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bool:
        raise Py4JError("the query was stopped")

    monkeypatch.setattr(bounded, "run_to_end", broken)
    attempt.ending.announce_stop()
    attempt.query.over.set()
    attempt.task.watch()
    attempt.task.run_to_end()
    assert (attempt.told.failed, attempt.told.ended) == ([], [])


def test_a_confirmation_covers_earlier_snapshots_and_no_later_one(attempt: Attempt) -> None:
    attempt.task._snapshots._taken = {1: 10, 2: 20, 3: 30}
    for checkpoint_id in (2, 2, 1, 3):
        attempt.task.confirm(checkpoint_id)
    assert attempt.told.committed == [20, 30]


@dataclass
class Table:
    """Shows something else at each look, as a table does that changes meanwhile."""

    looks: list[list[str | None]]

    def toArray(self, _: object) -> list[str | None]:  # noqa: N802
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]


def test_a_list_of_state_stores_is_looked_at_until_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies that are made without Spark's locks may be inconsistent."""
    stores = StateStores.__new__(StateStores)
    monkeypatch.setattr(stores, "_any_tag", lambda: None)
    for looks in ([["a"], ["a", "b", None], ["a", "b"]], [[], ["a", "b"]]):
        table = Table(looks)
        monkeypatch.setattr(stores, "_table", lambda _, table=table: table)  # type: ignore[misc]
        assert stores._items("cleanupPartitions") == ["a", "b"]
