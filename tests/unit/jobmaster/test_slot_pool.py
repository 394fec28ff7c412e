"""The slots of one job: what it asks for, what it takes of an offer, and what it gives up."""

from __future__ import annotations

import random

import pytest

from minflinkd.jobmaster.scheduler import slot_pool
from minflinkd.jobmaster.scheduler.placement import Bounds
from minflinkd.jobmaster.scheduler.rollout import Rollout
from minflinkd.jobmaster.scheduler.slot_pool import Need, SlotPool, Want
from minflinkd.rpc.messages import SlotOffer
from minflinkd.runtime.ids import AllocationId, IdSource, ResourceId
from minflinkd.runtime.machine import InvariantViolated

TM1, TM2 = ResourceId("tm-1"), ResourceId("tm-2")
IDS = IdSource(random.Random(1))


def asked(**groups: int) -> SlotPool:
    pool = SlotPool(groups={g: Bounds(n, n) for g, n in groups.items()})
    return slot_pool.ask(pool, {g: Want(n, n) for g, n in groups.items()}, IDS)


def adaptive(desired: int, least: int = 1) -> SlotPool:
    """Return the pool of a job that begins anew. It asks for all slots and accepts fewer."""
    return slot_pool.ask(SlotPool(groups={"a": Bounds(desired, least)}), {"a": Want(desired, desired)}, IDS)


def offer(allocation: str, slots: int, first: int = 0) -> tuple[SlotOffer, ...]:
    return (SlotOffer(allocation_id=AllocationId(allocation), slots=tuple(range(first, first + slots))),)


def taken(pool: SlotPool, resource: ResourceId, offers: tuple[SlotOffer, ...]) -> tuple[SlotPool, bool]:
    pool = slot_pool.offered(pool, resource, f"taskmanager/{resource}", offers)
    slot_pool.check_invariants(pool)
    return pool, bool(pool.accepted(resource, offers))


def allocation_of(pool: SlotPool, group: str) -> AllocationId:
    return next(a for a, n in pool.needs.items() if n.group == group)


def test_every_group_is_asked_for_once() -> None:
    """The declaration states the whole need, so a repetition changes nothing (J6, R8)."""
    pool = asked(a=2, b=1)
    assert sorted((n.group, n.slots, n.least) for n in pool.declaration()) == [("a", 2, 0), ("b", 1, 0)]
    assert slot_pool.ask(pool, {"a": Want(2, 2), "b": Want(1, 1)}, IDS) is pool


def test_a_need_that_only_becomes_easier_to_serve_keeps_its_allocation() -> None:
    """An offer on the old terms may be on its way (m1)."""
    pool = adaptive(4)
    easier = slot_pool.ask(pool, {"a": Want(4, 1)}, IDS)
    assert (set(easier.needs), easier.version) == (set(pool.needs), pool.version + 1)
    elsewhere = slot_pool.ask(pool, {"a": Want(4, 3, TM1, 2)}, IDS)
    assert set(elsewhere.needs).isdisjoint(pool.needs)


def test_an_offer_is_taken_once_and_recognised_when_it_is_repeated() -> None:
    """m9, m10."""
    pool = asked(a=2)
    mine = offer(allocation_of(pool, "a"), 2)
    pool, accepted = taken(pool, TM1, mine)
    assert (accepted, pool.declaration()) == (True, ())
    assert taken(pool, TM1, mine) == (pool, True)
    assert taken(pool, TM2, mine) == (pool, False)


@pytest.mark.parametrize("slots", [0, 1])
def test_an_offer_that_is_too_small_is_not_taken_by_a_job_that_needs_all(slots: int) -> None:
    pool = asked(a=2)
    assert taken(pool, TM1, offer(allocation_of(pool, "a"), slots)) == (pool, False)


def test_slots_that_an_earlier_jobmaster_held_are_taken_where_they_serve_a_need() -> None:
    """The job comes back on its warm TaskManager, although the new JobMaster did not ask for this allocation (R13)."""
    pool, accepted = taken(asked(a=2), TM1, offer("of-the-old-one", 2))
    assert accepted
    assert not taken(pool, TM2, offer("another", 2))[1]  # nothing is missing any more: the TaskManager frees it


def test_fewer_slots_than_wanted_are_taken_and_the_rest_is_asked_for_beside_them() -> None:
    """The job ran narrower than it wants to (R13, R20)."""
    pool, accepted = taken(adaptive(4), TM1, offer("old", 2))
    assert accepted
    pool = slot_pool.ask(pool, {"a": Want(4, 3, TM1, 2)}, IDS)
    (need,) = pool.declaration()
    assert (need.slots, need.least, need.beside, need.held) == (4, 3, TM1, 2)
    assert taken(pool, TM1, offer(need.allocation_id, 1, first=2))[1]
    assert not taken(pool, TM2, offer("useless", 2))[1]
    assert taken(pool, TM2, offer(need.allocation_id, 3))[1]


def test_slots_below_the_least_parallelism_are_of_no_use() -> None:
    assert not taken(adaptive(4, least=3), TM1, offer("old", 2))[1]


def test_what_was_given_up_is_never_taken_again() -> None:
    """A late offer does not bring an old allocation back (R11, R8)."""
    pool = asked(a=2)
    mine = offer(allocation_of(pool, "a"), 2)
    pool, _ = taken(pool, TM1, mine)
    pool = slot_pool.ask(slot_pool.dropped(pool, pool.on(TM1)), {"a": Want(2, 2)}, IDS)
    assert allocation_of(pool, "a") != mine[0].allocation_id
    assert taken(pool, TM1, mine) == (pool, False)


def test_a_slot_that_is_held_is_not_taken_under_another_allocation() -> None:
    """The offer is late: the TaskManager has replaced its allocation since."""
    pool, _ = taken(adaptive(4), TM1, offer("new", 2))
    assert not taken(pool, TM1, offer("old", 2, first=1))[1]


def test_a_group_asked_for_twice_is_a_violation() -> None:
    need = Need("a", Want(1, 1))
    with pytest.raises(InvariantViolated, match="asked for twice"):
        slot_pool.check_invariants(SlotPool({"a": Bounds(1, 1)}, {AllocationId("x"): need, AllocationId("y"): need}))


def test_the_first_mark_of_a_phase_counts() -> None:
    rollout = Rollout(began=10.0).mark("slots", 11.0).mark("slots", 15.0).mark("running", 12.5)
    assert rollout.seconds() == {"slots": 1.0, "running": 2.5}
