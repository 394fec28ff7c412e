"""Jobs whose code one session cannot hold, because it has two versions of a library (B31)."""

from __future__ import annotations

from dataclasses import replace

from minflinkd.resourcemanager import events as ev
from minflinkd.resourcemanager.state import Wish
from minflinkd.resourcemanager.task_managers import SlotState
from minflinkd.rpc.libraries import clash, together
from minflinkd.rpc.messages import Library
from tests.unit.resourcemanager.manager import (
    JOB2,
    NO_STANDBY,
    TM1,
    TM2,
    A,
    B,
    C,
    Manager,
    allocate,
    leader,
)

ONE, TWO = (Library("java:com/acme", "1"),), (Library("java:com/acme", "2"),)
OTHERS = (Library("native:fast", "1"),)
FIXED = replace(NO_STANDBY, can_start=False)


def test_two_versions_of_a_unit_clash_and_nothing_else_does() -> None:
    """B31."""
    assert clash(ONE, TWO) == ("java:com/acme",)
    assert clash(ONE, (*ONE, *OTHERS)) == ()
    assert together(OTHERS, ONE, ONE) == (*ONE, *OTHERS)


def test_a_job_gets_another_taskmanager_than_the_one_that_holds_its_library_in_another_version() -> None:
    """A TaskManager counts as holding a library from the reservation on, before it has confirmed it (B31)."""
    manager = Manager(FIXED)
    manager.register(TM1)
    manager.register(TM2)
    assert manager.needs(libraries=ONE, a=1) == [allocate(TM1, (0,), A, libraries=ONE)]
    assert manager.needs(JOB2, libraries=TWO, b=1) == [allocate(TM2, (0,), B, JOB2, libraries=TWO)]


def test_jobs_with_the_same_version_or_with_other_libraries_share_a_taskmanager() -> None:
    """B31."""
    for libraries in (ONE, OTHERS, ()):
        manager = Manager(FIXED)
        manager.register(TM1)
        manager.needs(libraries=ONE, a=1)
        assert manager.needs(JOB2, libraries=libraries, b=1) == [allocate(TM1, (1,), B, JOB2, libraries=libraries)]


def test_a_job_goes_where_its_libraries_are_already() -> None:
    """An idle session that has them, even an aged one, is preferred to one without. So is one in use (B31)."""
    manager = Manager(FIXED)
    manager.register(TM1)
    manager.register(TM2, as_report=manager.report_with(TM2, libraries=ONE, session_aged=True))
    assert manager.needs(libraries=ONE, a=1) == [allocate(TM2, (0,), A, libraries=ONE)]
    manager = Manager(FIXED)
    manager.register(TM1, s0=C)
    manager.register(TM2, as_report=manager.report_with(TM2, libraries=ONE, s0=C))
    assert manager.needs(libraries=ONE, a=1) == [allocate(TM2, (1,), A, libraries=ONE)]


def test_a_session_that_has_aged_otherwise_gets_no_job_for_its_libraries() -> None:
    """An idle session is not used either if one in use has room (B31, R6a)."""
    manager = Manager(FIXED)
    manager.register(TM1)
    manager.register(TM2, as_report=manager.report_with(TM2, libraries=ONE, session_aged=True, s0=C))
    assert manager.needs(libraries=ONE, a=1) == [allocate(TM1, (0,), A, libraries=ONE)]
    manager = Manager(FIXED)
    manager.register(TM1, s0=C)
    manager.register(TM2, as_report=manager.report_with(TM2, libraries=ONE, session_aged=True))
    assert manager.needs(libraries=ONE, a=1) == [allocate(TM1, (1,), A, libraries=ONE)]


def test_a_taskmanager_is_started_where_free_slots_lie_beside_another_version_only() -> None:
    """B31, R3."""
    manager = Manager()
    manager.started = 1
    manager.register(TM1, as_report=manager.report_with(TM1, libraries=ONE))
    assert manager.needs(libraries=TWO, a=1) == [ev.StartTaskManager(TM2)]
    assert manager.needs(JOB2, b=1) == [allocate(TM1, (0,), B, JOB2)]
    assert manager.register(TM2) == [allocate(TM2, (0,), A, libraries=TWO)]


def test_a_need_that_finds_no_room_for_its_libraries_keeps_none_from_the_others() -> None:
    """Other needs are served even if nothing can be started. The waiting job is told why (B31)."""
    manager = Manager(FIXED)
    manager.register(TM1, as_report=manager.report_with(TM1, libraries=ONE))
    assert manager.needs(libraries=TWO, a=1) == []
    assert (
        "2 of 2 slots free, 2 at most on one, 1 of them with other versions of the job's libraries"
        in (manager.answer().waiting[A])
    )
    assert manager.needs(JOB2, b=2) == [allocate(TM1, (0, 1), B, JOB2)]


def test_a_reservation_is_void_where_the_session_turns_out_to_hold_another_version() -> None:
    """B31, R12."""
    manager = Manager(FIXED)
    manager.register(TM1)
    manager.needs(libraries=ONE, a=1)
    manager.feed(ev.Reported(manager.report_with(TM1, libraries=TWO)))
    assert manager.slot_states(TM1) == [SlotState.FREE, SlotState.FREE]


def test_the_library_of_a_job_that_has_ended_stays_until_the_session_is_renewed() -> None:
    """The TaskManager reports what its session holds (B31, R6a)."""
    manager = Manager(FIXED)
    manager.register(TM1)
    manager.needs(libraries=ONE, a=1)
    manager.feed(ev.JobMasterGone(manager.state.task_managers[TM1].jobs[0], leader("1" * 32), for_good=True))
    left = manager.report_with(TM1, libraries=ONE, session_aged=True)
    manager.feed(ev.AllocationAnswered(A, False, left))
    assert manager.needs(JOB2, libraries=TWO, b=1) == []
    assert manager.tick(10.0) == [ev.SendRenew(TM1, "its session has aged")]
    assert manager.feed(ev.Reported(manager.report(TM1))) == []
    assert manager.tick(10.0) == [allocate(TM1, (0,), B, JOB2, libraries=TWO)]


def test_a_need_whose_libraries_find_no_room_keeps_none_from_other_libraries() -> None:
    """B31."""
    manager = Manager(FIXED)
    manager.register(TM1, as_report=manager.report_with(TM1, libraries=ONE))
    assert manager.needs(libraries=TWO, a=1) == []
    assert manager.needs(JOB2, libraries=ONE, b=1) == [allocate(TM1, (0,), B, JOB2, libraries=ONE)]


def test_a_session_for_an_analysis_is_wished_for_with_its_libraries_until_one_is_lent() -> None:
    """B31."""
    manager = Manager(FIXED, now=100.0)
    manager.feed(ev.SessionWanted(ONE))
    assert manager.state.wishes == {"session": Wish(0, 140.0, libraries=ONE)}
    manager.feed(ev.SessionLent(TM1))
    assert manager.state.wishes == {}
