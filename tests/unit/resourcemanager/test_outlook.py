"""What a job is told about a need without slots: what it asked for, what there is, why no more comes (R5)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minflinkd.resourcemanager import events as ev
from minflinkd.resourcemanager.options import ResourceManagerOptions
from minflinkd.resourcemanager.outlook import expected
from minflinkd.resourcemanager.provisioning import FAILED_STARTS
from minflinkd.resourcemanager.state import Resources
from minflinkd.rpc.messages import NeedsAnswer, SlotNeed
from tests.unit.resourcemanager.manager import JOB2, LOST, NO_STANDBY, STARTING, TM1, TM2, A, C, Manager

FOUR = ResourceManagerOptions(slots_per_tm=4, standby=0)
NEED = SlotNeed(allocation_id=A, slots=3, least=2, group="joins")
ASKED = "3 slots of one TaskManager for slot sharing group 'joins', at least 2, are needed"


def told(manager: Manager) -> str:
    answer = manager.answer()
    assert answer.refused == {}
    return answer.waiting[A]


def test_a_need_is_told_what_was_asked_and_what_there_is() -> None:
    manager = Manager(replace(FOUR, max=2))
    manager.register(TM1, s0=C, s1=C, s2=C)
    manager.register(TM2, s0=C, s1=C, s2=C, s3=C)
    manager.needs(JOB2, held=(C,))
    manager.needs(a=NEED)
    there = "2 TaskManagers are registered with 1 of 8 slots free, 1 at most on one"
    limit = "no more than 2 TaskManagers may run (resourcemanager.max-taskmanagers)"
    assert told(manager) == f"{ASKED}; {there}; {limit}"


def test_a_start_that_waits_says_why_until_nothing_keeps_it_any_more() -> None:
    """A Pod that is not scheduled, for example: the reason is the scheduler's (R5, R50)."""
    manager = Manager(FOUR)
    manager.needs(a=2)
    assert told(manager).endswith("waiting for 1 TaskManager to become ready")
    manager.feed(ev.StartWaits(TM1, "its Pod is not scheduled: 0/3 nodes are available"))
    why = f"{TM1} does not run yet: its Pod is not scheduled: 0/3 nodes are available"
    assert told(manager).endswith(f"waiting for 1 TaskManager to become ready; {why}")
    manager.feed(ev.StartWaits(TM1, ""))
    assert told(manager).endswith("to become ready")


def test_a_taskmanager_that_has_registered_does_not_wait_any_more() -> None:
    """What the launcher says later about its start is late news (R50)."""
    manager = Manager(FOUR)
    manager.needs(a=2)
    manager.feed(ev.StartWaits(TM1, "no node"))
    manager.register(TM1)
    manager.feed(ev.StartWaits(TM1, "no node"))
    manager.feed(ev.StartWaits(TM2, "unknown"))
    assert manager.state.task_managers[TM1].waits == ""
    assert list(manager.state.task_managers) == [TM1]


def test_two_slots_are_told_in_the_plural() -> None:
    manager = Manager(replace(FOUR, can_start=False))
    manager.needs(a=2)
    assert told(manager).startswith("2 slots of one TaskManager are needed; ")


def test_one_slot_is_told_in_the_singular() -> None:
    manager = Manager(replace(FOUR, can_start=False))
    none = "none is started here, they register by themselves (resourcemanager.driver: standalone)"
    manager.needs(a=1)
    assert told(manager) == f"1 slot of one TaskManager is needed; no TaskManager is registered; {none}"
    manager.needs(version=2, a=SlotNeed(allocation_id=A, slots=1, least=1))
    assert told(manager).startswith("1 slot of one TaskManager is needed; ")


def test_taskmanagers_of_one_kind_are_all_counted() -> None:
    """Slots are free only if they can be taken: not those of a TaskManager whose session starts (R5)."""
    manager = Manager(replace(FOUR, can_start=False))
    for tm in (TM1, TM2):
        manager.register(tm)
    manager.needs(a=SlotNeed(allocation_id=A, slots=5))
    assert "; 2 TaskManagers are registered with 8 of 8 slots free, 4 at most on one; " in told(manager)
    for tm in (TM1, TM2):
        manager.feed(ev.Reported(manager.report(tm, STARTING)))
    assert "; 2 TaskManagers are registered with 0 of 8 slots free, 0 at most on one; " in told(manager)
    assert told(manager).endswith("; waiting for 2 TaskManagers to become ready")


def test_before_anything_is_started_a_start_is_promised() -> None:
    """R5."""
    assert expected(Resources(), FOUR, 0.0) == "a TaskManager will be started"


def test_a_need_that_is_served_is_told_nothing() -> None:
    manager = Manager(FOUR)
    manager.register(TM1)
    manager.needs(a=NEED)
    assert manager.answer() == NeedsAnswer()


def test_where_none_is_started_a_need_waits_for_those_that_register_by_themselves() -> None:
    """A need waits even if it is larger than all TaskManagers that are there: the next may be larger (R7)."""
    manager = Manager(replace(FOUR, can_start=False))
    manager.needs(a=NEED)
    none = "none is started here, they register by themselves (resourcemanager.driver: standalone)"
    assert told(manager) == f"{ASKED}; no TaskManager is registered; {none}"
    manager.register(TM1, slots=1)
    assert told(manager) == f"{ASKED}; 1 TaskManager is registered with 1 of 1 slots free, 1 at most on one; {none}"


@pytest.mark.parametrize("session", [STARTING, LOST])
def test_a_session_that_does_not_start_says_why(session: object) -> None:
    """For example, `java` is missing on the host of a standalone TaskManager."""
    manager = Manager(replace(FOUR, can_start=False))
    manager.register(TM1, standalone=True, as_report=manager.report_with(TM1, session, session_error="no java"))
    manager.needs(a=NEED)
    assert told(manager).endswith(
        "waiting for 1 TaskManager to become ready; the session of tm-1 does not start: no java"
    )
    manager.tick(1000)
    assert told(manager).endswith("driver: standalone); the session of tm-1 does not start: no java")


def test_a_failed_start_names_its_reason_while_the_next_is_under_way_and_when_all_have_failed() -> None:
    manager = Manager(FOUR)
    manager.needs(a=NEED)
    assert told(manager).endswith("; waiting for 1 TaskManager to become ready")
    manager.feed(ev.TaskManagerFailed(TM1, "exit code 1: Cannot allocate memory"))
    assert told(manager).endswith("failed and will be repeated: exit code 1: Cannot allocate memory")
    manager.tick(1)
    assert told(manager).endswith("to become ready; the last start failed: exit code 1: Cannot allocate memory")
    for _ in range(FAILED_STARTS - 1):
        manager.feed(ev.TaskManagerFailed(manager.last_started(), "exit code 1: Cannot allocate memory"))
        manager.tick(10)
    why = f"no TaskManager could be started: {FAILED_STARTS} starts in a row failed, the last: exit code 1: Cannot "
    assert manager.answer().refused == {A: f"{ASKED}; no TaskManager is registered; {why}allocate memory"}


def test_a_start_whose_session_never_came_up_names_the_sessions_error() -> None:
    manager = Manager(NO_STANDBY)
    manager.needs(a=1)
    manager.register(TM1, as_report=manager.report_with(TM1, STARTING, session_error="JAVA_HOME is not set"))
    manager.tick(120)
    assert manager.state.starts.reason == "its session was not ready for 120 s: JAVA_HOME is not set"


def test_the_cause_of_a_failed_start_is_told_once() -> None:
    """The session's last words are often those of its process too (R5)."""
    manager = Manager(NO_STANDBY)
    manager.needs(a=1)
    manager.register(TM1, as_report=manager.report_with(TM1, STARTING, session_error="no such thing as Java"))
    manager.feed(ev.TaskManagerFailed(TM1, "its process ended with exit code 1: no such thing as Java"))
    assert manager.state.starts.reason == "its process ended with exit code 1: no such thing as Java"


def test_a_job_that_would_only_grow_is_never_refused() -> None:
    """A job that asks only to grow is running (R20)."""
    manager = Manager(FOUR)
    manager.register(TM1, s0=C, s1=C, s2=C, s3=C)
    manager.needs(JOB2, held=(C,))
    manager.needs(a=SlotNeed(allocation_id=A, slots=9, least=5, beside=TM1, held=4))
    assert "to grow, the job waits" in told(manager)


def test_fewer_slots_that_will_do_are_what_decides_whether_a_need_is_too_large() -> None:
    manager = Manager(FOUR)
    manager.needs(a=SlotNeed(allocation_id=A, slots=9, least=4))
    assert told(manager)
    manager.needs(version=2, a=SlotNeed(allocation_id=A, slots=9, least=5))
    assert manager.answer().refused[A].endswith("a TaskManager has 4 (taskmanager.numberOfTaskSlots)")


def test_the_answer_says_how_large_a_taskmanager_can_be_where_that_is_known() -> None:
    """One that registers by itself may be of any size (R5)."""
    manager = Manager(FOUR)
    manager.needs(a=NEED)
    assert manager.answer().largest == 4
    manager = Manager(replace(FOUR, can_start=False))
    manager.register(TM1, s0=C, s1=C, s2=C, s3=C)
    manager.needs(a=NEED)
    assert manager.answer().largest == 0
