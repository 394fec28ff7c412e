"""Messages about whole jobs, between the HTTP endpoint and the Dispatcher.

The states are Flink's, with Flink's names.
"""

from __future__ import annotations

from enum import StrEnum

from minflinkd.jobgraph.difference import SettingChange, VertexChange
from minflinkd.jobgraph.faults import GraphFault
from minflinkd.jobgraph.model import JobGraph, Task
from minflinkd.rpc.messages import Done, Message, Request, TaskMetrics
from minflinkd.rpc.snapshot import NO_ROWS, RowCounts
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import AttemptId, JobId, ResourceId, TaskId


class JobStatus(StrEnum):
    INITIALIZING = "INITIALIZING"  # the JobMaster restores what it needs
    CREATED = "CREATED"  # waits for slots, nothing deployed
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
    """One task and its present execution attempt."""

    task: Task
    state: ExecutionState
    attempt_id: AttemptId | None
    attempt_number: int
    resource_id: ResourceId | None
    start_ms: int  # -1 before it is scheduled
    end_ms: int  # -1 before it ended
    metrics: TaskMetrics = TaskMetrics()
    rows: RowCounts = NO_ROWS  # since the job's submission, as of the state that the attempt has gone on from
    phases: dict[str, float] = {}


class FailureRecord(Message, frozen=True):
    """Why a job (or one of its tasks) failed, newest first in answers."""

    timestamp_ms: int
    error: ErrorInfo
    task_id: TaskId | None = None
    task_name: str = ""
    attempt_id: AttemptId | None = None
    resource_id: ResourceId | None = None


class RepeatedFailures(Message, frozen=True):
    """A job that restarts repeatedly: how often it has failed since it was healthy.

    `last`: the failure that began its last restart, without the traceback.
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


class RestartState(StrEnum):
    """Of a hot restart: where it is, or how it ended."""

    HANDING_OVER = "handing-over"  # the old version takes its last checkpoint, and its tasks end
    STARTING = "starting"  # the new version is brought up; it has not completed a checkpoint
    ON_TRIAL = "on-trial"  # the new version runs and has found no input yet; the old one stays stored
    TURNING_BACK = "turning-back"  # it failed, and is stopped
    COMPLETED = "completed"
    ROLLED_BACK = "rolled-back"  # the old version runs again, from the checkpoint that it made way with
    FAILED = "failed"  # the old version never made way
    REPLACED = "replaced"  # by another hot restart
    ABANDONED = "abandoned"  # the job was cancelled, or ended

    @property
    def over(self) -> bool:
        return self not in _UNDER_WAY


_UNDER_WAY = frozenset(
    {RestartState.HANDING_OVER, RestartState.STARTING, RestartState.ON_TRIAL, RestartState.TURNING_BACK}
)


class HotRestart(Message, frozen=True):
    """One hot restart of a job (H10): seconds from the request to the end of each phase."""

    number: int  # of the job's, from 1
    state: RestartState
    requested_ms: int
    checkpoint_id: int | None = None  # from which the new version starts, or started
    phases: dict[str, float] = {}  # stopped, slots, restore_point, deployed, running, first_batch, first_checkpoint
    error: ErrorInfo | None = None  # why it was not completed


class JobOverview(Message, frozen=True):
    job_id: JobId
    name: str
    status: JobStatus
    start_ms: int
    end_ms: int  # -1 while it runs
    last_modification_ms: int
    tasks: dict[str, int]  # ExecutionState -> number of tasks
    on_trial: bool = False  # in a version that has found no input yet (H7)
    restarts: int = 0
    repeated: RepeatedFailures | None = None  # as in its details, with the start of the last message


class JobDetails(Message, frozen=True):
    job_id: JobId
    graph: JobGraph
    status: JobStatus
    start_ms: int
    end_ms: int
    timestamps: dict[str, int]  # JobStatus -> when it was entered; 0 for never
    tasks: tuple[TaskDetails, ...]
    restarts: int = 0  # since the submission
    next_restart_ms: int = -1  # when the restart is due that the job waits for; -1: it waits for none
    repeated: RepeatedFailures | None = None  # None: the job is healthy, or has failed a few times only
    failures: tuple[FailureRecord, ...] = ()
    recoveries: tuple[RecoveryRecord, ...] = ()
    submission: dict[str, float] = {}  # seconds from the submission to: analyzed, stored, slots, deployed, running, ...
    waiting: tuple[str, ...] = ()  # why slots that the job wants are not there yet (R5)
    hot_restarts: tuple[HotRestart, ...] = ()  # the last ones, newest first
    hot_restart_outcomes: dict[str, int] = {}  # RestartState -> how many ended in it
    sinks_settled: bool = True  # False: what a checkpoint promised is not published, so the job's checkpoints are kept

    @property
    def on_trial(self) -> bool:
        """Whether it runs in a version that has found no input yet (H7)."""
        return bool(self.hot_restarts) and self.hot_restarts[0].state is RestartState.ON_TRIAL


class SubmissionAnswer(Message, frozen=True):
    """Accepted, and stored durably, exactly where there are no faults (R25, J4)."""

    job_id: JobId
    faults: tuple[GraphFault, ...] = ()
    warnings: tuple[str, ...] = ()  # of a job that is accepted all the same


class SubmitJob(Request[SubmissionAnswer], frozen=True):
    """`document` is the job file as JSON, its artifacts uploaded under `job_id`. Repeating it is harmless (R25)."""

    job_id: JobId
    document: bytes
    dry_run: bool = False


class StateFate(StrEnum):
    """What becomes of a vertex's state in another version of its job."""

    KEPT = "kept"
    LOST = "lost"  # nothing of the new version takes it
    INCOMPATIBLE = "incompatible"  # Spark cannot go on from it


class StateChange(Message, frozen=True):
    vertex: str
    kind: str  # of the operator, as Spark has it
    fate: StateFate
    reason: str = ""


class VersionChanges(Message, frozen=True):
    """A new version of a job beside the one that runs (H2)."""

    vertices: tuple[VertexChange, ...] = ()
    settings: tuple[SettingChange, ...] = ()
    state: tuple[StateChange, ...] = ()


class RestartAnswer(Message, frozen=True):
    """Accepted, and stored durably, exactly where there are no faults and it was no dry run (H1)."""

    job_id: JobId
    number: int = 0  # of the hot restart; 0 where there is none
    faults: tuple[GraphFault, ...] = ()
    changes: VersionChanges = VersionChanges()


class HotRestartJob(Request[RestartAnswer], frozen=True):
    """`document` is the new version as JSON, its artifacts uploaded under `job_id`.

    Answered when it is checked, compared and stored; the job says what becomes of it. Refused: `not-found`; `conflict`
    where one is under way and `replace` is not given, or the job has ended.
    """

    job_id: JobId
    document: bytes
    dry_run: bool = False
    latest: bool = False  # start from the last completed checkpoint; no further one is taken
    allow_non_restored_state: bool = False
    allow_changed_state: bool = False  # it may mean something else
    replace: bool = False


class RescaleJob(Request[RestartAnswer], frozen=True):
    """As HotRestartJob, with the version that runs at another parallelism."""

    job_id: JobId
    parallelism: int = 0  # of all of it; 0: as it is
    vertices: dict[str, int] = {}  # task or vertex -> parallelism
    least: int = 0  # with fewer slots no task starts; 0: as it is
    dry_run: bool = False
    replace: bool = False


class ListJobs(Request[tuple[JobOverview, ...]], frozen=True):
    pass


class GetJob(Request[JobDetails], frozen=True):
    """Refused with `not-found`."""

    job_id: JobId


class JsonAnswer(Message, frozen=True):
    """JSON in Flink's form, made where the data is."""

    body: bytes


class GetCheckpoints(Request[JsonAnswer], frozen=True):
    """Flink's /jobs/:id/checkpoints; with `config`, .../config; with an id, .../details/:id; and with `subtasks` what

    .../subtasks/:vertexid answers, by task. Refused: `not-found`.
    """

    job_id: JobId
    checkpoint_id: int | None = None
    config: bool = False
    subtasks: bool = False


class GetOffsets(Request[JsonAnswer], frozen=True):
    """Where a job's sources stand (C26), as `offsets.json` has it. Refused: `not-found`."""

    job_id: JobId


class CancelJob(Request[Done], frozen=True):
    """Answered when the cancellation has begun. A job that has ended is refused with `conflict`."""

    job_id: JobId


class TriggerSavepoint(Request[Done], frozen=True):
    """Answered when it has begun; GetSavepoint says what became of it. A repeated trigger begins nothing.

    `stop`: then the job is FINISHED; with `drain` it runs to its end before, so that all windows and timers fire.
    Refused: `not-found`, `conflict`, `job-not-running`, and what is wrong with `directory`.
    """

    job_id: JobId
    trigger_id: str
    directory: str = ""  # URI; "": the configured one
    stop: bool = False
    drain: bool = False


class CheckpointJob(Request[Done], frozen=True):
    """Answered when it has begun; GetSavepoint says what became of it. A repeated trigger begins nothing.

    Refused: `not-found`, `conflict`, `job-not-running`.
    """

    job_id: JobId
    trigger_id: str


class OperationStatus(Message, frozen=True):
    done: bool
    location: str = ""  # of what it made; of a checkpoint: its id
    error: ErrorInfo | None = None


class GetSavepoint(Request[OperationStatus], frozen=True):
    """Of a checkpoint likewise. Refused: `not-found`."""

    job_id: JobId
    trigger_id: str


class DisposeSavepoint(Request[Done], frozen=True):
    """Answered when it has begun."""

    trigger_id: str
    path: str


class GetDisposal(Request[OperationStatus], frozen=True):
    trigger_id: str


class OrphanFile(Message, frozen=True):
    """A physical file in a job's checkpoint directory; its size in bytes, and when it was written."""

    name: str
    size: int
    modified_ms: int


class JobOrphans(Message, frozen=True):
    """Of one job's directory."""

    job_id: JobId
    files: tuple[OrphanFile, ...] = ()
    kept: int = 0  # physical files that are needed, or not old enough
    skipped: str = ""  # why the directory was left alone


class OrphanReport(Message, frozen=True):
    jobs: tuple[JobOrphans, ...]
    dry_run: bool
    grace: float  # seconds


class SweepOrphans(Request[OrphanReport], frozen=True):
    """Find, and without `dry_run` delete, what no checkpoint refers to (F7). Answered when all is listed.

    Refused: `conflict` where somebody else has asked, `not-leading`.
    """

    job_id: JobId | None = None
    dry_run: bool = True
