"""The slot table of a TaskManager: the truth about who holds which slot (resources.md m7 - m13). Pure.

A slot is FREE, then ALLOCATED to a job by the ResourceManager, then ACTIVE once the job's JobMaster accepted the
offer, and FREE again when it is given back. One allocation binds one or more slots, which always move together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from minflinkd.rpc.messages import AllocateSlots, SlotOffer, SlotStatus
from minflinkd.runtime.ids import AllocationId, JobId, LeaderId
from minflinkd.runtime.machine import InvariantViolated, move, table


class SlotState(Enum):
    FREE = auto()
    ALLOCATED = auto()  # promised to a job; its JobMaster has not said yes yet
    ACTIVE = auto()


LEGAL = table(
    {
        SlotState.FREE: {SlotState.ALLOCATED},
        SlotState.ALLOCATED: {SlotState.ACTIVE, SlotState.FREE},
        SlotState.ACTIVE: {SlotState.FREE},
    }
)


@dataclass(frozen=True)
class Binding:
    """An allocation: the slots, and the job (with the JobMaster that leads it) that they are bound to."""

    job_id: JobId
    slots: tuple[int, ...]
    job_master: str  # address
    job_leader_id: LeaderId
    since: float  # seconds
    state: SlotState = SlotState.ALLOCATED


@dataclass(frozen=True)
class SlotTable:
    size: int
    bindings: Mapping[AllocationId, Binding] = field(default_factory=dict)
    version: int = 0  # grows with every change of `report()`, so that an old report is known by its age (R8)

    def holder(self, slot: int) -> AllocationId | None:
        return next((a for a, b in self.bindings.items() if slot in b.slots), None)

    def of_job(self, job_id: JobId) -> dict[AllocationId, Binding]:
        return {a: b for a, b in self.bindings.items() if b.job_id == job_id}

    def jobs(self) -> frozenset[JobId]:
        return frozenset(b.job_id for b in self.bindings.values())

    def leader_of(self, job_id: JobId) -> LeaderId | None:
        return next((b.job_leader_id for b in self.of_job(job_id).values()), None)

    def report(self) -> tuple[SlotStatus, ...]:
        """Every slot (R8)."""
        holders = {slot: (b.job_id, a) for a, b in self.bindings.items() for slot in b.slots}
        return tuple(
            SlotStatus(index=i, job_id=holders[i][0], allocation_id=holders[i][1])
            if i in holders
            else SlotStatus(index=i)
            for i in range(self.size)
        )

    def offers(self, job_id: JobId) -> tuple[SlotOffer, ...]:
        """m9: all allocations of the job, accepted or not."""
        return tuple(SlotOffer(allocation_id=a, slots=b.slots) for a, b in sorted(self.of_job(job_id).items()))


def allocate(slots: SlotTable, request: AllocateSlots, now: float) -> tuple[SlotTable, bool]:
    """m7: the table with the allocation, and whether it was (or had been) made; no slot of another is touched."""
    wanted = tuple(sorted(set(request.slots)))
    known = slots.bindings.get(request.allocation_id)
    if known is not None:
        same = (known.job_id, known.slots) == (request.job_id, wanted)
        return slots, same and known.job_leader_id == request.job_leader_id
    if not wanted or any(not 0 <= s < slots.size or slots.holder(s) is not None for s in wanted):
        return slots, False
    move(LEGAL, SlotState.FREE, SlotState.ALLOCATED, what=f"slots {wanted}")
    binding = Binding(request.job_id, wanted, request.job_master, request.job_leader_id, now)
    bindings = {**slots.bindings, request.allocation_id: binding}
    return replace(slots, bindings=bindings, version=slots.version + 1), True


def accepted(slots: SlotTable, job_id: JobId, allocations: Iterable[AllocationId]) -> SlotTable:
    """m10: these became the job's own."""
    bindings = dict(slots.bindings)
    for allocation in allocations:
        binding = bindings.get(allocation)
        if binding is not None and binding.job_id == job_id and binding.state is SlotState.ALLOCATED:
            state = move(LEGAL, binding.state, SlotState.ACTIVE, what=f"allocation {allocation}")
            bindings[allocation] = replace(binding, state=state)
    return replace(slots, bindings=bindings)


def freed(slots: SlotTable, allocations: Iterable[AllocationId]) -> SlotTable:
    """These slots are free; unknown ones are free already."""
    gone = set(allocations) & slots.bindings.keys()
    if not gone:
        return slots
    for allocation in gone:
        move(LEGAL, slots.bindings[allocation].state, SlotState.FREE, what=f"allocation {allocation}")
    bindings = {a: b for a, b in slots.bindings.items() if a not in gone}
    return replace(slots, bindings=bindings, version=slots.version + 1)


def not_accepted_since(slots: SlotTable, timeout: float, now: float) -> tuple[AllocationId, ...]:
    """Allocations that no JobMaster accepted in time (R9): to be freed."""
    waiting = (SlotState.ALLOCATED,)
    return tuple(a for a, b in slots.bindings.items() if b.state in waiting and now - b.since >= timeout)


def check_invariants(slots: SlotTable) -> None:
    """Raises InvariantViolated where a slot is held twice, or does not exist."""
    held = [s for b in slots.bindings.values() for s in b.slots]
    if len(held) != len(set(held)):
        raise InvariantViolated(f"a slot is held by two allocations: {sorted(held)}")
    if any(not 0 <= s < slots.size for s in held):
        raise InvariantViolated(f"a slot beyond the {slots.size} that there are: {sorted(held)}")
