"""TaskManagers of one job (R24), those started by others (R7), and those with aged sessions (R6a)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from minflinkd.resourcemanager import events as ev
from minflinkd.resourcemanager.provisioning import CALM, LONELY
from minflinkd.resourcemanager.slot_manager import RENEWAL_REST, STOPPING_TIMEOUT
from minflinkd.resourcemanager.task_managers import SlotState, TaskManagerState
from tests.unit.resourcemanager.manager import (
    JOB1,
    JOB2,
    LOST,
    NO_STANDBY,
    STARTING,
    TM1,
    TM2,
    A,
    B,
    C,
    Manager,
    allocate,
    leader,
)

STANDBY = replace(NO_STANDBY, standby=1)
AGED = "its session has aged"


# --- of a job's own ---


def test_an_exclusive_job_gets_a_wholly_idle_taskmanager_which_is_its_own_from_then_on() -> None:
    """The TaskManager is the job's own from the reservation on, before the TaskManager has confirmed it (R24)."""
    manager = Manager(replace(NO_STANDBY, can_start=False))
    manager.register(TM1, s0=C)
    manager.register(TM2)
    assert manager.needs(exclusive=True, a=1) == [allocate(TM2, (0,), A, exclusive=True)]
    assert manager.needs(JOB2, held=(C,), b=1, d=1)[1:] == [allocate(TM1, (1,), B, JOB2)]
    assert manager.needs(version=2, exclusive=True, a=1, e=1) == [allocate(TM2, (1,), "e", exclusive=True)]


def test_an_exclusive_job_waits_where_no_taskmanager_is_wholly_idle_and_one_is_started() -> None:
    """R24."""
    manager = Manager()
    manager.started = 1
    manager.register(TM1, s0=C)
    assert manager.needs(exclusive=True, a=1) == [ev.StartTaskManager(TM2)]
    assert manager.register(TM2) == [allocate(TM2, (0,), A, exclusive=True)]


def test_an_exclusive_job_takes_the_taskmanager_that_analysed_it() -> None:
    """Otherwise that one would stand there for nobody (R24)."""
    manager = Manager(replace(NO_STANDBY, can_start=False))
    manager.register(TM1)
    manager.register(TM2, as_report=manager.report_with(TM2, dedicated_to=JOB1))
    assert manager.needs(JOB1, exclusive=True, a=1) == [allocate(TM2, (0,), A, exclusive=True)]


def test_an_exclusive_job_that_waits_keeps_no_other_from_its_own_taskmanager() -> None:
    """R24."""
    manager = Manager(replace(NO_STANDBY, can_start=False))
    manager.register(TM1, as_report=manager.report_with(TM1, dedicated_to=JOB2))
    assert manager.needs(JOB1, exclusive=True, a=1) == []
    assert manager.needs(JOB2, exclusive=True, b=1) == [allocate(TM1, (0,), B, JOB2, exclusive=True)]


def test_a_start_for_an_exclusive_job_counts_for_nobody_else() -> None:
    """R3, R24."""
    manager = Manager(replace(NO_STANDBY, max_concurrent_starts=3))
    assert manager.needs(exclusive=True, a=1) == [ev.StartTaskManager(TM1)]
    assert manager.needs(JOB2, b=1) == [ev.StartTaskManager(TM2)]
    assert manager.needs(JOB1, version=2, exclusive=True, a=1, e=1) == []


def test_a_new_resourcemanager_learns_whose_own_a_taskmanager_is() -> None:
    """R12, R24."""
    manager = Manager(replace(NO_STANDBY, can_start=False))
    manager.register(TM1, as_report=manager.report_with(TM1, dedicated_to=JOB1))
    assert manager.needs(JOB2, b=1) == []
    assert manager.needs(JOB1, exclusive=True, a=1) == [allocate(TM1, (0,), A, exclusive=True)]


def test_a_reservation_is_void_where_the_taskmanager_says_that_it_is_anothers_own() -> None:
    """If a TaskManager reports that it belongs to another job, a reservation on it is void (R24)."""
    manager = Manager(replace(NO_STANDBY, can_start=False))
    manager.register(TM1)
    manager.needs(JOB2, b=1)
    manager.feed(ev.Reported(manager.report_with(TM1, dedicated_to=JOB1)))
    assert manager.slot_states(TM1) == [SlotState.FREE, SlotState.FREE]


def test_an_own_taskmanager_ends_with_its_job() -> None:
    """A job's own TaskManager has to be idle to end, but ends long before an idle one of the session would (R24)."""
    manager = Manager()
    manager.register(TM1)
    manager.needs(exclusive=True, a=1)
    manager.feed(ev.Reported(manager.report_with(TM1, dedicated_to=JOB1, s0=A)))
    manager.feed(ev.JobMasterGone(JOB1, leader(JOB1), for_good=True))
    assert manager.tick(1) == []
    manager.feed(ev.Reported(manager.report_with(TM1, dedicated_to=JOB1)))
    assert manager.tick(1) == [ev.SendExit(TM1, f"job {JOB1}, whose own it was, does not need it any more")]


def test_an_own_taskmanager_waits_a_while_for_its_jobs_next_jobmaster() -> None:
    """R13, R24."""
    manager = Manager()
    manager.register(TM1, as_report=manager.report_with(TM1, dedicated_to=JOB1))
    assert manager.tick(LONELY - 1) == []
    assert manager.tick(1) == [ev.SendExit(TM1, f"job {JOB1}, whose own it was, does not need it any more")]


def test_an_own_taskmanager_is_no_standby() -> None:
    """A TaskManager that belongs to one job does not count as a standby (R6, R24)."""
    manager = Manager(STANDBY)
    manager.started = 1
    own = manager.report_with(TM1, dedicated_to=JOB1)
    assert manager.register(TM1, as_report=own) == [ev.StartTaskManager(TM2)]


# --- standalone ---


def test_a_standalone_taskmanager_is_never_stopped_for_idleness() -> None:
    """R7."""
    manager = Manager()
    manager.register(TM1, standalone=True)
    assert manager.tick(10_000) == []


def test_a_standalone_taskmanager_is_told_to_exit_after_its_own_job_and_its_process_is_left_alone() -> None:
    """Whoever started it starts it again (R7, R24)."""
    manager = Manager()
    manager.register(TM1, standalone=True, as_report=manager.report_with(TM1, dedicated_to=JOB1))
    (told,) = manager.tick(LONELY)
    assert told == ev.SendExit(TM1, f"job {JOB1}, whose own it was, does not need it any more")
    assert manager.feed(ev.ExitAnswered(TM1, "its job has ended")) == []
    assert manager.register(TM1, pid=2, standalone=True) == []
    assert manager.state.task_managers[TM1].state is TaskManagerState.REGISTERED


def test_a_started_taskmanager_that_was_told_to_exit_is_stopped_by_its_launcher() -> None:
    """The TaskManager's answer does not matter (R6)."""
    manager = Manager(replace(NO_STANDBY, taskmanager_timeout=60))
    manager.register(TM1)
    (told,) = manager.tick(60)
    assert isinstance(told, ev.SendExit)
    assert manager.feed(ev.ExitAnswered(TM1, told.reason)) == [ev.StopTaskManager(TM1, told.reason, kill=False)]
    late = f"it did not exit within {STOPPING_TIMEOUT:g} s"
    assert manager.tick(STOPPING_TIMEOUT) == [ev.StopTaskManager(TM1, late, kill=True)]


def test_a_taskmanager_that_analyses_a_job_is_not_idle() -> None:
    """However long the analysis takes, and however rare heartbeats are. It becomes idle when the analysis ends (R6)."""
    manager = Manager(replace(NO_STANDBY, taskmanager_timeout=1.0))
    manager.register(TM1)
    manager.feed(ev.SessionLent(TM1))
    manager.feed(ev.Reported(manager.report_with(TM1, analysing=True)))
    assert manager.tick(100) == []
    manager.feed(ev.Reported(manager.report(TM1)))
    assert manager.tick(0.9) == []
    (told,) = manager.tick(0.1)
    assert isinstance(told, ev.SendExit)


@pytest.mark.parametrize("session", [STARTING, LOST])
def test_a_standalone_taskmanager_whose_session_stays_away_is_given_nothing_and_not_killed(session: object) -> None:
    """R7."""
    manager = Manager()
    manager.register(TM1, session, standalone=True)
    assert manager.tick(10_000) == []
    assert manager.needs(a=1) == [ev.StartTaskManager(manager.last_started())]


def test_a_lost_standalone_taskmanager_is_told_to_its_jobs_and_not_killed() -> None:
    """R7, R11."""
    manager = Manager(replace(NO_STANDBY, can_start=False))
    manager.register(TM1, standalone=True, s0=A)
    manager.needs(held=(A,))
    lost = ev.NotifyLost(TM1, "silent", ((f"jobmaster/{JOB1}", leader(JOB1)),))
    assert manager.feed(ev.TaskManagerFailed(TM1, "silent")) == [lost]
    assert manager.state.starts.failed == 0


@pytest.mark.parametrize("other", [{"pid": 2}, {"nonce": "another"}])
def test_another_process_in_place_of_one_takes_its_jobs_slots_away(other: dict[str, Any]) -> None:
    """What ran in the earlier process is gone. In a container every process may have the same pid (R9)."""
    manager = Manager()
    manager.register(TM1, standalone=True, s0=A)
    manager.needs(held=(A,))
    (lost, *_) = manager.register(TM1, standalone=True, **other)
    masters = ((f"jobmaster/{JOB1}", leader(JOB1)),)
    assert lost == ev.NotifyLost(TM1, "another process registered in its place", masters)
    assert manager.slot_states(TM1) == [SlotState.FREE, SlotState.FREE]


# --- aged ---


def test_an_aged_session_is_no_standby_and_is_renewed_once_another_stands_in() -> None:
    """The standby comes first (R6a)."""
    manager = Manager(STANDBY)
    manager.started = 1
    aged = manager.report_with(TM1, session_aged=True)
    assert manager.register(TM1, as_report=aged) == [ev.StartTaskManager(TM2)]
    assert manager.tick(CALM) == []
    manager.register(TM2)
    assert manager.tick() == [ev.SendRenew(TM1, AGED)]
    assert manager.tick(RENEWAL_REST - 1) == []
    assert manager.tick(1) == [ev.SendRenew(TM1, AGED)]
    manager.feed(ev.Reported(manager.report_with(TM1, session=STARTING)))
    manager.feed(ev.Reported(manager.report_with(TM1)))
    assert manager.tick(100) == []


def test_an_aged_session_is_renewed_at_once_where_no_spare_can_be_had() -> None:
    """R6a."""
    manager = Manager(replace(STANDBY, max=1))
    manager.register(TM1, as_report=manager.report_with(TM1, session_aged=True))
    assert manager.tick(CALM) == [ev.SendRenew(TM1, AGED)]


def test_an_aged_session_in_use_is_not_renewed() -> None:
    """An aged session is renewed when it is idle. A session that analyses a submission is not idle (R6a)."""
    manager = Manager(replace(NO_STANDBY, can_start=False))
    manager.register(TM1, as_report=manager.report_with(TM1, session_aged=True, s0=C))
    assert manager.tick(CALM) == []
    manager.feed(ev.Reported(manager.report_with(TM1, session_aged=True)))
    manager.now += CALM - 1
    manager.feed(ev.SessionLent(TM1))
    assert manager.tick(1) == []
    manager.feed(ev.Reported(manager.report_with(TM1, session_aged=True, analysing=True)))
    assert manager.tick(2 * CALM) == []
    manager.feed(ev.Reported(manager.report_with(TM1, session_aged=True)))
    assert manager.tick(CALM - 1) == []
    assert manager.tick(1) == [ev.SendRenew(TM1, AGED)]


def test_aged_sessions_are_renewed_one_after_the_other() -> None:
    """As many are renewed at a time as may start (R6a)."""
    manager = Manager(replace(NO_STANDBY, can_start=False))
    for tm in (TM1, TM2):
        manager.register(tm, as_report=manager.report_with(tm, session_aged=True))
    assert manager.tick(CALM) == [ev.SendRenew(TM1, AGED)]
    manager.feed(ev.Reported(manager.report_with(TM1, session=STARTING)))
    assert manager.tick(1) == []
    manager.feed(ev.Reported(manager.report_with(TM1)))
    assert manager.tick(1) == [ev.SendRenew(TM2, AGED)]


def test_a_need_prefers_a_session_that_has_not_aged() -> None:
    """If there is no other, it takes the aged one and does not wait (R6a)."""
    manager = Manager(replace(NO_STANDBY, can_start=False))
    manager.register(TM1, as_report=manager.report_with(TM1, session_aged=True))
    manager.register(TM2)
    assert manager.needs(a=1) == [allocate(TM2, (0,), A)]
    assert manager.needs(JOB2, b=2) == [allocate(TM1, (0, 1), B, JOB2)]
