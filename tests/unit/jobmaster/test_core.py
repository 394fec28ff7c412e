"""What a JobMaster's core takes from others, what it declares, and what its heartbeats find out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler import machine
from minflinkd.jobmaster.scheduler.phases import Running
from minflinkd.jobmaster.scheduler.state import JobState
from minflinkd.rpc import messages as m
from minflinkd.rpc.jobs import ExecutionState, JobStatus
from minflinkd.rpc.network import RESOURCE_MANAGER, Fenced, Unreachable
from minflinkd.rpc.party import Answered, Refused, Unknown
from minflinkd.runtime.errors import Conflict
from minflinkd.runtime.ids import AttemptId, Chance, LeaderId
from minflinkd.runtime.machine import InvariantViolated
from minflinkd.taskmanager.child.protocol import SessionLost
from tests.unit.jobmaster.fed_core import DONE, JOB, NO_ANSWER, UNREACHABLE, A, JobMaster
from tests.unit.jobmaster.wide_job import BOOM, TM1, TM2, task

LIBRARY = m.Library(unit="native:acme_fast", digest="0" * 64)

# --- what it takes ---------------------------------------------------------------------------------------------------


def test_a_message_with_another_leaders_token_is_refused() -> None:
    """R13."""
    gone = m.TaskManagerLost(resource_id=TM1, reason="killed")
    for fence in (None, LeaderId("another")):
        with pytest.raises(Fenced, match=f"jobmaster/{JOB} refuses TaskManagerLost.*{fence}"):
            JobMaster().core.receive(gone, fence, 0.0)


def test_a_message_that_is_none_of_its_business_is_refused() -> None:
    with pytest.raises(Unreachable, match=f"jobmaster/{JOB} does not take ListTaskManagers"):
        JobMaster().receive(m.ListTaskManagers())


def test_an_offer_is_answered_with_the_allocations_that_the_job_takes() -> None:
    """m10."""
    master = JobMaster()
    master.feed(ev.Started())
    accepted = master.offer()
    assert accepted == m.OffersAccepted(accepted=master.held)
    held = master.core.state.pool.held[master.held[0]]
    assert (held.slots, held.resource_id, held.address, held.data_url) == ((0,), TM1, "taskmanager/tm-1", "http://tm-1")
    assert master.offer(TM2, "nobody-wants-it") == m.OffersAccepted(accepted=())


def test_what_a_taskmanager_tells_of_a_task_changes_its_execution() -> None:
    master = JobMaster().run()
    master.receive(m.TaskProgress(attempt_id=master.attempt, metrics=m.TaskMetrics(batches=3)))
    assert master.core.state.executions[A].metrics.batches == 3
    assert master.core.state.rollouts[-1].seconds()["first_batch"] == master.now
    assert master.report(m.TaskState.FAILED, error=BOOM) == m.Done()
    assert master.state_of_a() is ExecutionState.FAILED


def test_a_taskmanager_that_the_resource_manager_reports_as_lost_is_gone() -> None:
    """The message arrives sooner than the JobMaster's own heartbeats end (R11)."""
    master = JobMaster().run()
    master.receive(m.TaskManagerLost(resource_id=TM1, reason="exit code -9"))
    assert master.held == ()
    assert "tm-1 is lost: exit code -9" in master.core.state.failures[-1].record.error.message


def test_the_phases_of_attempts_that_others_have_followed_are_forgotten() -> None:
    """A job that restarts for years needs no more memory for it."""
    master = JobMaster()
    for now in (100.0, 200.0, 300.0):
        master.now = now
        master.deployed()
        for state, error in ((m.TaskState.RUNNING, None), (m.TaskState.FAILED, BOOM)):
            master.report(state, error=error, phases={"build": now})
            assert master.core.task_phases == {master.attempt: {"build": now}}
        master.tick(now + 50)


# --- needs -----------------------------------------------------------------------------------------------------------


def test_all_needs_are_declared_with_all_that_the_resource_manager_must_know() -> None:
    """m1, R8."""
    master = JobMaster(width=2, exclusive=True, libraries=(LIBRARY,))
    master.feed(ev.Started())
    (ask,) = master.asked(m.DeclareNeeds)
    (need,) = master.core.state.pool.declaration()
    assert (ask.target, ask.timeout, ask.fence) == (RESOURCE_MANAGER, 5.0, None)
    assert ask.request == m.DeclareNeeds(
        job_id=JOB,
        leader_id=master.core.leader_id,
        address=f"jobmaster/{JOB}",
        version=master.core.state.pool.version,
        needs=(need,),
        exclusive=True,
        libraries=(LIBRARY,),
    )


def test_what_changes_in_the_needs_is_declared_at_once() -> None:
    """A ResourceManager that still believes in a served need would give the slots a second time (m1, m13)."""
    master = JobMaster()
    master.feed(ev.Started())
    (first,) = (ask.request for ask in master.asked(m.DeclareNeeds))
    (need,) = first.needs
    master.offer()
    (second,) = (ask.request for ask in master.asked(m.DeclareNeeds))
    assert (second.needs, second.held) == ((), (need.allocation_id,))
    assert second.version > first.version
    master.feed(ev.Tick())
    assert master.asked(m.DeclareNeeds) == []


def test_a_declaration_is_repeated_as_the_heartbeat_until_the_job_ends() -> None:
    """R8."""
    master = JobMaster()
    assert master.core.next_wakeup() is None
    master.feed(ev.Started())
    assert master.core.next_wakeup() == 1.0
    assert len(master.asked(m.DeclareNeeds)) == 1
    master.tick(0.9)
    assert master.asked(m.DeclareNeeds) == []
    for now in (1.0, 2.0, 3.25):
        master.tick(now)
        assert len(master.asked(m.DeclareNeeds)) == 1
    assert master.core.next_wakeup() == 4.25
    master.feed(ev.CancelRequested())
    master.feed(ev.SinksSettled())
    assert master.core.state.status is JobStatus.CANCELED
    master.asked(m.DeclareNeeds)
    master.tick(10.0)
    assert master.asked(m.DeclareNeeds) == []
    assert master.core.next_wakeup() is None


def test_the_resource_managers_answer_says_why_needs_are_not_served() -> None:
    """R5."""
    master = JobMaster()
    master.feed(ev.Started())
    (ask,) = master.asked(m.DeclareNeeds)
    (need,) = master.core.state.pool.needs
    master.answer(ask, Answered(m.NeedsAnswer(waiting={need: "one is starting"}, largest=4)))
    assert (master.core.state.waiting, master.core.state.largest) == ({need: "one is starting"}, 4)
    master.answer(ask, Answered(m.NeedsAnswer(refused={need: "no TaskManager may start"})))
    assert "no TaskManager may start" in master.core.state.failures[-1].record.error.message


def test_slots_that_do_not_come_in_time_are_a_failure_without_any_message() -> None:
    """Time is an event, too (R5)."""
    master = JobMaster(slot_request_timeout=5.0)
    master.feed(ev.Started())
    master.tick(4.9)
    assert master.core.state.failures == ()
    master.tick(5.0)
    assert len(master.core.state.failures) == 1


def test_only_an_answer_to_the_latest_needs_counts() -> None:
    master = JobMaster()
    master.feed(ev.Started())
    (ask,) = master.asked(m.DeclareNeeds)
    for outcome in (NO_ANSWER, Refused(Conflict("not now"))):
        master.answer(ask, outcome)
    master.offer()
    master.answer(ask, Answered(m.NeedsAnswer(largest=4)))
    assert (master.core.state.largest, master.core.state.failures) == (0, ())


def test_a_new_jobmaster_asks_the_taskmanagers_for_their_slots_before_it_asks_for_others() -> None:
    """The ResourceManager may be away, and the job comes back on what it had (R13)."""
    master = JobMaster(heralded=(TM2, TM1))
    master.feed(ev.Started(recovered=True))
    hellos = master.asked(m.HeartbeatFromJobMaster)
    assert [ask.target for ask in hellos] == ["taskmanager/tm-1", "taskmanager/tm-2"]
    for ask in hellos:
        leader = master.core.leader_id
        assert (ask.timeout, ask.fence) == (5.0, leader)
        assert ask.request == m.HeartbeatFromJobMaster(job_id=JOB, leader_id=leader, allocations=())
        master.answer(ask, Unknown(Unreachable("away")))
    (declared,) = master.asked(m.DeclareNeeds)
    assert declared.request.needs == ()
    master.now = 0.5
    master.feed(ev.SlotsReserved({"a": 3}))  # any change of the needs
    master.offer(TM1, "of-the-old-one")
    assert [ask.request.needs for ask in master.asked(m.DeclareNeeds)] == [(), ()]
    master.tick(1.5)
    (declared,) = master.asked(m.DeclareNeeds)
    assert declared.request.needs == master.core.state.pool.declaration() != ()


@pytest.mark.parametrize("comes", [True, False])
def test_a_new_jobmaster_asks_for_others_once_all_have_offered_or_an_interval_has_passed(comes: bool) -> None:
    master = JobMaster(heralded=(TM1,), width=2)
    master.feed(ev.Started(recovered=True))
    master.asked(m.DeclareNeeds)
    if comes:
        master.now = 0.5
        master.offer(TM1, "of-the-old-one")
    else:
        master.tick(1.0)
    (declared,) = master.asked(m.DeclareNeeds)
    assert declared.request.needs == master.core.state.pool.declaration() != ()


# --- heartbeats ------------------------------------------------------------------------------------------------------


def test_a_heartbeat_names_all_that_the_job_holds_there() -> None:
    """R10."""
    master = JobMaster().run()
    assert master.core.next_wakeup() == 1.0
    ask = master.beat(1.0)
    assert (ask.target, ask.timeout, ask.fence) == ("taskmanager/tm-1", 5.0, master.core.leader_id)
    assert ask.request == m.HeartbeatFromJobMaster(job_id=JOB, leader_id=master.core.leader_id, allocations=master.held)
    master.answer(ask, master.knows(master.status(m.TaskState.RUNNING)))
    assert master.core.state.status is JobStatus.RUNNING
    master.answer(master.beat(2.0), master.knows(master.status(m.TaskState.FAILED, error=BOOM)))
    assert master.state_of_a() is ExecutionState.FAILED


def test_a_taskmanager_gets_heartbeats_while_the_job_holds_slots_or_has_an_attempt_there() -> None:
    """R10."""
    master = JobMaster(task("a", 1, "all"), task("b", 1, "all"))
    master.feed(ev.Started())
    master.offer()
    assert master.beat(1.0).target == "taskmanager/tm-1"  # nothing runs yet
    master.feed(ev.RestorePointFound(master.core.state.round, None, {}))
    lost = SessionLost("the session child ended").info()
    master.report(m.TaskState.FAILED, error=lost)
    assert master.held == ()  # but `b` is still being cancelled there
    assert master.beat(2.0).request.allocations == ()
    (cancel,) = master.asked(m.CancelTask)
    master.answer(cancel, DONE)
    master.tick(3.0)
    assert master.asked(m.HeartbeatFromJobMaster) == []


def test_a_step_that_contradicts_the_invariants_raises_and_names_the_jobmaster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The story of the last events makes a test of it."""

    def broken(_: Chance, state: JobState, __: ev.Event, now: float) -> tuple[JobState, tuple[ev.Command, ...]]:
        return replace(state, phase=Running(now, checkpointed=True)), ()

    monkeypatch.setattr(machine, "step", broken)
    with pytest.raises(
        InvariantViolated, match=f"jobmaster/{JOB}: the job is Running while a task does not run\n.*Started"
    ):
        JobMaster().feed(ev.Started())


def test_an_answer_that_a_later_one_has_overtaken_changes_nothing() -> None:
    master = JobMaster().run()
    early, late = master.beat(1.0), master.beat(2.0)
    master.answer(late, master.knows(master.status(m.TaskState.RUNNING)))
    master.answer(early, Answered(m.JobHeartbeatAnswer(allocations=(), tasks=())))
    master.answer(early, Refused(Conflict("unknown leader")))
    assert master.core.state.status is JobStatus.RUNNING


def test_any_message_of_a_taskmanager_is_a_sign_of_life() -> None:
    """Without one it is lost after `heartbeat.timeout`, and its slots with it (R10)."""
    for sign in ("answer", "report", "offer", None):
        master = JobMaster().run()
        for now in (1.0, 2.0, 3.0, 4.0):
            beat = master.beat(now)
            master.answer(beat, NO_ANSWER)
            if now == 3.0 and sign == "answer":
                master.answer(beat, master.knows(master.status(m.TaskState.RUNNING)))
            elif now == 3.0 and sign == "report":
                master.report(m.TaskState.RUNNING)
            elif now == 3.0 and sign == "offer":
                master.offer(TM1, master.held[0])
        master.tick(5.0)
        assert bool(master.held) is (sign is not None), sign
        if sign is None:
            assert "no heartbeat for 5.0 s" in master.core.state.failures[-1].record.error.message
        master.tick(6.0)
        master.tick(7.0)
        master.tick(8.0)
        assert master.held == (), sign


def test_two_connections_in_a_row_that_fail_are_a_loss() -> None:
    master = JobMaster().run()
    for now, answered in ((1.0, UNREACHABLE), (2.0, master.knows(master.status(m.TaskState.RUNNING)))):
        master.answer(master.beat(now), answered)
    master.answer(master.beat(3.0), UNREACHABLE)
    assert master.held
    master.answer(master.beat(4.0), UNREACHABLE)
    assert master.held == ()
    assert "nobody there" in master.core.state.failures[-1].record.error.message


def test_a_taskmanager_that_refuses_the_job_has_none_of_its_slots() -> None:
    master = JobMaster().run()
    master.answer(master.beat(1.0), Refused(Conflict("follows a later leader")))
    assert master.held == ()
    message = master.core.state.failures[-1].record.error.message
    assert "TaskManager tm-1 refuses the job: follows a later leader" in message


def test_an_attempt_that_was_given_up_and_still_runs_is_cancelled_once_at_a_time() -> None:
    """Its cancellation was lost with its TaskManager, which has come back (R10)."""
    master = JobMaster().run()
    stray = m.TaskStatus(attempt_id=AttemptId("stray"), task_id=A, state=m.TaskState.RUNNING)
    told = master.knows(master.status(m.TaskState.RUNNING), stray)
    master.answer(master.beat(1.0), told)
    (cancel,) = master.asked(m.CancelTask)
    assert (cancel.target, cancel.fence) == ("taskmanager/tm-1", master.core.leader_id)
    assert cancel.request == m.CancelTask(job_id=JOB, attempt_id=AttemptId("stray"))
    master.answer(master.beat(2.0), told)
    assert master.asked(m.CancelTask) == []
    master.answer(cancel, DONE)
    master.answer(master.beat(3.0), told)
    assert len(master.asked(m.CancelTask)) == 1
