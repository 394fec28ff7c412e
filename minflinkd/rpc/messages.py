"""Every message between parties, as typed immutable values (resources.md m1 - m13).

A `Request[R]` is answered by an `R`; a `Notice` is not answered. Requests are idempotent by the ids they carry, so a
sender may repeat one whose outcome it does not know. The fencing token travels in the envelope (rpc.network).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Generic, TypeVar

import msgspec

from minflinkd.jobgraph.faults import GraphFault
from minflinkd.jobgraph.model import Checkpointing, RuntimeMode, Task
from minflinkd.rpc.snapshot import TaskSnapshot
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import (
    AllocationId,
    AttemptId,
    InstanceId,
    JobId,
    LeaderId,
    ResourceId,
    TaskId,
    VertexId,
)

R = TypeVar("R")


class Message(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Request(Message, Generic[R], frozen=True):
    """Answered by an R, or by an error."""


class Notice(Message, frozen=True):
    """Not answered; may be lost, doubled or late without harm."""


class Done(Message, frozen=True):
    """The answer that carries nothing."""


# --- TaskManager: what it is and holds ---------------------------------------------------------------------------


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


# --- to the ResourceManager --------------------------------------------------------------------------------------


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
    """A TaskManager with a ready session, for the analysis of a submission; one is started where there is none."""

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


# --- to a TaskManager --------------------------------------------------------------------------------------------


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


class ArtifactRef(Message, frozen=True):
    name: str
    key: str
    size: int


class JobContext(Message, frozen=True):
    """What every task of a job is built with."""

    job_id: JobId
    name: str
    params: dict[str, Any]
    mode: RuntimeMode
    checkpointing: Checkpointing
    checkpoint_root: str  # URI of the job's checkpoint directory; physical files are named relative to it
    artifacts: tuple[ArtifactRef, ...] = ()
    spark: dict[str, str] = {}
    trigger_interval: float = 0.0
    libraries: tuple[Library, ...] = ()  # of the artifacts: what a session cannot hold in two versions (B31)


class TaskRestore(Message, frozen=True):
    """State of another parallelism than the task's is repartitioned by Spark before the query starts (R20, H6)."""

    checkpoint_id: int
    snapshot: TaskSnapshot


class DeployTask(Request[Done], frozen=True):
    """m12. Refused unless the allocation is bound to this job on the receiving TaskManager."""

    job: JobContext
    task: Task
    allocation_id: AllocationId
    attempt_id: AttemptId
    attempt_number: int
    job_leader_id: LeaderId
    restore: TaskRestore | None = None


class CancelTask(Request[Done], frozen=True):
    """Answered when the query has ended and nothing of the attempt is left. An unknown attempt is done already."""

    job_id: JobId
    attempt_id: AttemptId


class TriggerCheckpoint(Request[Done], frozen=True):
    """Answered when the trigger was taken, not when the snapshot is done (that is AcknowledgeCheckpoint)."""

    job_id: JobId
    attempt_id: AttemptId
    checkpoint_id: int
    epoch: int  # of the leader; part of physical file names


class NotifyCheckpointComplete(Request[Done], frozen=True):
    """Answered when the task's sinks have published the checkpoint's transactions."""

    job_id: JobId
    attempt_id: AttemptId
    checkpoint_id: int


class NotifyCheckpointAborted(Request[Done], frozen=True):
    """C13. Cancels the snapshot in whatever phase it is."""

    job_id: JobId
    attempt_id: AttemptId
    checkpoint_id: int


class FreeSlots(Request[Done], frozen=True):
    """The JobMaster gives allocations back: their tasks, if any are left, are cancelled first."""

    job_id: JobId
    allocations: tuple[AllocationId, ...]
    job_ended: bool = False  # for good: local copies of the job's snapshots and blobs go too


class TaskState(StrEnum):
    """An execution attempt as the TaskManager sees it."""

    DEPLOYING = "DEPLOYING"
    INITIALIZING = "INITIALIZING"  # restoring, building the query
    RUNNING = "RUNNING"
    INPUT_ENDED = "INPUT_ENDED"  # bounded input exhausted; waits for the final checkpoint
    CANCELING = "CANCELING"
    CANCELED = "CANCELED"
    FAILED = "FAILED"


class TaskMetrics(Message, frozen=True):
    """Since the attempt began, unless said otherwise."""

    batch_id: int = -1  # last finished micro-batch
    batches: int = 0
    rows_in: int = 0
    rows_out: int = 0  # staged by the files sinks
    batch_ms: float = 0.0  # of the last micro-batch
    rows_per_second: float = 0.0  # of the last micro-batch
    state_rows: int = 0
    state_bytes: int = 0
    watermark_ms: int | None = None
    first_batch_ms: float | None = None  # from deploy to the end of the first micro-batch


class TaskStatus(Message, frozen=True):
    attempt_id: AttemptId
    task_id: TaskId
    state: TaskState
    metrics: TaskMetrics = TaskMetrics()
    error: ErrorInfo | None = None
    phases: dict[str, float] = {}  # seconds spent in: artifacts, fetch, build, start


class JobHeartbeatAnswer(Message, frozen=True):
    """Everything that the TaskManager knows of the job: the truth for reconciliation (R10)."""

    allocations: tuple[AllocationId, ...]
    tasks: tuple[TaskStatus, ...]


class HeartbeatFromJobMaster(Request[JobHeartbeatAnswer], frozen=True):
    """Carries all allocations that the job holds there; one that the JobMaster does not know is freed (R10)."""

    job_id: JobId
    leader_id: LeaderId
    allocations: tuple[AllocationId, ...]


class Analysis(Message, frozen=True):
    faults: tuple[GraphFault, ...] = ()
    schemas: dict[VertexId, str] = {}  # DDL of what each vertex yields
    operators: dict[TaskId, tuple[str, ...]] = {}  # as in TaskSnapshot


class AnalyzeJob(Request[Analysis], frozen=True):
    """Build the job's DataFrames and let Spark analyse them, without starting anything."""

    job: JobContext
    tasks: tuple[Task, ...]


class LogFile(Message, frozen=True):
    name: str
    size: int


class ListLogs(Request[tuple[LogFile, ...]], frozen=True):
    pass


class LogMark(Message, frozen=True):
    """By which a log is known again: a file that was rotated or truncated does not continue what it marks."""

    file: str  # device and inode
    size: int
    end: str  # digest of the last bytes before `size`


class LogRange(Message, frozen=True):
    """Bytes of a log, here or in a blob; fewer than were asked for where the log or a message ends before."""

    mark: LogMark  # of the whole file now
    continues: bool = True  # it goes on from the mark that the reader knew
    data: bytes = b""
    blob: str = ""  # the key of a TRANSIENT blob of no job, with all that was asked for, as far as the log goes


class ReadLog(Request[LogRange], frozen=True):
    name: str
    offset: int = 0
    length: int = 65536
    known: LogMark | None = None  # where the log does not continue it, no bytes are read
    upload: bool = False  # as a blob, unless the BlobServer does not take it (B3)


class TaskManagerLost(Notice, frozen=True):
    """RM -> JM: faster than the JobMaster's own heartbeat."""

    resource_id: ResourceId
    reason: str


# --- to a JobMaster ----------------------------------------------------------------------------------------------


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


class TaskStateChanged(Request[Done], frozen=True):
    """Repeated until answered; also how a lost session child is told, one message a task."""

    resource_id: ResourceId
    status: TaskStatus


class TaskProgress(Notice, frozen=True):
    attempt_id: AttemptId
    metrics: TaskMetrics


class AcknowledgeCheckpoint(Request[Done], frozen=True):
    """C12: the upload is done. Refused where the checkpoint is no longer pending; its files are then the sender's."""

    job_id: JobId
    attempt_id: AttemptId
    snapshot: TaskSnapshot


class DeclineCheckpoint(Request[Done], frozen=True):
    job_id: JobId
    attempt_id: AttemptId
    checkpoint_id: int
    error: ErrorInfo


# --- around other messages ---------------------------------------------------------------------------------------


class BlobPart(Message, frozen=True):
    """A field of a message that lies in a blob."""

    field: str
    key: str
    size: int


class OffloadedAnswer(Message, frozen=True):
    """B3: the answer to the message that was offloaded, here or in a blob; MessagePack."""

    body: bytes = b""
    key: str = ""


class Offloaded(Request[OffloadedAnswer], frozen=True):
    """B3: a request whose large fields lie in blobs of the job. It stands for that request (blob.offloading)."""

    job_id: JobId
    type: str  # name of the request
    body: bytes  # its other fields; MessagePack
    parts: tuple[BlobPart, ...]
    patience: float  # seconds that the sender still waits


def _subclasses(kind: type[Message]) -> set[type[Message]]:
    found = {kind}
    child: type[Message]
    for child in kind.__subclasses__():
        found |= _subclasses(child)
    return found


def registry() -> dict[str, type[Message]]:
    """Message name -> class, for decoding. Names are stable: they are part of the protocol."""
    return {kind.__name__: kind for kind in _subclasses(Request) | _subclasses(Notice)}


def answer_type(request: type[Request[R]]) -> Any:
    """The R of a Request[R] class."""
    for base in getattr(request, "__orig_bases__", ()):
        args = getattr(base, "__args__", ())
        if args:
            return args[0]
    raise TypeError(f"{request.__name__} does not say what answers it")
