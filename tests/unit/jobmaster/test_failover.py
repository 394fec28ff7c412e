"""What a failure means for a job (R16, H7): which failures are hopeless, whose fault they are, and what stops."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as copy

from minflinkd.jobgraph.model import RestartKind, RestartStrategy
from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler.phases import StandingDown
from minflinkd.jobmaster.scheduler.step import KEPT_FAILURES, KEPT_ROLLOUTS
from minflinkd.jobmaster.scheduler.streak import Failure
from minflinkd.rpc.jobs import ExecutionState, JobStatus
from minflinkd.rpc.messages import SlotOffer, TaskState
from minflinkd.runtime.errors import Consequence, ErrorInfo, Kind
from minflinkd.runtime.ids import ResourceId, TaskId
from tests.unit.jobmaster.wide_job import BOOM, TM1, TM2, WideJob, of_kind

A, B = TaskId("a"), TaskId("b")


def error(
    consequence: Consequence = Consequence.RETRYABLE, kind: Kind = Kind.OTHER, message: str = "boom"
) -> ErrorInfo:
    return ErrorInfo(code="any", message=message, consequence=consequence, kind=kind)


def running(*, strategy: RestartStrategy | None = None, on_trial: bool = False, **widths: int) -> WideJob:
    """Return a job that runs on the first TaskManager."""
    job = WideJob(**(widths or {"a": 1}))
    if strategy is not None:
        job.state = replace(job.state, options=replace(job.options, restart_strategy=strategy))
    job.state = replace(job.state, on_trial=on_trial)
    for need in job.needs.values():
        job.offer(TM1, need.slots, need.allocation_id)
    job.deploy()
    job.come_up()
    return job


def state_of(job: WideJob, name: str) -> ExecutionState:
    return job.state.executions[TaskId(name)].state


NEVER = RestartStrategy(kind=RestartKind.NONE)

# --- what follows ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("consequence", "kind", "restarts"),
    [
        (Consequence.RETRYABLE, Kind.OTHER, True),
        (Consequence.FENCED, Kind.CLUSTER, True),
        (Consequence.FATAL, Kind.OTHER, False),
        (Consequence.REFUSED, Kind.JOB, False),
        (Consequence.FATAL, Kind.UNFORESEEN, True),
        (Consequence.REFUSED, Kind.UNFORESEEN, True),
    ],
)
def test_a_failure_that_a_restart_would_meet_again_ends_the_job(
    consequence: Consequence, kind: Kind, restarts: bool
) -> None:
    """Nobody knows whether a restart would meet an unforeseen one."""
    job = running()
    job.report("a", TaskState.FAILED, error(consequence, kind))
    assert job.state.outcome is (None if restarts else JobStatus.FAILED)
    told = job.state.failures[-1].record.error.message
    assert told == ("boom" if restarts else "boom - not restarted: the failure cannot be mended by a restart")
    assert len(job.state.failures) == 1


def test_the_last_failure_says_which_limit_of_the_strategy_ended_the_job() -> None:
    job = running(strategy=RestartStrategy(kind=RestartKind.FIXED_DELAY, attempts=1))
    job.report("a", TaskState.FAILED, BOOM)
    job.wait(1)
    job.deploy()
    job.now = 7.0
    job.report("a", TaskState.FAILED, BOOM)
    first, last = job.state.failures
    assert first.record.error == BOOM
    assert (last.at, last.record.task_id) == (7.0, "a")
    assert last.record.error == copy(BOOM, message="boom - not restarted: 1 restarts (fixed-delay) are used up")


def test_jobs_that_fail_together_do_not_come_back_together() -> None:
    """The delay is drawn between `1 - jitter_factor` and `1 + jitter_factor` times the strategy's."""
    job = running(strategy=RestartStrategy(jitter_factor=0.5))
    before, delays = job.state, []
    for _ in range(100):
        job.state = before
        job.report("a", TaskState.FAILED, BOOM)
        assert job.state.restart_at is not None
        delays.append(job.state.restart_at - job.now)
    assert 0.5 <= min(delays) < 0.6
    assert 1.4 < max(delays) <= 1.5


def test_the_cause_of_a_restart_is_the_code_and_the_beginning_of_the_message() -> None:
    job = running()
    job.report("a", TaskState.FAILED, error(message="m" * 1000))
    assert job.state.rollouts[-1].cause == f"any: {'m' * 295}"


def test_the_latest_failures_and_the_first_and_latest_starts_are_kept() -> None:
    """A job that fails for years needs no more memory for it. The first start is the submission's."""
    job = running()
    for number in range(KEPT_ROLLOUTS + 3):
        job.report("a", TaskState.FAILED, error(message=str(number)))
        assert job.state.restart_at is not None
        job.wait(job.state.restart_at - job.now)
        job.deploy()
        job.come_up()
    last = KEPT_ROLLOUTS + 2
    assert [r.cause for r in job.state.rollouts] == ["", *(f"any: {n}" for n in range(3, last + 1))]
    kept = [f.record.error.message for f in job.state.failures]
    assert kept == [str(n) for n in range(last + 1)][-KEPT_FAILURES:]
    assert job.state.restarts == last + 1


def test_a_failure_while_a_restart_is_due_stops_its_region_and_changes_no_delay() -> None:
    job = running(a=1, b=1)
    job.report("a", TaskState.FAILED, BOOM)
    due = job.state.restart_at
    job.now += 0.05
    job.feed(ev.CheckpointsFailed(BOOM))  # late: the coordinator had not stopped yet
    assert state_of(job, "b") is ExecutionState.RUNNING
    job.report("b", TaskState.FAILED, BOOM)
    assert (job.state.restart_at, job.state.restarts, job.state.streak.failures) == (due, 1, 1)


def test_a_failure_is_remembered_with_how_long_the_job_had_run() -> None:
    """A failure during the next start counts as one that came at once."""
    job = running()
    job.now = 42.0
    job.report("a", TaskState.FAILED, BOOM)
    assert (job.state.streak.ran, job.state.streak.since) == (42.0, 42.0)
    assert job.state.streak.last == Failure(42.0, job.state.failures[-1].record)
    job.wait(1)
    job.deploy()
    job.report("a", TaskState.FAILED, BOOM)
    assert (job.state.streak.ran, job.state.streak.failures) == (0.0, 2)


# --- a version on trial ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "disproved"),
    [
        (error(kind=Kind.OTHER), True),  # a task failed
        (error(Consequence.FATAL), True),
        (error(kind=Kind.CLUSTER), False),  # no version is spared a lost TaskManager
        (error(Consequence.FATAL, Kind.CLUSTER), True),  # but a restart would not help either
    ],
)
def test_a_version_on_trial_stands_down_after_a_failure_of_its_own(failure: ErrorInfo, disproved: bool) -> None:
    """H7."""
    strategy = RestartStrategy(attempts=5)
    job = running(strategy=strategy, on_trial=True, a=1, b=1)
    survivor = job.attempt("b")
    commands = job.report("a", TaskState.FAILED, failure)
    assert of_kind(ev.Disproved, commands) == ([ev.Disproved(failure)] if disproved else [])
    if disproved:
        assert ev.Cancel(survivor, "taskmanager/tm-1") in commands
        assert isinstance(job.state.phase, StandingDown)
        assert job.state.restarts == 0


@pytest.mark.parametrize(
    ("failure", "disproved"),
    [
        (error(), False),  # a checkpoint failed: perhaps the storage is away
        (error(kind=Kind.STORAGE), False),
        (error(kind=Kind.JOB), True),
        (error(Consequence.REFUSED), True),
    ],
)
def test_a_failure_of_no_task_disproves_a_version_only_if_it_is_hopeless_or_the_jobs(
    failure: ErrorInfo, disproved: bool
) -> None:
    """H7."""
    job = running(on_trial=True)
    commands = job.feed(ev.CheckpointsFailed(failure))
    assert bool(of_kind(ev.Disproved, commands)) is disproved
    assert isinstance(job.state.phase, StandingDown) is disproved
    assert job.state.restarts == (0 if disproved else 1)


def test_a_version_on_trial_that_may_not_restart_stands_down_whatever_failed() -> None:
    """It does not end the job: the version before it comes back (H7)."""
    job = running(strategy=NEVER, on_trial=True)
    commands = job.feed(ev.TaskManagerGone(TM1, "killed"))
    assert len(of_kind(ev.Disproved, commands)) == 1
    assert commands[-1] == ev.StoodDown()
    assert job.state.outcome is None


def test_a_version_that_has_proved_itself_restarts_as_any_other() -> None:
    job = running(on_trial=True)
    job.feed(ev.Proven())
    assert job.state.on_trial is False
    commands = job.report("a", TaskState.FAILED, BOOM)
    assert of_kind(ev.Disproved, commands) == []
    assert job.state.status is JobStatus.RESTARTING
    assert job.state.restarts == 1


def test_a_version_that_nobody_follows_comes_back_and_is_on_trial_no_more() -> None:
    job = running(on_trial=True)
    job.report("a", TaskState.FAILED, BOOM)
    assert job.feed(ev.GoOn())
    assert job.state.on_trial is False
    assert (job.state.restarts, job.state.rollouts[-1].cause) == (1, "no other version followed")
    assert not job.state.rollouts[-1].rescale


# --- lost sessions and slots -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "on_trial", "given_back"),
    [
        (Kind.SESSION_LOST, False, True),
        (Kind.SESSION_LOST, True, True),
        (Kind.SESSION_TAKEN, False, True),
        (Kind.SESSION_TAKEN, True, False),  # the version before it fits into the session
        (Kind.OTHER, False, False),
    ],
)
def test_slots_whose_session_is_of_no_use_are_given_back_after_what_runs_there_was_cancelled(
    kind: Kind, on_trial: bool, given_back: bool
) -> None:
    """J7, B31."""
    job = WideJob(a=1, b=1, c=1)
    needs = {group: need.allocation_id for group, need in job.needs.items()}
    for group, resource in (("a", TM1), ("b", TM1), ("c", TM2)):
        job.offer(resource, 1, needs[group])
    job.deploy()
    job.come_up()
    job.state = replace(job.state, on_trial=on_trial)
    commands = job.report("a", TaskState.FAILED, error(kind=kind))
    assert bool(of_kind(ev.FreeAllocations, commands)) is given_back
    if given_back:
        freed = ev.FreeAllocations("taskmanager/tm-1", tuple(sorted((needs["a"], needs["b"]))), job_ended=False)
        assert commands[-1] == freed
        assert ev.Cancel(job.attempt("b"), "taskmanager/tm-1") in commands[:-1]
        assert set(job.state.pool.held) == {needs["c"]}
        if not on_trial:
            assert state_of(job, "c") is ExecutionState.RUNNING


def test_a_lost_allocation_stops_what_ran_on_it_and_nothing_else() -> None:
    """R10."""
    job = running(a=1, b=1)
    job.now = 9.0
    lost = job.state.executions[A].allocation_id
    assert lost is not None
    commands = job.feed(ev.SlotsGone((lost,), "tm-1 does not know the allocation"))
    assert (state_of(job, "a"), state_of(job, "b")) == (ExecutionState.FAILED, ExecutionState.RUNNING)
    assert job.state.executions[A].entered[-1] == (ExecutionState.FAILED, 9.0)
    assert of_kind(ev.Cancel, commands) == []
    failure = job.state.failures[-1].record.error
    assert (failure.code, failure.consequence, failure.kind) == ("slots-lost", Consequence.RETRYABLE, Kind.CLUSTER)
    assert failure.message == "tm-1 does not know the allocation"


def test_what_was_told_to_end_is_cancelled_and_has_not_failed_if_its_slots_are_lost() -> None:
    for event in (ev.TaskManagerGone(TM1, "killed"), None):
        job = running()
        job.feed(ev.CancelRequested())
        job.now = 9.0
        job.feed(event or ev.SlotsGone(tuple(job.state.pool.held), "not known"))
        assert job.state.executions[A].entered[-1] == (ExecutionState.CANCELED, 9.0)
        assert job.state.failures == ()
        assert job.state.outcome is JobStatus.CANCELED


def test_a_lost_taskmanager_is_named_and_only_its_tasks_fail() -> None:
    job = running(a=1, b=1)
    job.feed(ev.TaskManagerGone(ResourceId("tm-9"), "killed"))
    assert job.state.status is JobStatus.RUNNING
    job.feed(ev.TaskManagerGone(TM1, "exit code -9"))
    assert {f.record.error.message for f in job.state.failures} == {"TaskManager tm-1 is lost: exit code -9"}
    assert [f.record.task_id for f in job.state.failures] == ["a", "b"]
    assert (job.state.restarts, job.state.history.attempts) == (1, 1)


def test_slots_that_are_lost_before_anything_ran_on_them_are_asked_for_again() -> None:
    job = WideJob(a=1, b=1)
    first = job.needs["a"].allocation_id
    job.feed(ev.SlotsOffered(TM1, "taskmanager/tm-1", (SlotOffer(allocation_id=first, slots=(0,)),)))
    assert job.feed(ev.SlotsGone((first,), "not known")) == []
    assert (sorted(job.needs), job.state.failures) == (["a", "b"], ())
    assert job.needs["a"].allocation_id != first
