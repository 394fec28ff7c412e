"""What the ResourceManager knows: contradictions within it are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from minflinkd.resourcemanager.state import Past, Resources, check_invariants
from minflinkd.resourcemanager.task_managers import Slot, SlotState, TaskManagerState
from minflinkd.rpc.messages import Library
from minflinkd.runtime.ids import ResourceId
from minflinkd.runtime.machine import InvariantViolated
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
    leader,
)

RESERVED, ALLOCATED = SlotState.RESERVED, SlotState.ALLOCATED


def resources() -> Resources:
    """JOB2 holds one slot of TM1 and the other one is reserved for JOB1. It waits for TM2's session. TM3 starts."""
    manager = Manager(replace(NO_STANDBY, standby=2))
    manager.started = 2
    manager.register(TM2, STARTING)
    manager.register(TM1, s0=C)
    manager.needs(JOB2, held=(C,))
    manager.needs(JOB1, a=1, b=2)
    manager.tick(manager.options.start_timeout / 2)
    state = manager.state
    assert [tm.state.name for tm in state.task_managers.values()] == ["REGISTERED", "REGISTERED", "STARTING"]
    assert [slot.state for slot in state.task_managers[TM1].slots] == [ALLOCATED, RESERVED]
    assert {job_id: [need.allocation_id for need in needs] for job_id, needs in state.open_needs.items()} == {JOB1: [B]}
    return state


def with_tm(state: Resources, resource_id: ResourceId, /, **changes: Any) -> Resources:
    return state.with_task_manager(replace(state.task_managers[resource_id], **changes))


def with_slots(state: Resources, resource_id: ResourceId, *slots: Slot, **changes: Any) -> Resources:
    return with_tm(state, resource_id, slots=slots, **changes)


def its_own(state: Resources) -> Resources:
    """JOB1's reservation on TM1 is exclusive, so TM1 is its own."""
    slots = state.task_managers[TM1].slots
    return with_slots(state, TM1, slots[0], replace(slots[1], exclusive=True))


def reserved_for_another(state: Resources) -> Resources:
    slot = Slot(RESERVED, JOB2, B, exclusive=False)
    return with_slots(state, TM1, Slot(RESERVED, JOB1, A, exclusive=True), slot)


def of_two_versions(state: Resources) -> Resources:
    one, two = (Library("java:com/acme", digest) for digest in ("1", "2"))
    return with_slots(state, TM1, Slot(RESERVED, JOB1, A, libraries=(one,)), Slot(RESERVED, JOB2, B, libraries=(two,)))


Change = Callable[[Resources], Resources]


@pytest.mark.parametrize(
    ("fault", "plant"),
    [
        ("tm-3 is gone", lambda s: with_tm(s, TM3, state=TaskManagerState.GONE)),
        ("tm-1 is REGISTERED, but its registration", lambda s: with_tm(s, TM1, instance_id=None)),
        ("tm-1 is REGISTERED, but its registration", lambda s: with_tm(s, TM1, report=None)),
        ("tm-1 is STARTING, but its registration", lambda s: with_tm(s, TM1, state=TaskManagerState.STARTING)),
        ("tm-3 is STARTING, but has slots", lambda s: with_slots(s, TM3, Slot())),
        ("tm-1 is STOPPING, but has slots", lambda s: with_tm(s, TM1, state=TaskManagerState.STOPPING)),
        ("a FREE slot of tm-1 has holder a", lambda s: with_slots(s, TM1, Slot(allocation_id=A))),
        ("a RESERVED slot of tm-1 has holder None", lambda s: with_slots(s, TM1, Slot(RESERVED, JOB1))),
        ("ALLOCATED slot of tm-1 has holder None", lambda s: with_slots(s, TM1, Slot(ALLOCATED, JOB1))),
        (f"tm-1 is {JOB1}'s, but a slot is reserved for another", reserved_for_another),
        ("the session of tm-1 holds two versions of java:com/acme", of_two_versions),
        ("two TaskManagers for a$", lambda s: with_slots(s, TM2, Slot(RESERVED, JOB1, A), Slot())),
        ("both present and past: 11*$", lambda s: replace(s, past={JOB1: Past(leader(JOB1), ended=True)})),
        ("that have needs count as ended: 11*, 22*$", lambda s: replace(s, unended=frozenset(), listed=True)),
        ("the shelves hold", lambda s: replace(s, shelves={})),
        ("the shelves hold", lambda s: replace(s, shelves={next(iter(s.shelves)): dict.fromkeys((TM1, TM2, TM3))})),
        ("the holdings are", lambda s: replace(s, holdings={JOB1: s.holdings[JOB1]})),
        ("the holdings are", lambda s: replace(s, holdings={**s.holdings, JOB2: {C: (TM1, TM2)}})),
        ("open needs are", lambda s: replace(s, open_needs={})),
        ("open needs are", lambda s: replace(s, open_needs={JOB1: s.jobs[JOB1].declaration.needs})),
    ],
)
def test_what_contradicts_itself_is_found(fault: str, plant: Change) -> None:
    state = resources()
    check_invariants(state)
    with pytest.raises(InvariantViolated, match=fault):
        check_invariants(plant(state))


@pytest.mark.parametrize(
    "change",
    [
        its_own,  # another job holds a slot there still, or reports it: only reservations are made here
        lambda s: with_tm(s, TM1, state=TaskManagerState.STOPPING, slots=()),
        lambda s: with_slots(s, TM2, Slot(ALLOCATED, JOB1, A), Slot()),  # it is reserved on another one
        lambda s: with_slots(s, TM2, Slot(RESERVED, JOB1, B), Slot(RESERVED, JOB1, B)),
        lambda s: with_slots(s, TM1, Slot(RESERVED, JOB1, A), Slot(RESERVED, JOB2, B)),
    ],
)
def test_what_may_be_is_not_taken_for_a_contradiction(change: Change) -> None:
    check_invariants(change(resources()))


def test_an_allocation_on_two_taskmanagers_is_held_on_the_one_that_stays() -> None:
    """An allocation that was asked for again elsewhere may turn out to be on both (R9)."""
    both = with_slots(resources(), TM2, Slot(ALLOCATED, JOB1, A), Slot())
    assert both.holdings[JOB1][A] == (TM1, TM2)
    for state, left in ((both.without_task_manager(TM1), TM2), (both.without_task_manager(TM2), TM1)):
        assert state.holdings[JOB1][A] == (left,)
        check_invariants(state)
