"""Messages about whole jobs, between the HTTP endpoint and the Dispatcher.

The states are Flink's, with Flink's names.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from minflinkd.jobgraph.difference import SettingChange, VertexChange
from minflinkd.jobgraph.faults import GraphFault
from minflinkd.jobgraph.model import JobGraph, RuntimeMode, Task
from minflinkd.rpc.autoscaler import AutoscalerStatus
from minflinkd.rpc.messages import Done, Message, PendingRecords, Request, TaskMetrics
from minflinkd.rpc.snapshot import NO_ROWS, PlanNode, RowCounts
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import AllocationId, AttemptId, JobId, ResourceId, TaskId, VertexId


class JobStatus(StrEnum):
    INITIALIZING = "INITIALIZING"  # the JobMaster is restoring what it needs
    RECONCILING = "RECONCILING"  # a new JobMaster looks for the tasks that run on from before
    CREATED = "CREATED"  # waits for slots; nothing is deployed
    RUNNING = "RUNNING"
    FAILING = "FAILING"
    FAILED = "FAILED"
    CANCELLING = "CANCELLING"
    CANCELED = "CANCELED"
    FINISHED = "FINISHED"
    RESTARTING = "RESTARTING"
    SUSPENDED = "SUSPENDED"

    @property
    def terminal(self) -> bool:
        return self in (JobStatus.FAILED, JobStatus.CANCELED, JobStatus.FINISHED)


class ExecutionState(StrEnum):
    CREATED = "CREATED"
    SCHEDULED = "SCHEDULED"  # waits for its slots
    DEPLOYING = "DEPLOYING"
    INITIALIZING = "INITIALIZING"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    CANCELING = "CANCELING"
    CANCELED = "CANCELED"
    FAILED = "FAILED"


class TaskDetails(Message, frozen=True):
    """One task and its current execution attempt."""

    task: Task
    state: ExecutionState
    attempt_id: AttemptId | None
    attempt_number: int
    resource_id: ResourceId | None
    start_ms: int  # -1 before it is scheduled
    end_ms: int  # -1 before it ended
    metrics: TaskMetrics = TaskMetrics()
    rows: RowCounts = NO_ROWS  # since the job's submission, up to the state that the attempt started from
    phases: dict[str, float] = {}
    entered: dict[str, int] = {}  # ExecutionState -> when the present attempt entered it
    allocation_id: AllocationId | None = None  # of its slots, while it is on a TaskManager
    partitions: int = 0  # of its state, as the attempt was deployed; 0 before
    published: int = 0  # the latest complete checkpoint whose rows its sinks have published; 0: none
    unpublished: int = 0  # complete checkpoints after that

    @property
    def pending(self) -> Mapping[str, PendingRecords]:
        """Records of Kafka that wait, by source. None are known of a task that does not run (K9)."""
        return self.metrics.pending if self.state is ExecutionState.RUNNING else {}


class FailureRecord(Message, frozen=True):
    """Why a job (or one of its tasks) failed. Answers list the newest first."""

    timestamp_ms: int
    error: ErrorInfo
    task_id: TaskId | None = None
    task_name: str = ""
    attempt_id: AttemptId | None = None
    resource_id: ResourceId | None = None


class RepeatedFailures(Message, frozen=True):
    """A job that restarts repeatedly: how often it has failed since it was last healthy.

    `last` is the failure that caused its last restart, without the traceback.
    """

    failures: int
    since_ms: int
    last: FailureRecord


class RecoveryRecord(Message, frozen=True):
    """One restart of a job: seconds from the failure to the end of each phase."""

    failed_ms: int
    cause: str
    checkpoint_id: int | None
    phases: dict[str, float] = {}  # canceled, slots, deployed, running, first_batch
    tasks: tuple[str, ...] = ()  # names of those that restarted; (): all


class RestartState(StrEnum):
    """How far a hot restart has got, or how it ended."""

    HANDING_OVER = "handing-over"  # the old version takes its last checkpoint, and its tasks end
    STARTING = "starting"  # the new version is starting; it has not completed a checkpoint
    ON_TRIAL = "on-trial"  # the new version runs and has found no input yet; the old version is kept
    TURNING_BACK = "turning-back"  # the new version failed and is being stopped
    COMPLETED = "completed"
    ROLLED_BACK = "rolled-back"  # the old version runs again, from the checkpoint with which it stopped
    FAILED = "failed"  # the old version never stopped
    REPLACED = "replaced"  # another hot restart took its place
    ABANDONED = "abandoned"  # the job was cancelled or ended

    @property
    def over(self) -> bool:
        return self not in _UNDER_WAY


_UNDER_WAY = frozenset(
    {RestartState.HANDING_OVER, RestartState.STARTING, RestartState.ON_TRIAL, RestartState.TURNING_BACK}
)


class Rescaled(Message, frozen=True):
    """A vertex whose parallelism a hot restart changed."""

    vertex: VertexId
    before: int
    after: int


class HotRestart(Message, frozen=True):
    """One hot restart of a job (H10): seconds from the request to the end of each phase."""

    number: int  # counts the job's hot restarts, from 1
    state: RestartState
    requested_ms: int
    checkpoint_id: int | None = None  # the new version starts, or started, from it
    phases: dict[str, float] = {}  # stopped, slots, restore_point, deployed, running, first_batch, first_checkpoint
    error: ErrorInfo | None = None  # why it did not complete
    rescaled: tuple[Rescaled, ...] = ()
    reason: str = ""  # why the autoscaler has asked for it; "": somebody else has


class CheckpointsInBrief(Message, frozen=True):
    """How a job's checkpoints are. Times are -1 if there was none."""

    completed_ms: int = -1  # the last completed one, savepoints included
    duration_ms: int = 0  # of that one
    interval_ms: int = 0  # between two periodic ones; 0: there are none
    failed_ms: int = -1  # the last failed one
    failure: str = ""  # the first line of why
    consecutive_failures: int = 0


class JobOverview(Message, frozen=True):
    job_id: JobId
    name: str
    status: JobStatus
    start_ms: int
    end_ms: int  # -1 while it runs
    last_modification_ms: int
    tasks: dict[str, int]  # ExecutionState -> number of tasks
    on_trial: bool = False  # the running version has found no input yet (H7)
    restarts: int = 0
    repeated: RepeatedFailures | None = None  # as in its details, with the start of the last message
    owner: str = ""  # who has submitted it; empty: not known
    mode: RuntimeMode = RuntimeMode.STREAMING
    assigned: dict[AllocationId, int] = {}  # number of tasks on TaskManagers, by the allocation of their slots
    next_restart_ms: int = -1  # when the next restart is due; -1: none is pending
    waiting: str = ""  # why it does not have all its slots yet
    last_failure: FailureRecord | None = None  # without the traceback, with the start of the message
    checkpoints: CheckpointsInBrief | None = None  # None: no JobMaster knows


class HotStandbyStatus(Message, frozen=True):
    """The TaskManager that stands by for a job, if there is one, and whether it is ready (R32)."""

    resource_id: ResourceId | None = None
    ready: bool = False
    why: str = ""  # not ready


class JobDetails(Message, frozen=True):
    job_id: JobId
    graph: JobGraph
    status: JobStatus
    start_ms: int
    end_ms: int
    timestamps: dict[str, int]  # JobStatus -> when the job entered it; 0: never
    tasks: tuple[TaskDetails, ...]
    restarts: int = 0  # since the submission
    next_restart_ms: int = -1  # when the next restart is due; -1: none is pending
    repeated: RepeatedFailures | None = None  # None: the job is healthy, or has failed only a few times
    failures: tuple[FailureRecord, ...] = ()
    recoveries: tuple[RecoveryRecord, ...] = ()
    submission: dict[str, float] = {}  # seconds from the submission to: analyzed, stored, slots, deployed, running, ...
    waiting: tuple[str, ...] = ()  # why the job does not have all its slots yet (R5)
    hot_restarts: tuple[HotRestart, ...] = ()  # the most recent ones, newest first
    hot_restart_outcomes: dict[str, int] = {}  # RestartState -> how many hot restarts ended in it
    owner: str = ""  # who has submitted it; empty: not known
    hot_standby: HotStandbyStatus | None = None  # None: the job does not ask for one
    sinks_settled: bool = True  # False: output of a checkpoint is not published yet, so the job's checkpoints are kept
    autoscaler: AutoscalerStatus | None = None  # None: the job has none

    @property
    def on_trial(self) -> bool:
        """Whether the running version has found no input yet (H7)."""
        return bool(self.hot_restarts) and self.hot_restarts[0].state is RestartState.ON_TRIAL

    @property
    def pending_records(self) -> int | None:
        """How many records of Kafka wait for all sources together. None: no source tells (K9)."""
        told = [source.records for task in self.tasks for source in task.pending.values()]
        return sum(told) if told else None


class ExplainedTask(Message, frozen=True):
    """What Spark says of a task that has not started."""

    task_id: TaskId
    plan: str  # Spark's physical plan of a micro-batch; bounded
    operators: tuple[PlanNode, ...]  # its sources, and its operators with state


class SubmissionAnswer(Message, frozen=True):
    """The job is accepted, and stored durably, if and only if there are no faults (R25, J4)."""

    job_id: JobId
    faults: tuple[GraphFault, ...] = ()
    warnings: tuple[str, ...] = ()  # they do not keep the job from being accepted
    tasks: tuple[ExplainedTask, ...] = ()  # if it was asked for


class SubmitJob(Request[SubmissionAnswer], frozen=True):
    """`document` is the job file as JSON; its artifacts are uploaded under `job_id`. May be repeated (R25)."""

    job_id: JobId
    document: bytes
    dry_run: bool = False
    owner: str = ""  # who asks
    explain: bool = False  # with `dry_run`: answer Spark's plans


class StateFate(StrEnum):
    """What happens to a vertex's state in a new version of its job."""

    KEPT = "kept"
    LOST = "lost"  # nothing in the new version takes it over
    INCOMPATIBLE = "incompatible"  # Spark cannot restore it


class StateChange(Message, frozen=True):
    vertex: str
    kind: str  # Spark's name for the operator
    fate: StateFate
    reason: str = ""


class VersionChanges(Message, frozen=True):
    """How a new version of a job differs from the running one (H2)."""

    vertices: tuple[VertexChange, ...] = ()
    settings: tuple[SettingChange, ...] = ()
    state: tuple[StateChange, ...] = ()


class RestartAnswer(Message, frozen=True):
    """The new version is accepted, and stored durably, if there are no faults and it was no dry run (H1)."""

    job_id: JobId
    number: int = 0  # number of the hot restart; 0: there is none
    faults: tuple[GraphFault, ...] = ()
    changes: VersionChanges = VersionChanges()


class HotRestartJob(Request[RestartAnswer], frozen=True):
    """`document` is the new version as JSON; its artifacts are uploaded under `job_id`.

    Answered when the new version is checked, compared and stored; the job reports how the restart ends. Refused with
    `not-found`, and with `conflict` if the job has ended, or if a hot restart is under way and `replace` is false.
    """

    job_id: JobId
    document: bytes
    dry_run: bool = False
    latest: bool = False  # start from the last completed checkpoint instead of taking another
    allow_non_restored_state: bool = False
    allow_changed_state: bool = False  # accept state that means something else in the new version
    replace: bool = False


class RescaleJob(Request[RestartAnswer], frozen=True):
    """Like HotRestartJob, but keeps the running version and changes its parallelism."""

    job_id: JobId
    parallelism: int = 0  # of the whole job; 0: unchanged
    vertices: dict[str, int] = {}  # task or vertex -> parallelism
    least: int = 0  # with fewer slots no task starts; 0: unchanged
    dry_run: bool = False
    replace: bool = False


class ListJobs(Request[tuple[JobOverview, ...]], frozen=True):
    pass


class QuotaBalance(Message, frozen=True):
    """One kind of a user's quota. `limit`: None is no limit. Artifacts are in bytes."""

    used: int
    limit: int | None = None


class UserQuota(Message, frozen=True):
    """What a user has, beside what they may have."""

    user: str
    jobs: QuotaBalance  # that have not ended
    slots: QuotaBalance  # that these want at their full parallelism
    artifacts: QuotaBalance


class GetQuotas(Request[tuple[UserQuota, ...]], frozen=True):
    """The quota of `user`. With `everybody`, also of all who have something, or a limit of their own."""

    user: str
    everybody: bool = False


class GetJob(Request[JobDetails], frozen=True):
    """Refused with `not-found`."""

    job_id: JobId


class CancelJob(Request[Done], frozen=True):
    """Answered when the cancellation has begun. Refused with `conflict` if the job has ended."""

    job_id: JobId


class TriggerSavepoint(Request[Done], frozen=True):
    """Answered when the savepoint has begun; GetSavepoint reports its outcome. A repeated trigger starts nothing.

    All of this is durable: the next daemon knows the trigger as well.

    With `stop` the job is FINISHED afterwards. With `drain` it first runs to its end, so that all windows and timers
    fire. With `cancel` it is CANCELED.

    Refused with `not-found`, `conflict`, `job-not-running`, or an error about `directory`.
    """

    job_id: JobId
    trigger_id: str
    directory: str = ""  # URI; "": the configured one
    stop: bool = False
    drain: bool = False
    cancel: bool = False


class CheckpointJob(Request[Done], frozen=True):
    """Answered when the checkpoint has begun; GetSavepoint reports its outcome. A repeated trigger starts nothing.

    A `full` one refers to no file of an earlier checkpoint. Refused with `not-found`, `conflict` or `job-not-running`.
    """

    job_id: JobId
    trigger_id: str
    full: bool = False


class OperationStatus(Message, frozen=True):
    done: bool
    location: str = ""  # of the savepoint; for a checkpoint, its id
    error: ErrorInfo | None = None


class GetSavepoint(Request[OperationStatus], frozen=True):
    """The outcome of a savepoint, or of a checkpoint. Refused with `not-found`."""

    job_id: JobId
    trigger_id: str


class DisposeSavepoint(Request[Done], frozen=True):
    """Answered when the disposal has begun."""

    trigger_id: str
    path: str


class GetDisposal(Request[OperationStatus], frozen=True):
    trigger_id: str


class OrphanFile(Message, frozen=True):
    """A physical file in a job's checkpoint directory, with its size in bytes and the time it was written."""

    name: str
    size: int
    modified_ms: int


class JobOrphans(Message, frozen=True):
    """The orphans in one job's directory."""

    job_id: JobId
    files: tuple[OrphanFile, ...] = ()
    kept: int = 0  # physical files that are needed, or too young to delete
    skipped: str = ""  # why the directory was not examined


class OrphanReport(Message, frozen=True):
    jobs: tuple[JobOrphans, ...]
    dry_run: bool
    grace: float  # seconds


class SweepOrphans(Request[OrphanReport], frozen=True):
    """Find the files that no checkpoint refers to, and delete them unless `dry_run` (F7).

    Answered when everything is listed. Refused with `conflict` if another sweep is running, and with `not-leading`.
    """

    job_id: JobId | None = None
    dry_run: bool = True
