"""Later JobMasters replace earlier ones, and their jobs come back on the slots that they hold (R1, R12, R13)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minflinkd.resourcemanager import events as ev
from minflinkd.resourcemanager.slot_manager import is_stale
from minflinkd.resourcemanager.state import PAST_KEPT
from minflinkd.resourcemanager.task_managers import SlotState
from minflinkd.runtime.ids import JobId, LeaderId
from tests.unit.resourcemanager.manager import JOB1, JOB2, NO_STANDBY, TM1, TM2, A, B, Manager, allocate, leader

NEXT = LeaderId("leader of 1, the next")
IDLE_ONE_BESIDE = replace(NO_STANDBY, heartbeat_timeout=5.0)


def after_a_crash() -> Manager:
    """JOB1 holds both slots of TM1, and its JobMaster has crashed. TM2 is free."""
    manager = Manager(IDLE_ONE_BESIDE)
    manager.started = 2
    manager.register(TM1)
    manager.register(TM2)
    manager.needs(a=2)
    manager.feed(ev.AllocationAnswered(A, True, manager.report(TM1, s0=A, s1=A)))
    manager.needs(version=2, held=(A,))
    manager.now = 100.0
    return manager


def test_the_taskmanagers_of_a_job_are_told_of_its_new_jobmaster_and_nothing_is_taken_elsewhere() -> None:
    """The job comes back on its warm TaskManager (R13)."""
    manager = after_a_crash()
    assert manager.needs(by=NEXT, b=2) == [ev.AnnounceJobMaster(JOB1, NEXT, (TM1,))]
    assert manager.slot_states(TM2) == [SlotState.FREE] * 2
    assert "own TaskManagers will offer" in manager.answer().waiting[B]
    assert manager.tick(4.9) == []
    assert manager.needs(version=2, by=NEXT, held=(A,)) == []
    assert manager.tick(10) == []


def test_a_job_whose_slots_are_not_offered_in_time_is_served_elsewhere() -> None:
    """The wait ends a heartbeat timeout after the new JobMaster's first declaration (R13)."""
    manager = after_a_crash()
    manager.needs(by=NEXT, b=2)
    (command,) = manager.tick(5)
    assert command == allocate(TM2, (0, 1), B, by=NEXT)


def test_slots_that_a_new_jobmaster_gave_up_are_not_waited_for() -> None:
    """It lost its TaskManager, which still holds them. It never takes them again, so it is served elsewhere (R13)."""
    manager = after_a_crash()
    manager.needs(by=NEXT, b=2)
    manager.needs(version=2, by=NEXT, held=(A,))
    assert manager.needs(version=3, by=NEXT, d=2) == [allocate(TM2, (0, 1), "d", by=NEXT)]
    assert manager.answer().waiting == {}


def test_a_jobmaster_that_was_silent_and_speaks_again_is_not_a_new_one() -> None:
    """Its needs were dropped meanwhile. No slots are waited for that it has given up (R10, R13)."""
    manager = after_a_crash()
    manager.needs(by=NEXT, held=(A,))
    manager.now += 10
    manager.feed(ev.JobMasterGone(JOB1, NEXT, for_good=False))
    told, *served = manager.needs(version=2, by=NEXT, d=2)
    assert told == ev.AnnounceJobMaster(JOB1, NEXT, (TM1,))
    assert served == [allocate(TM2, (0, 1), "d", by=NEXT)]


def test_slots_stay_given_up_in_later_declarations() -> None:
    """R13."""
    manager = after_a_crash()
    manager.needs(by=NEXT, held=(A,))
    manager.needs(version=2, by=NEXT)
    assert manager.needs(version=3, by=NEXT, d=2) == [allocate(TM2, (0, 1), "d", by=NEXT)]


def test_nothing_is_started_for_what_the_job_holds_already() -> None:
    """R13."""
    manager = after_a_crash()
    manager.feed(ev.TaskManagerFailed(TM2, "killed"))
    assert manager.needs(by=NEXT, b=2) == [ev.AnnounceJobMaster(JOB1, NEXT, (TM1,))]
    assert manager.tick(4.9) == []
    assert manager.tick(0.2) == [ev.StartTaskManager(manager.last_started())]


def test_what_the_job_holds_covers_no_more_than_it_is_large() -> None:
    """An allocation of two slots covers one need of at most two slots (R13)."""
    manager = after_a_crash()
    assert manager.needs(by=NEXT, b=2, d=1)[1:] == [allocate(TM2, (0,), "d", by=NEXT)]
    larger = after_a_crash()
    larger.register("tm-3", slots=4)
    assert larger.needs(by=NEXT, b=3)[1:] == [allocate("tm-3", (0, 1, 2), B, by=NEXT)]


def test_an_earlier_jobmaster_is_stale_once_a_later_one_has_declared() -> None:
    """The version of its declaration does not matter (R1)."""
    manager = after_a_crash()
    manager.needs(by=NEXT, b=2)
    assert is_stale(manager.state, JOB1, leader(JOB1))
    assert manager.needs(version=99, e=1) == []
    assert manager.state.jobs[JOB1].leader_id == NEXT


def test_an_end_that_an_earlier_jobmaster_tells_ends_nothing() -> None:
    """R1."""
    manager = after_a_crash()
    manager.needs(by=NEXT, b=2)
    manager.feed(ev.JobMasterGone(JOB1, leader(JOB1), for_good=True))
    assert manager.state.jobs[JOB1].leader_id == NEXT


def test_a_silent_jobmaster_may_speak_again_and_an_earlier_one_may_not() -> None:
    """R1, R10."""
    manager = Manager()
    manager.needs(by=NEXT, held=(A,))
    manager.feed(ev.JobMasterGone(JOB1, NEXT, for_good=False))
    assert not is_stale(manager.state, JOB1, NEXT)
    assert is_stale(manager.state, JOB1, leader(JOB1))


@pytest.mark.parametrize("known", [True, False])
def test_the_end_of_a_job_outlives_its_jobmasters_late_messages(known: bool) -> None:
    """Late messages are refused even if the job's declaration was never heard. A later JobMaster is accepted (R1)."""
    manager = Manager()
    if known:
        manager.needs(held=(A,))
    manager.feed(ev.JobMasterGone(JOB1, leader(JOB1), for_good=True))
    assert is_stale(manager.state, JOB1, leader(JOB1))
    assert manager.needs(version=7, a=1) == []
    manager.needs(by=NEXT, a=1)
    assert manager.state.jobs[JOB1].leader_id == NEXT


def test_ended_jobs_are_remembered_up_to_a_bound() -> None:
    """The most recent ones are remembered, because their late messages are still under way."""
    manager = Manager()
    for number in range(PAST_KEPT + 10):
        manager.feed(ev.JobMasterGone(JobId(f"{number:032x}"), LeaderId("x"), for_good=True))
        if number == PAST_KEPT - 1:
            manager.feed(ev.JobMasterGone(JobId(f"{0:032x}"), LeaderId("y"), for_good=True))  # of its next one
    assert len(manager.state.past) == PAST_KEPT
    assert JobId(f"{0:032x}") in manager.state.past
    assert JobId(f"{PAST_KEPT + 9:032x}") in manager.state.past


def test_a_new_resourcemanager_waits_for_the_taskmanagers_that_it_found_before_it_gives_slots_away() -> None:
    """TaskManagers that it found may hold slots of the jobs that ask.

    The wait ends after the heartbeat timeout (R12, R13, R14).
    """
    manager = Manager(IDLE_ONE_BESIDE)
    manager.feed(ev.TaskManagersFound((TM1, TM2)))
    manager.register(TM2)
    assert manager.needs(by=NEXT, b=2) == []
    assert manager.answer().waiting[B].endswith("; waiting for TaskManagers to say what they hold")
    assert manager.register(TM1, s0=A, s1=A) == []
    assert "own TaskManagers will offer" in manager.answer().waiting[B]
    late = Manager(IDLE_ONE_BESIDE)
    late.feed(ev.TaskManagersFound((TM1, TM2)))
    late.register(TM2)
    late.needs(b=2)
    assert late.tick(5) == [allocate(TM2, (0, 1), B)]


def test_a_new_resourcemanager_waits_only_for_those_that_have_not_registered() -> None:
    """R12."""
    manager = Manager(IDLE_ONE_BESIDE)
    manager.feed(ev.TaskManagersFound((TM1,)))
    assert manager.needs(b=2) == []
    assert manager.answer().waiting[B].endswith("; waiting for TaskManagers to say what they hold")
    assert manager.register(TM1) == [allocate(TM1, (0, 1), B)]


def test_a_job_that_wants_slots_again_is_served_by_the_time_of_its_first_declaration() -> None:
    manager = Manager(replace(NO_STANDBY, can_start=False))
    manager.needs(JOB1, a=2)
    manager.needs(JOB2, b=2)
    manager.needs(JOB1, version=2)
    manager.needs(JOB1, version=3, e=2)
    assert manager.register(TM1) == [allocate(TM1, (0, 1), "e")]


def test_jobs_are_served_in_the_order_in_which_they_came_whoever_leads_them() -> None:
    manager = Manager(replace(NO_STANDBY, can_start=False))
    manager.needs(JOB1, a=2)
    manager.needs(JOB2, b=2)
    manager.needs(JOB1, by=NEXT, e=2)
    assert manager.register(TM1) == [allocate(TM1, (0, 1), "e", by=NEXT)]


def test_the_job_that_came_first_is_served_first_whatever_its_id() -> None:
    manager = Manager(replace(NO_STANDBY, can_start=False))
    manager.needs(JOB2, b=2)
    manager.needs(JOB1, a=2)
    assert manager.register(TM1) == [allocate(TM1, (0, 1), B, JOB2)]
