"""What reports and answers of TaskManagers change: slots, readiness, rest and progress (R2, R8, R9, R12)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as copy

from minflinkd.resourcemanager import events as ev
from minflinkd.resourcemanager.reservations import RESERVATION_TIMEOUT
from minflinkd.resourcemanager.slot_manager import REST
from minflinkd.resourcemanager.state import Wish
from minflinkd.resourcemanager.task_managers import SlotState
from minflinkd.rpc.messages import Library, SlotNeed, TaskManagerReport
from minflinkd.runtime.ids import ResourceId
from tests.unit.resourcemanager.manager import (
    JOB1,
    JOB2,
    NO_STANDBY,
    READY,
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

FIXED = replace(NO_STANDBY, can_start=False)
FREE, RESERVED, ALLOCATED = SlotState.FREE, SlotState.RESERVED, SlotState.ALLOCATED


def reserved(at: float = 0.0) -> Manager:
    """Both slots of TM1 are reserved for JOB1 since `at`."""
    manager = Manager(FIXED, now=at)
    manager.register(TM1)
    assert manager.needs(a=2) == [allocate(TM1, (0, 1), A)]
    return manager


def test_a_report_frees_a_reservation_that_has_stood_too_long() -> None:
    """An answer to it can only be late then (R9)."""
    manager = reserved(at=100.0)
    for now, state in ((100.0 + RESERVATION_TIMEOUT - 0.1, RESERVED), (100.0 + RESERVATION_TIMEOUT, FREE)):
        manager.now = now
        manager.needs(version=2)
        manager.feed(ev.Reported(manager.report(TM1)))
        assert manager.slot_states(TM1) == [state, state]


def test_a_reservation_that_is_overdue_ends_without_a_report() -> None:
    """The job is served anew (R9)."""
    manager = reserved(at=100.0)
    assert manager.tick(RESERVATION_TIMEOUT - 0.1) == []
    assert manager.tick(0.1) == [allocate(TM1, (0, 1), A)]


def test_an_answer_that_a_later_report_has_overtaken_still_settles_its_reservation() -> None:
    """The later report shows the facts, and they are not what the reservation says (m8, R8)."""
    manager = reserved()
    answer = ev.AllocationAnswered(A, False, manager.report(TM1))
    manager.feed(ev.Reported(manager.report(TM1)))
    assert manager.slot_states(TM1) == [RESERVED, RESERVED]
    manager.needs(version=2)
    manager.now = 5.0
    manager.feed(answer)
    assert manager.slot_states(TM1) == [FREE, FREE]
    assert manager.state.task_managers[TM1].idle_since == 5.0


def test_an_answer_settles_no_other_reservation() -> None:
    """R2."""
    manager = Manager(FIXED)
    manager.register(TM1)
    manager.needs(a=1)
    manager.needs(JOB2, c=1)
    manager.feed(ev.AllocationAnswered(A, True, manager.report(TM1, s0=A)))
    assert manager.slot_states(TM1) == [ALLOCATED, RESERVED]
    late = manager.report(TM1, s0=A)
    manager.feed(ev.Reported(manager.report(TM1, s0=A)))
    manager.feed(ev.AllocationAnswered(A, True, late))
    assert manager.slot_states(TM1) == [ALLOCATED, RESERVED]


def test_an_allocation_that_takes_anothers_reserved_slot_frees_the_rest_of_that_reservation() -> None:
    """Other reservations and what is allocated stay."""
    manager = Manager(replace(FIXED, slots_per_tm=4))
    manager.register(TM1, s0=B)
    manager.needs(JOB2, c=1)
    manager.needs(held=(B,), a=2)
    manager.needs(version=2, held=(B,))  # so that it is not reserved again
    assert manager.slot_states(TM1) == [ALLOCATED, RESERVED, RESERVED, RESERVED]
    manager.feed(ev.Reported(manager.report(TM1, s0=B, s2=C)))
    assert manager.slot_states(TM1) == [ALLOCATED, RESERVED, ALLOCATED, FREE]


def test_a_slot_may_have_another_holder_with_the_next_report() -> None:
    """It was released and taken again between the two (R12)."""
    manager = Manager(FIXED)
    manager.register(TM1, s0=A)
    manager.feed(ev.Reported(manager.report(TM1, s0=C)))
    assert manager.state.task_managers[TM1].allocations == {C: JOB2}


@pytest.mark.parametrize("size", [1, 3])
def test_slots_are_as_many_as_the_report_has(size: int) -> None:
    """The TaskManager knows best (R12)."""
    manager = Manager(FIXED)
    manager.register(TM1, s0=C)
    manager.feed(ev.Reported(manager.report(TM1, READY, size, s0=C)))
    assert manager.slot_states(TM1) == [ALLOCATED, FREE, FREE][:size]


def test_a_request_is_repeated_for_the_slots_that_are_still_reserved_for_it_only() -> None:
    """What a TaskManager has confirmed needs no repetition, and an ended job none at all (m7)."""
    manager = reserved()
    manager.feed(ev.Reported(manager.report(TM1, s0=A)))
    assert manager.slot_states(TM1) == [ALLOCATED, RESERVED]
    assert manager.feed(ev.AllocationUnknown(TM1, A)) == [allocate(TM1, (1,), A, again=True)]
    manager.feed(ev.Reported(manager.report(TM1, s0=A, s1=A)))
    assert manager.feed(ev.AllocationUnknown(TM1, A)) == []
    assert manager.feed(ev.AllocationUnknown(TM2, A)) == []
    ended = reserved()
    ended.feed(ev.JobMasterGone(JOB1, leader(JOB1), for_good=True))
    assert ended.feed(ev.AllocationUnknown(TM1, A)) == []


# --- readiness -------------------------------------------------------------------------------------------------------


def again(manager: Manager, report: TaskManagerReport) -> None:
    """Feed a report with the version that the last one had."""
    manager.versions[report.resource_id] -= 1
    manager.feed(ev.Reported(copy(report, version=manager.versions[report.resource_id])))


def test_the_progress_of_a_session_is_noted_though_the_version_is_the_same() -> None:
    """Only heartbeats report it, and the version does not count it (R5)."""
    manager = Manager(FIXED)
    manager.register(TM1, STARTING)
    manager.now = 10.0
    again(manager, copy(manager.report(TM1, STARTING), session_steps=3))
    tm = manager.state.task_managers[TM1]
    assert (tm.steps, tm.got_on) == (3, 10.0)
    manager.now = 20.0
    for steps in (3, 2):
        again(manager, copy(manager.report(TM1, STARTING), session_steps=steps))
        assert manager.state.task_managers[TM1] == replace(tm, report=manager.state.task_managers[TM1].report)


def test_a_taskmanager_that_refused_is_asked_at_once_if_its_session_has_come_anew() -> None:
    """It refused because it had none (m7)."""
    manager = Manager(FIXED)
    manager.register(TM1)
    manager.needs(a=1)
    manager.feed(ev.AllocationAnswered(A, False, manager.report(TM1, STARTING)))
    assert manager.tick(REST / 2) == []
    assert manager.feed(ev.Reported(manager.report(TM1))) == [allocate(TM1, (0,), A)]


def test_a_taskmanager_that_allocates_does_not_rest() -> None:
    manager = Manager(FIXED)
    manager.register(TM1)
    manager.needs(a=1)
    manager.feed(ev.AllocationAnswered(A, True, manager.report(TM1, s0=A)))
    assert manager.needs(JOB2, c=1) == [allocate(TM1, (1,), C, JOB2)]


def test_the_time_without_use_counts_from_the_last_slot_that_fell_free_or_from_the_ready_session() -> None:
    """R6."""
    manager = Manager(FIXED)
    manager.register(TM1, STARTING)
    seen = []
    for now, report in (
        (10.0, manager.report(TM1, STARTING)),
        (20.0, manager.report(TM1)),
        (30.0, manager.report(TM1)),
        (40.0, manager.report(TM1, s0=C)),
        (50.0, manager.report(TM1)),
        (60.0, manager.report(TM1)),
    ):
        manager.now = now
        manager.feed(ev.Reported(report))
        seen.append(manager.state.task_managers[TM1].idle_since)
    assert seen == [0.0, 20.0, 20.0, 20.0, 50.0, 50.0]


# --- losses ----------------------------------------------------------------------------------------------------------


def test_pauses_between_failed_starts_double_up_to_half_a_minute() -> None:
    """R5."""
    manager = Manager()
    pauses = []
    for _ in range(8):
        manager.needs(a=1)
        manager.feed(ev.TaskManagerFailed(manager.last_started(), "exit code 1"))
        pauses.append(manager.state.starts.not_before - manager.now)
        manager.tick(30.0)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_a_lost_taskmanager_that_was_ready_or_was_not_started_here_is_no_failed_start() -> None:
    """R5, R7."""
    manager = Manager(FIXED)
    manager.register(TM1)
    manager.feed(ev.Reported(manager.report(TM1, STARTING)))
    manager.register(TM2, STARTING, standalone=True)
    manager.feed(ev.TaskManagersFound((ResourceId("tm-3"),)))
    for tm in (TM1, TM2, ResourceId("tm-3")):
        manager.feed(ev.TaskManagerFailed(tm, "exit code 1"))
    assert (manager.state.starts.failed, manager.state.lost) == (0, 2)


def test_a_taskmanager_that_was_ready_once_is_no_failed_start() -> None:
    """Its session began to start after its process (R5)."""
    manager = Manager(FIXED)
    manager.register(TM1, STARTING)
    manager.feed(ev.Reported(manager.report(TM1)))
    manager.feed(ev.Reported(manager.report(TM1, STARTING)))
    manager.feed(ev.TaskManagerFailed(TM1, "exit code 1"))
    assert (manager.state.starts.failed, manager.state.lost) == (0, 1)


def test_room_is_made_for_as_much_as_a_job_has_lost_and_of_the_kind_that_it_needs() -> None:
    """Whether it wants a TaskManager of its own, and its libraries (R11, R24, B31)."""
    libraries = (Library("java:com/acme", "1"),)
    manager = Manager(replace(FIXED, slots_per_tm=4), now=100.0)
    manager.register(TM1, as_report=manager.report_with(TM1, s0=A, s1=A, s2=B))
    manager.needs(held=(A,), exclusive=True, libraries=libraries)
    manager.feed(ev.TaskManagerFailed(TM1, "exit code 1"))
    assert manager.state.wishes == {f"job {JOB1}": Wish(2, 140.0, exclusive=True, libraries=libraries)}
    manager.needs(version=2, exclusive=True, libraries=libraries)
    assert manager.state.wishes != {}
    manager.needs(version=3, exclusive=True, libraries=libraries, b=2)  # it has said itself what it needs
    assert manager.state.wishes == {}


def test_a_job_that_starts_with_a_part_is_expected_to_want_the_rest_for_the_time_of_a_start() -> None:
    """R20."""
    libraries = (Library("java:com/acme", "1"),)
    manager = Manager(replace(FIXED, slots_per_tm=4, start_timeout=50.0), now=100.0)
    manager.register(TM1, slots=2)
    manager.needs(exclusive=True, libraries=libraries, a=SlotNeed(allocation_id=A, slots=4, least=1))
    growth = Wish(4, 150.0, exclusive=True, libraries=libraries)
    assert manager.state.wishes == {f"growth of job {JOB1}": growth}


@pytest.mark.parametrize("for_good", [True, False])
def test_nothing_is_wished_for_a_job_without_a_jobmaster(for_good: bool) -> None:
    """R3."""
    manager = Manager(FIXED)
    manager.needs(held=(A,))
    wish = Wish(1, 100.0)
    manager.state = replace(
        manager.state, wishes={f"job {JOB1}": wish, f"growth of job {JOB1}": wish, "session": wish, f"job {JOB2}": wish}
    )
    manager.feed(ev.JobMasterGone(JOB1, leader(JOB1), for_good))
    assert set(manager.state.wishes) == {"session", f"job {JOB2}"}


def test_the_answer_to_an_exit_stops_only_who_was_told_to_exit() -> None:
    """The answer may belong to an earlier TaskManager of the same id (R9)."""
    manager = Manager(FIXED)
    manager.register(TM1)
    for tm in (TM1, TM2):
        assert manager.feed(ev.ExitAnswered(tm, "idle")) == []
