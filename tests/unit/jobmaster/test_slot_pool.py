"""The slots of one job, and the times of its rollout."""

from __future__ import annotations

import random

import pytest

from minflinkd.jobmaster import slot_pool
from minflinkd.jobmaster.rollout import Rollout
from minflinkd.jobmaster.slot_pool import Need, SlotPool
from minflinkd.rpc.messages import SlotOffer
from minflinkd.runtime.ids import AllocationId, IdSource, ResourceId
from minflinkd.runtime.machine import InvariantViolated

TM1, TM2 = ResourceId("tm-1"), ResourceId("tm-2")


def asked(**groups: int) -> SlotPool:
    return slot_pool.ask_for_missing(SlotPool(groups=groups), IdSource(random.Random(1)), now=0.0)


def offer(allocation: AllocationId, slots: int) -> tuple[SlotOffer, ...]:
    return (SlotOffer(allocation_id=allocation, slots=tuple(range(slots))),)


def allocation_of(pool: SlotPool, group: str) -> AllocationId:
    return next(a for a, n in pool.needs.items() if n.group == group)


def test_every_group_is_asked_for_once() -> None:
    """J6, R8: one allocation is all the slots of a slot sharing group."""
    pool = asked(a=2, b=1)
    assert sorted(n.slots for n in pool.declaration()) == [1, 2]
    assert slot_pool.ask_for_missing(pool, IdSource(random.Random(2)), 9.0) is pool
    assert (pool.version, pool.complete) == (1, False)


def test_an_offer_is_taken_once_and_recognised_when_it_is_repeated() -> None:
    """m9, m10."""
    pool = asked(a=2)
    mine = allocation_of(pool, "a")
    pool, accepted = slot_pool.offered(pool, TM1, "taskmanager/tm-1", offer(mine, 2))
    assert (accepted, pool.complete, pool.declaration()) == ((mine,), True, ())
    again, accepted = slot_pool.offered(pool, TM1, "taskmanager/tm-1", offer(mine, 2))
    assert (again, accepted) == (pool, (mine,))
    assert slot_pool.offered(pool, TM2, "taskmanager/tm-2", offer(mine, 2)) == (pool, ())


@pytest.mark.parametrize("slots", [0, 1, 3])
def test_an_offer_of_another_size_is_not_taken(slots: int) -> None:
    pool = asked(a=2)
    assert slot_pool.offered(pool, TM1, "x", offer(allocation_of(pool, "a"), slots)) == (pool, ())


def test_lost_slots_are_asked_for_under_a_new_allocation() -> None:
    """R11: an old allocation never comes back to life."""
    pool = asked(a=2)
    mine = allocation_of(pool, "a")
    pool, _ = slot_pool.offered(pool, TM1, "x", offer(mine, 2))
    pool = slot_pool.ask_for_missing(slot_pool.dropped(pool, pool.on(TM1)), IdSource(random.Random(2)), 5.0)
    assert allocation_of(pool, "a") != mine
    assert slot_pool.offered(pool, TM1, "x", offer(mine, 2))[1] == ()


def test_a_need_is_overdue_after_its_timeout_and_renewed_with_another_allocation() -> None:
    """R5."""
    pool = asked(a=2)
    assert slot_pool.overdue(pool, 10.0, 9.9) == ()
    assert [n.group for n in slot_pool.overdue(pool, 10.0, 10.0)] == ["a"]
    renewed = slot_pool.ask_for_missing(slot_pool.renewed(pool), IdSource(random.Random(2)), 10.0)
    assert set(renewed.needs).isdisjoint(pool.needs)
    assert renewed.version > pool.version


def test_a_group_served_twice_is_a_violation() -> None:
    need = Need("a", 1, 0.0)
    with pytest.raises(InvariantViolated, match="served twice"):
        slot_pool.check_invariants(SlotPool({"a": 1}, {AllocationId("x"): need, AllocationId("y"): need}))


def test_the_first_mark_of_a_phase_counts() -> None:
    rollout = Rollout(began=10.0).mark("slots", 11.0).mark("slots", 15.0).mark("running", 12.5)
    assert rollout.seconds() == {"slots": 1.0, "running": 2.5}
