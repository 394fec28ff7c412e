"""What the ResourceManager knows: TaskManagers, their slots, and what jobs need. Immutable values.

A broker's view (R12): the TaskManagers' reports are the truth about slots, and nothing here outlives the process.
`Resources` keeps three indexes of itself, so that no event costs a look at every slot (R31): `shelves`, `holdings` and
`open_needs`. They change with what they index, in `with_...` and `without_...` alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum, auto
from functools import cached_property
from typing import NamedTuple, TypeVar

from minflinkd.rpc.libraries import clash, together
from minflinkd.rpc.messages import (
    DeclareNeeds,
    Library,
    RegisterTaskManager,
    SessionPhase,
    SlotNeed,
    SlotStatus,
    TaskManagerReport,
)
from minflinkd.runtime.ids import AllocationId, InstanceId, JobId, LeaderId, ResourceId
from minflinkd.runtime.machine import InvariantViolated, move, table

K = TypeVar("K")
V = TypeVar("V")

PAST_KEPT = 1_000  # jobs; the last messages of their JobMasters are long delivered when they are forgotten


class TaskManagerState(Enum):
    STARTING = auto()
    REGISTERED = auto()
    STOPPING = auto()  # told to exit; worth nothing any more
    GONE = auto()  # and forgotten


TASK_MANAGER_MOVES = table(
    {
        # One that nobody started here comes by itself, and enters as STARTING for an instant (R7: standalone).
        TaskManagerState.STARTING: {TaskManagerState.REGISTERED, TaskManagerState.STOPPING, TaskManagerState.GONE},
        TaskManagerState.REGISTERED: {TaskManagerState.STOPPING, TaskManagerState.GONE},
        TaskManagerState.STOPPING: {TaskManagerState.GONE},
        TaskManagerState.GONE: (),
    }
)


class SlotState(Enum):
    FREE = auto()
    RESERVED = auto()  # marked taken; the TaskManager has not said so yet (R2)
    ALLOCATED = auto()  # the TaskManager says who holds it


SLOT_MOVES = table(
    {
        SlotState.FREE: {SlotState.RESERVED, SlotState.ALLOCATED},
        SlotState.RESERVED: {SlotState.ALLOCATED, SlotState.FREE},
        # ALLOCATED again: given back and taken by another allocation between two reports.
        SlotState.ALLOCATED: {SlotState.FREE, SlotState.ALLOCATED},
    }
)


@dataclass(frozen=True)
class Slot:
    state: SlotState = SlotState.FREE
    job_id: JobId | None = None
    allocation_id: AllocationId | None = None
    since: float = 0.0  # seconds; of a reservation
    exclusive: bool = False  # reserved for a job that wants the TaskManager for itself (R24)
    libraries: tuple[Library, ...] = ()  # reserved for a job that brings them (B31)

    def to(self, state: SlotState, what: str, **holder: object) -> Slot:
        """Raises IllegalTransition."""
        return Slot(move(SLOT_MOVES, self.state, state, what=what), **holder)  # type: ignore[arg-type]

    def follow(self, status: SlotStatus, what: str) -> Slot:
        """As the TaskManager says it is."""
        if status.allocation_id is None:
            return self if self.state is SlotState.FREE else self.to(SlotState.FREE, what)
        if self.state is SlotState.ALLOCATED and self.allocation_id == status.allocation_id:
            return self
        return self.to(SlotState.ALLOCATED, what, job_id=status.job_id, allocation_id=status.allocation_id)


class Presence(IntEnum):
    READY = 0  # its slots may be given away
    COMING = 1  # registered; its session is not ready
    STARTING = 2


class Shelf(NamedTuple):
    """Where a living TaskManager is found by what it is worth. Shelves sort as needs prefer them."""

    presence: Presence
    dedicated_to: str  # a job, or nobody
    aged: bool
    idle: bool
    free: int  # slots; 0 while it starts
    size: int  # slots; 0 while it starts
    proven: bool  # its session has been ready, or its start was not ours
    libraries: tuple[Library, ...] = ()  # that its session holds


@dataclass(frozen=True)
class TaskManager:
    """Times are seconds of the injected clock."""

    resource_id: ResourceId
    since: float  # of the present state
    state: TaskManagerState = TaskManagerState.STARTING
    instance_id: InstanceId | None = None
    hello: RegisterTaskManager | None = None
    report: TaskManagerReport | None = None
    slots: tuple[Slot, ...] = ()
    was_ready: bool = False  # its session has been, once
    readiness_since: float = 0.0  # seconds; when its session became ready, or ceased to be
    idle_since: float = 0.0
    rest_until: float = 0.0  # its slots are not asked for before

    def to(self, state: TaskManagerState, now: float) -> TaskManager:
        """Raises IllegalTransition."""
        return replace(self, state=move(TASK_MANAGER_MOVES, self.state, state, what=self.resource_id), since=now)

    @property
    def registered(self) -> bool:
        return self.state is TaskManagerState.REGISTERED

    @property
    def session(self) -> SessionPhase:
        return self.report.session if self.report is not None else SessionPhase.STARTING

    @property
    def ready(self) -> bool:
        """Its slots may be given away."""
        return self.registered and self.session is SessionPhase.READY

    @property
    def standalone(self) -> bool:
        return self.hello is not None and self.hello.standalone

    @property
    def aged(self) -> bool:
        return self.report is not None and self.report.session_aged

    @cached_property
    def dedicated_to(self) -> JobId | None:
        """The one job that gets slots here: the TaskManager says so, or will."""
        if self.report is not None and self.report.dedicated_to is not None:
            return self.report.dedicated_to
        return next((slot.job_id for slot in self.slots if slot.exclusive), None)

    @cached_property
    def libraries(self) -> tuple[Library, ...]:
        """That its session holds: the TaskManager says so, or will."""
        reported = self.report.libraries if self.report is not None else ()
        return together(reported, *(slot.libraries for slot in self.slots))

    @cached_property
    def free(self) -> tuple[int, ...]:
        return tuple(i for i, slot in enumerate(self.slots) if slot.state is SlotState.FREE)

    @property
    def idle(self) -> bool:
        return self.registered and len(self.free) == len(self.slots)

    @cached_property
    def allocations(self) -> Mapping[AllocationId, JobId]:
        """Whoever holds slots here, or will."""
        return {s.allocation_id: s.job_id for s in self.slots if s.allocation_id is not None and s.job_id is not None}

    @cached_property
    def jobs(self) -> tuple[JobId, ...]:
        return tuple(sorted(set(self.allocations.values())))

    @cached_property
    def reserved_since(self) -> float | None:
        """Of the oldest reservation."""
        return min((s.since for s in self.slots if s.state is SlotState.RESERVED), default=None)

    @cached_property
    def shelf(self) -> Shelf | None:
        """None where it is worth nothing any more."""
        if self.state is TaskManagerState.STARTING:
            return Shelf(Presence.STARTING, "", False, True, 0, 0, self.was_ready)
        if not self.registered:
            return None
        presence = Presence.READY if self.ready else Presence.COMING
        job = self.dedicated_to or ""
        size = len(self.slots)
        return Shelf(presence, job, self.aged, self.idle, len(self.free), size, self.was_ready, self.libraries)

    def slots_of(self, allocation: AllocationId) -> tuple[int, ...]:
        return tuple(i for i, slot in enumerate(self.slots) if slot.allocation_id == allocation)


@dataclass(frozen=True)
class JobNeeds:
    """The last declaration of a job's JobMaster (R8)."""

    declaration: DeclareNeeds
    since: float  # seconds; the first declaration of this JobMaster
    number: int  # jobs are served in the order in which they came

    @property
    def leader_id(self) -> LeaderId:
        return self.declaration.leader_id

    @property
    def address(self) -> str:
        return self.declaration.address

    @property
    def exclusive(self) -> bool:
        return self.declaration.exclusive

    @property
    def libraries(self) -> tuple[Library, ...]:
        return self.declaration.libraries

    @cached_property
    def held(self) -> frozenset[AllocationId]:
        return frozenset(self.declaration.held)

    @cached_property
    def needs(self) -> Mapping[AllocationId, SlotNeed]:
        return {need.allocation_id: need for need in self.declaration.needs}


@dataclass(frozen=True)
class Past:
    """The last JobMaster of a job that has none now."""

    leader_id: LeaderId
    ended: bool  # for good: nothing that it sent counts any more


@dataclass(frozen=True)
class Wish:
    """A TaskManager with `slots` free slots is wanted for a while, by nobody who would wait for an answer."""

    slots: int
    until: float
    exclusive: bool = False
    libraries: tuple[Library, ...] = ()


@dataclass(frozen=True)
class Starts:
    """How starts went of late."""

    failed: int = 0  # in a row
    reason: str = ""  # of the last failure
    not_before: float = 0.0


@dataclass(frozen=True)
class Resources:
    task_managers: Mapping[ResourceId, TaskManager] = field(default_factory=dict)
    jobs: Mapping[JobId, JobNeeds] = field(default_factory=dict)
    past: Mapping[JobId, Past] = field(default_factory=dict)
    wishes: Mapping[str, Wish] = field(default_factory=dict)
    starts: Starts = Starts()
    lost: int = 0
    arrivals: int = 0  # jobs so far
    recovering_until: float = 0.0  # TaskManagers of an earlier ResourceManager are expected to register before
    # Indexes.
    shelves: Mapping[Shelf, Mapping[ResourceId, None]] = field(default_factory=dict)  # all that live
    holdings: Mapping[JobId, Mapping[AllocationId, tuple[ResourceId, ...]]] = field(default_factory=dict)
    open_needs: Mapping[JobId, tuple[SlotNeed, ...]] = field(default_factory=dict)  # for which no slots are taken

    def with_task_manager(self, tm: TaskManager) -> Resources:
        return self._indexed(tm.resource_id, tm, {**self.task_managers, tm.resource_id: tm})

    def without_task_manager(self, resource_id: ResourceId) -> Resources:
        return self._indexed(resource_id, None, _without(self.task_managers, resource_id))

    def with_job(self, job_id: JobId, job: JobNeeds) -> Resources:
        state = replace(self, jobs={**self.jobs, job_id: job}, past=_without(self.past, job_id))
        return replace(state, open_needs=_open_needs(state, (job_id,)))

    def without_job(self, job_id: JobId, past: Past) -> Resources:
        remembered = {**_without(self.past, job_id), job_id: past}
        if len(remembered) > PAST_KEPT:
            remembered.pop(next(iter(remembered)))
        return replace(
            self,
            jobs=_without(self.jobs, job_id),
            past=remembered,
            open_needs=_without(self.open_needs, job_id),
        )

    def living(self) -> Iterator[TaskManager]:
        """Starting or registered."""
        return (tm for tm in self.task_managers.values() if tm.state is not TaskManagerState.STOPPING)

    def count(self) -> int:
        """Of those that live."""
        return sum(len(shelf) for shelf in self.shelves.values())

    def unserved(self) -> list[tuple[JobId, SlotNeed]]:
        """Needs that no slots are taken for, the oldest job's first."""
        oldest = sorted(self.open_needs, key=lambda job_id: self.jobs[job_id].number)
        return [(job_id, need) for job_id in oldest for need in self.open_needs[job_id]]

    def present_leader(self, job_id: JobId) -> LeaderId | None:
        """The latest known JobMaster of a job."""
        if (job := self.jobs.get(job_id)) is not None:
            return job.leader_id
        return self.past[job_id].leader_id if job_id in self.past else None

    def _indexed(
        self, resource_id: ResourceId, new: TaskManager | None, task_managers: Mapping[ResourceId, TaskManager]
    ) -> Resources:
        old = self.task_managers.get(resource_id)
        shelves, holdings = self.shelves, self.holdings
        before, after = (tm.shelf if tm is not None else None for tm in (old, new))
        if before != after:
            shelves = dict(shelves)
            if before is not None:
                rest = _without(shelves[before], resource_id)
                if rest:
                    shelves[before] = rest
                else:
                    del shelves[before]
            if after is not None:
                shelves[after] = {**shelves.get(after, {}), resource_id: None}
        had, has = (tm.allocations if tm is not None else {} for tm in (old, new))
        if had == has:
            return replace(self, task_managers=task_managers, shelves=shelves)
        holdings = dict(holdings)
        for allocation, job_id in sorted(had.items() - has.items()):
            held = dict(holdings[job_id])
            others = tuple(r for r in held.pop(allocation) if r != resource_id)
            if others:
                held[allocation] = others
            holdings[job_id] = held
            if not held:
                del holdings[job_id]
        for allocation, job_id in sorted(has.items() - had.items()):
            held = dict(holdings.get(job_id, {}))
            held[allocation] = tuple(sorted((*held.get(allocation, ()), resource_id)))
            holdings[job_id] = held
        changed = {*had.values(), *has.values()}
        state = replace(self, task_managers=task_managers, shelves=shelves, holdings=holdings)
        return replace(state, open_needs=_open_needs(state, tuple(sorted(changed))))


def _without(mapping: Mapping[K, V], key: K) -> dict[K, V]:
    copy = dict(mapping)
    copy.pop(key, None)
    return copy


def _open_needs(state: Resources, of: tuple[JobId, ...]) -> Mapping[JobId, tuple[SlotNeed, ...]]:
    """The index, after needs or holdings of these jobs changed."""
    found = dict(state.open_needs)
    for job_id in of:
        job = state.jobs.get(job_id)
        taken = state.holdings.get(job_id, {})
        needs = job.declaration.needs if job is not None else ()
        still = tuple(n for n in needs if n.allocation_id not in taken and job and n.allocation_id not in job.held)
        if still:
            found[job_id] = still
        else:
            found.pop(job_id, None)
    return found


def check_invariants(state: Resources) -> None:
    """Raises InvariantViolated."""
    reserved: Counter[AllocationId] = Counter()
    for resource_id, tm in state.task_managers.items():
        if tm.state is TaskManagerState.GONE:
            raise InvariantViolated(f"{resource_id} is gone, but not forgotten")
        if tm.registered != (tm.report is not None and tm.instance_id is not None) and tm.state is not (
            TaskManagerState.STOPPING
        ):
            raise InvariantViolated(f"{resource_id} is {tm.state.name}, but its registration says otherwise")
        if tm.state is not TaskManagerState.REGISTERED and tm.slots:
            raise InvariantViolated(f"{resource_id} is {tm.state.name}, but has slots")
        for slot in tm.slots:
            if (slot.state is SlotState.FREE) != (slot.allocation_id is None):
                raise InvariantViolated(f"a {slot.state.name} slot of {resource_id} has holder {slot.allocation_id}")
            strange = slot.state is SlotState.RESERVED and slot.job_id != tm.dedicated_to
            if strange and tm.dedicated_to is not None:
                raise InvariantViolated(f"{resource_id} is {tm.dedicated_to}'s, but a slot is reserved for another job")
        if units := clash(tm.libraries, ()):
            raise InvariantViolated(f"the session of {resource_id} holds two versions of {', '.join(units)}")
        reserved.update({s.allocation_id for s in tm.slots if s.state is SlotState.RESERVED and s.allocation_id})
    if twice := sorted(a for a, n in reserved.items() if n > 1):
        raise InvariantViolated(f"slots are reserved on two TaskManagers for {', '.join(twice)}")
    if both := sorted(state.jobs.keys() & state.past.keys()):
        raise InvariantViolated(f"jobs are both present and past: {', '.join(both)}")
    _check_indexes(state)


def _check_indexes(state: Resources) -> None:
    """Against what they are made of."""
    shelves: dict[Shelf, set[ResourceId]] = {}
    holdings: dict[JobId, dict[AllocationId, set[ResourceId]]] = {}
    for resource_id, tm in state.task_managers.items():
        if tm.shelf is not None:
            shelves.setdefault(tm.shelf, set()).add(resource_id)
        for allocation, job_id in tm.allocations.items():
            holdings.setdefault(job_id, {}).setdefault(allocation, set()).add(resource_id)
    if shelves != {shelf: set(found) for shelf, found in state.shelves.items()}:
        raise InvariantViolated(f"the shelves hold {state.shelves}, the TaskManagers say {shelves}")
    if holdings != {j: {a: set(tms) for a, tms in held.items()} for j, held in state.holdings.items()}:
        raise InvariantViolated(f"the holdings are {state.holdings}, the TaskManagers say {holdings}")
    open_needs = {}
    for job_id, job in state.jobs.items():
        taken = {*holdings.get(job_id, ()), *job.held}
        if still := tuple(need for need in job.declaration.needs if need.allocation_id not in taken):
            open_needs[job_id] = still
    if open_needs != state.open_needs:
        raise InvariantViolated(f"open needs are {state.open_needs}, the declarations say {open_needs}")
