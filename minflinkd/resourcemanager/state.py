"""What the ResourceManager knows: TaskManagers, their slots, and what jobs need. Immutable values.

A broker's view (R12): the TaskManagers' reports are the truth about slots, and nothing here outlives the process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from minflinkd.rpc.messages import DeclareNeeds, RegisterTaskManager, SessionPhase, SlotStatus, TaskManagerReport
from minflinkd.runtime.ids import AllocationId, InstanceId, JobId, LeaderId, ResourceId
from minflinkd.runtime.machine import InvariantViolated, move, table

RETIRED_KEPT = 1_000  # leaders; their last messages are long delivered when they are forgotten


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
    phase_since: float = 0.0  # of the session's present phase
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
    def free(self) -> tuple[int, ...]:
        return tuple(i for i, slot in enumerate(self.slots) if slot.state is SlotState.FREE)

    @property
    def idle(self) -> bool:
        return self.registered and all(slot.state is SlotState.FREE for slot in self.slots)

    def jobs(self) -> frozenset[JobId]:
        return frozenset(slot.job_id for slot in self.slots if slot.job_id is not None)

    def slots_of(self, allocation: AllocationId) -> tuple[int, ...]:
        return tuple(i for i, slot in enumerate(self.slots) if slot.allocation_id == allocation)


@dataclass(frozen=True)
class JobNeeds:
    """The last declaration of a job's JobMaster (R8)."""

    leader_id: LeaderId
    address: str
    version: int
    needs: Mapping[AllocationId, int]  # slots
    held: frozenset[AllocationId]

    @classmethod
    def of(cls, declaration: DeclareNeeds) -> JobNeeds:
        return cls(
            leader_id=declaration.leader_id,
            address=declaration.address,
            version=declaration.version,
            needs={need.allocation_id: need.slots for need in declaration.needs},
            held=frozenset(declaration.held),
        )


@dataclass(frozen=True)
class Wish:
    """A TaskManager with `slots` free slots is wanted for a while, by nobody who would wait for an answer."""

    slots: int
    until: float


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
    retired: tuple[LeaderId, ...] = ()  # of JobMasters that were replaced or ended: their late messages mean nothing
    wishes: Mapping[str, Wish] = field(default_factory=dict)
    starts: Starts = Starts()
    lost: int = 0

    def with_task_manager(self, tm: TaskManager) -> Resources:
        return replace(self, task_managers={**self.task_managers, tm.resource_id: tm})

    def living(self) -> Iterator[TaskManager]:
        """Starting or registered."""
        return (tm for tm in self.task_managers.values() if tm.state is not TaskManagerState.STOPPING)

    def unserved(self) -> Iterator[tuple[JobId, AllocationId, int]]:
        """Needs that no slots are taken for, the oldest job's first."""
        served = {slot.allocation_id for tm in self.task_managers.values() for slot in tm.slots}
        for job_id, job in self.jobs.items():
            for allocation, slots in job.needs.items():
                if allocation not in served and allocation not in job.held:
                    yield job_id, allocation, slots


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
        reserved.update({s.allocation_id for s in tm.slots if s.state is SlotState.RESERVED and s.allocation_id})
    if twice := sorted(a for a, n in reserved.items() if n > 1):
        raise InvariantViolated(f"slots are reserved on two TaskManagers for {', '.join(twice)}")
