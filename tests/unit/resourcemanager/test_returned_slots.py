"""Slots that were given for a need and came back, although the need is still declared (R8).

Their JobMaster did not want them. Perhaps it says so already, but is cut off from the ResourceManager.
"""

from __future__ import annotations

from minflinkd.resourcemanager import events as ev
from minflinkd.resourcemanager.slot_manager import LONGEST_RETURN_REST, RETURN_REST
from tests.unit.resourcemanager.manager import JOB2, TM1, TM2, A, C, Manager, allocate


def returned(manager: Manager) -> list[ev.Command]:
    """TM1 gives A its first slot, and the JobMaster refuses the offer. Return what follows from the last report."""
    manager.feed(ev.AllocationAnswered(A, True, manager.report(TM1, s0=A)))
    return manager.feed(ev.Reported(manager.report(TM1)))


def wanted_by_nobody() -> Manager:
    """A was declared, given and refused once."""
    manager = Manager()
    manager.register(TM1)
    assert manager.needs(a=1) == [allocate(TM1, (0,), A)]
    assert returned(manager) == []
    return manager


def test_a_need_whose_slots_came_back_is_not_served_again_at_once() -> None:
    """Otherwise slots would go back and forth 25 times a second while the JobMaster cannot be heard."""
    manager = wanted_by_nobody()
    assert manager.tick(RETURN_REST / 2) == []
    assert manager.tick(RETURN_REST / 2) == [allocate(TM1, (0,), A)]


def test_a_need_that_rests_is_told_so() -> None:
    """R5."""
    manager = wanted_by_nobody()
    assert "slots for it came back" in manager.answer().waiting[A]
    manager.tick(RETURN_REST)
    assert manager.answer().waiting == {}


def test_the_rest_doubles_each_time_up_to_a_limit() -> None:
    """The JobMaster may want the slots after all, so the need is never given up."""
    manager = wanted_by_nobody()
    rests = []
    for _ in range(6):
        began = manager.now
        while not manager.tick(RETURN_REST):
            pass
        rests.append(manager.now - began)
        assert returned(manager) == []
    assert rests == [0.5, 1.0, 2.0, 4.0, LONGEST_RETURN_REST, LONGEST_RETURN_REST]


def test_a_newer_declaration_ends_the_rest_at_once() -> None:
    """It says what the JobMaster wants now, so nothing that it wants is delayed. Later rests are short again (R8)."""
    manager = wanted_by_nobody()
    manager.tick(RETURN_REST)
    returned(manager)
    assert manager.needs(version=2, a=1) == [allocate(TM1, (0,), A)]
    assert returned(manager) == []
    assert manager.tick(RETURN_REST) == [allocate(TM1, (0,), A)]


def test_a_need_rests_as_well_if_the_report_of_free_slots_overtakes_the_answer() -> None:
    """The answer says that the slots were given, and a later report that they are free."""
    manager = Manager()
    manager.register(TM1)
    manager.needs(a=1)
    given = manager.report(TM1, s0=A)
    assert manager.feed(ev.Reported(manager.report(TM1))) == []
    assert manager.feed(ev.AllocationAnswered(A, True, given)) == []
    assert manager.tick(RETURN_REST) == [allocate(TM1, (0,), A)]


def test_only_the_need_rests_and_not_the_slots() -> None:
    """Another need of the job, or another job, gets them at once."""
    manager = wanted_by_nobody()
    assert manager.needs(JOB2, c=1) == [allocate(TM1, (0,), C, JOB2)]


def test_a_need_whose_taskmanager_is_lost_does_not_rest() -> None:
    """Its JobMaster had no part in it, and still waits (R11)."""
    manager = Manager()
    manager.register(TM1)
    manager.needs(a=1)
    manager.register(TM2)
    manager.feed(ev.AllocationAnswered(A, True, manager.report(TM1, s0=A)))
    assert manager.feed(ev.TaskManagerFailed(TM1, "killed"))[-1] == allocate(TM2, (0,), A)


def test_a_need_that_a_taskmanager_refuses_does_not_rest() -> None:
    """It is served elsewhere at once (m8)."""
    manager = Manager()
    manager.register(TM1)
    manager.register(TM2)
    assert manager.needs(a=1) == [allocate(TM1, (0,), A)]
    assert manager.feed(ev.AllocationAnswered(A, False, manager.report(TM1))) == [allocate(TM2, (0,), A)]
