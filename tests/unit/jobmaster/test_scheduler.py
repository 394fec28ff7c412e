"""The decisions of a JobMaster, tested with lists of events."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace as copy

from minflinkd.jobgraph.model import RestartKind, RestartStrategy, Source, Task, Vertex
from minflinkd.jobmaster.options import JobMasterOptions
from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler.machine import next_wakeup, step
from minflinkd.jobmaster.scheduler.phases import StandingDown, StoodDown
from minflinkd.jobmaster.scheduler.state import JobState, check_invariants, new_job
from minflinkd.rpc.jobs import ExecutionState, FailureRecord, JobStatus
from minflinkd.rpc.libraries import LibraryConflict
from minflinkd.rpc.messages import SlotOffer, TaskMetrics, TaskState, TaskStatus
from minflinkd.runtime.errors import Consequence, ErrorInfo
from minflinkd.runtime.ids import AllocationId, AttemptId, Chance, IdSource, ResourceId, TaskId, VertexId
from minflinkd.taskmanager.child.protocol import SessionLost

TM1, TM2 = ResourceId("tm-1"), ResourceId("tm-2")


def task(name: str, parallelism: int = 2) -> Task:
    vertex = Vertex(id=VertexId(name), source=Source(format="rate"))
    return Task(id=TaskId(name), vertices=(vertex,), parallelism=parallelism)


@dataclass
class Job:
    """Feeds a scheduler with events and remembers its commands."""

    names: tuple[str, ...] = ("a",)
    strategy: RestartStrategy = field(default_factory=RestartStrategy)
    now: float = 0.0
    adaptive: bool = True
    on_trial: bool = False

    def __post_init__(self) -> None:
        rng = random.Random(7)
        self.chance = Chance(IdSource(rng), rng)
        self.state: JobState = new_job(
            tuple(task(n) for n in self.names),
            JobMasterOptions(restart_strategy=self.strategy, adaptive=self.adaptive, on_trial=self.on_trial),
        )
        self.feed(ev.Started())

    def feed(self, event: ev.Event) -> list[ev.Command]:
        self.state, commands = step(self.chance, self.state, event, self.now)
        check_invariants(self.state)
        return list(commands)

    def tick_at_wakeup(self) -> list[ev.Command]:
        wakeup = next_wakeup(self.state, self.now)
        assert wakeup is not None
        self.now = max(self.now, wakeup)
        return self.feed(ev.Tick())

    def need(self) -> AllocationId:
        (allocation,) = self.state.pool.needs
        return allocation

    def offer(self, resource: ResourceId = TM1) -> list[ev.Command]:
        offers = (SlotOffer(allocation_id=self.need(), slots=(0, 1)),)
        return self.feed(ev.SlotsOffered(resource, f"taskmanager/{resource}", offers))

    def found(self, checkpoint: int | None = None) -> list[ev.Command]:
        return self.feed(ev.RestorePointFound(self.state.round, checkpoint, {}))

    def attempt(self, name: str = "a") -> AttemptId:
        attempt = self.state.executions[TaskId(name)].attempt_id
        assert attempt is not None
        return attempt

    def report(self, state: TaskState, name: str = "a", error: ErrorInfo | None = None) -> list[ev.Command]:
        status = TaskStatus(attempt_id=self.attempt(name), task_id=TaskId(name), state=state, error=error)
        return self.feed(ev.TaskChanged(status))

    def progress(self, rows_in: int) -> list[ev.Command]:
        metrics = TaskMetrics(batches=1, rows_in=rows_in)
        return self.feed(ev.TaskProgressed(self.attempt(), metrics))

    def run(self, resource: ResourceId = TM1) -> None:
        self.offer(resource)
        self.found()
        for name in self.names:
            self.report(TaskState.RUNNING, name)
        assert self.state.status is JobStatus.RUNNING


def kinds(commands: list[ev.Command]) -> list[str]:
    return [type(c).__name__ for c in commands]


BOOM = ErrorInfo(code="user-code", message="boom", consequence=Consequence.RETRYABLE)


def test_a_job_asks_for_slots_deploys_on_the_offered_ones_and_runs() -> None:
    """The way from nothing to RUNNING, command by command (R1, m1, m9, m12)."""
    job = Job()
    assert job.state.status is JobStatus.CREATED
    assert [n.slots for n in job.state.pool.declaration()] == [2]
    assert kinds(job.offer()) == ["FindRestorePoint"]
    (deploy,) = job.found()
    assert isinstance(deploy, ev.Deploy)
    assert (deploy.address, deploy.number, deploy.restore) == ("taskmanager/tm-1", 0, None)
    assert job.report(TaskState.INITIALIZING) == []
    assert kinds(job.report(TaskState.RUNNING)) == ["StartCheckpoints"]
    assert job.state.status is JobStatus.RUNNING


def test_a_repeated_offer_is_accepted_again_and_an_unknown_one_is_not() -> None:
    """An offer is recognised by its allocation and TaskManager (m9, m10)."""
    job = Job()
    allocation = job.need()
    offer = ev.SlotsOffered(TM1, "taskmanager/tm-1", (SlotOffer(allocation_id=allocation, slots=(0, 1)),))
    job.feed(offer)
    assert job.feed(offer) == []
    job.feed(ev.SlotsOffered(TM2, "taskmanager/tm-2", offer.offers))
    assert job.state.pool.held[allocation].resource_id == TM1


def test_a_lost_task_manager_leads_to_a_restart_on_another_one() -> None:
    """The slots and tasks are gone at once. New slots are requested before the restart delay has passed (R11)."""
    job = Job()
    job.run()
    first = job.attempt()
    commands = job.feed(ev.TaskManagerGone(TM1, "exit code -9"))
    assert kinds(commands) == ["StopCheckpoints"]
    assert job.state.status is JobStatus.RESTARTING
    assert job.offer(TM2) == []
    assert kinds(job.tick_at_wakeup()) == ["FindRestorePoint"]
    (deploy,) = job.found(checkpoint=3)
    assert isinstance(deploy, ev.Deploy)
    assert (deploy.address, deploy.number) == ("taskmanager/tm-2", 1)
    assert deploy.attempt_id != first
    job.report(TaskState.RUNNING)
    assert job.state.status is JobStatus.RUNNING
    assert job.state.rollouts[-1].checkpoint_id == 3


def test_the_first_checkpoint_after_a_restart_comes_when_all_tasks_have_read_again() -> None:
    """Exactly-once output appears with it. It is asked for once, and never for a job that starts (C20, R11)."""
    job = Job()
    job.run()
    assert job.progress(rows_in=5) == []
    job.report(TaskState.FAILED, error=BOOM)
    job.tick_at_wakeup()
    job.found(checkpoint=3)
    job.report(TaskState.RUNNING)
    assert job.progress(rows_in=0) == [], "a restored query begins with a micro-batch that has no rows"
    assert job.progress(rows_in=5) == [ev.HastenCheckpoint()]
    assert job.progress(rows_in=9) == []


def test_a_failed_task_restarts_on_the_slots_that_the_job_still_holds() -> None:
    """The pool's slots are reused, so the restart does not need the ResourceManager (R12)."""
    job = Job()
    job.run()
    commands = job.report(TaskState.FAILED, error=BOOM)
    assert kinds(commands) == ["StopCheckpoints"]
    assert kinds(job.tick_at_wakeup()) == ["FindRestorePoint"]
    assert job.state.failures[-1].record.error.message == "boom"


def test_a_lost_session_gives_its_slots_back_and_asks_for_others() -> None:
    """The TaskManager lives, but its session needs seconds to come back (J7)."""
    job = Job()
    job.run()
    error = SessionLost("the session child ended").info()
    commands = job.report(TaskState.FAILED, error=error)
    assert kinds(commands) == ["StopCheckpoints", "FreeAllocations"]
    assert not job.state.pool.held


TAKEN = LibraryConflict("the session has another version of native:acme_fast").info()


def test_a_job_whose_libraries_do_not_fit_into_a_session_gives_its_slots_back_and_asks_for_others() -> None:
    """In the same slots every restart would meet the same session (B31)."""
    job = Job()
    job.run()
    assert kinds(job.report(TaskState.FAILED, error=TAKEN)) == ["StopCheckpoints", "FreeAllocations"]
    assert not job.state.pool.held


def test_a_version_on_trial_keeps_the_slots_into_whose_session_it_does_not_fit() -> None:
    """The version before it fits, and comes back on them (H7, B31)."""
    job = Job(on_trial=True)
    job.run()
    assert "FreeAllocations" not in kinds(job.report(TaskState.FAILED, error=TAKEN))
    assert job.state.pool.held


def test_two_tasks_that_fail_together_cost_one_restart() -> None:
    """The restart strategy counts the failures of one round as one (R16)."""
    job = Job(names=("a", "b"))
    job.run()
    job.report(TaskState.FAILED, "a", BOOM)
    job.report(TaskState.FAILED, "b", BOOM)
    assert job.state.history.attempts == 1
    assert len(job.state.failures) == 2


def test_tasks_that_are_to_stop_are_awaited_before_a_restart() -> None:
    """Two attempts of one task never run at once."""
    job = Job(names=("a", "b"))
    job.run()
    attempts = [job.attempt("a"), job.attempt("b")]
    commands = job.feed(ev.CheckpointsFailed(BOOM))
    assert commands[1:] == [ev.Cancel(a, "taskmanager/tm-1") for a in attempts]
    assert job.tick_at_wakeup() == []
    assert job.feed(ev.AttemptGone(attempts[0])) == []
    assert kinds(job.feed(ev.AttemptGone(attempts[1]))) == ["FindRestorePoint"]


@pytest.mark.parametrize("consequence", [Consequence.REFUSED, Consequence.FATAL])
def test_a_hopeless_failure_is_not_retried(consequence: Consequence) -> None:
    """Errors that no restart can repair fail the job at once, and the error says so."""
    job = Job()
    job.run()
    error = ErrorInfo(code="user-code", message="boom", consequence=consequence)
    assert kinds(job.report(TaskState.FAILED, error=error)) == ["StopCheckpoints", "FreeAllocations", "SettleSinks"]
    assert kinds(job.feed(ev.SinksSettled())) == ["End"]
    assert job.state.status is JobStatus.FAILED
    assert "not restarted" in job.state.failures[-1].record.error.message


def test_restarts_end_when_the_strategy_says_so() -> None:
    """A fixed delay with one attempt survives one failure, but not two (R16)."""
    job = Job(strategy=RestartStrategy(kind=RestartKind.FIXED_DELAY, attempts=1))
    job.run()
    job.report(TaskState.FAILED, error=BOOM)
    job.tick_at_wakeup()
    job.found()
    job.report(TaskState.RUNNING)
    assert "SettleSinks" in kinds(job.report(TaskState.FAILED, error=BOOM))
    job.feed(ev.SinksSettled())
    assert job.state.status is JobStatus.FAILED


def test_a_bounded_job_finishes_after_a_final_checkpoint_only() -> None:
    """FINISHED means that the final checkpoint is complete and the sinks have committed (C4)."""
    job = Job()
    job.run()
    assert job.report(TaskState.INPUT_ENDED) == [ev.TakeFinalCheckpoint(job.state.round)]
    (_, cancel) = job.feed(ev.FinalCheckpointDone(job.state.round))
    assert cancel == ev.Cancel(job.attempt(), "taskmanager/tm-1")
    assert kinds(job.feed(ev.AttemptGone(job.attempt()))) == ["FreeAllocations", "SettleSinks"]
    assert kinds(job.feed(ev.SinksSettled())) == ["End"]
    assert job.state.status is JobStatus.FINISHED
    assert job.state.executions[TaskId("a")].state is ExecutionState.FINISHED


def test_a_final_checkpoint_of_an_older_round_finishes_nothing() -> None:
    """Late messages change nothing (C21)."""
    job = Job()
    job.run()
    job.report(TaskState.INPUT_ENDED)
    old = job.state.round
    job.feed(ev.TaskManagerGone(TM1, "killed"))
    assert job.feed(ev.FinalCheckpointDone(old)) == []
    assert job.state.status is JobStatus.RESTARTING


def test_cancel_waits_for_the_tasks_and_then_frees_the_slots() -> None:
    """A cancelled job leaves nothing on its TaskManager."""
    job = Job()
    job.run()
    assert kinds(job.feed(ev.CancelRequested())) == ["StopCheckpoints", "Cancel"]
    assert job.state.status is JobStatus.CANCELLING
    assert kinds(job.feed(ev.AttemptGone(job.attempt()))) == ["FreeAllocations", "SettleSinks"]
    job.feed(ev.SinksSettled())
    assert job.state.status is JobStatus.CANCELED


def test_sinks_that_cannot_be_settled_end_the_job_and_say_that_its_checkpoints_stay() -> None:
    """What the sinks promised can still be published by hand (J12, R26)."""
    job = Job()
    job.run()
    job.feed(ev.CancelRequested())
    job.feed(ev.AttemptGone(job.attempt()))
    error = ErrorInfo(code="storage-corrupt", message="a staged file is gone", consequence=Consequence.FATAL)
    assert kinds(job.feed(ev.SinksSettled(error))) == ["End"]
    assert job.state.status is JobStatus.CANCELED
    assert job.state.sinks_error == error
    failure = job.state.failures[-1].record
    assert "so do the job's checkpoints: a staged file is gone" in failure.error.message
    assert failure == FailureRecord(timestamp_ms=0, error=copy(error, message=failure.error.message))


def test_cancel_while_waiting_for_slots_withdraws_the_needs() -> None:
    """An empty declaration withdraws them (m13)."""
    job = Job()
    before = job.state.pool.version
    job.feed(ev.CancelRequested())
    assert job.state.pool.version > before
    assert job.state.pool.declaration() == ()


def test_refused_needs_fail_the_job_and_name_the_reason() -> None:
    """The error says what was requested and why it is not available (R5)."""
    job = Job(adaptive=False)
    job.feed(ev.NeedsAnswered({job.need(): "9 slots of one TaskManager wanted; the largest has 4"}))
    job.feed(ev.SinksSettled())
    assert job.state.status is JobStatus.FAILED
    assert "the largest has 4" in job.state.failures[-1].record.error.message


def test_needs_that_nobody_serves_in_time_are_a_failure_and_are_asked_for_anew() -> None:
    """`slot.request.timeout` is the limit (R5)."""
    job = Job(adaptive=False)
    old = job.need()
    job.feed(ev.NeedsAnswered({}, {old: "no more than 2 TaskManagers may run"}))
    while job.state.status is JobStatus.CREATED:
        job.tick_at_wakeup()
    assert job.now == 300
    (failure,) = job.state.failures
    for told in ("2 slots for group 'default'", "holds none", "300 s (slot.request.timeout)", "no more than 2"):
        assert told in failure.record.error.message
    assert job.state.status is JobStatus.RESTARTING
    assert job.need() != old


class RandomWalk(RuleBasedStateMachine):
    """Events in any order keep the invariants. Once faults stop, the job runs or ends."""

    @initialize(names=st.sampled_from([("a",), ("a", "b"), ("a", "b", "c")]), on_trial=st.booleans())
    def start(self, names: tuple[str, ...], on_trial: bool) -> None:
        self.job = Job(names=names, on_trial=on_trial)
        self.old: list[AttemptId] = []

    def attempts(self) -> list[AttemptId]:
        now = [e.attempt_id for e in self.job.state.executions.values() if e.attempt_id is not None]
        self.old += [a for a in now if a not in self.old]
        return self.old

    @precondition(lambda self: self.job.state.pool.needs)
    @rule(resource=st.sampled_from([TM1, TM2]))
    def offer(self, resource: ResourceId) -> None:
        self.job.offer(resource)

    @rule(late=st.integers(0, 1))
    def restore_point(self, late: int) -> None:
        self.job.feed(ev.RestorePointFound(self.job.state.round - late, None, {}))

    @rule(data=st.data(), state=st.sampled_from(list(TaskState)))
    def report(self, data: st.DataObject, state: TaskState) -> None:
        if attempts := self.attempts():
            attempt = data.draw(st.sampled_from(attempts))
            error = BOOM if state is TaskState.FAILED else None
            status = TaskStatus(attempt_id=attempt, task_id=TaskId("a"), state=state, error=error)
            self.job.feed(ev.TaskChanged(status))

    @rule(data=st.data())
    def gone(self, data: st.DataObject) -> None:
        if attempts := self.attempts():
            self.job.feed(ev.AttemptGone(data.draw(st.sampled_from(attempts))))

    @rule(data=st.data())
    def progress(self, data: st.DataObject) -> None:
        if attempts := self.attempts():
            self.job.feed(ev.TaskProgressed(data.draw(st.sampled_from(attempts)), TaskMetrics(batches=1)))

    @rule(resource=st.sampled_from([TM1, TM2]))
    def lose(self, resource: ResourceId) -> None:
        self.job.feed(ev.TaskManagerGone(resource, "gone"))

    @rule(step=st.floats(0, 5))
    def time_passes(self, step: float) -> None:
        self.job.now += step
        self.job.feed(ev.Tick())

    @rule()
    def final_checkpoint(self) -> None:
        self.job.feed(ev.FinalCheckpointDone(self.job.state.round))

    @rule()
    def settled(self) -> None:
        self.job.feed(ev.SinksSettled())

    @rule(slots=st.integers(0, 6))
    def reserve(self, slots: int) -> None:
        self.job.feed(ev.SlotsReserved({"default": slots} if slots else {}))

    @precondition(lambda self: len(self.attempts()) > 1)
    @rule()
    def stand_down(self) -> None:
        self.job.feed(ev.StandDown())

    @rule()
    def go_on(self) -> None:
        self.job.feed(ev.GoOn())

    @rule()
    def prove(self) -> None:
        self.job.feed(ev.Proven())

    @precondition(lambda self: len(self.attempts()) > 4)
    @rule()
    def cancel(self) -> None:
        self.job.feed(ev.CancelRequested())

    @invariant()
    def a_terminal_job_holds_nothing(self) -> None:
        if hasattr(self, "job") and self.job.state.status.terminal:
            assert not self.job.state.pool.held
            assert not self.job.state.live

    @invariant()
    def a_job_that_stands_down_deploys_nothing(self) -> None:
        """A job that stands down deploys nothing (H3)."""
        if hasattr(self, "job") and isinstance(self.job.state.phase, StandingDown | StoodDown):
            assert all(e.state is ExecutionState.CANCELING for e in self.job.state.live)

    def teardown(self) -> None:
        """Liveness: if every request is answered, the job settles."""
        if not hasattr(self, "job"):
            return
        job = self.job
        job.feed(ev.SlotsReserved())
        job.feed(ev.GoOn())
        for _ in range(12):
            if job.state.status.terminal or (job.state.status is JobStatus.RUNNING and job.state.outcome is None):
                return
            for execution in job.state.live:
                if execution.state is ExecutionState.CANCELING and execution.attempt_id:
                    job.feed(ev.AttemptGone(execution.attempt_id))
            job.feed(ev.SinksSettled())
            if job.state.pool.needs:
                job.offer()
            if next_wakeup(job.state, job.now) is not None:
                job.tick_at_wakeup()
            job.found()
            for execution in job.state.live:
                if execution.attempt_id:
                    status = TaskStatus(
                        attempt_id=execution.attempt_id, task_id=execution.task_id, state=TaskState.RUNNING
                    )
                    job.feed(ev.TaskChanged(status))
        raise AssertionError(f"stuck in {job.state.status}: {job.state}")


TestRandomWalk = RandomWalk.TestCase
TestRandomWalk.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_a_job_whose_tasks_stand_still_behind_a_savepoint_finishes() -> None:
    """`stop` with a savepoint ends a job in this way (C24)."""
    job = Job()
    job.run()
    commands = job.feed(ev.StopDone(job.state.round))
    assert job.state.outcome is JobStatus.FINISHED
    assert any(isinstance(command, ev.Cancel) for command in commands)


def test_a_savepoint_of_an_earlier_round_stops_nothing() -> None:
    """The tasks have started again since, and may have published more than the savepoint covers (C24)."""
    job = Job()
    job.run()
    job.feed(ev.StopDone(job.state.round - 1))
    assert job.state.outcome is None
