"""The slots of one job: what it asks for, what it takes of an offer, and what it gives up."""

from __future__ import annotations

import random

import pytest

from minflinkd.jobmaster.scheduler import slot_pool
from minflinkd.jobmaster.scheduler.placement import Bounds, Share
from minflinkd.jobmaster.scheduler.rollout import Rollout
from minflinkd.jobmaster.scheduler.slot_pool import Held, Need, Session, SlotPool, Want
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
    pool = slot_pool.offered(pool, Session(resource, f"taskmanager/{resource}"), offers)
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


@pytest.mark.parametrize(("resource", "least"), [(TM1, 2), (TM2, 5)])
def test_a_need_is_served_by_fewer_slots_beside_those_that_the_group_has(resource: ResourceId, least: int) -> None:
    """R20."""
    want = Want(slots=6, least=5, beside=TM1, held=3)
    assert [want.served_by(resource, slots) for slots in (least - 1, least, 6)] == [False, True, True]


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


def test_of_several_offered_allocations_what_was_asked_for_is_taken_first_and_then_the_largest() -> None:
    """The rest is no longer needed: its TaskManager frees it."""
    pool = asked(a=2)
    mine = allocation_of(pool, "a")
    others = (*offer("a-wide-one", 3, first=2), *offer("one-as-good", 2, first=5))
    assert list(taken(pool, TM1, (*others, *offer(mine, 2)))[0].held) == [mine]
    assert list(taken(pool, TM1, others[::-1])[0].held) == ["a-wide-one"]
    twins = (*offer("y", 2), *offer("x", 2, first=2))
    assert list(taken(pool, TM1, twins)[0].held) == ["x"]


def test_one_allocation_that_is_refused_keeps_none_after_it_from_being_taken() -> None:
    pool = asked(a=1, b=1)
    useless = offer("without-slots", 0)
    wanted = [SlotOffer(allocation_id=a, slots=(i,)) for i, a in enumerate(sorted(pool.needs))]
    assert set(taken(pool, TM1, (*useless, *wanted))[0].held) == set(pool.needs)
    pool, _ = taken(pool, TM1, (wanted[0],))
    again, _ = taken(pool, TM1, tuple(wanted))
    assert len(again.held) == 2


def test_what_is_held_says_where_its_slots_are_and_where_their_exchanges_are_read() -> None:
    pool = asked(a=2)
    mine = allocation_of(pool, "a")
    pool = slot_pool.offered(pool, Session(TM1, "taskmanager/tm-1", "http://tm-1"), offer(mine, 2))
    assert pool.held == {mine: Held((0, 1), TM1, "taskmanager/tm-1", "http://tm-1")}
    assert (pool.address_of(TM1), pool.address_of(TM2)) == ("taskmanager/tm-1", None)


def test_every_change_of_a_declaration_has_a_later_version() -> None:
    """The ResourceManager ignores an earlier one (R8)."""
    steps = [asked(a=2, b=1)]
    mine = allocation_of(steps[0], "a")
    steps.append(taken(steps[-1], TM1, offer(mine, 2))[0])
    steps.append(slot_pool.narrowed(steps[-1], {mine: (1,)}))
    steps.append(slot_pool.dropped(steps[-1], (mine, AllocationId("unknown"))))
    steps.append(slot_pool.renewed(steps[-1]))
    steps.append(slot_pool.ask(steps[-1], {"a": Want(2, 2)}, IDS))
    assert [pool.version for pool in steps] == [1, 2, 3, 4, 5, 6]
    assert [len(pool.needs) for pool in steps] == [2, 1, 1, 1, 0, 1]
    last = steps[-1]
    assert slot_pool.narrowed(last, {}) is last
    assert slot_pool.dropped(last, (mine,)) is last
    withdrawn = slot_pool.renewed(last)
    assert slot_pool.renewed(withdrawn) is withdrawn


def test_a_need_that_no_group_has_any_more_is_withdrawn() -> None:
    """m13."""
    pool = slot_pool.ask(asked(a=2, b=1), {"b": Want(1, 1)}, IDS)
    assert [need.group for need in pool.declaration()] == ["b"]


def test_narrowed_allocations_keep_their_other_slots() -> None:
    pool, _ = taken(adaptive(4), TM1, offer("wide", 4))
    narrow = slot_pool.narrowed(pool, {AllocationId("wide"): (1, 3)})
    assert narrow.held[AllocationId("wide")] == Held((0, 2), TM1, "taskmanager/tm-1")


@pytest.mark.parametrize(
    ("held", "used", "expected"),
    [
        ({"x": 4}, [("a", 1, "x")], {"x": (1, 2, 3)}),
        ({"x": 2}, [("a", 2, "x")], {}),
        ({"x": 3, "y": 2}, [("a", 2, "xy")], {"x": (1, 2), "y": (4,)}),  # never the last slot of one
        ({"x": 2, "y": 4}, [("a", 3, "xy")], {"y": (3, 4, 5)}),  # the widest first
        ({"x": 3, "y": 3}, [("a", 5, "xy")], {"x": (2,)}),  # then by name
        ({"x": 3, "y": 3}, [("a", 2, "x"), ("b", 1, "y")], {"x": (1, 2), "y": (5,)}),  # groups share their slots
        ({"x": 2, "y": 3}, [("a", 2, "x")], {}),  # nothing runs on the other: it is given back as a whole
    ],
)
def test_slots_beyond_what_the_groups_of_a_taskmanager_use_are_surplus(
    held: dict[str, int], used: list[tuple[str, int, str]], expected: dict[str, tuple[int, ...]]
) -> None:
    """R4: They are given back, but each allocation keeps a slot."""
    slots = iter(range(100))
    pool = SlotPool(
        groups={},
        held={AllocationId(a): Held(tuple(next(slots) for _ in range(n)), TM1, "") for a, n in held.items()},
    )
    placement = {g: Share(TM1, n, tuple(map(AllocationId, allocations))) for g, n, allocations in used}
    assert slot_pool.surplus(pool, placement) == expected


def test_surplus_is_counted_for_each_taskmanager() -> None:
    held = {AllocationId("x"): Held((0, 1), TM1, ""), AllocationId("y"): Held((0, 1, 2), TM2, "")}
    placement = {"a": Share(TM1, 2, (AllocationId("x"),)), "b": Share(TM2, 2, (AllocationId("y"),))}
    assert slot_pool.surplus(SlotPool(groups={}, held=held), placement) == {"y": (2,)}


def test_only_the_latest_given_up_allocations_are_remembered() -> None:
    """A job that runs for years needs no more memory for them."""
    pool, kept = SlotPool(groups={"a": Bounds(1, 1)}), slot_pool.GONE_KEPT
    for i in range(kept + 1):
        pool, accepted = taken(pool, TM1, offer(f"n{i}", 1))
        assert accepted
        pool = slot_pool.dropped(pool, (AllocationId(f"n{i}"),))
    assert pool.gone == tuple(f"n{i}" for i in range(1, kept + 1))


X, Y = AllocationId("x"), AllocationId("y")
NEED, HELD = Need("a", Want(1, 1)), Held((0,), TM1, "taskmanager/tm-1")


@pytest.mark.parametrize(
    ("pool", "told"),
    [
        (SlotPool({}, needs={X: NEED, Y: NEED}), r"a slot sharing group is asked for twice: \['a', 'a'\]"),
        (SlotPool({}, needs={X: NEED}, held={X: HELD}), r"allocations both wanted and held: \['x'\]"),
        (SlotPool({}, held={X: HELD}, gone=(Y, X)), r"allocations that were given up are held: \['x'\]"),
        (SlotPool({}, held={X: HELD, Y: HELD}), r"a slot is held by two allocations: \[\('tm-1', 0\), .*\]"),
    ],
)
def test_slots_that_are_asked_for_or_held_twice_are_a_violation(pool: SlotPool, told: str) -> None:
    with pytest.raises(InvariantViolated, match=told):
        slot_pool.check_invariants(pool)


def test_slots_of_the_same_number_on_two_taskmanagers_are_two() -> None:
    slot_pool.check_invariants(SlotPool({}, held={X: HELD, Y: Held((0,), TM2, "taskmanager/tm-2")}))


def test_the_first_mark_of_a_phase_counts() -> None:
    rollout = Rollout(began=10.0).mark("slots", 11.0).mark("slots", 15.0).mark("running", 12.5)
    assert rollout.seconds() == {"slots": 1.0, "running": 2.5}
    assert Rollout(began=10.0).mark("slots", 11.23456).seconds() == {"slots": 1.2346}
