"""Between TaskManagers, ResourceManager and JobMasters: who there is, and which slots are whose (m1 - m13)."""

from __future__ import annotations

from enum import StrEnum

from minflinkd.rpc.messages.base import Done, Message, Notice, Request
from minflinkd.runtime.ids import AllocationId, InstanceId, JobId, LeaderId, ResourceId


class SessionPhase(StrEnum):
    """The session child of a TaskManager. Slots are offered only by a READY one."""

    STARTING = "starting"
    READY = "ready"
    LOST = "lost"


class Hardware(Message, frozen=True):
    cpu_cores: int
    memory_bytes: int


class SlotStatus(Message, frozen=True):
    """One slot, and who holds it: both None when it is free."""

    index: int
    job_id: JobId | None = None
    allocation_id: AllocationId | None = None


class Library(Message, frozen=True, order=True):
    """Code that one session cannot hold twice: a unit of names (a Java package, a native module) and what defines it.

    Two of the same unit and of different digests do not fit into one session (B31).
    """

    unit: str  # `java:com/acme/rules`, `native:acme_fast`
    digest: str  # SHA-256 of the artifact


class TaskManagerReport(Message, frozen=True):
    """The whole view of a TaskManager (R8): all its slots, and what its session is worth."""

    resource_id: ResourceId
    slots: tuple[SlotStatus, ...]
    session: SessionPhase
    session_generation: int = 0  # children started so far
    session_error: str = ""  # why its last start failed, until one succeeds (R5)
    session_slow: str = ""  # a warning about a start that takes long, and is waited for
    session_steps: int = 0  # of progress that starts have made so far: while it grows, a slow start does not hang
    session_aged: bool = False  # beyond a bound on threads, descriptors or memory: to be replaced when idle (R6a)
    dedicated_to: JobId | None = None  # `isolation: job`: no other job gets slots here
    libraries: tuple[Library, ...] = ()  # that its session holds, or will (B31)
    version: int = 0  # of the slot table; a report older than the last one seen changes nothing (R8)
    metrics: dict[str, float] = {}  # process.*, session.*: bytes, counts, seconds


class TaskManagerInfo(Message, frozen=True):
    """A registered TaskManager as the ResourceManager shows it."""

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


class Registered(Message, frozen=True):
    """m5. What a TaskManager must know of the cluster; a leader earlier than one seen before is not followed."""

    instance_id: InstanceId
    leader_id: LeaderId
    heartbeat_interval: float  # seconds
    heartbeat_timeout: float
    blob_url: str = ""  # of the BlobServer
    blob_store: str = ""  # URI of the HA store of blobs
    job_masters: dict[JobId, LeaderId] = {}  # as in HeartbeatAnswer


class RegisterTaskManager(Request[Registered], frozen=True):
    """m4, carrying m6. Registering again with a known resource id replaces the old registration (R9)."""

    address: str
    pid: int
    hardware: Hardware
    log_directory: str
    report: TaskManagerReport
    standalone: bool = False  # started by hand or by systemd: never stopped for being idle, nor started anew
    nonce: str = ""  # of the process: one that was started anew may have the pid of the one before
    data_url: str = ""  # of its data endpoint


class HeartbeatAnswer(Message, frozen=True):
    """`job_masters`: the present JobMaster of every job that holds slots on the sender, as far as it is known.

    The whole view (R8). A TaskManager that learns of a later leader of a job ends the earlier one's tasks and offers
    the job's slots to the later one (R13).
    """

    job_masters: dict[JobId, LeaderId] = {}


class HeartbeatFromTaskManager(Request[HeartbeatAnswer], frozen=True):
    """Refused with `unknown-task-manager` where the sender must register again."""

    instance_id: InstanceId
    report: TaskManagerReport
    start_phases: dict[str, float] = {}


class SlotsFree(Notice, frozen=True):
    """m11: the whole view again, sent at once when a slot falls free or the session changes its phase."""

    report: TaskManagerReport
    instance_id: InstanceId | None = None  # the registration that it belongs to


class SlotNeed(Message, frozen=True):
    """One allocation that a job wants: `slots` slots of one TaskManager.

    With `least`, fewer will do: as many as there are, from `least` on, are given at once (R20). A job that would grow
    names in `beside` a TaskManager of which it holds `held` slots already: there `slots - held` more are as good as
    `slots` of another one, and `least - held` are enough.
    """

    allocation_id: AllocationId
    slots: int
    least: int = 0  # 0: all of them
    beside: ResourceId | None = None
    held: int = 0  # of `beside`
    group: str = ""  # slot sharing group, for messages


class NeedsAnswer(Message, frozen=True):
    refused: dict[AllocationId, str] = {}  # why each refused one cannot be served
    waiting: dict[AllocationId, str] = {}  # why each of the others is not served yet (R5)
    largest: int = 0  # slots of the largest TaskManager that can be; 0: others may come


class DeclareNeeds(Request[NeedsAnswer], frozen=True):
    """m1, m13 and the JobMaster's heartbeat in one: all that a job still wants (R8), repeated every interval.

    The first one registers the JobMaster; a need that is no longer declared is cancelled.
    """

    job_id: JobId
    leader_id: LeaderId  # of the JobMaster
    address: str
    version: int  # a declaration older than the last one seen changes nothing
    needs: tuple[SlotNeed, ...]
    held: tuple[AllocationId, ...] = ()
    exclusive: bool = False  # `isolation: job`: TaskManagers of its own, which end with it (R24)
    libraries: tuple[Library, ...] = ()  # only where sessions hold no other version of them (B31)


class JobMasterEnded(Request[Done], frozen=True):
    """The JobMaster needs nothing any more and will not beat again."""

    job_id: JobId
    leader_id: LeaderId


class SessionFound(Message, frozen=True):
    address: str | None = None  # None: not yet; ask again
    refused: str = ""  # why there will be none
    waiting: str = ""  # why there is none yet, and perhaps none will be started


class FindSession(Request[SessionFound], frozen=True):
    """A TaskManager with a ready session, for the analysis of a submission; one is started where there is none.

    One that holds slots of the job rather than another: what the analysis builds serves a deployment there.
    """

    job_id: JobId | None = None
    libraries: tuple[Library, ...] = ()  # the analysis brings them into the session


class ListTaskManagers(Request[tuple[TaskManagerInfo, ...]], frozen=True):
    pass


class StartingTaskManager(Message, frozen=True):
    resource_id: ResourceId
    since_ms: int


class ResourceOverview(Message, frozen=True):
    task_managers: int
    slots_total: int
    slots_free: int
    starting: tuple[StartingTaskManager, ...] = ()
    lost: int = 0
    pending_needs: int = 0


class GetResourceOverview(Request[ResourceOverview], frozen=True):
    pass


class SlotAnswer(Message, frozen=True):
    """m8. Where `allocated` is false, `report` is the truth by which the ResourceManager corrects its view."""

    allocated: bool
    report: TaskManagerReport


class AllocateSlots(Request[SlotAnswer], frozen=True):
    """m7, from the ResourceManager, which has marked the slots taken before it sends."""

    job_id: JobId
    allocation_id: AllocationId
    slots: tuple[int, ...]
    job_master: str  # address
    job_leader_id: LeaderId
    exclusive: bool = False  # from now on no other job gets slots here; refused where another has some
    libraries: tuple[Library, ...] = ()  # refused where the session holds another version of one


class JobMasterChanged(Notice, frozen=True):
    """RM -> TM, at once; HeartbeatAnswer says the same again."""

    job_id: JobId
    leader_id: LeaderId


class RenewSession(Request[Done], frozen=True):
    """RM -> TM: replace the session child (R6a). Refused with `conflict` where a slot is taken."""

    reason: str


class ExitTaskManager(Request[Done], frozen=True):
    reason: str


class FreeSlots(Request[Done], frozen=True):
    """The JobMaster gives allocations back: their tasks, if any are left, are cancelled first. May be repeated."""

    job_id: JobId
    allocations: tuple[AllocationId, ...]
    surplus: dict[AllocationId, tuple[int, ...]] = {}  # slots of allocations that it keeps: the others go on
    job_ended: bool = False  # for good: local copies of the job's snapshots and blobs go too


class TaskManagerLost(Notice, frozen=True):
    """RM -> JM: faster than the JobMaster's own heartbeat."""

    resource_id: ResourceId
    reason: str


class SlotOffer(Message, frozen=True):
    allocation_id: AllocationId
    slots: tuple[int, ...]


class OffersAccepted(Message, frozen=True):
    """m10. What is not in it, the TaskManager frees."""

    accepted: tuple[AllocationId, ...]


class OfferSlots(Request[OffersAccepted], frozen=True):
    """m9: all allocations of the job on this TaskManager."""

    resource_id: ResourceId
    address: str
    offers: tuple[SlotOffer, ...]
    version: int = 0  # grows with every offer; the answer to an earlier one than the last is dropped (R8)
    data_url: str = ""  # where tasks on other TaskManagers read this one's exchanges
