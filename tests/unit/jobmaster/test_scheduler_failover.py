"""Failures that meet: the scheduler's duties to attempts and slots that it has given up."""

from __future__ import annotations

import random

from minflinkd.jobgraph.model import RestartKind, RestartStrategy, Source, Task, Vertex
from minflinkd.jobmaster.options import JobMasterOptions
from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler.machine import step
from minflinkd.jobmaster.scheduler.phases import FindingRestorePoint
from minflinkd.jobmaster.scheduler.state import JobState, check_invariants, new_job
from minflinkd.rpc.jobs import ExecutionState, JobStatus
from minflinkd.rpc.messages import SlotOffer, TaskState, TaskStatus
from minflinkd.runtime.errors import Consequence, ErrorInfo
from minflinkd.runtime.ids import AttemptId, Chance, IdSource, ResourceId, TaskId, VertexId
from minflinkd.taskmanager.child.protocol import SessionLost

TM = ResourceId("tm-1")
ADDRESS = "taskmanager/tm-1"
RETRYABLE = Consequence.RETRYABLE


def task(name: str) -> Task:
    vertex = Vertex(id=VertexId(name), source=Source(format="rate"))
    return Task(id=TaskId(name), vertices=(vertex,), parallelism=1)


class Job:
    def __init__(self, *names: str, strategy: RestartStrategy | None = None) -> None:
        rng = random.Random(7)
        self.chance = Chance(IdSource(rng), rng)
        self.now = 0.0
        self.state: JobState = new_job(
            tuple(map(task, names)), JobMasterOptions(restart_strategy=strategy or RestartStrategy())
        )

    def feed(self, event: ev.Event) -> list[ev.Command]:
        self.state, commands = step(self.chance, self.state, event, self.now)
        check_invariants(self.state)
        return list(commands)

    def run(self) -> Job:
        self.feed(ev.Started())
        self.offer()
        self.feed(ev.RestorePointFound(self.state.round, None, {}))
        for name in self.state.tasks:
            self.report(TaskState.RUNNING, name)
        assert self.state.status is JobStatus.RUNNING
        return self

    def offer(self) -> list[ev.Command]:
        offers = tuple(SlotOffer(allocation_id=a, slots=(0,)) for a in self.state.pool.needs)
        return self.feed(ev.SlotsOffered(TM, ADDRESS, offers))

    def refuse(self) -> list[ev.Command]:
        return self.feed(ev.NeedsAnswered(dict.fromkeys(self.state.pool.needs, "three starts in a row failed")))

    def attempt(self, name: str) -> AttemptId:
        attempt = self.state.executions[TaskId(name)].attempt_id
        assert attempt is not None
        return attempt

    def report(self, state: TaskState, name: str, error: ErrorInfo | None = None) -> list[ev.Command]:
        status = TaskStatus(attempt_id=self.attempt(name), task_id=TaskId(name), state=state, error=error)
        return self.feed(ev.TaskChanged(status))


LOST = SessionLost("the session child ended").info()


def test_the_other_tasks_of_a_lost_session_are_cancelled_by_name_although_their_slots_are_given_back() -> None:
    """The tasks' own reports may get lost with the slots. Without an answer to wait for, the job would hang (A5)."""
    job = Job("a", "b").run()
    commands = job.report(TaskState.FAILED, "a", LOST)
    assert ev.Cancel(job.attempt("b"), ADDRESS) in commands
    assert not job.state.pool.held
    assert job.state.executions[TaskId("b")].state is ExecutionState.CANCELING
    job.feed(ev.AttemptGone(job.attempt("b")))
    assert not job.state.live


def test_slots_are_freed_before_the_sinks_are_settled() -> None:
    """If a sink's storage is away, only the end of its job waits, and no slots are held."""
    job = Job("a").run()
    job.feed(ev.CancelRequested())
    free, settle = job.feed(ev.AttemptGone(job.attempt("a")))
    assert isinstance(free, ev.FreeAllocations)
    assert free.job_ended
    assert isinstance(settle, ev.SettleSinks)
    assert not job.state.pool.held


def test_a_job_that_has_run_is_not_failed_by_taskmanagers_that_do_not_start() -> None:
    """The job's checkpoints are worth waiting for, as long as its restart strategy allows (R5)."""
    job = Job("a").run()
    job.feed(ev.TaskManagerGone(TM, "killed"))
    for _ in range(5):
        job.now = max(job.now + 1.0, job.state.restart_at or 0.0)
        job.feed(ev.Tick())
        job.refuse()
        assert job.state.status is JobStatus.RESTARTING
    job.now = job.state.restart_at or job.now
    job.feed(ev.Tick())
    job.offer()
    assert isinstance(job.state.phase, FindingRestorePoint)


def test_repeated_refusals_while_a_restart_is_due_are_one_failure() -> None:
    """The ResourceManager repeats the refusal with every heartbeat."""
    job = Job("a").run()
    job.feed(ev.TaskManagerGone(TM, "killed"))
    failures = len(job.state.failures)
    job.refuse()
    job.refuse()
    assert len(job.state.failures) == failures


def test_a_recovered_job_waits_as_well_and_fails_when_its_strategy_says_so() -> None:
    """`recovered` means that an earlier JobMaster of the job completed a checkpoint (R13, R16)."""
    job = Job("a")
    job.feed(ev.Started(recovered=True))
    job.refuse()
    assert job.state.status is JobStatus.RESTARTING
    strict = Job("a", strategy=RestartStrategy(kind=RestartKind.NONE))
    strict.feed(ev.Started(recovered=True))
    strict.refuse()
    assert strict.state.outcome is JobStatus.FAILED


def test_a_job_that_is_cancelled_before_its_jobmaster_is_up_ends() -> None:
    """The Dispatcher knows a JobMaster before it has started."""
    job = Job("a")
    job.feed(ev.CancelRequested())
    assert job.feed(ev.Started()) == []
    job.feed(ev.SinksSettled())
    assert job.state.status is JobStatus.CANCELED


def test_a_failure_while_the_job_is_drained_stops_every_task() -> None:
    """Tasks of other regions are at the end of time, and would not read what comes later (C24)."""
    job = Job("a", "b").run()
    job.feed(ev.DrainBegun())
    job.report(TaskState.FAILED, "a")
    assert job.state.executions[TaskId("b")].state is ExecutionState.CANCELING
    job.report(TaskState.CANCELED, "b")
    job.now = job.state.restart_at or 0.0
    job.feed(ev.Tick())
    job.feed(ev.RestorePointFound(job.state.round, 3, {}))
    for name in ("a", "b"):
        job.report(TaskState.RUNNING, name)
    job.report(TaskState.FAILED, "a")
    assert job.state.executions[TaskId("b")].state is ExecutionState.RUNNING, "the drain was over"


def test_all_tasks_stop_if_the_job_goes_back_to_an_earlier_checkpoint() -> None:
    """One region was to be restored. The others run on, until it turns out that all must begin again (C28)."""
    job = Job("a", "b").run()
    job.report(TaskState.FAILED, "a", ErrorInfo(code="checkpoint-damaged", message="", consequence=RETRYABLE))
    job.now += 5
    (find,) = [command for command in job.feed(ev.Tick()) if isinstance(command, ev.FindRestorePoint)]
    assert find.tasks == {"a"}
    damaged = ErrorInfo(code="checkpoint-damaged", message="chk-3", consequence=RETRYABLE)
    commands = job.feed(ev.RestorePointFailed(find.round, damaged, all_tasks=True))
    assert [command.attempt_id for command in commands if isinstance(command, ev.Cancel)] == [job.attempt("b")]
    assert ev.StopCheckpoints(frozenset()) in commands
    job.report(TaskState.CANCELED, "b")
    job.now += 5
    (find,) = [command for command in job.feed(ev.Tick()) if isinstance(command, ev.FindRestorePoint)]
    assert find.tasks == {"a", "b"}


def test_a_restore_point_comes_with_a_warning_that_users_see() -> None:
    """It is among the job's failures, although it fails nothing (C28)."""
    job = Job("a")
    job.feed(ev.Started())
    job.offer()
    damaged = ErrorInfo(code="checkpoint-damaged", message="the job goes on from checkpoint 2", consequence=RETRYABLE)
    job.feed(ev.RestorePointFound(job.state.round, 2, {}, warning=damaged))
    assert job.state.failures[-1].record.error == damaged
    assert job.state.executions[TaskId("a")].state is ExecutionState.DEPLOYING
    assert job.state.restarts == 0


def test_damage_to_a_checkpoint_is_shown_and_fails_nothing() -> None:
    """The job may never need the checkpoint (C29)."""
    job = Job("a").run()
    damaged = ErrorInfo(code="checkpoint-damaged", message="checkpoint 2 is damaged", consequence=RETRYABLE)
    assert job.feed(ev.DamageFound(damaged)) == []
    assert job.state.failures[-1].record.error == damaged
    assert job.state.status is JobStatus.RUNNING
