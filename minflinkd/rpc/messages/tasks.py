"""Messages between JobMasters and TaskManagers that analyse, deploy, watch and cancel tasks."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from minflinkd.jobgraph.faults import GraphFault
from minflinkd.jobgraph.input_range import Limits
from minflinkd.jobgraph.model import Checkpointing, Execution, RecordFormat, RuntimeMode, Task
from minflinkd.rpc.messages.base import Done, Message, Notice, Request
from minflinkd.rpc.messages.slots import Library
from minflinkd.rpc.snapshot import NO_ROWS, PlanNode, RowCounts, StateFile, TaskSnapshot
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import AllocationId, AttemptId, JobId, LeaderId, ResourceId, TaskId, VertexId
from minflinkd.runtime.resource_profile import NO_PROFILE, ResourceProfile


class ArtifactRef(Message, frozen=True):
    name: str
    key: str
    size: int


class JobContext(Message, frozen=True):
    """What all tasks of a job are built with."""

    job_id: JobId
    name: str
    params: dict[str, Any]
    mode: RuntimeMode
    checkpointing: Checkpointing
    checkpoint_root: str  # URI of the job's checkpoint directory; physical files are named relative to it
    artifacts: tuple[ArtifactRef, ...] = ()
    spark: dict[str, str] = {}
    trigger_interval: float = 0.0
    execution: Execution = Execution.MICRO_BATCH
    limits: Limits | None = None  # of a job that reads the rows of some time only
    libraries: tuple[Library, ...] = ()  # in the artifacts; a session cannot hold one in two versions (B31)
    version: str = ""  # of the graph, `jobgraph.model.version_of`; only tasks of the current one are adopted (A14a)


class TaskRestore(Message, frozen=True):
    """What a task restores.

    Spark repartitions state with another number of partitions before the query starts (R20, H6).
    """

    checkpoint_id: int
    snapshot: TaskSnapshot
    allow_non_restored: bool = False  # state and offsets that the task has no place for may be dropped (C25)
    same_meaning: bool = False  # refuse state that means something else in the new query
    offsets: dict[str, str] = {}  # source -> Spark's offset: start from these, with empty state (C26)
    root: str = ""  # URI that the snapshot's physical files are relative to; "": the job's own checkpoints


class ExchangeSource(Message, frozen=True):
    """Where a task finds the exchange that it reads: the vertex, and the attempt that writes it."""

    vertex_id: VertexId
    attempt_id: AttemptId
    resource_id: ResourceId
    data_url: str = ""  # of that TaskManager's data endpoint


class DeployTask(Request[Done], frozen=True):
    """m12. Refused unless the allocation is bound to this job on the receiving TaskManager.

    It is told the attempts that it reads from. They are deployed at the same time (J9), or run on (R16).
    """

    job: JobContext
    task: Task
    allocation_id: AllocationId
    attempt_id: AttemptId
    attempt_number: int
    job_leader_id: LeaderId
    restore: TaskRestore | None = None
    inputs: tuple[ExchangeSource, ...] = ()  # one for each of the task's inputs
    base: RowCounts = NO_ROWS  # rows of earlier attempts, for a JobMaster that adopts this one
    partitions: int = 0  # of its state, of which `task.parallelism` are computed at a time; 0: as many as that
    oldest: int = 0  # earlier checkpoints have ended; tasks that run on may have written their barriers


class CancelTask(Request[Done], frozen=True):
    """Answered when the query has ended and nothing of the attempt is left; for an unknown attempt, at once.

    `completed` is the latest completed checkpoint. Sinks that commit by themselves commit up to it first, if there is
    time: once the attempt is gone, nobody can.
    """

    job_id: JobId
    attempt_id: AttemptId
    completed: int = 0


class ResizeTask(Request[Done], frozen=True):
    """Give a running task another number of slots from its next micro-batch on. May be repeated.

    The partitions of its state stay; it computes as many of them at a time as it has slots. Refused if the task does
    not run, or has a plan that was made for the slots that it had.
    """

    job_id: JobId
    attempt_id: AttemptId
    parallelism: int


class TaskState(StrEnum):
    """An execution attempt as the TaskManager sees it."""

    DEPLOYING = "DEPLOYING"
    INITIALIZING = "INITIALIZING"  # restoring, building the query
    RUNNING = "RUNNING"
    INPUT_ENDED = "INPUT_ENDED"  # the bounded input is exhausted; waits for the final checkpoint
    CANCELING = "CANCELING"
    CANCELED = "CANCELED"
    FAILED = "FAILED"


class BatchWork(Message, frozen=True):
    """What the partitions of one slow micro-batch did. A sample: not every micro-batch is looked at.

    Rows and times of `others` are means of the partitions beside the slowest one, of the stage that took longest.
    """

    batch_id: int
    batch_ms: float
    partitions: int = 0
    longest_ms: float = 0.0
    others_ms: float = 0.0
    most_rows: int = 0
    other_rows: float = 0.0
    task_ms: float = 0.0  # of all partitions of all stages
    python_ms: float = 0.0  # of these, in Python functions
    uneven_ms: float = 0.0  # that an even distribution would save, in all stages together


class SinkCompactions(Message, frozen=True):
    """What compactions of a sink's table have done since the attempt began (K5)."""

    done: int = 0
    failed: int = 0
    files: int = 0  # that were joined
    into: int = 0  # so many
    overtaken: int = 0  # commits that were given up, because another one was first
    deleted: int = 0  # files that only expired versions had
    last_ms: int = 0  # time of day at which the last one ended
    failure: str = ""  # of the last one


MOST_PARTS = 64  # of a source that are told one by one


class PendingRecords(Message, frozen=True):
    """Records of Kafka after what a task has processed, of one source, when its brokers were asked last (K9)."""

    records: int = 0
    partitions: int = 0
    parts: dict[str, int] = {}  # by partition, such as `clicks.0`; at most MOST_PARTS, those with most records


# Milliseconds up to which latencies are counted: those below 1, below 2, below 4, ... and then all.
LATENCY_BOUNDS = tuple(1 << power for power in range(17))


class RealTimeFigures(Message, frozen=True):
    """Figures of a task in real-time mode, while its batch runs (T5).

    A latency is the time from a record's timestamp until the stage that read it was done with it. Quantiles are of the
    last second or so. None: no rows.
    """

    rows: int = 0  # read since the attempt began
    rows_per_second: float = 0.0
    p50_ms: int | None = None
    p99_ms: int | None = None
    longest_ms: int | None = None
    latency_counts: tuple[
        int, ...
    ] = ()  # since the attempt began: rows below each of LATENCY_BOUNDS, and all; (): none
    latency_sum_ms: int = 0  # of all rows since the attempt began
    cut_pause_ms: float | None = None  # for which the last end of a batch kept rows waiting; None: none has ended yet


class TaskMetrics(Message, frozen=True):
    """Figures since the attempt began, unless noted otherwise."""

    batch_id: int = -1  # last finished micro-batch
    batches: int = 0
    rows_in: int = 0
    rows_out: int = 0  # into its exchange, and into the sinks that count rows
    batch_ms: float = 0.0  # of the last micro-batch
    busy_ms: float = 0.0  # of all micro-batches together
    rows_per_second: float = 0.0  # of the last micro-batch
    state_rows: int = 0
    state_bytes: int = 0
    watermark_ms: int | None = None  # None: the query has none; 0: no row has moved it yet
    source_offsets: dict[str, str] = {}  # source -> Spark's offset as JSON, up to the last micro-batch
    first_batch_ms: float | None = None  # from deploy to the end of the first micro-batch
    output_backlog: int = 0  # bytes in its exchange that the slowest reader still needs
    replayable: bool = False  # its exchange has all that its readers need to restart from the latest checkpoint alone
    backpressured: bool = False  # no micro-batch starts until its readers have caught up (J10)
    backpressured_ms: float = 0.0
    waited: bool = False  # has looked for input and found none; false after the first input
    advanced: bool = False  # a source has moved since the attempt began, whether or not Spark counts its rows
    rows: RowCounts = NO_ROWS
    batch_phases: dict[str, float] = {}  # milliseconds of the last micro-batch, by Spark's names in `durationMs`
    commit_ms: float = 0.0  # of the last micro-batch: writing state, on average over the partitions
    late_rows: int = 0  # dropped, because the watermark had passed them
    newest_ms: int | None = None  # latest event time of the last micro-batch with rows
    watermark_moved_ms: int | None = None  # time of day at which the watermark last moved
    source_rows_ms: dict[str, int] = {}  # vertex -> time of day of the last micro-batch in which it delivered rows
    batch_since_ms: int | None = None  # when the running micro-batch began, if that is long ago
    waits_for_space: str = ""  # which disk is too full for another micro-batch; "": none
    work: BatchWork | None = None
    compactions: dict[str, SinkCompactions] = {}  # by sink, once there was one
    real_time: RealTimeFigures | None = None  # in real-time mode
    pending: dict[str, PendingRecords] = {}  # by source of Kafka; those whose brokers do not answer are left out


class TaskStatus(Message, frozen=True):
    attempt_id: AttemptId
    task_id: TaskId
    state: TaskState
    metrics: TaskMetrics = TaskMetrics()
    error: ErrorInfo | None = None
    phases: dict[str, float] = {}  # seconds spent in: artifacts, fetch, build, start


class JobHeartbeatAnswer(Message, frozen=True):
    """Everything that the TaskManager knows about the job. Reconciliation goes by it (R10)."""

    allocations: tuple[AllocationId, ...]
    tasks: tuple[TaskStatus, ...]
    draining: bool = False  # the TaskManager is draining: its tasks keep running, but no more are deployed there


class HeartbeatFromJobMaster(Request[JobHeartbeatAnswer], frozen=True):
    """Names all allocations that the job holds there. The TaskManager frees any other allocation of the job (R10)."""

    job_id: JobId
    leader_id: LeaderId
    allocations: tuple[AllocationId, ...]


class HeldState(Message, frozen=True):
    """State that a task will restore: the query it is from, and the files in which Spark describes its types."""

    operators: tuple[PlanNode, ...]
    described: tuple[StateFile, ...]
    root: str  # URI that the physical files are relative to


class ScriptQueries(Message, frozen=True):
    """What the queries of a script make of a job: a part of its document, and what the user should know of it."""

    document: dict[str, Any]
    notes: tuple[str, ...] = ()


class Analysis(Message, frozen=True):
    faults: tuple[GraphFault, ...] = ()
    schemas: dict[VertexId, str] = {}  # DDL of each vertex's output
    operators: dict[TaskId, tuple[PlanNode, ...]] = {}  # as in TaskSnapshot
    verdicts: dict[TaskId, dict[int, str]] = {}  # by operator with state: "", or why the state does not fit
    plans: dict[TaskId, str] = {}  # Spark's physical plan of a micro-batch, if it was asked for; bounded
    script: ScriptQueries | None = None  # if a script was asked for
    notes: tuple[str, ...] = ()  # what the user should know besides
    record_formats: dict[VertexId, dict[str, RecordFormat]] = {}  # by the part of records: what a registry has said


class AnalyzeJob(Request[Analysis], frozen=True):
    """Build the job's DataFrames and have Spark analyse them, without starting anything."""

    job: JobContext
    tasks: tuple[Task, ...]
    held: dict[TaskId, HeldState] = {}
    exclusive: bool = False  # `isolation: job`: the TaskManager is the job's own from now on
    explain: bool = False  # answer `plans`, too
    script: str = ""  # module:function; execute this script instead, and answer its queries
    profile: ResourceProfile = NO_PROFILE  # with `exclusive`: what the job wants of the slots there (R40)


class TaskStateChanged(Request[Done], frozen=True):
    """Repeated until answered. Also reports the loss of a session child, with one message for each task."""

    resource_id: ResourceId
    status: TaskStatus


class TaskProgress(Notice, frozen=True):
    attempt_id: AttemptId
    metrics: TaskMetrics


class CollectedRow(Message, frozen=True):
    batch_id: int
    row: str  # JSON


class Collected(Message, frozen=True):
    """The last rows in a collect sink, oldest first. `dropped` counts the rows before them, since the attempt began."""

    rows: tuple[CollectedRow, ...] = ()
    dropped: int = 0


class ReadCollected(Request[Collected], frozen=True):
    """Works for a recently ended attempt too. Refused if the TaskManager does not know the attempt."""

    attempt_id: AttemptId
    vertex_id: VertexId
