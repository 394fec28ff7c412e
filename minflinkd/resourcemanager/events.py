"""The events that the slot manager receives, and the commands that it issues. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from minflinkd.resourcemanager.sizes import TaskManagerSize
from minflinkd.rpc.messages import AllocateSlots, DeclareNeeds, Library, RegisterTaskManager, TaskManagerReport
from minflinkd.runtime.ids import AllocationId, InstanceId, JobId, LeaderId, ResourceId
from minflinkd.runtime.resource_profile import NO_PROFILE, ResourceProfile

# --- events ---


@dataclass(frozen=True)
class TaskManagersFound:
    """All TaskManagers that the launcher knows from an earlier ResourceManager.

    They have not registered here yet (R7).
    """

    resource_ids: tuple[ResourceId, ...]


@dataclass(frozen=True)
class TaskManagerRegistered:
    instance_id: InstanceId  # used only if this does not repeat a known registration
    hello: RegisterTaskManager


@dataclass(frozen=True)
class Reported:
    """A heartbeat, or a report between two heartbeats (m11)."""

    report: TaskManagerReport


@dataclass(frozen=True)
class TaskManagerFailed:
    """The TaskManager ended, could not be started, or was silent for too long."""

    resource_id: ResourceId
    reason: str


@dataclass(frozen=True)
class ExitAnswered:
    """The TaskManager was asked to exit, and answered yes, no or nothing."""

    resource_id: ResourceId
    reason: str


@dataclass(frozen=True)
class NeedsDeclared:
    declaration: DeclareNeeds


@dataclass(frozen=True)
class JobMasterGone:
    """The JobMaster needs nothing any more.

    `for_good`: its job has ended, and nothing that it sent before counts now.
    """

    job_id: JobId
    leader_id: LeaderId
    for_good: bool


@dataclass(frozen=True)
class JobsListed:
    """All jobs that had not ended when the Dispatcher was asked, which was after this ResourceManager began."""

    jobs: tuple[JobId, ...]


@dataclass(frozen=True)
class AllocationAnswered:
    """m8. The report gives the facts, even with a refusal."""

    allocation_id: AllocationId
    allocated: bool
    report: TaskManagerReport


@dataclass(frozen=True)
class AllocationUnknown:
    """m7: It was not answered, or was refused by a TaskManager that does not follow this leader yet."""

    resource_id: ResourceId
    allocation_id: AllocationId


@dataclass(frozen=True)
class StartWaits:
    """The launcher says why a TaskManager that it starts does not run yet; empty: nothing keeps it any more."""

    resource_id: ResourceId
    why: str


@dataclass(frozen=True)
class DrainAsked:
    """An operator wants to drain the TaskManager, or, with `undo`, to use it as before (A15b)."""

    resource_id: ResourceId
    undo: bool = False


@dataclass(frozen=True)
class DrainAnswered:
    """The TaskManager has followed `SendDraining`, or a later one."""

    number: int
    report: TaskManagerReport


@dataclass(frozen=True)
class SessionWanted:
    """An analysis needs any TaskManager with a ready session that holds no other version of these libraries.

    `exclusive`: one that no other job uses, with slots of this `profile`.
    """

    libraries: tuple[Library, ...] = ()
    exclusive: bool = False
    profile: ResourceProfile = NO_PROFILE


@dataclass(frozen=True)
class SessionLent:
    """The TaskManager analyses a submission, so it is not idle now."""

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
    | JobsListed
    | AllocationAnswered
    | AllocationUnknown
    | StartWaits
    | DrainAsked
    | DrainAnswered
    | SessionWanted
    | SessionLent
    | Tick
)

# --- commands ---


@dataclass(frozen=True)
class SendAllocate:
    """m7. The slots are already marked taken."""

    resource_id: ResourceId
    request: AllocateSlots
    again: bool = False  # the last one had no known outcome; pause before this one


@dataclass(frozen=True)
class StartTaskManager:
    """m3."""

    resource_id: ResourceId
    size: TaskManagerSize | None = None  # None: the default (R40)


@dataclass(frozen=True)
class SendExit:
    """Ask the TaskManager to exit. Its slots are no longer assigned."""

    resource_id: ResourceId
    reason: str


@dataclass(frozen=True)
class StopTaskManager:
    """Tell the launcher to end the TaskManager completely."""

    resource_id: ResourceId
    reason: str
    kill: bool  # at once, without asking its process


@dataclass(frozen=True)
class SendRenew:
    """Ask the TaskManager for a new session (R6a)."""

    resource_id: ResourceId
    reason: str


@dataclass(frozen=True)
class SendDraining:
    """Tell the TaskManager to drain, or to stop draining. Repeated until it answers."""

    resource_id: ResourceId
    draining: bool
    number: int


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
    job_masters: tuple[tuple[str, LeaderId], ...]  # address, and the intended leader


Command = (
    SendAllocate
    | StartTaskManager
    | SendExit
    | StopTaskManager
    | SendRenew
    | SendDraining
    | AnnounceJobMaster
    | NotifyLost
)
