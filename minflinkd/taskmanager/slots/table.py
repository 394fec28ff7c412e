"""The slot table of a TaskManager: the truth about who holds which slot (resources.md m7 - m13). Pure.

One allocation binds one or more slots, which always move together. `slot_machine` decides which JobMaster leads a job,
and when anything moves.
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
    ALLOCATED = auto()  # promised to a job and offered to its JobMaster, which has not accepted it yet
    ACTIVE = auto()  # accepted by the job's present JobMaster; tasks are deployed only in this state
    HELD = auto()  # its JobMaster is silent or was replaced: tasks run on, and wait for the next JobMaster (A14)
    RELEASING = auto()  # given back; becomes free when its tasks have ended


LEGAL = table(
    {
        SlotState.FREE: {SlotState.ALLOCATED},
        SlotState.ALLOCATED: {SlotState.ACTIVE, SlotState.HELD, SlotState.RELEASING, SlotState.FREE},
        SlotState.ACTIVE: {SlotState.HELD, SlotState.RELEASING, SlotState.FREE},
        SlotState.HELD: {SlotState.ALLOCATED, SlotState.RELEASING, SlotState.FREE},
        SlotState.RELEASING: {SlotState.FREE},
    }
)
TIMED = frozenset({SlotState.ALLOCATED, SlotState.HELD})  # these become free unless a JobMaster takes them in time


@dataclass(frozen=True)
class Binding:
    """An allocation: its slots, and the job that they are bound to."""

    job_id: JobId
    slots: tuple[int, ...]
    state: SlotState
    since: float  # seconds; when it entered this state
    until: float | None  # when it is given up, in timed states
    libraries: tuple[Library, ...] = ()  # libraries that its tasks load into the session


@dataclass(frozen=True)
class SlotTable:
    size: int
    bindings: Mapping[AllocationId, Binding] = field(default_factory=dict)
    dedicated_to: JobId | None = None  # `isolation: job`: no other job gets slots here
    loaded: tuple[Library, ...] = ()  # libraries that may still be in the session from freed slots and from analyses
    version: int = 0  # grows with every change to the report, so that an outdated report is recognized (R8)

    @property
    def libraries(self) -> tuple[Library, ...]:
        """All libraries that the session holds or will hold (B31)."""
        return together(self.loaded, *(b.libraries for b in self.bindings.values()))

    def holder(self, slot: int) -> AllocationId | None:
        return next((a for a, b in self.bindings.items() if slot in b.slots), None)

    def of_job(self, job_id: JobId, *states: SlotState) -> tuple[AllocationId, ...]:
        """Return the job's allocations in these states, or in any state."""
        return tuple(sorted(a for a, b in self.bindings.items() if b.job_id == job_id and b.state in (states or LEGAL)))

    def report(self) -> tuple[SlotStatus, ...]:
        """Return every slot (R8). A slot that is being released is not free."""
        holders = {slot: (b.job_id, a) for a, b in self.bindings.items() for slot in b.slots}
        return tuple(
            SlotStatus(index=i, job_id=holders[i][0], allocation_id=holders[i][1])
            if i in holders
            else SlotStatus(index=i)
            for i in range(self.size)
        )

    def offers(self, job_id: JobId) -> tuple[SlotOffer, ...]:
        """m9: Return all slots that the job's JobMaster has or may accept."""
        mine = self.of_job(job_id, SlotState.ALLOCATED, SlotState.ACTIVE)
        return tuple(SlotOffer(allocation_id=a, slots=self.bindings[a].slots) for a in mine)


def fits(
    slots: SlotTable, job_id: JobId, wanted: tuple[int, ...], *, exclusive: bool, libraries: tuple[Library, ...] = ()
) -> bool:
    """m7: Whether these slots can be allocated to the job without conflicting with other jobs."""
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
    """m7: Allocate the slots. Requires that they fit."""
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
    """Move these allocations to a state other than FREE. A timed state needs `until`."""
    bindings = dict(slots.bindings)
    for allocation in allocations:
        binding = bindings[allocation]
        target = move(LEGAL, binding.state, state, what=f"allocation {allocation}")
        bindings[allocation] = replace(binding, state=target, since=now, until=until)
    return replace(slots, bindings=bindings)


def kept_until(slots: SlotTable, allocations: Iterable[AllocationId], until: float) -> SlotTable:
    """Keep these HELD allocations for longer."""
    bindings = {**slots.bindings, **{a: replace(slots.bindings[a], until=until) for a in allocations}}
    return replace(slots, bindings=bindings)


def freed(slots: SlotTable, allocations: Iterable[AllocationId]) -> SlotTable:
    """Free these allocations. Unknown ones are free already."""
    gone = set(allocations) & slots.bindings.keys()
    if not gone:
        return slots
    for allocation in sorted(gone):
        move(LEGAL, slots.bindings[allocation].state, SlotState.FREE, what=f"allocation {allocation}")
    bindings = {a: b for a, b in slots.bindings.items() if a not in gone}
    loaded = together(slots.loaded, brought_by(slots, gone))
    return replace(slots, bindings=bindings, loaded=loaded, version=slots.version + 1)


def narrowed(slots: SlotTable, surplus: Mapping[AllocationId, Iterable[int]]) -> SlotTable:
    """Free these slots of these allocations, but at least one slot of each stays.

    Slots they do not have are ignored.
    """
    bindings = dict(slots.bindings)
    for allocation, unused in surplus.items():
        binding = bindings[allocation]
        if left := tuple(slot for slot in binding.slots if slot not in set(unused)):
            bindings[allocation] = replace(binding, slots=left)
    return replace(slots, bindings=bindings, version=slots.version + 1) if bindings != slots.bindings else slots


def brought_by(slots: SlotTable, allocations: Iterable[AllocationId]) -> tuple[Library, ...]:
    """Return the libraries that these allocations may have loaded, and that stay in the session."""
    return together(*(slots.bindings[a].libraries for a in allocations))


def brought(slots: SlotTable, libraries: tuple[Library, ...]) -> SlotTable:
    """Add libraries that are in the session from now on, without slots."""
    loaded = together(slots.loaded, libraries)
    return replace(slots, loaded=loaded, version=slots.version + 1) if loaded != slots.loaded else slots


def dedicated(slots: SlotTable, job_id: JobId) -> SlotTable:
    """No other job gets slots from now on. Requires that no other job has any."""
    return replace(slots, dedicated_to=job_id, version=slots.version + (slots.dedicated_to != job_id))


def with_new_session(slots: SlotTable) -> SlotTable:
    """A new session holds only what the tasks on the slots will load."""
    return replace(slots, loaded=(), version=slots.version + 1) if slots.loaded else slots


def check_invariants(slots: SlotTable) -> None:
    """Check the table.

    Raises InvariantViolated if a slot is held twice or does not exist, if a job has slots that are dedicated to another
    job, or if the session would hold two versions of one library.
    """
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
