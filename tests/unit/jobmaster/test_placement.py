"""Which slot sharing group runs where, on anonymous slots (R20)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minflinkd.jobmaster.scheduler.placement import Bounds, Holdings, Share, check_invariants, place, total, uncovered
from minflinkd.runtime.ids import AllocationId, ResourceId
from minflinkd.runtime.machine import InvariantViolated

TM1, TM2 = ResourceId("tm-1"), ResourceId("tm-2")


def holdings(**slots: tuple[int, ...]) -> Holdings:
    """Return what the job holds. `tm1=(2, 1)` means two allocations on tm-1."""
    return {
        ResourceId(f"tm-{name[2:]}"): {AllocationId(f"{name}-{i}"): n for i, n in enumerate(sizes)}
        for name, sizes in slots.items()
    }


def groups(least: int = 1, **desired: int) -> dict[str, Bounds]:
    return {g: Bounds(n, min(n, least)) for g, n in desired.items()}


def widths(shares: dict[str, Share]) -> dict[str, tuple[str, int]]:
    return {g: (s.resource_id, s.parallelism) for g, s in sorted(shares.items())}


def placed(wanted: dict[str, Bounds], held: Holdings, **options: object) -> dict[str, tuple[str, int]]:
    return widths(dict(place(wanted, held, present={}, **options)))  # type: ignore[arg-type]


def test_each_group_gets_the_allocation_that_was_asked_for_it() -> None:
    shares = place(groups(a=3, b=2), holdings(tm1=(2,), tm2=(3,)), present={})
    assert shares["a"] == Share(TM2, 3, (AllocationId("tm2-0"),))
    assert shares["b"] == Share(TM1, 2, (AllocationId("tm1-0"),))


def test_a_group_runs_on_several_allocations_of_one_taskmanager() -> None:
    """A group that has grown has a second allocation (R20)."""
    (share,) = place(groups(a=4), holdings(tm1=(1, 2), tm2=(2,)), present={}).values()
    assert (share.resource_id, share.parallelism) == (TM1, 3)
    assert sorted(share.allocations) == ["tm1-0", "tm1-1"]


def test_groups_divide_what_one_taskmanager_gives_when_there_is_no_other() -> None:
    """Groups share one TaskManager, also while the ResourceManager is away (R11)."""
    assert placed(groups(a=4, b=4), holdings(tm1=(4,))) == {"a": (TM1, 2), "b": (TM1, 2)}
    assert placed(groups(a=4, b=2), holdings(tm1=(4,))) == {"a": (TM1, 3), "b": (TM1, 1)}


def test_undivided_the_widest_is_served_first() -> None:
    """The job asks for what is missing then."""
    assert placed(groups(a=4, b=4), holdings(tm1=(4,)), divide=False) == {"a": (TM1, 4)}
    assert placed(groups(a=4, b=4), holdings(tm1=(5,)), divide=False) == {"a": (TM1, 4), "b": (TM1, 1)}


def test_a_group_that_cannot_have_its_least_is_left_out() -> None:
    assert placed(groups(least=3, a=4, b=4), holdings(tm1=(4,))) == {"a": (TM1, 4)}
    assert placed(groups(least=3, a=4), holdings(tm1=(2,), tm2=(2,))) == {}


def test_a_group_stays_where_it_is_unless_it_gets_more_elsewhere() -> None:
    present = {"a": Share(TM2, 2, (AllocationId("tm2-0"),))}
    stays = place(groups(a=4), holdings(tm1=(2,), tm2=(2,)), present=present)
    assert stays == present
    moves = place(groups(a=4), holdings(tm1=(3,), tm2=(2,)), present=present)
    assert widths(dict(moves)) == {"a": (TM1, 3)}


def test_what_runs_is_not_touched_by_a_placement_for_the_rest() -> None:
    """A region restarts while others run on (R16)."""
    running = {"a": Share(TM1, 2, (AllocationId("tm1-0"),))}
    shares = place(groups(a=4, b=4), holdings(tm1=(4,), tm2=(1,)), present=running, fixed=("a",))
    assert shares["a"] == running["a"]
    assert shares["b"] == Share(TM1, 2, (AllocationId("tm1-0"),))


def on(resource: ResourceId, width: int, *allocations: str) -> Share:
    return Share(resource, width, tuple(map(AllocationId, allocations)))


@pytest.mark.parametrize(
    ("wanted", "held", "present", "expected"),
    [
        pytest.param({"a": 4}, {"tm1": (2,), "tm2": (3,)}, {"a": TM1}, {"a": (TM2, 3)}, id="most slots"),
        pytest.param({"a": 4}, {"tm1": (3,), "tm2": (3,)}, {"a": TM2}, {"a": (TM2, 3)}, id="then where it is"),
        pytest.param({"a": 2}, {"tm1": (5,), "tm2": (3,)}, {}, {"a": (TM2, 2)}, id="then the tightest fit"),
        pytest.param({"a": 4}, {"tm1": (3,), "tm2": (3,)}, {}, {"a": (TM1, 3)}, id="then the first"),
        pytest.param(
            {"a": 3, "b": 3, "c": 3},
            {"tm1": (3,), "tm2": (4,)},
            {},
            {"a": (TM1, 3), "b": (TM2, 2), "c": (TM2, 2)},
            id="where nothing is left over, the most room",
        ),
        pytest.param(
            {"a": 2, "b": 5}, {"tm1": (1,), "tm2": (5,)}, {}, {"a": (TM1, 1), "b": (TM2, 5)}, id="the widest chooses"
        ),
        pytest.param({"b": 3, "a": 3}, {"tm1": (2,), "tm2": (1,)}, {}, {"a": (TM1, 2), "b": (TM2, 1)}, id="by name"),
    ],
)
def test_a_group_goes_where_it_gets_most(
    wanted: dict[str, int],
    held: dict[str, tuple[int, ...]],
    present: dict[str, ResourceId],
    expected: dict[str, tuple[str, int]],
) -> None:
    """The widest group chooses first. Groups of the same width choose in the order of their names."""
    before = {g: on(resource, 1, "lost") for g, resource in present.items()}
    assert widths(dict(place(groups(**wanted), holdings(**held), present=before))) == expected


@pytest.mark.parametrize(
    ("wanted", "held", "expected"),
    [
        pytest.param({"a": 9}, (1, 3, 2), {"a": (6, "tm1-1", "tm1-2", "tm1-0")}, id="the widest first"),
        pytest.param({"a": 9}, (2, 2), {"a": (4, "tm1-0", "tm1-1")}, id="then by name"),
        pytest.param({"a": 3, "b": 2}, (4, 3), {"a": (3, "tm1-1"), "b": (2, "tm1-0")}, id="one that fits"),
        pytest.param({"a": 3}, (3, 3), {"a": (3, "tm1-0")}, id="only one that fits"),
        pytest.param({"a": 4, "b": 3}, (5, 2), {"a": (4, "tm1-0"), "b": (3, "tm1-1", "tm1-0")}, id="what is left"),
        pytest.param({"a": 1, "b": 3}, (2, 3), {"b": (3, "tm1-1"), "a": (1, "tm1-0")}, id="the widest group chooses"),
        pytest.param({"a": 2}, (1, 4), {"a": (2, "tm1-1")}, id="no more than it needs"),
    ],
)
def test_a_group_uses_as_few_allocations_as_possible(
    wanted: dict[str, int], held: tuple[int, ...], expected: dict[str, tuple[int, str]]
) -> None:
    """It restarts if any of them is lost."""
    shares = place(groups(**wanted), holdings(tm1=held), present={})
    assert shares == {g: on(TM1, *share) for g, share in expected.items()}


def test_a_group_keeps_the_allocation_that_it_has_if_others_fit_as_well() -> None:
    """Its task need not be deployed elsewhere."""
    held = holdings(tm1=(2, 2), tm2=(2,))
    for share in (on(TM2, 2, "tm2-0"), on(TM1, 2, "tm1-1")):
        assert place(groups(a=2), held, present={"a": share}) == {"a": share}
    both = {"a": on(TM1, 2, "tm1-1"), "b": on(TM2, 2, "tm2-0")}
    assert place(groups(a=2, b=2), held, present=both) == both
    assert place(groups(a=2, b=2), held, present={}) == {"a": on(TM1, 2, "tm1-0"), "b": on(TM1, 2, "tm1-1")}


def test_slots_that_a_fixed_group_uses_are_not_given_to_others() -> None:
    """R16."""
    running = {"a": on(TM1, 2, "tm1-0"), "b": on(TM1, 1, "tm1-1")}
    held = holdings(tm1=(3, 1, 1))
    shares = place(groups(a=2, b=2, c=9), held, present=running, fixed=("b", "a"))
    assert shares == {**running, "c": on(TM1, 2, "tm1-0", "tm1-2")}


def test_a_fixed_group_that_is_wider_than_its_allocation_uses_others_of_its_taskmanager() -> None:
    """Surplus slots are given back from any allocation, so the rest belongs to all groups together (R4)."""
    running = {"a": on(TM1, 2, "tm1-0"), "b": on(TM1, 2, "tm1-1")}
    shares = place(groups(a=2, b=3), holdings(tm1=(1, 3)), present=running, fixed=("a",))
    assert shares == {**running, "b": on(TM1, 2, "tm1-1")}


def test_groups_that_use_more_than_is_held_on_their_taskmanager_are_uncovered() -> None:
    """It does not matter which allocation of the TaskManager a group uses."""
    shares = {"a": on(TM1, 2, "tm1-0"), "b": on(TM1, 2, "tm1-1"), "c": on(TM2, 1, "tm2-0")}
    assert uncovered(shares, holdings(tm1=(3, 1), tm2=(1,))) == frozenset()
    assert uncovered(shares, holdings(tm1=(2, 1), tm2=(1,))) == frozenset("ab")
    assert uncovered(shares, holdings(tm1=(4,))) == frozenset("c")


def test_a_share_on_an_allocation_that_is_not_held_is_a_violation() -> None:
    with pytest.raises(InvariantViolated, match=r"group 'a' runs on allocations that are not held: .*'tm1-1'"):
        check_invariants({"a": on(TM1, 1, "tm1-0", "tm1-1")}, holdings(tm1=(2,)))
    check_invariants({"a": on(TM1, 2, "tm1-0", "tm1-1")}, holdings(tm1=(1, 1)))


def test_more_slots_used_than_held_is_a_violation() -> None:
    shares = {g: Share(TM1, 3, (AllocationId("tm1-0"),)) for g in ("a", "b")}
    with pytest.raises(InvariantViolated, match="6 slots of tm-1 are used, and 5"):
        check_invariants(shares, holdings(tm1=(5,)))


sizes = st.lists(st.integers(1, 5), min_size=1, max_size=3)
held = st.dictionaries(st.sampled_from(["tm1", "tm2", "tm3"]), sizes.map(tuple), max_size=3).map(
    lambda drawn: holdings(**drawn)
)
wanted = st.dictionaries(
    st.sampled_from("abcd"), st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=4
).map(lambda drawn: {g: Bounds(max(n), min(n)) for g, n in drawn.items()})


@given(wanted=wanted, held=held, divide=st.booleans())
def test_every_placement_is_covered_and_within_bounds(wanted: dict[str, Bounds], held: Holdings, divide: bool) -> None:
    shares = place(wanted, held, present={}, divide=divide)
    check_invariants(shares, held)
    for group, share in shares.items():
        assert wanted[group].least <= share.parallelism <= wanted[group].desired
        assert share.allocations
        assert sum(held[share.resource_id][a] for a in share.allocations) >= share.parallelism
    again = place(wanted, held, present=shares, divide=divide)
    assert total(again) >= total(shares)
    check_invariants(place(wanted, held, present=shares, fixed=sorted(shares)[:1], divide=divide), held)


@given(wanted=wanted, held=held, spare=st.booleans())
def test_a_job_whose_every_need_was_served_has_everything(
    wanted: dict[str, Bounds], held: Holdings, spare: bool
) -> None:
    """A job has all its slots once its needs are served, whatever else it holds."""
    slots: dict[ResourceId, dict[AllocationId, int]] = {r: dict(s) for r, s in held.items()} if spare else {}
    for i, (group, bounds) in enumerate(sorted(wanted.items())):
        slots.setdefault(ResourceId(f"tm-{i % 2}"), {})[AllocationId(group)] = bounds.desired
    assert total(place(wanted, slots, present={})) == sum(b.desired for b in wanted.values())


@given(wanted=st.dictionaries(st.sampled_from("abcd"), st.integers(1, 6), min_size=1, max_size=4), held=held)
def test_one_slot_a_group_is_enough_where_one_will_do(wanted: dict[str, int], held: Holdings) -> None:
    """No group goes without slots while there is room for it (R20)."""
    shares = place({g: Bounds(n, 1) for g, n in wanted.items()}, held, present={})
    there = sum(sum(slots.values()) for slots in held.values())
    assert len(shares) == min(len(wanted), there)
