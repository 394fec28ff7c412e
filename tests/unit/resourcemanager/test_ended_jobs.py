"""TaskManagers learn which jobs have ended for good, and keep the slots of all others (R12, R13, A14).

A job that counts as ended by mistake loses its tasks. So most tests here are about jobs that have not ended.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as copy

from minflinkd.resourcemanager import events as ev
from minflinkd.resourcemanager.state import PAST_KEPT
from minflinkd.resourcemanager.task_managers import SlotState
from minflinkd.rpc import messages as m
from minflinkd.rpc.network import DISPATCHER, RpcTimeout, Unreachable
from minflinkd.rpc.party import Answered, Ask, Refused, Unknown
from minflinkd.runtime.errors import Conflict
from minflinkd.runtime.ids import AllocationId, JobId, LeaderId
from tests.unit.resourcemanager import core_world as w
from tests.unit.resourcemanager import manager as sm
from tests.unit.resourcemanager.core_world import FIRST, JOB, OTHER, SECOND, TM1, A, B, manager_with, need
from tests.unit.resourcemanager.manager import JOB1, JOB2, NO_STANDBY, C, Manager, leader

HOLDERS = ((JOB, A), (OTHER, B))


def question(manager: w.Manager) -> Ask:
    """Let a second pass, and return the question for the jobs to run, which is the only command."""
    manager.passes(1)
    ask = w.asked_for(manager.commands())
    assert (ask.target, ask.request, ask.fence) == (DISPATCHER, m.ListJobsToRun(), None)
    return ask


def told(manager: w.Manager, registered: m.Registered, *held: tuple[JobId, AllocationId]) -> tuple[JobId, ...]:
    """Return the jobs that the TaskManager, which reports these slots, is told have ended."""
    answer = manager.beat(registered, manager.report(TM1, *(held or HOLDERS)))
    assert isinstance(answer, m.HeartbeatAnswer)
    return answer.ended_jobs


def ends(manager: w.Manager, by: LeaderId = FIRST) -> None:
    manager.receive(m.JobMasterEnded(job_id=JOB, leader_id=by))


# --- a job whose end was heard ---------------------------------------------------------------------------------------


def test_a_taskmanager_is_told_of_the_end_of_a_job_for_as_long_as_it_holds_its_slots() -> None:
    """The answers are complete, so that a lost one does not matter (R8)."""
    manager = manager_with()
    manager.declare(held=(A,))
    registered = manager.register(TM1, *HOLDERS)
    assert registered.ended_jobs == ()
    assert told(manager, registered) == ()
    ends(manager)
    assert told(manager, registered) == (JOB,)
    assert told(manager, registered) == (JOB,)
    assert manager.register(TM1, *HOLDERS).ended_jobs == (JOB,)
    assert told(manager, registered, (OTHER, B)) == ()


def test_a_job_that_was_never_heard_of_may_have_ended_all_the_same() -> None:
    """Its JobMaster spoke only to an earlier ResourceManager (R12)."""
    manager = manager_with()
    ends(manager)
    assert manager.register(TM1, *HOLDERS).ended_jobs == (JOB,)


def test_a_job_with_a_silent_jobmaster_has_not_ended() -> None:
    """Its tasks wait for the next JobMaster (R10, A14)."""
    manager = manager_with()
    manager.declare(held=(A,))
    registered = manager.register(TM1, *HOLDERS)
    manager.passes(100, lambda: told(manager, registered))
    assert JOB not in manager.core.state.jobs
    assert told(manager, registered) == ()


def test_the_end_of_a_replaced_jobmaster_is_not_the_end_of_its_job() -> None:
    """R1."""
    manager = manager_with()
    manager.declare(by=SECOND, held=(A,))
    ends(manager, by=FIRST)
    assert manager.register(TM1, *HOLDERS).ended_jobs == ()


def test_a_job_that_was_withdrawn_and_is_submitted_again_has_not_ended() -> None:
    """Its JobMaster is a later one than the one that has ended (R1)."""
    manager = manager_with()
    manager.declare(held=(A,), by=FIRST)
    ends(manager, by=FIRST)
    manager.declare(need(A), by=SECOND)
    assert manager.register(TM1, *HOLDERS).ended_jobs == ()
    ends(manager, by=FIRST)
    assert manager.register(TM1, *HOLDERS).ended_jobs == ()


# --- a new ResourceManager asks which jobs have not ended ------------------------------------------------------------


def test_a_job_that_the_dispatcher_does_not_know_has_ended_before_the_resourcemanager_began() -> None:
    """The Dispatcher names the jobs that are to run, with or without a JobMaster (R12)."""
    manager = manager_with()
    registered = manager.register(TM1, *HOLDERS)
    ask = question(manager)
    assert told(manager, registered) == ()
    manager.core.answered(ask.about, Answered(m.JobsToRun(jobs=(OTHER,))), manager.now)
    assert told(manager, registered) == (JOB,)
    assert manager.register(TM1, *HOLDERS).ended_jobs == (JOB,)
    manager.passes(100, lambda: told(manager, registered))
    assert manager.commands() == []


@pytest.mark.parametrize(
    "outcome", [Unknown(Unreachable("recovering")), Unknown(RpcTimeout("late")), Refused(Conflict("no"))]
)
def test_while_the_dispatcher_does_not_answer_no_unknown_job_has_ended_and_it_is_asked_again(
    outcome: Unknown | Refused,
) -> None:
    """A daemon that starts needs a while to find its jobs (A14)."""
    manager = manager_with()
    registered = manager.register(TM1, *HOLDERS)
    for _ in range(3):
        ask = question(manager)
        manager.passes(3, lambda: told(manager, registered))
        assert manager.commands() == []  # one question at a time
        manager.core.answered(ask.about, outcome, manager.now)
        assert told(manager, registered) == ()
    manager.core.answered(question(manager).about, Answered(m.JobsToRun(jobs=())), manager.now)
    assert told(manager, registered) == (JOB, OTHER)


def test_the_dispatcher_is_not_asked_about_jobs_that_are_known() -> None:
    manager = manager_with()
    manager.declare(held=(A,))
    ends(manager)
    registered = manager.register(TM1, (JOB, A))
    manager.passes(3, lambda: told(manager, registered, (JOB, A)))
    assert manager.commands() == []


@pytest.mark.parametrize("before", [True, False])
def test_a_job_that_is_submitted_while_the_jobs_are_listed_has_not_ended(before: bool) -> None:
    """It got slots only after it had declared its needs here, before or after the list came (R12)."""
    manager = manager_with()
    registered = manager.register(TM1, (OTHER, B))
    ask = question(manager)
    if before:
        manager.declare(held=(A,))
    manager.core.answered(ask.about, Answered(m.JobsToRun(jobs=())), manager.now)
    if not before:
        manager.declare(held=(A,))
    assert told(manager, registered) == (OTHER,)
    manager.passes(100, lambda: told(manager, registered))
    assert JOB not in manager.core.state.jobs  # its JobMaster is silent
    assert told(manager, registered) == (OTHER,)


def test_a_listed_job_ends_when_its_jobmaster_says_so() -> None:
    """The list is not asked for again."""
    manager = manager_with()
    registered = manager.register(TM1, *HOLDERS)
    manager.core.answered(question(manager).about, Answered(m.JobsToRun(jobs=(JOB, OTHER))), manager.now)
    assert told(manager, registered) == ()
    ends(manager)
    assert told(manager, registered) == (JOB,)


def test_a_listed_job_whose_end_was_heard_before_the_list_has_not_ended() -> None:
    """Which of the two is the later cannot be told, and a mistake would cost the job its tasks (A14)."""
    manager = manager_with()
    registered = manager.register(TM1, *HOLDERS)
    ask = question(manager)
    ends(manager)
    assert told(manager, registered) == (JOB,)
    manager.core.answered(ask.about, Answered(m.JobsToRun(jobs=(JOB, OTHER))), manager.now)
    assert told(manager, registered) == ()


def test_a_silent_job_has_not_ended_however_many_others_have_come_and_gone() -> None:
    """Only the last jobs' JobMasters are remembered, but every job that has not ended is."""
    manager = Manager()
    manager.register(TM1, s0=A)
    manager.feed(ev.JobsListed(()))
    manager.needs(held=(A,))
    manager.feed(ev.JobMasterGone(JOB1, leader(JOB1), for_good=False))
    for number in range(PAST_KEPT):
        manager.feed(ev.JobMasterGone(JobId(f"{number:032x}"), LeaderId("x"), for_good=True))
    assert JOB1 not in manager.state.past
    assert not manager.state.has_ended(JOB1)
    assert manager.state.unended == {JOB1}


# --- slots whose job has no JobMaster --------------------------------------------------------------------------------


def orphaned(*, new: bool) -> Manager:
    """JOB2 holds a slot of TM1 and has no JobMaster, because it was silent, or because the ResourceManager is `new`."""
    manager = Manager(replace(NO_STANDBY, taskmanager_timeout=1.0, can_start=False))
    manager.started = 1
    if new:
        manager.feed(ev.TaskManagersFound((sm.TM1,)))
        manager.register(sm.TM1, s0=C)
    else:
        manager.register(sm.TM1)
        manager.needs(JOB2, c=1)
        manager.feed(ev.AllocationAnswered(C, True, manager.report(sm.TM1, s0=C)))
        manager.needs(JOB2, version=2, held=(C,))
        manager.feed(ev.JobMasterGone(JOB2, leader(JOB2), for_good=False))
    return manager


@pytest.mark.parametrize("new", [True, False])
def test_slots_of_a_job_without_a_jobmaster_go_to_nobody_else(new: bool) -> None:
    """They stay its own until the TaskManager says otherwise (R12, R13, A14)."""
    manager = orphaned(new=new)
    manager.tick(1000)
    assert manager.needs(JOB1, a=2) == []
    for _ in range(20):
        assert manager.tick(100) == []
        assert manager.feed(ev.Reported(manager.report(sm.TM1, s0=C))) == []
    assert manager.slot_states(sm.TM1) == [SlotState.ALLOCATED, SlotState.FREE]
    assert [type(c) for c in manager.feed(ev.Reported(manager.report(sm.TM1)))] == [ev.SendAllocate]


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("aged", [True, False])
def test_a_taskmanager_with_slots_of_a_job_without_a_jobmaster_is_neither_stopped_nor_renewed(
    new: bool, aged: bool
) -> None:
    """However long it reports them (R6, R6a, A14)."""
    manager = orphaned(new=new)
    for _ in range(20):
        manager.feed(ev.Reported(copy(manager.report(sm.TM1, s0=C), session_aged=aged)))
        assert manager.tick(100) == []
    manager.feed(ev.Reported(manager.report(sm.TM1)))
    assert [type(c) for c in manager.tick(100)] == [ev.SendExit]


def test_a_taskmanager_of_its_own_waits_for_the_jobs_next_jobmaster() -> None:
    """It is the job's own, and has a task that waits for the next JobMaster (R24, A14)."""
    manager = orphaned(new=True)
    for _ in range(20):
        manager.feed(ev.Reported(copy(manager.report(sm.TM1, s0=C), dedicated_to=JOB2)))
        assert manager.tick(100) == []


def test_the_end_of_a_job_frees_nothing_that_its_taskmanager_reports_as_held() -> None:
    """The TaskManager frees the slots, when its tasks have ended, and says so (R2, R12)."""
    manager = manager_with(can_start=False)
    manager.declare(held=(A,))
    registered = manager.register(TM1, (JOB, A), (JOB, A))
    ends(manager)
    manager.passes(20, lambda: told(manager, registered, (JOB, A), (JOB, A)))
    assert not manager.core.state.task_managers[TM1].free
