"""The slot table of a TaskManager: the truth about who holds which slot (resources.md m7 - m13). Pure.

One allocation binds one or more slots, which always move together. Which JobMaster leads a job, and when anything
moves, is decided by `slot_machine`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from minflinkd.rpc.libraries import clash, together
from minflinkd.rpc.messages import Library, SlotOffer, SlotStatus
from minflinkd.runtime.ids import AllocationId, JobId
from minflinkd.runtime.machine import InvariantViolated, move, table


class SlotState(Enum):
    FREE = auto()
    ALLOCATED = auto()  # promised to a job and offered to its JobMaster, which has not said yes yet
    ACTIVE = auto()  # accepted by the job's present JobMaster; only here tasks are deployed
    HELD = auto()  # its JobMaster is silent or was replaced: the tasks end, the slots wait for the next
    RELEASING = auto()  # given back; not free before its tasks have ended


LEGAL = table(
    {
        SlotState.FREE: {SlotState.ALLOCATED},
        SlotState.ALLOCATED: {SlotState.ACTIVE, SlotState.HELD, SlotState.FREE},
        SlotState.ACTIVE: {SlotState.HELD, SlotState.RELEASING, SlotState.FREE},
        SlotState.HELD: {SlotState.ALLOCATED, SlotState.RELEASING, SlotState.FREE},
        SlotState.RELEASING: {SlotState.FREE},
    }
)
TIMED = frozenset({SlotState.ALLOCATED, SlotState.HELD})  # these fall free unless somebody takes them


@dataclass(frozen=True)
class Binding:
    """An allocation: the slots, and the job that they are bound to."""

    job_id: JobId
    slots: tuple[int, ...]
    state: SlotState
    since: float  # seconds; when it came into this state
    until: float | None  # when it is given up, in the states that are timed
    libraries: tuple[Library, ...] = ()  # that its tasks bring into the session


@dataclass(frozen=True)
class SlotTable:
    size: int
    bindings: Mapping[AllocationId, Binding] = field(default_factory=dict)
    dedicated_to: JobId | None = None  # `isolation: job`: no other job gets slots here any more
    loaded: tuple[Library, ...] = ()  # perhaps in the session still, of slots that were given back and of analyses
    version: int = 0  # grows with every change of what is reported, so that an old report is known by its age (R8)

    @property
    def libraries(self) -> tuple[Library, ...]:
        """All that the session holds, or will (B31)."""
        return together(self.loaded, *(b.libraries for b in self.bindings.values()))

    def holder(self, slot: int) -> AllocationId | None:
        return next((a for a, b in self.bindings.items() if slot in b.slots), None)

    def of_job(self, job_id: JobId, *states: SlotState) -> tuple[AllocationId, ...]:
        """In these states, or in any."""
        return tuple(sorted(a for a, b in self.bindings.items() if b.job_id == job_id and b.state in (states or LEGAL)))

    def report(self) -> tuple[SlotStatus, ...]:
        """Every slot (R8). One that is being released is not free."""
        holders = {slot: (b.job_id, a) for a, b in self.bindings.items() for slot in b.slots}
        return tuple(
            SlotStatus(index=i, job_id=holders[i][0], allocation_id=holders[i][1])
            if i in holders
            else SlotStatus(index=i)
            for i in range(self.size)
        )

    def offers(self, job_id: JobId) -> tuple[SlotOffer, ...]:
        """m9: all that the job's JobMaster has, or may have."""
        mine = self.of_job(job_id, SlotState.ALLOCATED, SlotState.ACTIVE)
        return tuple(SlotOffer(allocation_id=a, slots=self.bindings[a].slots) for a in mine)


def fits(
    slots: SlotTable, job_id: JobId, wanted: tuple[int, ...], *, exclusive: bool, libraries: tuple[Library, ...] = ()
) -> bool:
    """m7: whether a new allocation of these slots touches nothing that is another's."""
    others = {b.job_id for b in slots.bindings.values()} - {job_id}
    return (
        bool(wanted)
        and all(0 <= s < slots.size and slots.holder(s) is None for s in wanted)
        and slots.dedicated_to in (None, job_id)
        and not (exclusive and others)
        and not clash(slots.libraries, libraries)
    )


def allocated(
    slots: SlotTable,
    allocation: AllocationId,
    job_id: JobId,
    wanted: tuple[int, ...],
    *,
    exclusive: bool,
    libraries: tuple[Library, ...] = (),
    now: float,
    until: float,
) -> SlotTable:
    """m7, where it `fits`."""
    state = move(LEGAL, SlotState.FREE, SlotState.ALLOCATED, what=f"slots {wanted}")
    binding = Binding(job_id, wanted, state, now, until, libraries)
    return replace(
        slots,
        bindings={**slots.bindings, allocation: binding},
        dedicated_to=job_id if exclusive else slots.dedicated_to,
        version=slots.version + 1,
    )


def moved(
    slots: SlotTable, allocations: Iterable[AllocationId], state: SlotState, now: float, *, until: float | None = None
) -> SlotTable:
    """These allocations in another state than FREE; `until` in a timed one."""
    bindings = dict(slots.bindings)
    for allocation in allocations:
        binding = bindings[allocation]
        target = move(LEGAL, binding.state, state, what=f"allocation {allocation}")
        bindings[allocation] = replace(binding, state=target, since=now, until=until)
    return replace(slots, bindings=bindings)


def kept_until(slots: SlotTable, allocations: Iterable[AllocationId], until: float) -> SlotTable:
    """These HELD allocations, for longer."""
    bindings = {**slots.bindings, **{a: replace(slots.bindings[a], until=until) for a in allocations}}
    return replace(slots, bindings=bindings)


def freed(slots: SlotTable, allocations: Iterable[AllocationId]) -> SlotTable:
    """These slots are free; unknown ones are free already."""
    gone = set(allocations) & slots.bindings.keys()
    if not gone:
        return slots
    for allocation in sorted(gone):
        move(LEGAL, slots.bindings[allocation].state, SlotState.FREE, what=f"allocation {allocation}")
    bindings = {a: b for a, b in slots.bindings.items() if a not in gone}
    loaded = together(slots.loaded, brought_by(slots, gone))
    return replace(slots, bindings=bindings, loaded=loaded, version=slots.version + 1)


def narrowed(slots: SlotTable, surplus: Mapping[AllocationId, Iterable[int]]) -> SlotTable:
    """These slots of these allocations are free, but for the last one of each: what is not theirs is no more."""
    bindings = dict(slots.bindings)
    for allocation, unused in surplus.items():
        binding = bindings[allocation]
        if left := tuple(slot for slot in binding.slots if slot not in set(unused)):
            bindings[allocation] = replace(binding, slots=left)
    return replace(slots, bindings=bindings, version=slots.version + 1) if bindings != slots.bindings else slots


def brought_by(slots: SlotTable, allocations: Iterable[AllocationId]) -> tuple[Library, ...]:
    """What is in the session perhaps through these, and stays there."""
    return together(*(slots.bindings[a].libraries for a in allocations))


def brought(slots: SlotTable, libraries: tuple[Library, ...]) -> SlotTable:
    """These are in the session from now on, without slots."""
    loaded = together(slots.loaded, libraries)
    return replace(slots, loaded=loaded, version=slots.version + 1) if loaded != slots.loaded else slots


def with_new_session(slots: SlotTable) -> SlotTable:
    """It holds nothing but what the slots' tasks will bring."""
    return replace(slots, loaded=(), version=slots.version + 1) if slots.loaded else slots


def check_invariants(slots: SlotTable) -> None:
    """Raises InvariantViolated where a slot is held twice or does not exist, a dedication is not kept, or the session
    would hold two versions of one library."""
    if units := clash(slots.libraries, ()):
        raise InvariantViolated(f"the session would hold two versions of {', '.join(units)}")
    held = [s for b in slots.bindings.values() for s in b.slots]
    if len(held) != len(set(held)):
        raise InvariantViolated(f"a slot is held by two allocations: {sorted(held)}")
    if any(not 0 <= s < slots.size for s in held):
        raise InvariantViolated(f"a slot beyond the {slots.size} that there are: {sorted(held)}")
    for allocation, binding in slots.bindings.items():
        if (binding.state in TIMED) != (binding.until is not None):
            raise InvariantViolated(f"{binding.state.name} allocation {allocation} has the deadline {binding.until}")
        if slots.dedicated_to not in (None, binding.job_id):
            raise InvariantViolated(f"allocation {allocation} of another job than {slots.dedicated_to}")
