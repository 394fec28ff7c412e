"""What the command line reads of the answers about checkpoints. `rest/checkpoints_json.py` writes all of them."""

from __future__ import annotations

import msgspec

from minflinkd.rest.schemas.answer import Answer


class CheckpointCounts(Answer, frozen=True, kw_only=True):
    restored: int = 0
    total: int = 0
    in_progress: int = 0
    completed: int = 0
    failed: int = 0


class CheckpointFiles(Answer, frozen=True, kw_only=True, rename="kebab"):
    """The physical files of a job's retained checkpoints; sizes in bytes."""

    physical: int = 0
    logical: int = 0  # segments that checkpoints refer to
    bytes_stored: int = 0
    bytes_referenced: int = 0
    amplification: float = 1.0
    deleting: int = 0  # files waiting to be deleted
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
    files: CheckpointFiles | None = None  # of the job, at the time of its completion
    calls: dict[str, StorageCalls] = {}  # by kind
    compactions: int = 0
    bytes_rewritten: int = 0
    cause: str | None = None
    failed_task: str | None = None


class TaskCheckpointExtras(Answer, frozen=True, kw_only=True, rename="kebab"):
    task_id: str = ""
    wait: float = 0.0
    alignment: float = 0.0
    unaligned: bool = False
    sync: float = 0.0
    async_: float = msgspec.field(name="async", default=0.0)
    files: int = 0
    files_uploaded: int = 0
    physical_files: int = 0


class TaskCheckpoint(Answer, frozen=True, kw_only=True):
    num_acknowledged_subtasks: int = 0
    end_to_end_duration: int = -1
    alignment_buffered: int = 0
    state_size: int = 0
    checkpointed_size: int = 0
    minflinkd: TaskCheckpointExtras = TaskCheckpointExtras()


class Checkpoint(Answer, frozen=True, kw_only=True):
    id: int
    status: str
    is_savepoint: bool = False
    trigger_timestamp: int = -1
    latest_ack_timestamp: int = -1
    end_to_end_duration: int = 0
    alignment_buffered: int = 0
    state_size: int = 0
    checkpointed_size: int = 0
    num_subtasks: int = 0
    num_acknowledged_subtasks: int = 0
    external_path: str | None = None
    failure_message: str | None = None
    tasks: dict[str, TaskCheckpoint] = {}
    minflinkd: CheckpointExtras = CheckpointExtras()


class RestoredCheckpoint(Answer, frozen=True, kw_only=True):
    id: int
    restore_timestamp: int = -1
    external_path: str | None = None


class LatestCheckpoints(Answer, frozen=True, kw_only=True):
    completed: Checkpoint | None = None
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
