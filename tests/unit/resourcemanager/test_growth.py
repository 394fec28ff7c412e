"""Jobs that start with fewer slots than they want, and grow (R20)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minflinkd.resourcemanager import events as ev
from minflinkd.resourcemanager.options import ResourceManagerOptions
from minflinkd.rpc.messages import SlotNeed
from minflinkd.runtime.ids import AllocationId, ResourceId
from tests.unit.resourcemanager.manager import JOB1, JOB2, TM1, TM2, A, B, C, Manager, allocate

FOUR = ResourceManagerOptions(slots_per_tm=4, standby=0, max_concurrent_starts=2)
NO_START = replace(FOUR, can_start=False)


def need(allocation: AllocationId, slots: int, **more: object) -> SlotNeed:
    return SlotNeed(allocation_id=allocation, slots=slots, **more)  # type: ignore[arg-type]


def with_two_free_on(tm: ResourceId, options: ResourceManagerOptions = NO_START) -> Manager:
    """JOB2 holds the other two slots."""
    manager = Manager(options)
    manager.started = 3
    manager.register(tm, s0=C, s1=C)
    manager.needs(JOB2, held=(C,))
    return manager


def test_a_need_that_takes_fewer_gets_what_there_is_now() -> None:
    manager = with_two_free_on(TM1)
    assert manager.needs(a=need(A, 4, least=3)) == []
    assert manager.needs(version=2, a=need(A, 4, least=1)) == [allocate(TM1, (2, 3), A)]


def test_all_of_it_on_a_spare_is_better_than_part_of_it_where_others_are() -> None:
    manager = with_two_free_on(TM1)
    manager.register(TM2)
    assert manager.needs(a=need(A, 4, least=1)) == [allocate(TM2, (0, 1, 2, 3), A)]


def test_the_largest_part_is_taken() -> None:
    manager = with_two_free_on(TM1)
    manager.register(TM2, s0=C)
    assert manager.needs(a=need(A, 4, least=1)) == [allocate(TM2, (1, 2, 3), A)]


def test_a_taskmanager_for_all_of_it_is_started_once_all_the_same() -> None:
    """The job gets it when it asks to grow. If it does not come, the start is not repeated for ever."""
    manager = with_two_free_on(TM1, FOUR)
    manager.started = 1
    assert manager.needs(a=need(A, 4, least=1)) == [allocate(TM1, (2, 3), A), ev.StartTaskManager(TM2)]
    manager.feed(ev.AllocationAnswered(A, True, manager.report(TM1, s0=C, s1=C, s2=A, s3=A)))
    grow = need(B, 4, least=3, beside=TM1, held=2)
    assert manager.needs(version=2, held=(A,), b=grow) == []
    assert "to grow" in manager.answer().waiting[B]
    assert manager.register(TM2) == [allocate(TM2, (0, 1, 2, 3), B)]
    assert manager.state.wishes == {}


def test_who_would_grow_starts_nothing() -> None:
    """Nothing is started even once, so there can be no loop."""
    manager = Manager(FOUR)
    manager.started = 1
    manager.register(TM1, s0=A, s1=A, s2=C, s3=C)
    manager.needs(JOB2, held=(C,))
    assert manager.needs(held=(A,), b=need(B, 4, least=3, beside=TM1, held=2))[1:] == []
    assert manager.tick(1) == []
    assert manager.answer().refused == {}


def test_growth_beside_what_is_held_is_as_good_as_all_of_it_elsewhere_and_better_than_a_move() -> None:
    manager = Manager(NO_START)
    manager.register(TM1, s0=A, s1=A)
    manager.register(TM2)
    assert manager.needs(held=(A,), b=need(B, 4, least=3, beside=TM1, held=2))[1:] == [allocate(TM1, (2, 3), B)]


def test_growth_takes_no_more_than_is_missing() -> None:
    manager = Manager(NO_START)
    manager.register(TM1, slots=6, s0=A, s1=A)
    assert manager.needs(held=(A,), b=need(B, 4, least=3, beside=TM1, held=2))[1:] == [allocate(TM1, (2, 3), B)]


def test_growth_moves_to_where_there_is_more() -> None:
    manager = Manager(NO_START)
    manager.register(TM1, s0=A, s1=A, s2=C)
    manager.register(TM2)
    manager.needs(JOB2, held=(C,))
    assert manager.needs(held=(A,), b=need(B, 4, least=3, beside=TM1, held=2))[1:] == [allocate(TM2, (0, 1, 2, 3), B)]


def test_growth_that_gains_nothing_is_none() -> None:
    manager = Manager(NO_START)
    manager.register(TM1, s0=A, s1=A, s2=C, s3=C)
    manager.register(TM2, s0=C, s1=C)
    manager.needs(JOB2, held=(C,))
    assert manager.needs(held=(A,), b=need(B, 4, least=1, beside=TM1, held=2))[1:] == []


def test_who_waits_comes_before_who_would_grow_though_it_came_later() -> None:
    """A standby is there for whoever has no slots."""
    manager = Manager(NO_START)
    manager.register(TM1, s0=A, s1=A, s2=C, s3=C)
    manager.needs(held=(A,), b=need(B, 4, least=3, beside=TM1, held=2))
    assert manager.needs(JOB2, held=(C,), d=4)[1:] == []
    assert manager.register(TM2) == [allocate(TM2, (0, 1, 2, 3), AllocationId("d"), JOB2)]


def test_a_need_that_nothing_free_serves_stops_nobodys_growth() -> None:
    """The need may never be served, and these slots would be of no use to it."""
    manager = with_two_free_on(TM1)
    manager.needs(JOB2, version=2, held=(C,), d=4)
    grow = need(B, 2, least=2, beside=ResourceId("tm-gone"), held=1)
    assert manager.needs(JOB1, b=grow) == [allocate(TM1, (2, 3), B)]


def test_growth_that_gains_nothing_stops_nobody_elses() -> None:
    """It needs what the other job does not (R20)."""
    manager = Manager(NO_START)
    manager.register(TM1, s0=A, s1=A, s2=A, s3=A)
    manager.register(TM2, s0=C, s1=C, s2=C)
    d = AllocationId("d")
    assert manager.needs(held=(A,), b=need(B, 4, least=1, beside=TM1, held=2))[1:] == []
    grow = need(d, 2, least=2, beside=TM2, held=1)
    assert manager.needs(JOB2, held=(C,), d=grow)[1:] == [allocate(TM2, (3,), d, JOB2)]


@pytest.mark.parametrize("slots", [4, 9])
def test_growth_that_finds_no_room_stops_nobody_elses_and_starts_nothing(slots: int) -> None:
    """A need may find no room now, or be larger than any TaskManager (R20)."""
    manager = with_two_free_on(TM1, FOUR)
    too_much = need(AllocationId("d"), slots, least=slots, beside=TM1, held=1)
    assert manager.needs(JOB2, version=2, held=(C,), d=too_much) == []
    grow = need(B, 2, least=2, beside=ResourceId("tm-gone"), held=1)
    assert manager.needs(JOB1, b=grow) == [allocate(TM1, (2, 3), B)]


def test_a_part_that_no_start_would_better_starts_nothing() -> None:
    manager = Manager(FOUR)
    manager.started = 1
    manager.register(TM1)
    assert manager.needs(a=need(A, 6, least=1)) == [allocate(TM1, (0, 1, 2, 3), A)]
