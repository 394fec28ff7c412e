"""What the slot manager is told, and what it commands. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from minflinkd.rpc.messages import AllocateSlots, DeclareNeeds, Library, RegisterTaskManager, TaskManagerReport
from minflinkd.runtime.ids import AllocationId, InstanceId, JobId, LeaderId, ResourceId

# --- events ---


@dataclass(frozen=True)
class TaskManagersFound:
    """All that the driver knows from an earlier ResourceManager; they have not registered with this one (R7)."""

    resource_ids: tuple[ResourceId, ...]


@dataclass(frozen=True)
class TaskManagerRegistered:
    instance_id: InstanceId  # taken only where this is no repetition of a known registration
    hello: RegisterTaskManager


@dataclass(frozen=True)
class Reported:
    """A heartbeat, or m11."""

    report: TaskManagerReport


@dataclass(frozen=True)
class TaskManagerFailed:
    """It ended, could not be started, or nothing was heard of it for too long."""

    resource_id: ResourceId
    reason: str


@dataclass(frozen=True)
class ExitAnswered:
    """It was asked to exit, and said yes, no or nothing."""

    resource_id: ResourceId
    reason: str


@dataclass(frozen=True)
class NeedsDeclared:
    declaration: DeclareNeeds


@dataclass(frozen=True)
class JobMasterGone:
    """It needs nothing any more. `for_good`: it has said so itself; nothing that it sent before counts now."""

    job_id: JobId
    leader_id: LeaderId
    for_good: bool


@dataclass(frozen=True)
class AllocationAnswered:
    """m8. Also with a no, the report says what is so."""

    allocation_id: AllocationId
    allocated: bool
    report: TaskManagerReport


@dataclass(frozen=True)
class AllocationUnknown:
    """m7 was not answered, or refused by a TaskManager that does not follow this leader yet."""

    resource_id: ResourceId
    allocation_id: AllocationId


@dataclass(frozen=True)
class SessionWanted:
    """For an analysis: any TaskManager with a ready session will do that holds no other version of these."""

    libraries: tuple[Library, ...] = ()


@dataclass(frozen=True)
class SessionLent:
    """The TaskManager analyses a submission: it is not idle now."""

    resource_id: ResourceId


@dataclass(frozen=True)
class Tick:
    pass


Event = (
    TaskManagersFound
    | TaskManagerRegistered
    | Reported
    | TaskManagerFailed
    | ExitAnswered
    | NeedsDeclared
    | JobMasterGone
    | AllocationAnswered
    | AllocationUnknown
    | SessionWanted
    | SessionLent
    | Tick
)

# --- commands ---


@dataclass(frozen=True)
class SendAllocate:
    """m7. The slots are marked taken already."""

    resource_id: ResourceId
    request: AllocateSlots
    again: bool = False  # the last one had no known outcome; pause before this one


@dataclass(frozen=True)
class StartTaskManager:
    """m3."""

    resource_id: ResourceId


@dataclass(frozen=True)
class SendExit:
    """Ask it to exit; slots of it are given away no more."""

    resource_id: ResourceId
    reason: str


@dataclass(frozen=True)
class StopTaskManager:
    """Of the driver: nothing is to be left of it."""

    resource_id: ResourceId
    reason: str
    kill: bool  # at once, without asking its process


@dataclass(frozen=True)
class SendRenew:
    """Ask it for a new session (R6a)."""

    resource_id: ResourceId
    reason: str


@dataclass(frozen=True)
class AnnounceJobMaster:
    """Tell the TaskManagers that hold slots of the job who leads it now (R13)."""

    job_id: JobId
    leader_id: LeaderId
    resource_ids: tuple[ResourceId, ...]


@dataclass(frozen=True)
class NotifyLost:
    """Tell the JobMasters that held slots there (m13)."""

    resource_id: ResourceId
    reason: str
    job_masters: tuple[tuple[str, LeaderId], ...]  # address, and the leader that is meant


Command = SendAllocate | StartTaskManager | SendExit | StopTaskManager | SendRenew | AnnounceJobMaster | NotifyLost
