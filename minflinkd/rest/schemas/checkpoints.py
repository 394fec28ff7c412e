"""A job's checkpoints, in Flink's form. `rest/checkpoints_json.py` makes them from what is known.

Fields have defaults, so that the command line can read the answers of an earlier version.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from minflinkd.rest.schemas.answer import Answer


class CheckpointCounts(Answer, frozen=True, kw_only=True):
    restored: int = 0
    total: int = 0
    in_progress: int = 0
    completed: int = 0
    failed: int = 0


class FileFigures(Answer, frozen=True, kw_only=True, rename="kebab"):
    """The physical files of a job's retained checkpoints; sizes in bytes."""

    physical: int = 0
    logical: int = 0  # segments that checkpoints refer to
    bytes_stored: int = 0
    bytes_referenced: int = 0
    amplification: float = 1.0
    deleting: int = 0  # files waiting to be deleted


class CheckpointFiles(FileFigures, frozen=True, kw_only=True, rename="kebab"):
    """The same, and what was done to them since the job began."""

    created: int = 0
    deleted: int = 0
    compactions: int = 0
    bytes_rewritten: int = 0


class StorageCalls(Answer, frozen=True, kw_only=True):
    """Requests to the storage, with total and average milliseconds; -1: not measured."""

    count: int = 0
    ms: float = 0.0
    average: float = 0.0


class CheckpointExtras(Answer, frozen=True, kw_only=True, rename="kebab"):
    kind: str = ""
    alignment: float = 0.0
    metadata: float = 0.0
    notify: float = -1.0  # -1: not published yet
    warning: str = ""
    savepoint: str = ""  # where the copy is that belongs to a user; empty: none is known
    files: FileFigures | None = None  # of the job, at the time of its completion
    calls: dict[str, StorageCalls] = {}  # by kind
    compactions: int = 0
    bytes_rewritten: int = 0
    cause: str | UnsetType | None = UNSET  # of a failed one
    failed_task: str | UnsetType | None = UNSET


class TaskCheckpointExtras(Answer, frozen=True, kw_only=True, rename="kebab"):
    """What the task has taken time for, and uploaded; 0 until it has acknowledged."""

    trigger_timestamp: int = -1
    wait: float = 0.0
    alignment: float = 0.0
    unaligned: bool = False
    sync: float = 0.0
    async_: float = msgspec.field(name="async", default=0.0)
    files: int = 0
    files_uploaded: int = 0
    physical_files: int = 0
    task_id: str = ""


class TaskCheckpoint(Answer, frozen=True, kw_only=True):
    """One task's part of a checkpoint. A task is one query, so it has exactly one subtask."""

    id: int = -1
    status: str = ""
    latest_ack_timestamp: int = -1
    checkpointed_size: int = 0
    state_size: int = 0
    end_to_end_duration: int = -1
    alignment_buffered: int = 0
    processed_data: int = 0
    persisted_data: int = 0
    num_subtasks: int = 1
    num_acknowledged_subtasks: int = 0
    minflinkd: TaskCheckpointExtras = TaskCheckpointExtras()


class Checkpoint(Answer, frozen=True, kw_only=True):
    """`tasks` are there in the answer about one checkpoint only."""

    class_name: str = msgspec.field(name="className", default="")
    id: int
    status: str
    is_savepoint: bool = False
    savepoint_format: str | None = msgspec.field(name="savepointFormat", default=None)
    trigger_timestamp: int = -1
    latest_ack_timestamp: int = -1
    checkpointed_size: int = 0
    state_size: int = 0
    end_to_end_duration: int = 0
    alignment_buffered: int = 0
    processed_data: int = 0
    persisted_data: int = 0
    num_subtasks: int = 0
    num_acknowledged_subtasks: int = 0
    checkpoint_type: str = "CHECKPOINT"
    tasks: dict[str, TaskCheckpoint] = {}
    minflinkd: CheckpointExtras = CheckpointExtras()
    external_path: str | UnsetType = UNSET  # of a completed one
    discarded: bool | UnsetType = UNSET
    failure_timestamp: int | UnsetType = UNSET  # of a failed one
    failure_message: str | UnsetType = UNSET


class RestoredCheckpoint(Answer, frozen=True, kw_only=True):
    id: int
    restore_timestamp: int = -1
    is_savepoint: bool = False
    external_path: str | None = None


class LatestCheckpoints(Answer, frozen=True, kw_only=True):
    completed: Checkpoint | None = None
    savepoint: Checkpoint | None = None
    failed: Checkpoint | None = None
    restored: RestoredCheckpoint | None = None


class StatsSummary(Answer, frozen=True, kw_only=True):
    min: float = 0
    max: float = 0
    avg: float = 0
    p50: float = 0
    p90: float = 0
    p95: float = 0
    p99: float = 0
    p999: float = 0


class CheckpointSummary(Answer, frozen=True, kw_only=True):
    checkpointed_size: StatsSummary = StatsSummary()
    state_size: StatsSummary = StatsSummary()
    end_to_end_duration: StatsSummary = StatsSummary()
    alignment_buffered: StatsSummary = StatsSummary()
    processed_data: StatsSummary = StatsSummary()
    persisted_data: StatsSummary = StatsSummary()


class DamagedFile(Answer, frozen=True, kw_only=True, rename="kebab"):
    file: str
    why: str


class DamagedCheckpoint(Answer, frozen=True, kw_only=True, rename="kebab"):
    id: int
    found: int = -1
    files: tuple[DamagedFile, ...] = ()
    given_up_for: int | None = None  # the earlier checkpoint that the job went on from


class CheckpointsExtras(Answer, frozen=True, kw_only=True, rename="kebab"):
    failed_by_cause: dict[str, int] = {}
    refused: dict[str, int] = {}
    consecutive_failures: int = 0
    consecutive_trigger_failures: int = 0
    interval: int = 0  # 0: no periodic checkpoints
    damaged: tuple[DamagedCheckpoint, ...] = ()  # retained ones, as far as known
    verified: int = -1  # when all retained ones were last read; -1: not yet
    files: CheckpointFiles = CheckpointFiles()
    calls: dict[str, StorageCalls] = {}  # the coordinator's, by kind


class Checkpoints(Answer, frozen=True, kw_only=True):
    counts: CheckpointCounts = CheckpointCounts()
    summary: CheckpointSummary = CheckpointSummary()
    latest: LatestCheckpoints = LatestCheckpoints()
    history: tuple[Checkpoint, ...] = ()
    minflinkd: CheckpointsExtras = CheckpointsExtras()


class SubtaskTimes(Answer, frozen=True, kw_only=True):
    sync: int
    async_: int = msgspec.field(name="async")


class SubtaskAlignment(Answer, frozen=True, kw_only=True):
    buffered: int
    processed: int
    persisted: int
    duration: int


class SubtaskCheckpoint(Answer, frozen=True, kw_only=True):
    """`status` is `completed`, or `pending_or_failed`: then nothing else is known."""

    class_name: str = msgspec.field(name="className", default="")
    index: int = 0
    status: str
    ack_timestamp: int | UnsetType = UNSET
    end_to_end_duration: int | UnsetType = UNSET
    checkpointed_size: int | UnsetType = UNSET
    state_size: int | UnsetType = UNSET
    checkpoint: SubtaskTimes | UnsetType = UNSET
    alignment: SubtaskAlignment | UnsetType = UNSET
    start_delay: int | UnsetType = UNSET
    unaligned_checkpoint: bool | UnsetType = UNSET
    aborted: bool | UnsetType = UNSET


class TimesSummary(Answer, frozen=True, kw_only=True):
    sync: StatsSummary = StatsSummary()
    async_: StatsSummary = msgspec.field(name="async", default=StatsSummary())


class AlignmentSummary(Answer, frozen=True, kw_only=True):
    buffered: StatsSummary = StatsSummary()
    processed: StatsSummary = StatsSummary()
    persisted: StatsSummary = StatsSummary()
    duration: StatsSummary = StatsSummary()


class SubtasksSummary(Answer, frozen=True, kw_only=True):
    checkpointed_size: StatsSummary = StatsSummary()
    state_size: StatsSummary = StatsSummary()
    end_to_end_duration: StatsSummary = StatsSummary()
    checkpoint_duration: TimesSummary = TimesSummary()
    alignment: AlignmentSummary = AlignmentSummary()
    start_delay: StatsSummary = StatsSummary()


class TaskCheckpointDetails(TaskCheckpoint, frozen=True, kw_only=True):
    """`summary` is of the subtasks that have acknowledged, as in Flink: of none, it is all 0."""

    summary: SubtasksSummary | None = SubtasksSummary()  # None: an earlier version's, of none
    subtasks: tuple[SubtaskCheckpoint, ...] = ()


class Externalization(Answer, frozen=True, kw_only=True):
    enabled: bool
    delete_on_cancellation: bool


class CheckpointConfigExtras(Answer, frozen=True, kw_only=True, rename="kebab"):
    num_retained: int
    master_hooks: tuple[str, ...]
    on_damage: str
    scrub_interval: int


class CheckpointConfig(Answer, frozen=True, kw_only=True):
    """Flink writes "off" as the largest long."""

    mode: str
    interval: int
    timeout: int
    min_pause: int
    max_concurrent: int
    externalization: Externalization
    state_backend: str = "rocksdb"
    checkpoint_storage: str = "FileSystemCheckpointStorage"
    unaligned_checkpoints: bool
    tolerable_failed_checkpoints: int
    aligned_checkpoint_timeout: int
    checkpoints_after_tasks_finish: bool = True
    state_changelog_enabled: bool = False
    changelog_periodic_materialization_interval: int = 0
    changelog_storage: str = ""
    minflinkd: CheckpointConfigExtras
