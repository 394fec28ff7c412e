"""Jobs, their tasks, plans and failures."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from minflinkd.rest.schemas.answer import Answer
from minflinkd.rest.schemas.autoscaler import AutoscalerInfo
from minflinkd.rest.schemas.restarts import HotRestartInfo

SCHEDULER: Final = "Default"  # Flink's name for the one that plans all tasks at once


class JobIdWithStatus(Answer, frozen=True, kw_only=True):
    id: str
    status: str


class JobIds(Answer, frozen=True, kw_only=True):
    jobs: tuple[JobIdWithStatus, ...]


class JobStatusInfo(Answer, frozen=True, kw_only=True):
    status: str


class TaskCounts(Answer, frozen=True, kw_only=True):
    """Number of tasks by state. A task is one Spark query and counts once, whatever its parallelism."""

    total: int
    created: int = 0
    scheduled: int = 0
    deploying: int = 0
    running: int = 0
    finished: int = 0
    canceling: int = 0
    canceled: int = 0
    failed: int = 0
    reconciling: int = 0
    initializing: int = 0


class RepeatedRestarts(Answer, frozen=True, kw_only=True, rename="kebab"):
    """The job restarts repeatedly: since when, and the failure that caused the last restart."""

    failures: int  # in a row, without the job having proved healthy
    since: int
    timestamp: int  # of the last one
    code: str
    message: str
    task: str | None  # of the job's, where it was one
    task_name: str
    taskmanager_id: str | None


class BriefFailure(Answer, frozen=True, kw_only=True, rename="kebab"):
    """A failure in one line."""

    timestamp: int
    code: str
    message: str
    task: str | None  # the task's name, where it was one


class BriefCheckpoints(Answer, frozen=True, kw_only=True, rename="kebab"):
    """How a job's checkpoints are; times are -1 if there was none."""

    completed: int = -1  # the last completed one, savepoints included
    duration: int = 0  # milliseconds that it took
    interval: int = 0  # between two periodic ones; 0: there are none
    failed: int = -1
    failure_message: str = ""
    consecutive_failures: int = 0


class SummaryExtras(Answer, frozen=True, kw_only=True, rename="kebab"):
    on_trial: bool  # the running version has found no input yet
    restarts: int  # since the submission
    restarting_repeatedly: RepeatedRestarts | None = None  # with the start of the message
    owner: str = ""  # who has submitted it; empty: not known
    next_restart: int | None = None  # when the next restart is due
    waiting: str = ""  # why the job does not have all its slots yet
    last_failure: BriefFailure | None = None
    checkpoints: BriefCheckpoints | None = None  # of a job that runs


class JobSummary(Answer, frozen=True, kw_only=True, rename="kebab"):
    jid: str
    name: str
    start_time: int
    end_time: int
    duration: int
    state: str
    last_modification: int
    tasks: TaskCounts
    job_type: str = msgspec.field(name="jobType", default="STREAMING")
    scheduler_type: str = msgspec.field(name="schedulerType", default=SCHEDULER)
    pending_operators: int = 0
    minflinkd: SummaryExtras


class JobsOverview(Answer, frozen=True, kw_only=True):
    jobs: tuple[JobSummary, ...]


class StateCounts(Answer, frozen=True, kw_only=True, rename="upper"):
    created: int = 0
    scheduled: int = 0
    deploying: int = 0
    running: int = 0
    finished: int = 0
    canceling: int = 0
    canceled: int = 0
    failed: int = 0
    reconciling: int = 0
    initializing: int = 0


class IOMetrics(Answer, frozen=True, kw_only=True, rename="kebab"):
    """Of a vertex, records are totals since the job's submission, and bytes are 0: Spark does not report them.

    Of a subtask, records and bytes are those of its partition, since the query was started.

    `*-complete`: whether the number is there. Flink's dashboard shows what is not complete as loading.

    Read records are the rows that sources passed to the query, without those that a source skips by itself, because of
    a pushed-down filter or because Spark need not read them. Written records are the rows passed to sinks and to
    the task's exchange.
    """

    read_bytes: int = 0
    read_bytes_complete: bool = True
    write_bytes: int = 0
    write_bytes_complete: bool = True
    read_records: int
    read_records_complete: bool = True
    write_records: int
    write_records_complete: bool = True
    accumulated_backpressured_time: int = 0
    accumulated_idle_time: int = 0
    accumulated_busy_time: float = 0.0


class RealTimeInfo(Answer, frozen=True, kw_only=True, rename="kebab"):
    """A task in real-time mode, while its batch runs. Times are in milliseconds.

    Latencies are of the last second or so: from a record's timestamp until the stage that read it was done with it.
    Without rows they are null. `cut-pause` is for how long the last end of a batch kept rows waiting.
    """

    read_records: int  # of the current attempt
    rows_per_second: float
    latency_p50: int | None = None
    latency_p99: int | None = None
    latency_longest: int | None = None
    cut_pause: float | None = None


class PendingInfo(Answer, frozen=True, kw_only=True, rename="kebab"):
    """Records of Kafka after what the task has processed, as the brokers said some seconds ago.

    `parts` has the partitions, such as `clicks.0`; if there are more than 64, those with most records.
    """

    records: int
    partitions: int
    parts: dict[str, int]


class TaskInfo(Answer, frozen=True, kw_only=True, rename="kebab"):
    """A task in minflinkd's terms."""

    task_id: str
    vertices: tuple[str, ...]
    attempt_id: str | None
    attempt_number: int
    taskmanager_id: str | None
    attempt_read_records: int = 0  # rows of the current attempt only
    attempt_write_records: int = 0
    batch_id: int
    batches: int
    batch_duration: float
    rows_per_second: float
    state_rows: int
    state_bytes: int
    watermark: int | None
    first_batch: float | None  # milliseconds from the deployment to the end of the first micro-batch
    output_backlog: int  # bytes in its exchange that some reader still needs
    backpressured: bool  # held back by its readers, or by a disk that is nearly full
    phases: dict[str, float]  # seconds
    batch_phases: dict[str, float] = {}  # milliseconds of the last micro-batch, by Spark's names in `durationMs`
    slot_sharing_group: str = ""
    real_time: RealTimeInfo | None = None  # null in micro-batches
    pending: dict[str, PendingInfo] = {}  # by source of Kafka; what is not known is left out


class JobVertex(Answer, frozen=True, kw_only=True):
    """A task as a Flink job vertex. `id` is the MD5 of the task's id, because Flink's clients expect 32 hex digits."""

    id: str
    slot_sharing_group_id: str = msgspec.field(name="slotSharingGroupId")
    name: str
    max_parallelism: int = msgspec.field(name="maxParallelism")
    parallelism: int
    status: str
    start_time: int = msgspec.field(name="start-time")
    end_time: int = msgspec.field(name="end-time")
    duration: int
    tasks: StateCounts
    metrics: IOMetrics
    minflinkd: TaskInfo


class PlanInput(Answer, frozen=True, kw_only=True):
    num: int
    id: str
    ship_strategy: str
    exchange: str


class PlanNode(Answer, frozen=True, kw_only=True):
    id: str
    parallelism: int
    operator: str = ""
    operator_strategy: str = ""
    description: str
    optimizer_properties: str = "{}"
    inputs: tuple[PlanInput, ...] = ()


class Plan(Answer, frozen=True, kw_only=True):
    jid: str
    name: str
    type: str
    nodes: tuple[PlanNode, ...]


class JobPlan(Answer, frozen=True, kw_only=True):
    plan: Plan


class Recovery(Answer, frozen=True, kw_only=True, rename="kebab"):
    """A restart, with the seconds from the failure to the end of each phase.

    `tasks` are the names of the tasks that restarted, if others ran on.
    """

    failed: int
    cause: str
    checkpoint_id: int | None
    phases: dict[str, float]
    tasks: tuple[str, ...] = ()


class CompactionsInfo(Answer, frozen=True, kw_only=True, rename="kebab"):
    """What compactions of a sink's table have done since the task's attempt began.

    So many `files` were joined `into` fewer, and so many `deleted` that only expired versions had. `overtaken` commits
    were given up, because another one came first. `failure` is why the last compaction failed, null if it did not.
    """

    done: int
    failed: int
    files: int
    into: int
    overtaken: int
    deleted: int
    last: int
    failure: str | None


class SinkInfo(Answer, frozen=True, kw_only=True, rename="kebab"):
    """A sink and its guarantee: `exactly-once` or `at-least-once`.

    `published` is the latest checkpoint whose rows are seen in the target, null before the first, and for a sink that
    does not wait for checkpoints. `unpublished` complete checkpoints after it wait, as if the target is away.
    `compactions` is null before the first one, and for a sink without `compaction`.
    """

    vertex: str
    format: str
    delivery: str
    published: int | None = None
    unpublished: int = 0
    compactions: CompactionsInfo | None = None


class HotStandbyInfo(Answer, frozen=True, kw_only=True, rename="kebab"):
    """The TaskManager that stands by for the job. Unless it is `ready`, `why` says what it still does or lacks."""

    taskmanager_id: str | None  # null: there is none
    ready: bool
    why: str = ""


class JobExtras(Answer, frozen=True, kw_only=True, rename="kebab"):
    source_records: int = 0  # rows that sources have passed to the job since its submission
    source_records_per_second: float = 0.0  # in the last micro-batches
    pending_records: int | None = None  # records of Kafka that wait; null: not known, or no source is Kafka
    sink_records: int = 0  # rows passed to its sinks
    restarts: int
    restarting_repeatedly: RepeatedRestarts | None = None
    next_restart: int | None = None  # when the next restart is due
    recoveries: tuple[Recovery, ...]
    submission: dict[str, float]  # seconds from the submission to each phase
    hot_restarts: tuple[HotRestartInfo, ...] = ()  # newest first
    waiting: tuple[str, ...] = ()  # why the job does not have all its slots yet
    hot_standby: HotStandbyInfo | None = None  # null: the job does not ask for one
    sinks: tuple[SinkInfo, ...] = ()
    bad_records: dict[str, int] = {}  # since its submission, of each vertex with `on-bad-record`
    owner: str = ""  # who has submitted it; empty: not known
    autoscaler: AutoscalerInfo | None = None  # null: the job has none


class JobInfo(Answer, frozen=True, kw_only=True):
    """Flink's JobDetailsInfo."""

    jid: str
    application_id: str = msgspec.field(name="application-id")
    name: str
    is_stoppable: bool = msgspec.field(name="isStoppable", default=False)
    state: str
    job_type: str = msgspec.field(name="job-type")
    scheduler_type: str = msgspec.field(name="schedulerType", default=SCHEDULER)
    start_time: int = msgspec.field(name="start-time")
    end_time: int = msgspec.field(name="end-time")
    duration: int
    max_parallelism: int = msgspec.field(name="maxParallelism")
    now: int
    timestamps: dict[str, int]
    vertices: tuple[JobVertex, ...]
    status_counts: StateCounts = msgspec.field(name="status-counts")
    plan: Plan
    pending_operators: int = msgspec.field(name="pending-operators", default=0)
    minflinkd: JobExtras


class ExecutionConfig(Answer, frozen=True, kw_only=True, rename="kebab"):
    restart_strategy: str
    job_parallelism: int
    object_reuse_mode: bool = False
    user_config: dict[str, str]


class JobConfig(Answer, frozen=True, kw_only=True, rename="kebab"):
    jid: str
    name: str
    execution_config: ExecutionConfig


class ErrorDetails(Answer, frozen=True, kw_only=True):
    code: str
    message: str
    hint: str


class ExceptionEntry(Answer, frozen=True, kw_only=True, rename="camel"):
    exception_name: str
    stacktrace: str
    timestamp: int
    failure_labels: dict[str, str] = {}
    task_name: str | None = None
    endpoint: str | None = None
    task_manager_id: str | None = None
    concurrent_exceptions: tuple[Any, ...] = ()
    minflinkd: ErrorDetails


class ExceptionHistory(Answer, frozen=True, kw_only=True):
    entries: tuple[ExceptionEntry, ...]
    truncated: bool


class ExecutionException(Answer, frozen=True, kw_only=True, rename="camel"):
    exception: str
    task: str
    endpoint: str
    location: str
    timestamp: int
    task_manager_id: str


class JobExceptions(Answer, frozen=True, kw_only=True):
    root_exception: str | None = msgspec.field(name="root-exception")
    timestamp: int | None
    all_exceptions: tuple[ExecutionException, ...] = msgspec.field(name="all-exceptions")
    truncated: bool
    history: ExceptionHistory = msgspec.field(name="exceptionHistory")


class PartitionInfo(Answer, frozen=True, kw_only=True, rename="kebab"):
    """A partition of the task's deciding stage in the last micro-batch, as Spark says it."""

    batch_id: int
    status: str  # SUCCESS, or RUNNING while the first micro-batch runs
    attempt: int  # Spark's own retries in this micro-batch
    host: str
    executor: str  # `driver`: in the session itself
    start_time: int
    duration: int
    total_duration: int  # of all micro-batches since the query was started
    read_records: int
    write_records: int
    read_bytes: int
    write_bytes: int


class Subtask(Answer, frozen=True, kw_only=True):
    """`minflinkd`: null if Spark has said nothing of the partition."""

    subtask: int
    status: str
    attempt: int
    endpoint: str
    start_time: int = msgspec.field(name="start-time")
    old_start_time: int = msgspec.field(name="start_time")  # Flink sends both names
    end_time: int = msgspec.field(name="end-time")
    duration: int
    metrics: IOMetrics
    taskmanager_id: str = msgspec.field(name="taskmanager-id")
    status_duration: dict[str, int] = msgspec.field(name="status-duration")
    minflinkd: PartitionInfo | None = None


class VertexDetails(Answer, frozen=True, kw_only=True):
    id: str
    name: str
    parallelism: int
    max_parallelism: int = msgspec.field(name="maxParallelism")
    now: int
    subtasks: tuple[Subtask, ...]
    aggregated: dict[str, dict[str, dict[str, int]]]
    minflinkd: TaskInfo


class CollectedRow(Answer, frozen=True, kw_only=True, rename="kebab"):
    batch: int  # the micro-batch that wrote it
    row: msgspec.Raw  # as JSON


class CollectedRows(Answer, frozen=True, kw_only=True, rename="kebab"):
    """The last rows of a collect sink, oldest first. `dropped` counts the rows before them in this attempt."""

    vertex: str
    attempt_id: str | None
    rows: tuple[CollectedRow, ...]
    dropped: int


class ExplainedOperator(Answer, frozen=True, kw_only=True):
    """A source of a task's query, or an operator that keeps state."""

    vertex: str  # empty: it belongs to none
    kind: str  # Spark's name for it
    stateful: bool


class TaskExplanation(Answer, frozen=True, kw_only=True):
    """What Spark says of a task that has not started."""

    id: str
    plan: str  # of a micro-batch; the middle of a long one is left out
    operators: tuple[ExplainedOperator, ...]


class Submitted(Answer, frozen=True, kw_only=True):
    jobid: str
    job_url: str = msgspec.field(name="jobUrl")
    dry_run: bool = msgspec.field(name="dry-run", default=False)  # only checked; the job does not exist
    warnings: tuple[str, ...] = ()  # problems that do not keep the job from being accepted
    tasks: tuple[TaskExplanation, ...] = ()  # with `explain`
