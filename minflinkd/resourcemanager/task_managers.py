"""A TaskManager and its slots, as the ResourceManager sees them (R12). Immutable values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, IntEnum, auto
from functools import cached_property
from typing import NamedTuple

from minflinkd import __version__
from minflinkd.resourcemanager.sizes import TaskManagerSize
from minflinkd.rpc.libraries import together
from minflinkd.rpc.messages import Library, RegisterTaskManager, SessionPhase, SlotStatus, TaskManagerReport
from minflinkd.runtime.ids import AllocationId, InstanceId, JobId, ResourceId
from minflinkd.runtime.machine import move, table
from minflinkd.runtime.resource_profile import NO_PROFILE, ResourceProfile


class TaskManagerState(Enum):
    STARTING = auto()
    REGISTERED = auto()
    STOPPING = auto()  # told to exit; no longer of use
    GONE = auto()  # and forgotten


TASK_MANAGER_MOVES = table(
    {
        # A standalone TaskManager comes by itself, and is STARTING only for an instant (R7).
        TaskManagerState.STARTING: {TaskManagerState.REGISTERED, TaskManagerState.GONE},
        TaskManagerState.REGISTERED: {TaskManagerState.STOPPING, TaskManagerState.GONE},
        TaskManagerState.STOPPING: {TaskManagerState.GONE},
        TaskManagerState.GONE: (),
    }
)


class SlotState(Enum):
    FREE = auto()
    RESERVED = auto()  # marked taken; the TaskManager has not confirmed it yet (R2)
    ALLOCATED = auto()  # the TaskManager says who holds it


SLOT_MOVES = table(
    {
        SlotState.FREE: {SlotState.RESERVED, SlotState.ALLOCATED},
        SlotState.RESERVED: {SlotState.ALLOCATED, SlotState.FREE},
        # ALLOCATED again: released, and taken by another allocation, between two reports.
        SlotState.ALLOCATED: {SlotState.FREE, SlotState.ALLOCATED},
    }
)


@dataclass(frozen=True)
class Slot:
    state: SlotState = SlotState.FREE
    job_id: JobId | None = None
    allocation_id: AllocationId | None = None
    since: float = 0.0  # seconds; start of a reservation
    exclusive: bool = False  # reserved for a job that wants the TaskManager for itself (R24)
    libraries: tuple[Library, ...] = ()  # reserved for a job that brings them (B31)

    def to(self, state: SlotState, what: str, **holder: object) -> Slot:
        """Raises IllegalTransition."""
        return Slot(move(SLOT_MOVES, self.state, state, what=what), **holder)  # type: ignore[arg-type]

    def follow(self, status: SlotStatus, what: str) -> Slot:
        """Return the slot as the TaskManager reports it."""
        if status.allocation_id is None:
            return self if self.state is SlotState.FREE else self.to(SlotState.FREE, what)
        if self.state is SlotState.ALLOCATED and self.allocation_id == status.allocation_id:
            return self
        return self.to(SlotState.ALLOCATED, what, job_id=status.job_id, allocation_id=status.allocation_id)


class Presence(IntEnum):
    READY = 0  # its slots may be assigned
    COMING = 1  # registered; its session is not ready
    STARTING = 2


class Shelf(NamedTuple):
    """The properties by which living TaskManagers are grouped. Shelves sort as needs prefer them."""

    presence: Presence
    dedicated_to: str  # a job's id, or ""
    aged: bool
    idle: bool
    free: int  # slots; 0 while it starts
    size: int  # slots; 0 while it starts, unless it has a size of its own
    proven: bool  # its session has been ready, or its start was not ours
    libraries: tuple[Library, ...] = ()  # held by its session
    outdated: bool = False
    profile: ResourceProfile = NO_PROFILE  # of each slot; while it starts, nothing: that of the default size
    standalone: bool = False


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
    was_ready: bool = False  # its session has been ready once
    readiness_since: float = 0.0  # seconds; when its session became ready, or ceased to be
    steps: int = 0  # progress made by starts of its session; only heartbeats report it
    got_on: float = 0.0  # seconds; when a start that has not failed last made progress
    idle_since: float = 0.0
    rest_until: float = 0.0  # its slots are not asked for before this time
    drain: bool | None = None  # what it was told but has not confirmed; None: see its report
    drains: int = 0  # how often this has changed
    size: TaskManagerSize | None = None  # that it was started with; None: the default, or not started here (R40)
    waits: str = ""  # while it starts: why its process does not run yet, as far as its launcher knows

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
        """Whether its slots may be assigned."""
        return self.registered and self.session is SessionPhase.READY

    @property
    def standalone(self) -> bool:
        return self.hello is not None and self.hello.standalone

    @property
    def aged(self) -> bool:
        return self.report is not None and self.report.session_aged

    @property
    def profile(self) -> ResourceProfile:
        """What each of its slots has; nothing: not known."""
        return self.hello.slot_profile if self.hello is not None else NO_PROFILE

    @property
    def outdated(self) -> bool:
        """Whether it is known to have another version than this process, so it may soon be replaced (A15b)."""
        return self.hello is not None and self.hello.build not in ("", __version__)

    @property
    def draining(self) -> bool:
        """Whether it gives out no more slots, and ends when all are free (A15b)."""
        if self.drain is not None:
            return self.drain
        return self.report is not None and self.report.draining

    @property
    def analysing(self) -> bool:
        """Whether its session analyses a submission. This needs no slot, so it may be `idle` at the same time."""
        return self.report is not None and self.report.analysing

    @cached_property
    def dedicated_to(self) -> JobId | None:
        """The only job that gets slots here. The TaskManager reports it, or will."""
        if self.report is not None and self.report.dedicated_to is not None:
            return self.report.dedicated_to
        return next((slot.job_id for slot in self.slots if slot.exclusive), None)

    @cached_property
    def libraries(self) -> tuple[Library, ...]:
        """The libraries that its session holds. The TaskManager reports them, or will."""
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
        """Allocation -> job, for everybody who holds slots here, or will."""
        return {s.allocation_id: s.job_id for s in self.slots if s.allocation_id is not None and s.job_id is not None}

    @cached_property
    def granted(self) -> Mapping[AllocationId, JobId]:
        """The same for those of whom the TaskManager has said so."""
        granted = {slot.allocation_id for slot in self.slots if slot.state is SlotState.ALLOCATED}
        return {allocation: job_id for allocation, job_id in self.allocations.items() if allocation in granted}

    @cached_property
    def jobs(self) -> tuple[JobId, ...]:
        return tuple(sorted(set(self.allocations.values())))

    @cached_property
    def reserved_since(self) -> float | None:
        """Start of the oldest reservation."""
        return min((s.since for s in self.slots if s.state is SlotState.RESERVED), default=None)

    @cached_property
    def shelf(self) -> Shelf | None:
        """Its shelf; None if only the holders of its slots can still use it."""
        if self.state is TaskManagerState.STARTING:
            slots, profile = (self.size.slots, self.size.profile) if self.size is not None else (0, NO_PROFILE)
            return Shelf(Presence.STARTING, "", False, True, 0, slots, self.was_ready, profile=profile)
        if not self.registered or self.draining:
            return None
        presence = Presence.READY if self.ready else Presence.COMING
        job = self.dedicated_to or ""
        size = len(self.slots)
        free, libraries = len(self.free), self.libraries
        kind = libraries, self.outdated, self.profile, self.standalone
        return Shelf(presence, job, self.aged, self.idle, free, size, self.was_ready, *kind)

    def slots_of(self, allocation: AllocationId) -> tuple[int, ...]:
        return tuple(i for i, slot in enumerate(self.slots) if slot.allocation_id == allocation)
