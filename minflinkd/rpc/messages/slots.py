"""Messages between TaskManagers, ResourceManager and JobMasters: who exists, and who holds which slots (m1 - m13)."""

from __future__ import annotations

from enum import StrEnum

from minflinkd.rpc.messages.base import Done, Message, Notice, Request
from minflinkd.runtime.ids import AllocationId, InstanceId, JobId, LeaderId, ResourceId
from minflinkd.runtime.resource_profile import NO_PROFILE, ResourceProfile


class SessionPhase(StrEnum):
    """State of a TaskManager's session child. A TaskManager offers slots only if it is READY."""

    STARTING = "starting"
    READY = "ready"
    LOST = "lost"


class Hardware(Message, frozen=True):
    cpu_cores: int
    memory_bytes: int


class SlotStatus(Message, frozen=True):
    """One slot and its holder; both ids are None if it is free."""

    index: int
    job_id: JobId | None = None
    allocation_id: AllocationId | None = None


class Library(Message, frozen=True, order=True):
    """Code that one session cannot hold in two versions: a unit of names (a Java package, a native module).

    Two libraries with the same unit and different digests do not fit into one session (B31).
    """

    unit: str  # `java:com/acme/rules`, `native:acme_fast`
    digest: str  # SHA-256 of the artifact


class TaskManagerReport(Message, frozen=True):
    """The complete state of a TaskManager (R8): all its slots, and the state of its session."""

    resource_id: ResourceId
    slots: tuple[SlotStatus, ...]
    session: SessionPhase
    session_generation: int = 0  # children started so far
    session_error: str = ""  # why its last start failed; "" once a start succeeds (R5)
    session_slow: str = ""  # a warning that the current start takes long
    session_steps: int = 0  # progress of all starts so far: while it grows, a slow start does not hang
    session_aged: bool = False  # over a limit on threads, descriptors or memory: replaced when idle (R6a)
    analysing: bool = False  # its session analyses a submitted job, so it is not idle
    draining: bool = False  # it gives out no slots, and ends when all are free (A15b)
    dedicated_to: JobId | None = None  # `isolation: job`: no other job gets slots here
    libraries: tuple[Library, ...] = ()  # those that its session holds, or will hold (B31)
    version: int = 0  # of the slot table; a report with an earlier version than the last one is ignored (R8)
    metrics: dict[str, float] = {}  # process.*, session.*: bytes, counts, seconds


class TaskManagerInfo(Message, frozen=True):
    """A registered TaskManager, as the ResourceManager reports it."""

    resource_id: ResourceId
    instance_id: InstanceId
    address: str
    pid: int
    hardware: Hardware
    registered_ms: int
    last_heartbeat_ms: int
    log_directory: str
    report: TaskManagerReport
    start_phases: dict[str, float] = {}  # seconds from process start to: session, first_job, warm
    build: str = ""  # as in RegisterTaskManager
    standalone: bool = False
    drained: bool = False  # it was told to drain, even if it does not report this yet
    held_by: dict[JobId, str] = {}  # while it is draining: the jobs on it, and why they are still there
    slot_profile: ResourceProfile = NO_PROFILE  # as in RegisterTaskManager


class Registered(Message, frozen=True):
    """m5. What a TaskManager must know about the cluster. It does not follow a leader earlier than one it has seen."""

    instance_id: InstanceId
    leader_id: LeaderId
    heartbeat_interval: float  # seconds
    heartbeat_timeout: float
    blob_url: str = ""  # of the BlobServer
    blob_store: str = ""  # URI of the HA store of blobs
    job_masters: dict[JobId, LeaderId] = {}  # as in HeartbeatAnswer
    ended_jobs: tuple[JobId, ...] = ()  # as in HeartbeatAnswer


class RegisterTaskManager(Request[Registered], frozen=True):
    """m4, m6. Registering again with a known resource id replaces the old registration (R9)."""

    address: str
    pid: int
    hardware: Hardware
    log_directory: str
    report: TaskManagerReport
    standalone: bool = False  # started by hand or by systemd: not stopped when idle, not restarted
    nonce: str = ""  # identifies the process: a new one may have the pid of the previous one
    data_url: str = ""  # of its data endpoint
    build: str = ""  # its version of minflinkd, which may differ from the daemon's if an earlier daemon started it
    slot_profile: ResourceProfile = NO_PROFILE  # what each of its slots has (R40); nothing: not known


class HeartbeatAnswer(Message, frozen=True):
    """`job_masters` names the current JobMaster, if known, of every job that holds slots on the sender.

    It is always complete (R8). When a TaskManager learns of a later leader of a job, it offers that leader the job's
    slots, with the tasks that run on them (R13). `ended_jobs` names the jobs among those on the sender that have ended
    for good: nobody will take their slots or tasks back.
    """

    job_masters: dict[JobId, LeaderId] = {}
    ended_jobs: tuple[JobId, ...] = ()


class HeartbeatFromTaskManager(Request[HeartbeatAnswer], frozen=True):
    """Refused with `unknown-task-manager` if the sender must register again."""

    instance_id: InstanceId
    report: TaskManagerReport
    start_phases: dict[str, float] = {}


class SlotsFree(Notice, frozen=True):
    """m11: the complete state again, sent as soon as a slot becomes free or the session changes its phase."""

    report: TaskManagerReport
    instance_id: InstanceId | None = None  # the registration that it belongs to


class SlotNeed(Message, frozen=True):
    """One allocation that a job wants: `slots` slots on one TaskManager.

    With `least`, fewer are enough: as many as there are, but at least `least`, are given at once (R20). A job that
    wants to grow names in `beside` a TaskManager on which it already holds `held` slots. There, `slots - held` more are
    as good as `slots` on another TaskManager, and `least - held` are enough.
    """

    allocation_id: AllocationId
    slots: int
    least: int = 0  # 0: all of them
    beside: ResourceId | None = None
    held: int = 0  # of `beside`
    group: str = ""  # slot sharing group, for messages to users
    profile: ResourceProfile = NO_PROFILE  # what each slot must have (R40)


class NeedsAnswer(Message, frozen=True):
    refused: dict[AllocationId, str] = {}  # why a need can never be served
    waiting: dict[AllocationId, str] = {}  # why a need is not served yet (R5)
    largest: int = 0  # slots of the largest TaskManager that can exist; 0: unknown, others may register
    hot_standby: ResourceId | None = None  # where the job would run if it lost its TaskManagers now; None: nowhere


class DeclareNeeds(Request[NeedsAnswer], frozen=True):
    """m1, m13 and the JobMaster's heartbeat in one: everything that a job still wants (R8), repeated every interval.

    The first one registers the JobMaster. A need that is no longer declared is cancelled.
    """

    job_id: JobId
    leader_id: LeaderId  # of the JobMaster
    address: str
    version: int  # a declaration with an earlier version than the last one is ignored
    needs: tuple[SlotNeed, ...]
    held: tuple[AllocationId, ...] = ()
    exclusive: bool = False  # `isolation: job`: the job has its own TaskManagers, which end with it (R24)
    libraries: tuple[Library, ...] = ()  # slots only in sessions that hold no other version of them (B31)
    hot_standby: bool = False  # the answer names the TaskManager that should prepare itself for the job
    standby_profile: ResourceProfile = NO_PROFILE  # what its slots must have: as much as any group of the job wants


class JobMasterEnded(Request[Done], frozen=True):
    """Dispatcher -> RM: the job has ended for good, and its JobMasters need nothing any more."""

    job_id: JobId
    leader_id: LeaderId  # that of its last JobMaster, or a later one


class JobsToRun(Message, frozen=True):
    jobs: tuple[JobId, ...]


class ListJobsToRun(Request[JobsToRun], frozen=True):
    """RM -> Dispatcher: which jobs have not ended, as far as it can tell?

    It answers once it has recovered them. A job that no earlier ResourceManager can have known may be missing.
    """


class SessionFound(Message, frozen=True):
    address: str | None = None  # None: none yet; ask again
    refused: str = ""  # why there will be none
    waiting: str = ""  # why there is none yet; perhaps none will be started


class FindSession(Request[SessionFound], frozen=True):
    """Find a TaskManager with a ready session to analyse a submission. If there is none, one is started.

    A TaskManager on which the job holds slots is preferred: a deployment there reuses what the analysis builds.
    """

    job_id: JobId | None = None
    libraries: tuple[Library, ...] = ()  # the analysis loads them into the session
    exclusive: bool = False  # `isolation: job`: one that no other job uses
    profile: ResourceProfile = NO_PROFILE  # with `exclusive`: what its slots should have, as they become the job's own


class ListTaskManagers(Request[tuple[TaskManagerInfo, ...]], frozen=True):
    pass


class StartingTaskManager(Message, frozen=True):
    resource_id: ResourceId
    since_ms: int
    waiting: str = ""  # why its process does not run yet, as far as its launcher knows


class TaskManagerLoss(Message, frozen=True):
    """A TaskManager that was registered and is gone, though nobody told it to end."""

    resource_id: ResourceId
    at_ms: int
    reason: str


class ResourceOverview(Message, frozen=True):
    task_managers: int
    slots_total: int
    slots_free: int
    starting: tuple[StartingTaskManager, ...] = ()
    lost: int = 0
    pending_needs: int = 0
    losses: tuple[TaskManagerLoss, ...] = ()  # the last ones of this ResourceManager, newest first


class GetResourceOverview(Request[ResourceOverview], frozen=True):
    pass


class SlotAnswer(Message, frozen=True):
    """m8. If `allocated` is false, the ResourceManager corrects its view from `report`."""

    allocated: bool
    report: TaskManagerReport


class AllocateSlots(Request[SlotAnswer], frozen=True):
    """m7, from the ResourceManager, which marks the slots as taken before it sends this."""

    job_id: JobId
    allocation_id: AllocationId
    slots: tuple[int, ...]
    job_master: str  # address
    job_leader_id: LeaderId
    exclusive: bool = False  # from now on no other job gets slots here; refused if another job has some
    libraries: tuple[Library, ...] = ()  # refused if the session holds another version of one


class JobMasterChanged(Notice, frozen=True):
    """RM -> TM, sent at once; HeartbeatAnswer repeats it."""

    job_id: JobId
    leader_id: LeaderId


class RenewSession(Request[Done], frozen=True):
    """RM -> TM: replace the session child (R6a). Refused with `conflict` if a slot is taken."""

    reason: str


class DrainTaskManager(Request[Done], frozen=True):
    """An operator -> RM: give out no more slots of this TaskManager. Its jobs move away, and it ends (A15b).

    With `undo`, it is used as before. Refused with `not-found` if it is not registered.
    """

    resource_id: ResourceId
    undo: bool = False


class SetDraining(Request[TaskManagerReport], frozen=True):
    """RM -> TM: begin or stop to drain. Its reports then say so, also to the next ResourceManager."""

    draining: bool
    number: int  # grows with every request of this ResourceManager; a request with a lower number changes nothing


class JobsHeld(Message, frozen=True):
    why: dict[JobId, str] = {}  # why each job is still there; "" while it moves


class MoveJobs(Request[JobsHeld], frozen=True):
    """RM -> Dispatcher: move these jobs away; they hold slots of draining TaskManagers.

    Answered at once. The request is repeated with every heartbeat interval, and names all such jobs.
    """

    jobs: tuple[JobId, ...]


class ExitTaskManager(Request[Done], frozen=True):
    reason: str


class FreeSlots(Request[Done], frozen=True):
    """The JobMaster returns allocations. Tasks that are left in them are cancelled first. May be repeated."""

    job_id: JobId
    allocations: tuple[AllocationId, ...]
    surplus: dict[AllocationId, tuple[int, ...]] = {}  # slots to free in allocations that it otherwise keeps
    job_ended: bool = False  # for good: local copies of the job's snapshots and blobs are deleted too


class TaskManagerLost(Notice, frozen=True):
    """RM -> JM: arrives sooner than the timeout of the JobMaster's own heartbeat."""

    resource_id: ResourceId
    reason: str
