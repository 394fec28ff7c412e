"""What the scheduler makes of single events: each counts once, and only in its time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler.execution import Execution
from minflinkd.jobmaster.scheduler.machine import next_wakeup
from minflinkd.jobmaster.scheduler.phases import FindingRestorePoint, Running, StandingDown, StoodDown
from minflinkd.jobmaster.scheduler.state import Takeover, new_job
from minflinkd.jobmaster.scheduler.streak import LEAST, NO_FAILURES
from minflinkd.rpc.jobs import ExecutionState, FailureRecord, JobStatus
from minflinkd.rpc.messages import SlotOffer, TaskMetrics, TaskState, TaskStatus
from minflinkd.rpc.snapshot import RowCounts
from minflinkd.runtime.errors import Consequence, ErrorInfo, Kind
from minflinkd.runtime.ids import AllocationId, AttemptId, ResourceId, TaskId
from tests.unit.jobmaster.wide_job import BOOM, TM1, WideJob, of_kind

NOBODY = AttemptId("nobody")
FATAL = ErrorInfo(code="user-code", message="broken", consequence=Consequence.FATAL)
A, B = TaskId("a"), TaskId("b")


def waiting() -> WideJob:
    return WideJob(a=1)


def finding() -> WideJob:
    job = waiting()
    job.offer(TM1, 1)
    assert isinstance(job.state.phase, FindingRestorePoint)
    return job


def coming_up() -> WideJob:
    job = finding()
    job.deploy()
    return job


def running() -> WideJob:
    job = coming_up()
    job.come_up()
    return job


def restarting() -> WideJob:
    """Return a job whose only attempt has failed."""
    job = running()
    job.report("a", TaskState.FAILED, BOOM)
    assert job.state.status is JobStatus.RESTARTING
    return job


def standing_down() -> WideJob:
    job = running()
    job.feed(ev.StandDown())
    assert isinstance(job.state.phase, StandingDown)
    return job


def stood_down() -> WideJob:
    job = standing_down()
    assert job.feed(ev.AttemptGone(job.attempt("a"))) == [ev.StoodDown()]
    assert isinstance(job.state.phase, StoodDown)
    return job


def cancelling() -> WideJob:
    job = running()
    job.feed(ev.CancelRequested())
    return job


def settling() -> WideJob:
    job = cancelling()
    job.feed(ev.AttemptGone(job.attempt("a")))
    return job


def ended() -> WideJob:
    job = settling()
    job.feed(ev.SinksSettled())
    return job


def told(job: WideJob, state: TaskState) -> ev.TaskChanged:
    return ev.TaskChanged(
        TaskStatus(attempt_id=job.attempt("a"), task_id=A, state=state, metrics=TaskMetrics(batches=9))
    )


OFFER = ev.SlotsOffered(TM1, "taskmanager/tm-1", (SlotOffer(allocation_id=AllocationId("new"), slots=(7,)),))
LATE: list[tuple[Callable[[], WideJob], Callable[[WideJob], ev.Event]]] = [
    (waiting, lambda job: ev.RestorePointFound(job.state.round, None, {})),
    (waiting, lambda job: ev.RestorePointFailed(job.state.round, BOOM)),
    (waiting, lambda _: ev.CheckpointsFailed(BOOM)),
    (waiting, lambda job: ev.StopDone(job.state.round)),
    (waiting, lambda _: ev.GoOn()),
    (waiting, lambda _: ev.SinksSettled()),
    (finding, lambda job: ev.RestorePointFound(job.state.round - 1, None, {})),
    (finding, lambda job: ev.RestorePointFailed(job.state.round - 1, BOOM)),
    (finding, lambda _: ev.CheckpointCompleted()),
    (finding, lambda _: ev.DrainBegun()),
    (coming_up, lambda job: ev.FinalCheckpointDone(job.state.round)),
    (running, lambda job: ev.RestorePointFound(job.state.round, None, {})),
    (running, lambda job: ev.RestorePointFailed(job.state.round, BOOM)),
    (running, lambda job: ev.FinalCheckpointDone(job.state.round)),
    (running, lambda job: ev.StopDone(job.state.round + 1)),
    (running, lambda job: ev.RescaleCheckpointDone(job.state.round)),
    (running, lambda job: ev.RescaleCheckpointFailed(job.state.round)),
    (running, lambda _: ev.DeployAccepted(NOBODY)),
    (running, lambda _: ev.DeployFailed(NOBODY, BOOM)),
    (running, lambda _: ev.DeployUnanswered(NOBODY, BOOM)),
    (running, lambda _: ev.AttemptGone(NOBODY)),
    (running, lambda _: ev.TaskProgressed(NOBODY, TaskMetrics(batches=9))),
    (running, lambda _: ev.SlotsGone((AllocationId("unknown"),), "not known")),
    (running, lambda _: ev.TaskManagerGone(ResourceId("tm-9"), "killed")),
    (running, lambda _: ev.GoOn()),
    (running, lambda _: ev.SinksSettled(BOOM)),
    (restarting, lambda job: told(job, TaskState.RUNNING)),
    (restarting, lambda job: told(job, TaskState.FAILED)),
    (restarting, lambda job: ev.AttemptGone(job.attempt("a"))),
    (restarting, lambda job: ev.DeployFailed(job.attempt("a"), BOOM)),
    (restarting, lambda job: ev.DeployUnanswered(job.attempt("a"), BOOM)),
    (restarting, lambda job: ev.TaskProgressed(job.attempt("a"), TaskMetrics(batches=9))),
    (restarting, lambda _: ev.CheckpointsFailed(BOOM)),
    (standing_down, lambda _: ev.StandDown()),
    (standing_down, lambda job: told(job, TaskState.RUNNING)),
    (standing_down, lambda job: ev.StopDone(job.state.round)),
    (stood_down, lambda _: ev.StandDown()),
    (cancelling, lambda _: ev.StandDown()),
    (cancelling, lambda _: ev.GoOn()),
    (cancelling, lambda _: ev.CancelRequested()),
    (cancelling, lambda _: ev.SinksSettled()),
    (cancelling, lambda _: OFFER),
    (cancelling, lambda job: told(job, TaskState.INPUT_ENDED)),
    (settling, lambda _: OFFER),
    (settling, lambda _: ev.CancelRequested()),
    (settling, lambda _: ev.StandDown()),
    (ended, lambda _: ev.SinksSettled(BOOM)),
    (ended, lambda _: ev.NeedsAnswered({}, {}, 4)),
    (ended, lambda _: ev.Proven()),
]


@pytest.mark.parametrize(("make", "event"), LATE)
def test_an_event_that_comes_late_or_again_changes_nothing(
    make: Callable[[], WideJob], event: Callable[[WideJob], ev.Event]
) -> None:
    """Networks double and delay messages (C21)."""
    job = make()
    before = job.state
    job.now += 0.01
    late = event(job)
    assert (job.feed(late), job.state) == ([], before), late


# --- the beginning ---------------------------------------------------------------------------------------------------


def test_a_recovered_job_begins_with_what_earlier_jobmasters_left() -> None:
    """A group is as wide as its widest task was. Tasks that this version does not have count for nothing (R13)."""
    job = WideJob(group="all", a=4, b=4)
    job.now = 5.0
    rows = {B: RowCounts(read={"b": 300})}
    ran_with = {A: 3, B: 2, TaskId("gone"): 4}
    job.feed(ev.Started(recovered=True, ran_with=ran_with, rows=rows))
    state = job.state
    assert (state.ran_with, state.proven, state.has_run) == ({"all": 3}, {"all": 3}, True)
    assert (state.takeover, state.rollouts[0].began) == (Takeover(5.0), 5.0)
    assert (state.executions[A].rows, state.executions[B].rows) == (RowCounts(), rows[B])
    job.feed(ev.Started(recovered=True, ran_with={A: 0, B: 0}))
    assert job.state.ran_with == {}


def test_a_new_job_has_nothing_to_take_over() -> None:
    job = WideJob(a=1)
    assert (job.state.takeover, job.state.has_run, job.state.ran_with) == (None, False, {})


def test_every_status_is_entered_at_the_time_of_its_event() -> None:
    job = WideJob(a=1)
    for now, event in ((1.0, None), (2.0, ev.RestorePointFound(1, None, {}))):
        job.now = now
        _ = job.feed(event) if event else job.offer(TM1, 1)
    job.now = 3.0
    job.come_up()
    job.now = 4.0
    job.report("a", TaskState.FAILED, BOOM)
    assert job.state.entered == {JobStatus.CREATED: 0.0, JobStatus.RUNNING: 3.0, JobStatus.RESTARTING: 4.0}
    assert [(r.began, r.cause) for r in job.state.rollouts] == [(0.0, ""), (4.0, "user-code: boom")]
    assert execution(job).entered == (
        (ExecutionState.SCHEDULED, 2.0),
        (ExecutionState.DEPLOYING, 2.0),
        (ExecutionState.RUNNING, 3.0),
        (ExecutionState.FAILED, 4.0),
    )
    names = ("canceled", "slots", "restore_point", "deployed", "running")
    assert job.state.rollouts[0].seconds() == dict(zip(names, (0.0, 1.0, 2.0, 2.0, 3.0), strict=True))


# --- restore points --------------------------------------------------------------------------------------------------


def test_a_restore_point_that_is_not_found_is_looked_for_again_after_a_while() -> None:
    job = finding()
    assert job.feed(ev.RestorePointFailed(job.state.round, BOOM)) == [ev.StopCheckpoints()]
    assert job.state.status is JobStatus.RESTARTING
    assert job.state.failures[-1].record == FailureRecord(timestamp_ms=0, error=BOOM)
    (find,) = of_kind(ev.FindRestorePoint, job.wait(1))
    assert find == ev.FindRestorePoint(job.state.round, frozenset({A}))


def test_a_job_without_a_restore_point_fails_if_no_restart_can_mend_it() -> None:
    job = finding()
    job.feed(ev.RestorePointFailed(job.state.round, FATAL))
    assert job.state.outcome is JobStatus.FAILED


# --- tasks -----------------------------------------------------------------------------------------------------------


def execution(job: WideJob) -> Execution:
    return job.state.executions[A]


def test_a_task_only_moves_on() -> None:
    """Reports may overtake each other. Metrics are always those of the last report."""
    job = coming_up()
    job.feed(told(job, TaskState.RUNNING))
    assert (execution(job).state, execution(job).metrics.batches) == (ExecutionState.RUNNING, 9)
    job.report("a", TaskState.INITIALIZING)
    assert (execution(job).state, execution(job).metrics.batches) == (ExecutionState.RUNNING, 0)
    assert [state for state, _ in execution(job).entered][-1] is ExecutionState.RUNNING


def test_an_input_that_has_ended_stays_ended() -> None:
    job = running()
    assert job.report("a", TaskState.INPUT_ENDED) == [ev.TakeFinalCheckpoint(job.state.round)]
    assert job.report("a", TaskState.RUNNING) == []
    assert execution(job).input_ended
    assert execution(job).state is ExecutionState.RUNNING


def test_a_task_that_ended_without_being_told_to_is_lost() -> None:
    for event in (TaskState.CANCELED, None):
        job = running()
        job.feed(told(job, event) if event else ev.AttemptGone(job.attempt("a")))
        assert execution(job).state is ExecutionState.FAILED
        error = job.state.failures[-1].record.error
        assert (error.code, error.consequence) == ("task-lost", Consequence.RETRYABLE)
        assert "does not run the task any more" in error.message


def test_a_task_that_fails_without_a_reason_is_tried_again() -> None:
    job = running()
    job.report("a", TaskState.FAILED)
    error = job.state.failures[-1].record.error
    assert (error.code, error.kind, error.message) == (
        "internal",
        Kind.UNFORESEEN,
        "the task failed and did not say why",
    )
    assert job.state.status is JobStatus.RESTARTING


def test_a_failure_says_which_attempt_of_which_task_failed_where() -> None:
    job = running()
    job.now = 7.0
    job.report("a", TaskState.FAILED, BOOM)
    (failure,) = job.state.failures
    record = failure.record
    assert (failure.at, record.error, record.timestamp_ms) == (7.0, BOOM, 0)
    assert (record.task_id, record.task_name, record.attempt_id, record.resource_id) == (
        A,
        job.state.tasks[A].name,
        job.attempt("a"),
        TM1,
    )


def test_a_failure_of_a_task_that_is_being_cancelled_is_noted_and_costs_nothing() -> None:
    job = cancelling()
    job.now = 9.0
    job.report("a", TaskState.FAILED, BOOM)
    assert execution(job).entered[-1] == (ExecutionState.FAILED, 9.0)
    assert [f.record.error for f in job.state.failures] == [BOOM]
    assert job.state.outcome is JobStatus.CANCELED
    assert job.state.restarts == 0


def test_a_refused_deployment_leaves_nothing_to_cancel() -> None:
    job = coming_up()
    assert job.feed(ev.DeployFailed(job.attempt("a"), BOOM)) == [ev.StopCheckpoints()]
    assert execution(job).state is ExecutionState.FAILED


def test_metrics_between_reports_are_taken_from_progress() -> None:
    job = running()
    assert job.feed(ev.TaskProgressed(job.attempt("a"), TaskMetrics(batches=2))) == []
    assert execution(job) == replace(execution(job), metrics=TaskMetrics(batches=2))


# --- all tasks run ---------------------------------------------------------------------------------------------------


def test_a_start_is_over_when_every_task_has_finished_a_micro_batch_or_has_no_input() -> None:
    """Users see how long the first results took."""
    job = WideJob(group="all", a=1, b=1)
    job.offer(TM1, 1)
    job.deploy()
    job.come_up()
    job.now = 3.0
    job.feed(ev.TaskProgressed(job.attempt("a"), TaskMetrics(batches=1)))
    assert "first_batch" not in job.state.rollouts[-1].seconds()
    job.now = 4.0
    job.report("b", TaskState.INPUT_ENDED)
    assert job.state.rollouts[-1].seconds()["first_batch"] == 4.0
    job.now = 5.0
    job.feed(ev.TaskProgressed(job.attempt("a"), TaskMetrics(batches=2)))
    assert job.state.rollouts[-1].seconds()["first_batch"] == 4.0


def test_a_job_that_runs_has_taken_over_all_that_it_will() -> None:
    job = WideJob(a=2, ran_with=1, recovered=True)
    job.now = 8.0
    job.offer(TM1, 2)
    job.deploy()
    job.come_up()
    state = job.state
    assert (state.takeover, state.has_run, state.proven) == (None, True, {"a": 2})
    assert state.proven_on == state.placement
    assert state.running is not None
    assert (state.running.since, state.running.checkpointed) == (8.0, False)


def test_the_time_at_which_a_job_will_have_proved_healthy_is_known_once_it_has_a_checkpoint() -> None:
    job = running()
    assert next_wakeup(job.state, job.now) is None  # it never failed
    job.feed(ev.CheckpointCompleted())
    assert next_wakeup(job.state, job.now) is None
    job.now = 2.0
    job.report("a", TaskState.FAILED, BOOM)
    job.wait(0.1)
    job.deploy()
    job.come_up()
    assert next_wakeup(job.state, job.now) is None
    job.feed(ev.CheckpointCompleted())
    assert next_wakeup(job.state, job.now) == job.now + LEAST
    job.wait(LEAST)
    assert job.state.streak == NO_FAILURES
    assert next_wakeup(job.state, job.now) is None


def test_a_job_that_goes_on_after_it_stood_down_restarts_at_once() -> None:
    """A failure while its tasks still end is handled by the same restart."""
    job = standing_down()
    job.now = 5.0
    job.feed(ev.GoOn())
    assert job.state.restart_at == 5.0
    job.feed(ev.TaskManagerGone(TM1, "killed"))
    assert job.state.restarts == 1


def test_a_checkpoint_or_a_drain_leaves_a_job_running() -> None:
    for event in (ev.CheckpointCompleted(), ev.DrainBegun()):
        job = running()
        assert job.feed(event) == []
        assert isinstance(job.state.phase, Running)
        assert (job.state.phase.checkpointed, job.state.phase.draining) == (
            isinstance(event, ev.CheckpointCompleted),
            isinstance(event, ev.DrainBegun),
        )


@pytest.mark.parametrize(("interval", "takes_none"), [(0.0, True), (0.5, False)])
def test_a_job_without_checkpoints_only_has_to_run_to_prove_healthy(interval: float, takes_none: bool) -> None:
    job = waiting()
    job.state = replace(job.state, options=replace(job.options, checkpoints=CheckpointOptions(interval=interval)))
    for _ in range(2):
        if job.needs:
            job.offer(TM1, 1)
        job.deploy()
        job.come_up()
        job.report("a", TaskState.FAILED, BOOM)
        job.wait(0.2)
    job.deploy()
    job.come_up()
    assert job.state.streak.failures == 2
    assert next_wakeup(job.state, job.now) == (job.now + LEAST if takes_none else None)


def test_a_job_finishes_once_its_tasks_stand_still() -> None:
    """With a savepoint, or after its input has ended (C4, C24)."""
    for events in (
        [lambda job: ev.StopDone(job.state.round)],
        [lambda job: told(job, TaskState.INPUT_ENDED), lambda job: ev.FinalCheckpointDone(job.state.round)],
    ):
        job = running()
        for event in events:
            commands = job.feed(event(job))
        assert job.state.outcome is JobStatus.FINISHED
        assert commands == [ev.StopCheckpoints(), ev.Cancel(job.attempt("a"), "taskmanager/tm-1")]
        job.feed(told(job, TaskState.CANCELED))
        assert execution(job).state is ExecutionState.FINISHED


def test_checkpoints_that_fail_too_often_restart_all_tasks() -> None:
    """C23."""
    job = WideJob(group="all", a=1, b=1)
    job.offer(TM1, 1)
    job.deploy()
    job.come_up()
    cancels = [ev.Cancel(job.attempt(name), "taskmanager/tm-1") for name in "ab"]
    assert job.feed(ev.CheckpointsFailed(BOOM)) == [ev.StopCheckpoints(), *cancels]
    assert job.state.failures[-1].record == FailureRecord(timestamp_ms=0, error=BOOM)


def test_tasks_that_are_told_to_end_are_so_at_that_time_and_what_was_never_deployed_has_ended() -> None:
    for make, state in ((waiting, ExecutionState.CANCELED), (coming_up, ExecutionState.CANCELING)):
        job = make()
        job.now = 9.0
        job.feed(ev.CancelRequested())
        assert execution(job).entered[-1] == (state, 9.0)


def test_a_cancelled_job_that_is_taken_over_only_ends() -> None:
    """R13, R26."""
    job = WideJob(a=1)
    job.state = new_job(tuple(job.state.tasks.values()), job.options)
    assert job.feed(ev.Started(recovered=True, cancelled=True)) == [ev.StopCheckpoints()]
    assert (job.state.outcome, job.needs) == (JobStatus.CANCELED, {})
    assert job.state.takeover == Takeover(0.0)


def test_slots_that_are_offered_to_a_job_that_was_taken_over_say_when_its_old_attempts_were_gone() -> None:
    job = WideJob(a=2, recovered=True)
    job.now = 4.0
    job.offer(TM1, 1, "old")
    assert job.state.takeover == Takeover(0.0, offered_at=4.0)
