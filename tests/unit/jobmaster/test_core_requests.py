"""The requests of a JobMaster's core to TaskManagers: deploy, cancel, free. What they say, and when they end (A5)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace as copy

from minflinkd.jobgraph.model import Input, Task, Vertex
from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.rpc import messages as m
from minflinkd.rpc.jobs import ExecutionState, JobStatus
from minflinkd.rpc.network import Fenced
from minflinkd.rpc.party import Ask, Outcome, Refused
from minflinkd.runtime.errors import Conflict, Consequence, Kind
from minflinkd.runtime.ids import AttemptId, TaskId, VertexId
from tests.unit.checkpoint.builders import snapshot
from tests.unit.jobmaster.fed_core import CONTEXT, DONE, JOB, NO_ANSWER, A, JobMaster
from tests.unit.jobmaster.wide_job import BOOM, TM1, TM2, task


def test_a_deployment_says_all_that_the_taskmanager_needs() -> None:
    """m12."""
    master = JobMaster(width=4, resource_wait_timeout=0.0)
    ask = master.deployed()
    execution = master.core.state.executions[A]
    assert (ask.target, ask.timeout, ask.fence) == ("taskmanager/tm-1", 2.5, master.core.leader_id)
    assert ask.request == m.DeployTask(
        job=CONTEXT,
        task=copy(master.core.state.tasks[A], parallelism=1),
        allocation_id=master.held[0],
        attempt_id=master.attempt,
        attempt_number=execution.number,
        job_leader_id=master.core.leader_id,
        restore=None,
        inputs=(),
        partitions=4,
    )
    master.answer(ask, DONE)
    assert master.core.state.executions[A].accepted


def test_a_deployment_says_what_the_task_restores_and_where_it_reads_its_input() -> None:
    """J11, R13."""
    reader = Vertex(id=VertexId("b"), inputs=(Input(id=VertexId("a"), exchange=True),), sql="SELECT 1")
    master = JobMaster(task("a", 1, "default"), Task(id=TaskId("b"), vertices=(reader,), parallelism=1))
    master.feed(ev.Started())
    master.offer()
    restore = m.TaskRestore(checkpoint_id=3, snapshot=snapshot(3, TaskId("b"), AttemptId("old")))
    master.feed(ev.RestorePointFound(master.core.state.round, 3, {TaskId("b"): restore}))
    writes, reads = (ask.request for ask in master.asked(m.DeployTask))
    assert (writes.restore, writes.inputs) == (None, ())
    assert reads.restore == restore
    assert reads.inputs == (
        m.ExchangeSource(
            vertex_id=VertexId("a"), attempt_id=writes.attempt_id, resource_id=TM1, data_url="http://tm-1"
        ),
    )


@pytest.mark.parametrize("refused", [Conflict("the slot is free"), Fenced("a later leader")])
def test_a_refused_deployment_is_tried_elsewhere_unless_a_later_leader_is_there(refused: Conflict | Fenced) -> None:
    master = JobMaster()
    master.answer(master.deployed(), Refused(refused))
    assert master.state_of_a() is ExecutionState.FAILED
    error = master.core.state.failures[-1].record.error
    fenced = isinstance(refused, Fenced)
    assert (error.code, error.consequence) == (refused.code, Consequence.FENCED if fenced else Consequence.RETRYABLE)
    assert master.core.state.status is JobStatus.RESTARTING
    assert master.asked(m.CancelTask) == []


def test_a_deployment_whose_attempt_was_cancelled_meanwhile_is_not_repeated() -> None:
    """m12: Its answer is lost, but not that to the cancellation. The attempt must not be started after its end."""
    master = JobMaster()
    ask = master.deployed()
    master.feed(ev.CancelRequested())
    (cancel,) = master.asked(m.CancelTask)
    master.answer(cancel, DONE)
    assert master.state_of_a() is ExecutionState.CANCELED
    master.answer(ask, NO_ANSWER)
    master.tick(1.0)
    assert master.asked(m.DeployTask) == []


def test_a_deployment_is_repeated_until_its_time_is_over_and_then_cancelled() -> None:
    """A5: It may have been carried out."""
    master = JobMaster()
    ask = master.deployed()
    master.now = 2.5
    master.answer(ask, NO_ANSWER)
    assert master.core.next_wakeup() == 1.0  # overdue heartbeats; the next try is at 3.0
    master.tick(2.9)
    assert master.asked(m.DeployTask) == []
    master.tick(3.0)
    (again,) = master.asked(m.DeployTask)
    assert (again.request, again.timeout) == (ask.request, 2.0)
    master.now = 4.5
    master.answer(again, NO_ANSWER)
    (cancel,) = master.asked(m.CancelTask)
    assert (cancel.target, cancel.request) == (
        "taskmanager/tm-1",
        m.CancelTask(job_id=JOB, attempt_id=ask.request.attempt_id),
    )
    error = master.core.state.failures[-1].record.error
    assert (error.code, error.kind, error.consequence) == ("rpc-timeout", Kind.CLUSTER, Consequence.RETRYABLE)


@pytest.mark.parametrize("given_up", ["cancelled", "lost", "followed"])
def test_a_deployment_is_not_repeated_once_its_attempt_was_given_up(given_up: str) -> None:
    """It would arrive after the cancellation."""
    master = JobMaster()
    ask = master.deployed()
    if given_up == "cancelled":
        master.feed(ev.CancelRequested())
    else:
        master.report(m.TaskState.FAILED, error=BOOM)
    if given_up == "followed":
        master.tick(1.0)
        master.deployed()
    master.answer(ask, NO_ANSWER)
    master.tick(master.now + 0.5)
    assert master.asked(m.DeployTask) == []


def test_a_cancellation_is_repeated_for_longer_than_a_session_needs_to_end() -> None:
    master = JobMaster(cancellation_timeout=3.0).run()
    attempt = master.attempt
    master.feed(ev.CancelRequested())
    for now in (0.0, 11.0):  # a TaskManager gives up on a session sooner than 4 * 3 s
        master.now = now
        (cancel,) = master.asked(m.CancelTask)
        assert (cancel.target, cancel.fence) == ("taskmanager/tm-1", master.core.leader_id)
        assert cancel.request == m.CancelTask(job_id=JOB, attempt_id=attempt)
        master.report(m.TaskState.RUNNING)  # it lives, and is slow
        master.answer(cancel, NO_ANSWER)
        assert master.state_of_a() is ExecutionState.CANCELING
        assert master.asked(m.CancelTask) == []
        master.core.tick(now + 0.5)
    (cancel,) = master.asked(m.CancelTask)
    master.now = 11.75
    master.answer(cancel, NO_ANSWER)
    assert master.state_of_a() is ExecutionState.CANCELED


def test_a_cancellation_that_is_answered_ends_the_attempt() -> None:
    master = JobMaster().run()
    master.feed(ev.CancelRequested())
    (cancel,) = master.asked(m.CancelTask)
    master.answer(cancel, DONE)
    assert master.state_of_a() is ExecutionState.CANCELED


def test_a_cancellation_is_not_waited_for_once_its_taskmanager_is_lost() -> None:
    master = JobMaster().run()
    master.feed(ev.CancelRequested())
    (cancel,) = master.asked(m.CancelTask)
    master.answer(cancel, NO_ANSWER)
    master.receive(m.TaskManagerLost(resource_id=TM1, reason="killed"))
    master.tick(1.0)
    assert master.asked(m.CancelTask) == []
    assert len(master.taken(ev.SettleSinks)) == 1


def ended(master: JobMaster) -> Ask:
    """Cancel the job, settle its sinks, and return the request that frees its slots."""
    master.feed(ev.CancelRequested())
    (cancel,) = master.asked(m.CancelTask)
    master.answer(cancel, DONE)
    (free,) = master.asked(m.FreeSlots)
    master.feed(ev.SinksSettled())
    return free


@pytest.mark.parametrize("outcome", [DONE, Refused(Conflict("unknown job"))])
def test_a_job_has_ended_once_its_slots_are_free(outcome: Outcome) -> None:
    """The driver is told then, and stops."""
    master = JobMaster().run()
    held = master.held
    free = ended(master)
    assert (free.target, free.timeout, free.fence) == ("taskmanager/tm-1", 2.5, master.core.leader_id)
    assert free.request == m.FreeSlots(job_id=JOB, allocations=held, surplus={}, job_ended=True)
    assert master.taken(ev.End) == []
    master.answer(free, outcome)
    assert master.taken(ev.End) == [ev.End(JobStatus.CANCELED)]
    master.answer(free, outcome)
    assert master.taken(ev.End) == []


def test_a_taskmanager_that_does_not_answer_keeps_no_job_from_ending() -> None:
    """It is asked for `heartbeat.timeout`, also after the job has reached its last state."""
    master = JobMaster().run()
    free = ended(master)
    for now in (2.5, 4.0):
        master.now = now
        master.answer(free, NO_ANSWER)
        assert master.taken(ev.End) == []
        master.tick(now + 0.5)
        (free,) = master.asked(m.FreeSlots)
    master.now = 4.75
    master.answer(free, NO_ANSWER)
    assert master.taken(ev.End) == [ev.End(JobStatus.CANCELED)]


def test_a_job_has_ended_once_every_taskmanager_has_freed_its_slots() -> None:
    master = JobMaster(task("a", 1, "a"), task("b", 1, "b"))
    master.feed(ev.Started())
    for resource in (TM1, TM2):
        master.offer(resource)
    master.feed(ev.CancelRequested())
    master.feed(ev.SinksSettled())
    first, second = master.asked(m.FreeSlots)
    assert {first.target, second.target} == {"taskmanager/tm-1", "taskmanager/tm-2"}
    master.answer(first, DONE)
    assert master.taken(ev.End) == []
    master.answer(second, DONE)
    assert master.taken(ev.End) == [ev.End(JobStatus.CANCELED)]


def test_a_job_without_slots_ends_at_once() -> None:
    master = JobMaster()
    master.feed(ev.Started())
    master.feed(ev.CancelRequested())
    master.feed(ev.SinksSettled())
    assert master.taken(ev.End) == [ev.End(JobStatus.CANCELED)]


def test_surplus_slots_are_given_back_by_their_numbers() -> None:
    """R4, H4."""
    master = JobMaster(slot_idle_timeout=50.0)
    master.feed(ev.Started())
    (need,) = master.core.state.pool.needs
    offers = (m.SlotOffer(allocation_id=need, slots=(0, 1, 2)),)
    master.receive(m.OfferSlots(resource_id=TM1, address="taskmanager/tm-1", offers=offers))
    master.run()
    master.now = 50.0
    master.feed(ev.Tick())
    (free,) = master.asked(m.FreeSlots)
    assert free.request == m.FreeSlots(job_id=JOB, allocations=(), surplus={need: (1, 2)})
    master.answer(free, DONE)
    assert master.taken(ev.End) == []


def growing() -> tuple[JobMaster, Ask]:
    """Return a master whose task has been told to use a second slot, and that request."""
    master = JobMaster(width=2, resource_wait_timeout=0.0)
    master.answer(master.deployed(), DONE)
    status = m.TaskStatus(attempt_id=master.attempt, task_id=A, state=m.TaskState.RUNNING)
    master.receive(m.TaskStateChanged(resource_id=TM1, status=status))
    (need,) = master.core.state.pool.needs
    offer = m.SlotOffer(allocation_id=need, slots=(1,))
    master.receive(m.OfferSlots(resource_id=TM1, address="taskmanager/tm-1", offers=(offer,)))
    (ask,) = master.asked(m.ResizeTask)
    return master, ask


def test_a_task_is_told_its_new_slots_until_it_answers() -> None:
    """The request may have been carried out: it is repeated, and says the same (A5, R20)."""
    master, ask = growing()
    assert ask.request == m.ResizeTask(job_id=JOB, attempt_id=master.attempt, parallelism=2)
    assert (ask.target, ask.fence) == ("taskmanager/tm-1", master.core.leader_id)
    master.answer(ask, NO_ANSWER)
    master.tick(master.now + 0.5)
    (again,) = master.asked(m.ResizeTask)
    assert again.request == ask.request
    master.answer(again, DONE)
    assert (master.core.state.executions[A].parallelism, master.core.state.executions[A].asked) == (2, 0)


@pytest.mark.parametrize("outcome", [Refused(Conflict("its plan was made for its slots")), NO_ANSWER])
def test_a_task_that_does_not_take_its_new_slots_is_restarted_from_a_checkpoint(outcome: Outcome) -> None:
    """Also if nobody says for a whole heartbeat timeout whether it has taken them."""
    master, ask = growing()
    if outcome is NO_ANSWER:
        master.now += 5.0
    master.answer(ask, outcome)
    running = master.core.state.running
    assert running is not None
    assert running.rigid
    assert master.asked(m.ResizeTask) == []


def test_a_task_that_has_ended_is_told_nothing_any_more() -> None:
    master, ask = growing()
    master.answer(ask, NO_ANSWER)
    status = m.TaskStatus(attempt_id=master.attempt, task_id=A, state=m.TaskState.FAILED, error=BOOM)
    master.receive(m.TaskStateChanged(resource_id=TM1, status=status))
    master.tick(master.now + 1.0)
    assert master.asked(m.ResizeTask) == []
