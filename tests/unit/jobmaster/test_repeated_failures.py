"""A job that fails repeatedly is shown as such until it is healthy again, also by later JobMasters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as copy

from minflinkd.checkpoint.statistics import CheckpointCounts
from minflinkd.checkpoint.turn import StorageTurn
from minflinkd.jobgraph.model import JobGraph
from minflinkd.jobmaster.details import details
from minflinkd.jobmaster.history_record import HistoryRecord
from minflinkd.jobmaster.job_history import KEPT_FAILURES, KEPT_TEXT, JobHistory, decode, encode, history_of, past_of
from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler.state import JobState
from minflinkd.jobmaster.scheduler.streak import LEAST
from minflinkd.rpc.jobs import ExecutionState, JobDetails, JobStatus
from minflinkd.rpc.messages import TaskState
from minflinkd.rpc.snapshot import RowCounts
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.errors import Consequence, ErrorInfo
from minflinkd.runtime.ids import JobId, TaskId
from minflinkd.storage.registry import Storages
from tests.unit.jobmaster.wide_job import BOOM, TM1, WideJob

JOB = JobId("0" * 32)
RUNS = 3.0  # how many seconds an attempt lives


def wall(at: float) -> int:
    return 1_700_000_000_000 + round(at * 1000)


def shown(state: JobState) -> JobDetails:
    graph = JobGraph(name="job", vertices=())
    return details(JOB, graph, state, submitted_ms=0, wall=wall, submission={}, task_phases={}, published={})


def running(**widths: int) -> WideJob:
    job = WideJob(group="all", **widths)
    job.offer(TM1, max(widths.values()))
    job.deploy()
    job.come_up()
    return job


def fail(job: WideJob, name: str = "a") -> None:
    """Fail after `RUNS` seconds, and run again when the restart is due."""
    job.wait(RUNS)
    job.report(name, TaskState.FAILED, BOOM)
    assert job.state.restart_at is not None
    job.wait(job.state.restart_at - job.now)
    job.deploy(checkpoint=1)
    job.come_up()


def test_a_job_is_said_to_restart_repeatedly_from_the_third_failure_on_also_while_it_runs() -> None:
    """Between failures it is RUNNING, which does not show the trouble."""
    job = running(a=1)
    for restarts in (1, 2, 3, 4):
        assert shown(job.state).repeated is None or restarts > 3
        fail(job)
        assert shown(job.state).restarts == restarts
    assert job.state.status is JobStatus.RUNNING
    repeated = shown(job.state).repeated
    assert repeated is not None
    assert (repeated.failures, repeated.since_ms) == (4, wall(RUNS))
    assert (repeated.last.task_id, repeated.last.resource_id, repeated.last.error.code) == ("a", TM1, BOOM.code)


def test_the_failures_of_one_incident_are_one() -> None:
    """As in Flink, one restart handles all failures that occur while it is due."""
    job = running(a=1, b=1)
    job.wait(RUNS)
    for name in ("a", "b"):
        job.report(name, TaskState.FAILED, BOOM)
    assert (job.state.streak.failures, job.state.restarts, len(job.state.failures)) == (1, 1, 2)
    assert job.state.streak.last is not None
    assert job.state.streak.last.record.task_id == "a"


def test_one_task_of_many_makes_the_job_restart_repeatedly() -> None:
    """The region restarts alone, but the job is still not healthy."""
    job = running(a=1, b=1, c=1)
    for _ in range(3):
        fail(job, "b")
    assert job.state.executions[TaskId("a")].number == 0
    repeated = shown(job.state).repeated
    assert repeated is not None
    assert repeated.last.task_name == "b"


def test_the_mark_goes_when_the_job_has_completed_a_checkpoint_and_has_run_for_a_while() -> None:
    """A job that fails again may have done one of the two. Only both together prove it healthy."""
    job = running(a=1)
    for _ in range(3):
        fail(job)
    job.wait(LEAST + 1)
    assert job.state.restarts_repeatedly
    job.feed(ev.CheckpointCompleted())
    assert not job.state.restarts_repeatedly
    assert (shown(job.state).repeated, shown(job.state).restarts) == (None, 3)

    for _ in range(3):
        fail(job)
    job.feed(ev.CheckpointCompleted())
    assert job.state.restarts_repeatedly
    job.wait(LEAST)  # nothing else happens to an idle job
    assert not job.state.restarts_repeatedly


def test_a_checkpoint_from_before_the_last_failure_proves_nothing() -> None:
    job = running(a=1)
    for _ in range(3):
        fail(job)
    job.feed(ev.CheckpointCompleted())
    job.report("a", TaskState.FAILED, BOOM)
    job.feed(ev.CheckpointCompleted())  # its metadata was being written during the failure
    assert job.state.restart_at is not None
    job.wait(job.state.restart_at - job.now)
    job.deploy(checkpoint=2)
    job.come_up()
    job.wait(100)
    assert job.state.restarts_repeatedly


def test_the_time_of_the_next_restart_is_shown_while_the_job_waits_for_it() -> None:
    job = running(a=1)
    assert shown(job.state).next_restart_ms == -1
    job.wait(RUNS)
    job.report("a", TaskState.FAILED, BOOM)
    assert shown(job.state).next_restart_ms == wall(RUNS + 0.1)


def test_a_later_jobmaster_goes_on_with_what_is_recorded() -> None:
    """The next JobMaster knows restarts, failures in a row and the grown delay, by another process's clock."""
    job = running(a=1)
    for _ in range(4):
        fail(job)
    stored = decode(encode(history_of(job.state, CheckpointCounts(completed=9, failed=2), wall, version="v2")))
    past = past_of(stored, lambda ms: (ms - 1_700_000_000_000) / 1000 - 5000)
    later = WideJob(a=1)
    later.feed(ev.Started(past=past))
    state = later.state
    assert (state.restarts, state.streak.failures, state.history.attempts) == (4, 4, 4)
    assert state.history.backoff == job.state.history.backoff > 0.3
    assert state.history.failures == pytest.approx([at - 5000 for at in job.state.history.failures], abs=0.001)
    again = shown(state)
    assert again.repeated is not None
    assert [f.error for f in again.failures] == [BOOM] * 4
    assert stored.checkpoints == CheckpointCounts(completed=9, failed=2)


def test_another_version_is_forgiven_the_delay_but_has_to_prove_healthy() -> None:
    job = running(a=1)
    for _ in range(4):
        fail(job)
    past = past_of(history_of(job.state, CheckpointCounts(), wall, version="v2").of_another_version(), lambda _: 0.0)
    assert (past.history.backoff, past.history.attempts, past.streak.failures, past.restarts) == (0, 0, 4, 4)


def test_rows_of_a_restored_attempt_go_on_from_those_of_its_checkpoint() -> None:
    """Rows that the failed attempt read after the checkpoint are read again, and count then."""
    job = running(a=1)
    execution = job.state.executions[TaskId("a")]
    metrics = copy(execution.metrics, rows=RowCounts(read={"a": 500}))
    job.state = job.state.with_execution(replace(execution, metrics=metrics))
    assert shown(job.state).tasks[0].rows.read == {"a": 500}
    job.report("a", TaskState.FAILED, BOOM)
    assert job.state.restart_at is not None
    job.wait(job.state.restart_at - job.now)
    rows = {TaskId("a"): RowCounts(read={"a": 300})}
    job.feed(ev.RestorePointFound(job.state.round, 1, {}, rows))
    assert shown(job.state).tasks[0].rows.read == {"a": 300}
    job.come_up()
    assert shown(job.state).tasks[0].rows.read == {"a": 300}


async def test_the_record_is_there_for_the_next_jobmaster_and_bounded(tmp_path: Path) -> None:
    long = ErrorInfo(code="user-code", message="m" * 100_000, traceback="t" * 100_000, consequence=Consequence.FATAL)
    job = running(a=1)
    for _ in range(KEPT_FAILURES + 3):
        fail(job)
    job.state = replace(
        job.state,
        failures=tuple(replace(f, record=copy(f.record, error=long)) for f in job.state.failures),
    )
    record = history_record(tmp_path, job)
    assert await record.load() == JobHistory()
    await record.write_last()
    read = await history_record(tmp_path, job).load()
    assert (read.restarts, len(read.failures)) == (KEPT_FAILURES + 3, KEPT_FAILURES)
    assert {len(f.error.message) + len(f.error.traceback) for f in read.failures} == {2 * KEPT_TEXT}


async def test_nothing_is_written_for_a_job_that_neither_failed_nor_ran(tmp_path: Path) -> None:
    """Counts of checkpoints are in their metadata, so they alone need no record."""
    record = history_record(tmp_path, WideJob(group="all", a=1))
    await record.load()
    await record.write_last()
    assert list(tmp_path.iterdir()) == []


async def test_the_record_says_whether_the_job_ran(tmp_path: Path) -> None:
    """A later JobMaster that finds no task of a job that ran counts a restart."""
    job = running(a=1)
    await history_record(tmp_path, job).write_last()
    assert (await history_record(tmp_path, job).load()).running == "v2"
    job.report("a", TaskState.FAILED, BOOM)
    record = history_record(tmp_path, job)
    await record.load()
    await record.write_last()
    assert (await record.load()).running == ""


async def test_a_record_that_cannot_be_read_is_begun_anew(tmp_path: Path) -> None:
    """A lost count is no reason to keep a job down."""
    (tmp_path / "history.json").write_text("{")
    record = history_record(tmp_path, running(a=1))
    assert await record.load() == JobHistory()


def history_record(directory: Path, job: WideJob) -> HistoryRecord:
    return HistoryRecord(
        Storages().at(str(directory)),
        job_id=JOB,
        clock=SystemClock(),
        turn=StorageTurn("job"),
        look=lambda: history_of(job.state, CheckpointCounts(completed=5), wall, version="v2"),
    )


@pytest.mark.parametrize("state", [ExecutionState.FINISHED, ExecutionState.CANCELED, ExecutionState.FAILED])
def test_an_attempt_that_has_ended_is_shown_with_its_end(state: ExecutionState) -> None:
    """Whichever way it ended (E1)."""
    job = running(a=1)
    (task,) = shown(job.state).tasks
    assert (task.start_ms, task.end_ms) == (wall(0.0), -1)
    execution = job.state.executions[TaskId("a")]
    ended = replace(execution, state=state, entered=(*execution.entered, (state, 9.0)))
    (task,) = shown(job.state.with_execution(ended)).tasks
    assert (task.start_ms, task.end_ms) == (wall(0.0), wall(9.0))
