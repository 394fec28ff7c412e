"""A TaskManager is drained: it gives no slots, its jobs leave it, and it ends (A15b)."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from msgspec.structs import replace as copy

from minflinkd.resourcemanager import events as ev
from minflinkd.resourcemanager.core import ResourceManagerCore
from minflinkd.resourcemanager.options import ResourceManagerOptions
from minflinkd.rpc import messages as m
from minflinkd.rpc.messages import SlotNeed, TaskManagerReport
from minflinkd.rpc.network import RpcTimeout
from minflinkd.rpc.party import Answered, Ask, Unknown
from minflinkd.runtime.errors import NotFound
from minflinkd.runtime.ids import IdSource, ResourceId
from tests.unit.resourcemanager.core_world import Manager as CoreManager
from tests.unit.resourcemanager.manager import (
    JOB1,
    JOB2,
    NO_STANDBY,
    STARTING,
    TM1,
    TM2,
    TM3,
    A,
    B,
    C,
    Manager,
    allocate,
)

ONE = replace(NO_STANDBY, max=1)


def drain(manager: Manager, tm: ResourceId = TM1, **held: str) -> list[ev.Command]:
    """Drain the TaskManager, which follows at once. Return what both steps decided."""
    commands = manager.feed(ev.DrainAsked(tm))
    return commands + follow(manager, commands, **held)


def follow(manager: Manager, commands: list[ev.Command], **held: str) -> list[ev.Command]:
    (told,) = (c for c in commands if isinstance(c, ev.SendDraining))
    report = drained(manager, told.resource_id, draining=told.draining, **held)
    return manager.feed(ev.DrainAnswered(told.number, report))


def drained(manager: Manager, tm: ResourceId = TM1, *, draining: bool = True, **held: str) -> TaskManagerReport:
    return copy(manager.report_with(tm, **held), draining=draining)  # type: ignore[arg-type]


def exits(commands: list[ev.Command]) -> list[ResourceId]:
    return [c.resource_id for c in commands if isinstance(c, ev.SendExit)]


def starts(commands: list[ev.Command]) -> list[ResourceId]:
    return [c.resource_id for c in commands if isinstance(c, ev.StartTaskManager)]


def test_no_slot_of_a_drained_taskmanager_is_given() -> None:
    """From the very step in which the operator's request arrives; a need goes elsewhere, and starts one (A15b)."""
    manager = Manager()
    manager.register(TM1, s0=C)
    told = manager.feed(ev.DrainAsked(TM1))
    assert told == [ev.SendDraining(TM1, True, 1)]
    manager.started = 1
    assert starts(manager.needs(a=1)) == [TM2]
    manager.register(TM2)
    assert manager.slot_states(TM1)[1].name == "FREE"
    assert manager.slot_states(TM2)[0].name == "RESERVED"


def test_a_job_does_not_grow_beside_itself_on_a_drained_taskmanager() -> None:
    """It would only have to leave again (A15b, R20)."""
    manager = Manager()
    manager.register(TM1, s0=A)
    drain(manager, s0=A)
    beside = SlotNeed(allocation_id=B, slots=2, least=2, beside=TM1, held=1)
    assert not [c for c in manager.needs(held=(A,), b=beside) if isinstance(c, ev.SendAllocate)]


def test_an_idle_one_ends_at_once_even_if_it_is_the_last_of_the_minimum() -> None:
    """An operator's word counts more than min; nothing is started in its place (A15b, R6)."""
    manager = Manager(replace(NO_STANDBY, min=1))
    manager.register(TM1)
    commands = drain(manager) + manager.tick(1.0)
    assert exits(commands) == [TM1]
    assert starts(commands) == []


def test_a_standalone_one_ends_as_well() -> None:
    """Idleness never ends it, an operator may (A15b)."""
    manager = Manager()
    manager.register(TM1, standalone=True)
    drain(manager)
    assert exits(manager.tick(1.0)) == [TM1]


def test_a_standby_is_replaced_as_soon_as_it_is_drained() -> None:
    """It is no spare any more, so a new one gets warm for what is to come (A15b, R6)."""
    manager = Manager(ResourceManagerOptions(slots_per_tm=2, standby=1, max=1))
    manager.register(TM1)
    manager.started = 1
    assert starts(manager.feed(ev.DrainAsked(TM1))) == [TM2]


def test_one_with_tasks_or_an_analysis_stays_until_they_are_over() -> None:
    """It waits for them however long it takes (A15b)."""
    manager = Manager()
    manager.register(TM1, s0=A)
    drain(manager, s0=A)
    assert exits(manager.tick(1_000.0)) == []
    manager.feed(ev.Reported(copy(drained(manager), analysing=True)))
    assert exits(manager.tick(1.0)) == []
    manager.feed(ev.Reported(drained(manager)))
    assert exits(manager.tick(1.0)) == [TM1]


@pytest.mark.parametrize("number", [1, 2])
def test_one_taskmanager_more_than_the_maximum_may_run_while_some_are_drained(number: int) -> None:
    """One, however many are drained: they leave one after the other (A15b)."""
    manager = Manager(replace(NO_STANDBY, max=2))
    manager.register(TM1, s0=A, s1=A)
    manager.register(TM2, s0=C, s1=C)
    manager.started = 2
    for tm, holder in ((TM1, A), (TM2, C))[:number]:
        drain(manager, tm, s0=holder, s1=holder)
    commands = manager.needs(JOB1, held=(A,), b=2) + manager.needs(JOB2, held=(C,), d=2)
    assert starts(commands + manager.tick(1.0)) == [TM3]


def test_undoing_it_makes_its_slots_free_for_all() -> None:
    """Whoever waits gets them at once (A15b)."""
    manager = Manager(ONE)
    manager.register(TM1, s0=C)
    drain(manager, s0=C)
    manager.started = 1
    manager.needs(a=1)
    commands = manager.feed(ev.DrainAsked(TM1, undo=True))
    assert commands[0] == ev.SendDraining(TM1, False, 2)
    assert commands[1:] == [allocate(TM1, (1,), A)]


def test_it_is_told_again_until_it_answers() -> None:
    """And what an earlier request was answered with does not count (A15b)."""
    manager = Manager()
    manager.register(TM1, s0=A)
    manager.feed(ev.DrainAsked(TM1))
    assert ev.SendDraining(TM1, True, 1) in manager.tick(1.0)
    manager.feed(ev.DrainAsked(TM1, undo=True))
    manager.feed(ev.DrainAnswered(1, drained(manager, s0=A)))
    assert ev.SendDraining(TM1, False, 2) in manager.tick(1.0)
    manager.feed(ev.DrainAnswered(2, drained(manager, s0=A, draining=False)))
    assert not [c for c in manager.tick(1.0) if isinstance(c, ev.SendDraining)]
    assert not manager.state.task_managers[TM1].draining


def test_asking_twice_is_asking_once() -> None:
    """A repeated request changes nothing, nor does undoing what was not done (A15b)."""
    manager = Manager()
    manager.register(TM1, s0=A)
    assert manager.feed(ev.DrainAsked(TM1, undo=True)) == []
    drain(manager, s0=A)
    assert manager.feed(ev.DrainAsked(TM1)) == []


def test_the_next_resourcemanager_learns_it_from_the_taskmanager() -> None:
    """A TaskManager that is drained stays so under a daemon that was never told (A15b, R12)."""
    manager = Manager()
    manager.register(TM1, as_report=drained(manager, s0=A))
    manager.started = 1
    manager.needs(b=1)
    assert manager.slot_states(TM1)[1].name == "FREE"
    manager.feed(ev.Reported(drained(manager)))
    assert exits(manager.tick(1.0)) == [TM1]


def test_slots_that_were_asked_for_before_are_asked_for_elsewhere_if_that_had_no_outcome() -> None:
    """A request under way is not repeated to a TaskManager that is drained (A15b, m7)."""
    manager = Manager()
    manager.register(TM1)
    assert allocate(TM1, (0,), A) in manager.needs(a=1)
    drain(manager)
    manager.started = 1
    commands = manager.feed(ev.AllocationUnknown(TM1, A))
    assert not [c for c in commands if isinstance(c, ev.SendAllocate)]
    assert starts(commands) == [TM2]


def test_a_request_without_outcome_gives_no_slots_to_one_that_was_told_to_exit() -> None:
    """Its last report still has free slots. They are not to come back (A15b, m7)."""
    manager = Manager(ONE)
    manager.register(TM1)
    assert allocate(TM1, (0,), A) in manager.needs(a=1)
    drain(manager)
    manager.needs()
    assert TM1 in exits(manager.tick(60.0))
    assert manager.feed(ev.AllocationUnknown(TM1, A)) == []
    assert manager.state.task_managers[TM1].slots == ()


def test_slots_on_it_are_not_waited_for_by_the_next_jobmaster() -> None:
    """It will be offered them and refuse, so its needs are served elsewhere at once (A15b, R13)."""
    manager = Manager()
    manager.register(TM1, as_report=drained(manager, s0=A, s1=A))
    manager.register(TM2)
    assert allocate(TM2, (0, 1), B) in manager.needs(b=2)


def test_a_session_that_is_not_ready_yet_is_not_waited_for() -> None:
    """It ends before it is of use (A15b)."""
    manager = Manager()
    manager.register(TM1, STARTING)
    manager.feed(ev.DrainAsked(TM1))
    assert exits(manager.tick(1.0)) == [TM1]


# --- the core --------------------------------------------------------------------------------------------------------


def test_jobs_on_taskmanagers_that_know_that_they_are_drained_are_to_move_until_they_are_gone(
    manager: CoreManager,
) -> None:
    """The Dispatcher is asked with every tick, one question at a time, and its answer is shown (A15b)."""
    registered = manager.register(TM1, (JOB1, A))
    manager.receive(m.DrainTaskManager(resource_id=TM1))
    told, *_ = [c for c in manager.commands() if isinstance(c, Ask) and isinstance(c.request, m.SetDraining)]
    manager.passes(1)
    assert _moves(manager) == [], "it does not know yet"
    report = copy(manager.report(TM1, (JOB1, A)), draining=True)
    manager.core.answered(told.about, Answered(report), manager.now)
    manager.passes(2)
    (asked,) = _moves(manager)
    assert asked.request == m.MoveJobs(jobs=(JOB1,))
    manager.core.answered(asked.about, Answered(m.JobsHeld(why={JOB1: "it is a batch job"})), manager.now)
    (shown,) = manager.receive(m.ListTaskManagers())
    assert (shown.drained, shown.held_by) == (True, {JOB1: "it is a batch job"})
    manager.passes(1)
    (asked,) = _moves(manager)
    manager.core.answered(asked.about, Unknown(RpcTimeout("no answer")), manager.now)
    manager.passes(1, lambda: manager.beat(registered, copy(manager.report(TM1, (JOB1, A)), draining=True)))
    assert len(_moves(manager)) == 1
    manager.beat(registered, copy(manager.report(TM1), draining=True))
    manager.passes(1)
    assert _moves(manager) == []


def test_only_a_registered_taskmanager_is_drained(manager: CoreManager) -> None:
    """An operator who mistypes hears of it (A15b)."""
    with pytest.raises(NotFound):
        manager.receive(m.DrainTaskManager(resource_id=TM3))


def _moves(manager: CoreManager) -> list[Ask]:
    return [c for c in manager.commands() if isinstance(c, Ask) and isinstance(c.request, m.MoveJobs)]


@pytest.fixture
def manager() -> CoreManager:
    options = ResourceManagerOptions(slots_per_tm=2, standby=0)
    return CoreManager(ResourceManagerCore(ids=IdSource(random.Random(1)), options=options, check=True))
