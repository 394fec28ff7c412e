"""Between JobMasters and TaskManagers: tasks are analysed, deployed, watched and cancelled."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from minflinkd.jobgraph.faults import GraphFault
from minflinkd.jobgraph.model import Checkpointing, RuntimeMode, Task
from minflinkd.rpc.messages.base import Done, Message, Notice, Request
from minflinkd.rpc.messages.slots import Library
from minflinkd.rpc.snapshot import NO_ROWS, PlanNode, RowCounts, StateFile, TaskSnapshot
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import AllocationId, AttemptId, JobId, LeaderId, ResourceId, TaskId, VertexId


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
    allow_non_restored: bool = False  # state and offsets that the task has no place for may be left behind (C25)
    same_meaning: bool = False  # refuse state that is of something else now
    offsets: dict[str, str] = {}  # source -> Spark's offset: with these the task starts, and with empty state (C26)
    root: str = ""  # URI that the snapshot's physical files are relative to; "": the job's own checkpoints


class ExchangeSource(Message, frozen=True):
    """Where a task finds the exchange of the vertex that it reads: with the attempt that writes it."""

    vertex_id: VertexId
    attempt_id: AttemptId
    resource_id: ResourceId
    data_url: str = ""  # of that TaskManager's data endpoint


class DeployTask(Request[Done], frozen=True):
    """m12. Refused unless the allocation is bound to this job on the receiving TaskManager.

    All tasks that exchange data are deployed together, each with the attempts of the others (J9).
    """

    job: JobContext
    task: Task
    allocation_id: AllocationId
    attempt_id: AttemptId
    attempt_number: int
    job_leader_id: LeaderId
    restore: TaskRestore | None = None
    inputs: tuple[ExchangeSource, ...] = ()  # one for each of the task's


class CancelTask(Request[Done], frozen=True):
    """Answered when the query has ended and nothing of the attempt is left. An unknown attempt is done already.

    `completed`: the latest complete checkpoint. Sinks that commit by themselves do it first, if they have time enough:
    once the attempt is gone nobody can.
    """

    job_id: JobId
    attempt_id: AttemptId
    completed: int = 0


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
    rows_out: int = 0  # into its exchange, and to the sinks that know
    batch_ms: float = 0.0  # of the last micro-batch
    rows_per_second: float = 0.0  # of the last micro-batch
    state_rows: int = 0
    state_bytes: int = 0
    watermark_ms: int | None = None
    source_offsets: dict[str, str] = {}  # source -> Spark's offset as JSON, up to the last micro-batch
    first_batch_ms: float | None = None  # from deploy to the end of the first micro-batch
    output_backlog: int = 0  # bytes in its exchange that the slowest reader still needs
    backpressured: bool = False  # no micro-batch begins until its readers have caught up (J10)
    backpressured_ms: float = 0.0
    waited: bool = False  # has looked for rows and found none so far; until it has its first input
    advanced: bool = False  # a source is further than where the attempt began, whether or not Spark counts its rows
    rows: RowCounts = NO_ROWS


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


class HeldState(Message, frozen=True):
    """State that a task is to go on with: of which query, and the files in which Spark has described its types."""

    operators: tuple[PlanNode, ...]
    described: tuple[StateFile, ...]
    root: str  # URI that the physical files are relative to


class Analysis(Message, frozen=True):
    faults: tuple[GraphFault, ...] = ()
    schemas: dict[VertexId, str] = {}  # DDL of what each vertex yields
    operators: dict[TaskId, tuple[PlanNode, ...]] = {}  # as in TaskSnapshot
    verdicts: dict[TaskId, dict[int, str]] = {}  # of the operators for which there is state: "", or why it does not fit


class AnalyzeJob(Request[Analysis], frozen=True):
    """Build the job's DataFrames and let Spark analyse them, without starting anything."""

    job: JobContext
    tasks: tuple[Task, ...]
    held: dict[TaskId, HeldState] = {}


class TaskStateChanged(Request[Done], frozen=True):
    """Repeated until answered; also how a lost session child is told, one message a task."""

    resource_id: ResourceId
    status: TaskStatus


class TaskProgress(Notice, frozen=True):
    attempt_id: AttemptId
    metrics: TaskMetrics


class CollectedRow(Message, frozen=True):
    batch_id: int
    row: str  # JSON


class Collected(Message, frozen=True):
    """What a collect sink holds: the last rows, oldest first. `dropped`: rows before them, since the attempt began."""

    rows: tuple[CollectedRow, ...] = ()
    dropped: int = 0


class ReadCollected(Request[Collected], frozen=True):
    """Also of an attempt that has ended lately. Refused where the TaskManager does not know it."""

    attempt_id: AttemptId
    vertex_id: VertexId
