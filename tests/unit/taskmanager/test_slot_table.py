"""The slot table of a TaskManager: the truth about who holds which slot."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from minflinkd.rpc.messages import AllocateSlots, SlotOffer
from minflinkd.runtime.ids import AllocationId, JobId, LeaderId
from minflinkd.taskmanager.slot_table import (
    SlotState,
    SlotTable,
    accepted,
    allocate,
    check_invariants,
    freed,
    not_accepted_since,
)

JOB, OTHER = JobId("job"), JobId("other")
LEADER, NEXT = LeaderId("leader"), LeaderId("next")
A, B = AllocationId("a"), AllocationId("b")


def request(key: AllocationId, *slots: int, job: JobId = JOB, leader: LeaderId = LEADER) -> AllocateSlots:
    return AllocateSlots(
        job_id=job, allocation_id=key, slots=slots, job_master=f"jobmaster/{job}", job_leader_id=leader
    )


def with_allocation(key: AllocationId = A, *slots: int) -> SlotTable:
    table, allocated = allocate(SlotTable(4), request(key, *(slots or (0, 1))), 0.0)
    assert allocated
    return table


def test_the_same_allocation_is_answered_with_yes_again_and_changes_nothing() -> None:
    """m7: a request whose answer was lost is repeated."""
    table = with_allocation()
    assert allocate(table, request(A, 0, 1), 1.0) == (table, True)
    table = accepted(table, JOB, (A,))
    assert allocate(table, request(A, 0, 1), 1.0) == (table, True)


def test_another_allocation_on_a_taken_slot_is_answered_with_slot_taken() -> None:
    """m7: and none of its slots is taken in part."""
    table = with_allocation()
    assert allocate(table, request(B, 1, 2), 1.0) == (table, False)
    assert allocate(table, request(B, 3, 4), 1.0) == (table, False)
    assert allocate(table, request(B), 1.0) == (table, False)


def test_an_allocation_keeps_its_slots_its_job_and_its_jobmaster() -> None:
    """m7: a request that names it for others is not the same request."""
    table = with_allocation()
    for different in (request(A, 2, 3), request(A, 0, 1, job=OTHER), request(A, 0, 1, leader=NEXT)):
        assert allocate(table, different, 1.0) == (table, False)


def test_all_allocations_of_a_job_are_offered_together() -> None:
    """m9, R8: the whole view, accepted or not."""
    table, _ = allocate(with_allocation(A, 0, 1), request(B, 2), 1.0)
    table, _ = allocate(table, request(AllocationId("c"), 3, job=OTHER), 1.0)
    offers = (SlotOffer(allocation_id=A, slots=(0, 1)), SlotOffer(allocation_id=B, slots=(2,)))
    assert table.offers(JOB) == offers
    assert accepted(table, JOB, (A,)).offers(JOB) == offers


def test_only_the_job_itself_accepts_its_slots() -> None:
    """m10: an answer that names another job's allocation, or one that is free already, changes nothing."""
    table = with_allocation()
    assert accepted(table, OTHER, (A,)) == table
    assert accepted(table, JOB, (B,)) == table
    assert accepted(table, JOB, (A,)).bindings[A].state is SlotState.ACTIVE


def test_slots_that_no_jobmaster_accepts_in_time_are_named() -> None:
    """R9: ten seconds after the reservation; accepted ones never."""
    table, _ = allocate(with_allocation(A, 0), request(B, 1), 5.0)
    assert not_accepted_since(table, 10.0, 9.9) == ()
    assert not_accepted_since(table, 10.0, 10.0) == (A,)
    assert not_accepted_since(accepted(table, JOB, (A,)), 10.0, 15.0) == (B,)


def test_the_report_names_every_slot_and_its_holder() -> None:
    """m6."""
    report = with_allocation(A, 1, 2).report()
    assert [(s.index, s.job_id, s.allocation_id) for s in report] == [
        (0, None, None),
        (1, JOB, A),
        (2, JOB, A),
        (3, None, None),
    ]


def test_the_version_grows_with_every_change_of_the_report_and_with_nothing_else() -> None:
    """R8: by it the ResourceManager drops a report that was overtaken by a later one."""
    table = with_allocation()
    assert table.version == 1
    assert accepted(table, JOB, (A,)).version == 1
    assert freed(table, (B,)).version == 1
    assert freed(table, (A, B)).version == 2
    assert freed(table, (A,)).report() == SlotTable(4).report()


KEYS = st.sampled_from([AllocationId(name) for name in "abcd"])
SOME = st.lists(KEYS, max_size=3).map(tuple)
JOBS = st.sampled_from([JOB, OTHER])


class AnyOrder(RuleBasedStateMachine):
    """R30: whatever comes in whatever order, no slot has two holders, and the version tells reports apart."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable(4)

    def become(self, table: SlotTable) -> None:
        assert (table.version > self.table.version) == (table.report() != self.table.report())
        self.table = table

    @rule(key=KEYS, job=JOBS, leader=st.sampled_from([LEADER, NEXT]), slots=st.lists(st.integers(-1, 4), max_size=3))
    def allocate(self, key: AllocationId, job: JobId, leader: LeaderId, slots: list[int]) -> None:
        wanted = request(key, *slots, job=job, leader=leader)
        table, allocated = allocate(self.table, wanted, 0.0)
        if allocated:
            assert {s.index for s in table.report() if s.allocation_id == key} == set(slots)
            assert allocate(table, wanted, 1.0) == (table, True)
        else:
            assert table == self.table
        self.become(table)

    @rule(job=JOBS, keys=SOME)
    def accept(self, job: JobId, keys: tuple[AllocationId, ...]) -> None:
        self.become(accepted(self.table, job, keys))

    @rule(keys=SOME)
    def free(self, keys: tuple[AllocationId, ...]) -> None:
        table = freed(self.table, keys)
        assert not set(keys) & set(table.bindings)
        self.become(table)

    @invariant()
    def no_slot_has_two_holders(self) -> None:
        check_invariants(self.table)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
