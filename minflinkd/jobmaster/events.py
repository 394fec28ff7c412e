"""What a job's scheduler is told, and what it commands. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.messages import SlotOffer, TaskMetrics, TaskRestore, TaskStatus
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import AllocationId, AttemptId, ResourceId, TaskId

# --- events ---


@dataclass(frozen=True)
class Started:
    """The JobMaster is up; the job begins, or, `recovered`, goes on from a checkpoint of an earlier JobMaster."""

    recovered: bool = False


@dataclass(frozen=True)
class SlotsOffered:
    resource_id: ResourceId
    address: str
    offers: tuple[SlotOffer, ...]


@dataclass(frozen=True)
class SlotsGone:
    """Allocations that the TaskManager does not know (any more)."""

    allocations: tuple[AllocationId, ...]
    reason: str


@dataclass(frozen=True)
class TaskManagerGone:
    resource_id: ResourceId
    reason: str


@dataclass(frozen=True)
class NeedsRefused:
    reasons: Mapping[AllocationId, str]


@dataclass(frozen=True)
class RestorePointFound:
    round: int
    checkpoint_id: int | None  # None: start empty
    tasks: Mapping[TaskId, TaskRestore]


@dataclass(frozen=True)
class RestorePointFailed:
    round: int
    error: ErrorInfo


@dataclass(frozen=True)
class DeployFailed:
    attempt_id: AttemptId
    error: ErrorInfo


@dataclass(frozen=True)
class TaskChanged:
    status: TaskStatus


@dataclass(frozen=True)
class TaskProgressed:
    attempt_id: AttemptId
    metrics: TaskMetrics


@dataclass(frozen=True)
class AttemptGone:
    """Nothing of the attempt runs any more: cancelled, or lost with its TaskManager."""

    attempt_id: AttemptId


@dataclass(frozen=True)
class CheckpointsFailed:
    """More failures in a row than are tolerated (C23), or the final checkpoint failed."""

    error: ErrorInfo


@dataclass(frozen=True)
class FinalCheckpointDone:
    round: int


@dataclass(frozen=True)
class CancelRequested:
    pass


@dataclass(frozen=True)
class SinksSettled:
    """What completed checkpoints promised is published; what none covers is discarded."""


@dataclass(frozen=True)
class Tick:
    pass


Event = (
    Started
    | SlotsOffered
    | SlotsGone
    | TaskManagerGone
    | NeedsRefused
    | RestorePointFound
    | RestorePointFailed
    | DeployFailed
    | TaskChanged
    | TaskProgressed
    | AttemptGone
    | CheckpointsFailed
    | FinalCheckpointDone
    | CancelRequested
    | SinksSettled
    | Tick
)

# --- commands ---


@dataclass(frozen=True)
class Declare:
    """Tell the ResourceManager now what is needed; the periodic declaration would do it later."""


@dataclass(frozen=True)
class FindRestorePoint:
    round: int


@dataclass(frozen=True)
class Deploy:
    task_id: TaskId
    attempt_id: AttemptId
    number: int
    allocation_id: AllocationId
    address: str
    restore: TaskRestore | None


@dataclass(frozen=True)
class Cancel:
    attempt_id: AttemptId
    address: str


@dataclass(frozen=True)
class StartCheckpoints:
    attempts: Mapping[TaskId, AttemptId]


@dataclass(frozen=True)
class StopCheckpoints:
    pass


@dataclass(frozen=True)
class TakeFinalCheckpoint:
    round: int


@dataclass(frozen=True)
class FreeAllocations:
    address: str
    allocations: tuple[AllocationId, ...]
    job_ended: bool


@dataclass(frozen=True)
class SettleSinks:
    pass


@dataclass(frozen=True)
class End:
    status: JobStatus


Command = (
    Declare
    | FindRestorePoint
    | Deploy
    | Cancel
    | StartCheckpoints
    | StopCheckpoints
    | TakeFinalCheckpoint
    | FreeAllocations
    | SettleSinks
    | End
)
