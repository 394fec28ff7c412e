"""The slot table of a TaskManager, which alone knows who holds which slot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from minflinkd.rpc.messages import Library, SlotOffer, SlotStatus
from minflinkd.runtime.ids import AllocationId, TaskId
from minflinkd.runtime.machine import IllegalTransition, InvariantViolated
from minflinkd.taskmanager.slots import state as slots_state
from minflinkd.taskmanager.slots.state import Offer, Running, Slots
from minflinkd.taskmanager.slots.table import (
    SlotState,
    SlotTable,
    allocated,
    brought,
    check_invariants,
    fits,
    freed,
    moved,
    narrowed,
    with_new_session,
)
from tests.unit.taskmanager.core_world import JOB, OTHER, A, B, allocate, attempt, leader, running


def table(**more: bool) -> SlotTable:
    return allocated(SlotTable(4), A, JOB, (1, 2), exclusive=more.get("exclusive", False), now=0.0, until=10.0)


def test_only_free_slots_that_exist_fit() -> None:
    """A request is not served in part (m7)."""
    assert fits(table(), OTHER, (0, 3), exclusive=False)
    for wanted in ((2, 3), (3, 4), (-1,), ()):
        assert not fits(table(), OTHER, wanted, exclusive=False)


def test_slots_that_are_being_released_are_not_free() -> None:
    """Tasks still run there (m11)."""
    active = moved(table(), [A], SlotState.ACTIVE, 1.0)
    releasing = moved(active, [A], SlotState.RELEASING, 2.0)
    assert not fits(releasing, JOB, (1,), exclusive=False)
    held = {i: SlotStatus(index=i, job_id=JOB, allocation_id=A) for i in (1, 2)}
    assert releasing.report() == (SlotStatus(index=0), held[1], held[2], SlotStatus(index=3))
    assert releasing.offers(JOB) == ()


def test_a_part_of_an_allocation_is_free_at_once_and_the_rest_goes_on() -> None:
    """Repeated, late and foreign requests change nothing, and no allocation is left without slots (H4)."""
    active = moved(table(), [A], SlotState.ACTIVE, 1.0)
    left = narrowed(active, {A: (2,)})
    assert [s.allocation_id for s in left.report()] == [None, A, None, None]
    assert left.version == active.version + 1
    assert left.bindings[A].state is SlotState.ACTIVE
    again = allocated(left, B, OTHER, (2,), exclusive=False, now=2.0, until=10.0)
    assert narrowed(again, {A: (2, 3)}) is again
    assert narrowed(again, {A: (1, 2)}) is again


def test_a_dedicated_taskmanager_takes_no_other_job() -> None:
    """A dedicated TaskManager refuses other jobs even if its own job holds no slots there any more (R24)."""
    dedicated = table(exclusive=True)
    assert fits(dedicated, JOB, (0,), exclusive=True)
    assert not fits(dedicated, OTHER, (0,), exclusive=False)
    assert not fits(freed(dedicated, [A]), OTHER, (0,), exclusive=False)
    assert not fits(table(), OTHER, (0,), exclusive=True)


def test_a_session_takes_no_second_version_of_a_library_until_it_is_new() -> None:
    """The code stays in the session, even when the first version's slots are free again (B31)."""
    one, two = (Library("java:com/acme", "1"),), (Library("java:com/acme", "2"),)
    bound = allocated(SlotTable(4), A, JOB, (1,), exclusive=False, libraries=one, now=0.0, until=10.0)
    left = freed(bound, [A])
    for slots in (bound, left, with_new_session(bound), brought(SlotTable(4), one)):
        assert fits(slots, OTHER, (0,), exclusive=False, libraries=one)
        assert not fits(slots, OTHER, (0,), exclusive=False, libraries=two)
    assert fits(with_new_session(left), OTHER, (0,), exclusive=False, libraries=two)
    assert [t.version for t in (bound, left, with_new_session(left))] == [1, 2, 3]
    more = (*two, Library("native:fast", "1")), (Library("native:fast", "2"),)
    with pytest.raises(InvariantViolated, match=r"two versions of java:com/acme, native:fast$"):
        check_invariants(brought(brought(bound, more[0]), more[1]))


def test_a_session_holds_what_all_freed_slots_and_analyses_have_brought() -> None:
    """Each news about it is reported, with a later version (B31, R8)."""
    one, fast = (Library("java:com/acme", "1"),), (Library("native:fast", "1"),)
    first = freed(allocated(SlotTable(4), A, JOB, (1,), exclusive=False, libraries=one, now=0.0, until=10.0), [A])
    second = freed(allocated(first, B, JOB, (1,), exclusive=False, libraries=fast, now=0.0, until=10.0), [B])
    assert second.libraries == (*one, *fast)
    analysed = brought(first, fast)
    assert (analysed.libraries, analysed.version) == ((*one, *fast), first.version + 1)
    assert brought(analysed, fast) is analysed
    assert with_new_session(SlotTable(4)) == SlotTable(4)


def test_what_is_held_or_released_is_not_offered() -> None:
    """The offer lists everything that the JobMaster has or may have (m9)."""
    both = allocated(table(), B, JOB, (0,), exclusive=False, now=1.0, until=11.0)
    offers = (SlotOffer(allocation_id=A, slots=(1, 2)), SlotOffer(allocation_id=B, slots=(0,)))
    assert both.offers(JOB) == offers
    assert moved(both, [A], SlotState.HELD, 2.0, until=30.0).offers(JOB) == offers[1:]
    assert both.offers(OTHER) == ()


def test_the_version_grows_with_what_is_reported_and_with_nothing_else() -> None:
    """With it the ResourceManager drops a report that a later one has overtaken (R8)."""
    first = table()
    assert first.version == 1
    assert moved(first, [A], SlotState.ACTIVE, 1.0).version == 1
    assert freed(first, [B]).version == 1
    assert freed(first, [A]).version == 2


def test_the_table_of_states_is_kept() -> None:
    """A slot that is being released never becomes active again."""
    releasing = moved(moved(table(), [A], SlotState.ACTIVE, 1.0), [A], SlotState.RELEASING, 1.0)
    for state in (SlotState.ACTIVE, SlotState.HELD, SlotState.ALLOCATED):
        with pytest.raises(IllegalTransition, match=f"allocation {A}: RELEASING -> {state.name}"):
            moved(releasing, [A], state, 2.0)


def test_what_must_not_be_is_found() -> None:
    with pytest.raises(InvariantViolated, match="held by two"):
        check_invariants(allocated(table(), B, JOB, (2,), exclusive=False, now=0.0, until=1.0))
    with pytest.raises(InvariantViolated, match="beyond"):
        check_invariants(allocated(table(), B, JOB, (4,), exclusive=False, now=0.0, until=1.0))
    with pytest.raises(InvariantViolated, match="deadline"):
        check_invariants(moved(table(), [A], SlotState.ACTIVE, 1.0, until=5.0))
    with pytest.raises(InvariantViolated, match="another job"):
        check_invariants(allocated(table(exclusive=True), B, OTHER, (0,), exclusive=False, now=0.0, until=1.0))


# --- the slots with their jobs and attempts ----------------------------------------------------------------------


def with_binding(slots: Slots, **changes: object) -> Slots:
    """Change allocation A, on which attempt 0 runs."""
    bindings = {**slots.table.bindings, A: replace(slots.table.bindings[A], **changes)}  # type: ignore[arg-type]
    return replace(slots, table=replace(slots.table, bindings=bindings))


def with_attempt(slots: Slots, number: int = 0, **changes: object) -> Slots:
    """Change attempt 0, or add one like it."""
    like = replace(slots.attempts[attempt(0)], **changes)  # type: ignore[arg-type]
    return replace(slots, attempts={**slots.attempts, attempt(number): like})


def elsewhere(slots: Slots) -> Running:
    """Return what attempt 0 is, on slots that there are not."""
    return replace(slots.attempts[attempt(0)], allocation_id=AllocationId("x"))


def with_offer(slots: Slots, offer: Offer | None) -> Slots:
    return slots.with_job(JOB, replace(slots.jobs[JOB], offer=offer))


def two_allocations() -> Slots:
    """Allocation A is active and carries attempt 0; allocation B is offered."""
    world = running()
    world.rm(allocate(B, 3))
    return world.core.slots


@pytest.mark.parametrize(
    ("fault", "plant"),
    [
        ("unknown job", lambda s: replace(s, jobs={})),
        ("offered to nobody", lambda s: with_offer(s, None)),
        ("allocation b is offered to nobody", lambda s: with_offer(s, Offer(9, (A,)))),
        ("nothing runs on it", lambda s: replace(with_binding(s, state=SlotState.RELEASING), attempts={})),
        ("two attempts of a task", lambda s: with_attempt(s, 1)),
        ("runs on None", lambda s: with_attempt(s, allocation_id="x")),
        ("attempt attempt-0 runs on Binding", lambda s: with_attempt(s.with_job(OTHER, s.jobs[JOB]), job_id=OTHER)),
        ("is not its JobMaster's", lambda s: with_binding(s, state=SlotState.RELEASING)),
        ("is not its JobMaster's", lambda s: with_attempt(s, leader=leader(2))),
        ("attempt-0 is kept for nobody", lambda s: replace(s, unheard=s.attempts)),
        ("attempt-1 is kept for nobody", lambda s: replace(s, unheard={attempt(1): elsewhere(s)})),
    ],
)
def test_slots_that_contradict_their_jobs_or_attempts_are_found(fault: str, plant: Callable[[Slots], Slots]) -> None:
    slots = two_allocations()
    slots_state.check_invariants(slots)
    with pytest.raises(InvariantViolated, match=fault):
        slots_state.check_invariants(plant(slots))


@pytest.mark.parametrize("state", [SlotState.HELD, SlotState.ALLOCATED])
def test_tasks_of_an_earlier_leader_may_run_on_slots_that_nobody_has_accepted_since(state: SlotState) -> None:
    """They wait for their next JobMaster there (A14)."""
    slots = with_attempt(with_binding(two_allocations(), state=state, until=99.0), leader=leader(0))
    slots_state.check_invariants(with_offer(slots, Offer(9, (A, B))))


@pytest.mark.parametrize(
    "change",
    [
        lambda s: with_attempt(s, 1, task=TaskId("u")),
        lambda s: with_attempt(with_binding(s, state=SlotState.HELD, until=99.0), ending=True),
        lambda s: with_attempt(with_binding(s, state=SlotState.RELEASING), ending=True),
        lambda s: with_attempt(s, ending=True, leader=leader(0)),
    ],
)
def test_what_may_be_is_not_taken_for_a_contradiction(change: Callable[[Slots], Slots]) -> None:
    """Several tasks share slots. An attempt that ends may be on slots that are held, given back, or a successor's."""
    slots_state.check_invariants(change(two_allocations()))
