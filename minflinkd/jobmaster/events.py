"""What a job's scheduler is told, and what it commands. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from minflinkd.jobmaster.restart import RestartHistory
from minflinkd.jobmaster.streak import NO_FAILURES, Failure, Streak
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.messages import ExchangeSource, SlotOffer, TaskMetrics, TaskRestore, TaskStatus
from minflinkd.rpc.snapshot import RowCounts
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import AllocationId, AttemptId, ResourceId, TaskId

# --- events ---


@dataclass(frozen=True)
class Past:
    """What happened to the job under earlier JobMasters."""

    restarts: int = 0
    history: RestartHistory = field(default_factory=RestartHistory)
    streak: Streak = NO_FAILURES
    failures: tuple[Failure, ...] = ()  # newest last


NO_PAST = Past()


@dataclass(frozen=True)
class Started:
    """The JobMaster is up; the job begins, or, `recovered`, goes on from a checkpoint of an earlier JobMaster.

    `cancelled`: under an earlier one, too: this one only brings the job to its end.
    """

    recovered: bool = False
    cancelled: bool = False
    ran_with: Mapping[TaskId, int] = field(default_factory=dict)  # task -> parallelism of its state in that checkpoint
    rows: Mapping[TaskId, RowCounts] = field(default_factory=dict)  # up to that checkpoint
    past: Past = NO_PAST


@dataclass(frozen=True)
class CheckpointCompleted:
    """Of whatever kind."""


@dataclass(frozen=True)
class SlotsOffered:
    resource_id: ResourceId
    address: str
    offers: tuple[SlotOffer, ...]
    data_url: str = ""


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
class NeedsAnswered:
    """What the ResourceManager says to the needs that it does not serve now: why never, or why not yet."""

    refused: Mapping[AllocationId, str]
    waiting: Mapping[AllocationId, str] = field(default_factory=dict)
    largest: int = 0  # as in NeedsAnswer


@dataclass(frozen=True)
class RestorePointFound:
    round: int
    checkpoint_id: int | None  # None: start empty
    tasks: Mapping[TaskId, TaskRestore]
    rows: Mapping[TaskId, RowCounts] = field(default_factory=dict)  # of the job, up to this checkpoint


@dataclass(frozen=True)
class RestorePointFailed:
    round: int
    error: ErrorInfo


@dataclass(frozen=True)
class DeployAccepted:
    attempt_id: AttemptId


@dataclass(frozen=True)
class DeployFailed:
    """It was refused: nothing of the attempt runs."""

    attempt_id: AttemptId
    error: ErrorInfo


@dataclass(frozen=True)
class DeployUnanswered:
    """It may have been carried out."""

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
class StopDone:
    """The tasks of this round stand still behind a savepoint, which is written: the job may finish (C24)."""

    round: int


@dataclass(frozen=True)
class RescaleCheckpointDone:
    """The job may stop and go on with another parallelism (R20)."""

    round: int


@dataclass(frozen=True)
class RescaleCheckpointFailed:
    round: int


@dataclass(frozen=True)
class SlotsReserved:
    """Another version is to follow, and wants so many slots for these groups: they are asked for while this one runs.

    Empty: none follows, and none are wanted beyond this version's own.
    """

    groups: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class DrainBegun:
    """The sources are told to stop at what they see, and time goes to its end."""


@dataclass(frozen=True)
class StandDown:
    """Another version of the job is to follow: the tasks end, the slots stay the job's (H3, H3a)."""


@dataclass(frozen=True)
class GoOn:
    """No other version follows after all: the job goes on from its last checkpoint."""


@dataclass(frozen=True)
class Proven:
    """The version is on trial no longer: it has completed a checkpoint (H7)."""


@dataclass(frozen=True)
class CancelRequested:
    pass


@dataclass(frozen=True)
class SinksSettled:
    """What completed checkpoints promised is published; what none covers is discarded. `error`: it cannot be done."""

    error: ErrorInfo | None = None


@dataclass(frozen=True)
class Tick:
    pass


Event = (
    Started
    | CheckpointCompleted
    | SlotsOffered
    | SlotsGone
    | TaskManagerGone
    | NeedsAnswered
    | RestorePointFound
    | RestorePointFailed
    | DeployAccepted
    | DeployFailed
    | DeployUnanswered
    | TaskChanged
    | TaskProgressed
    | AttemptGone
    | CheckpointsFailed
    | FinalCheckpointDone
    | StopDone
    | RescaleCheckpointDone
    | RescaleCheckpointFailed
    | SlotsReserved
    | DrainBegun
    | StandDown
    | GoOn
    | Proven
    | CancelRequested
    | SinksSettled
    | Tick
)

# --- commands ---


@dataclass(frozen=True)
class FindRestorePoint:
    """Settle from where these tasks start, and prepare their sinks. The other tasks run on."""

    round: int
    tasks: frozenset[TaskId]


@dataclass(frozen=True)
class Deploy:
    task_id: TaskId
    parallelism: int
    attempt_id: AttemptId
    number: int
    allocation_id: AllocationId
    address: str
    restore: TaskRestore | None
    inputs: tuple[ExchangeSource, ...] = ()


@dataclass(frozen=True)
class Cancel:
    attempt_id: AttemptId
    address: str


@dataclass(frozen=True)
class StartCheckpoints:
    attempts: Mapping[TaskId, AttemptId]


@dataclass(frozen=True)
class StopCheckpoints:
    """Until all tasks run again. `survivors` run on."""

    survivors: frozenset[AttemptId] = frozenset()


@dataclass(frozen=True)
class TakeFinalCheckpoint:
    round: int


@dataclass(frozen=True)
class TakeRescaleCheckpoint:
    round: int


@dataclass(frozen=True)
class FreeAllocations:
    """`surplus`: slots of allocations that the job keeps."""

    address: str
    allocations: tuple[AllocationId, ...]
    job_ended: bool
    surplus: Mapping[AllocationId, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class StoodDown:
    """Nothing of the job runs any more, and nothing will under this JobMaster."""


@dataclass(frozen=True)
class Disproved:
    """The version on trial cannot go on. What it ran is being stopped (H7)."""

    error: ErrorInfo


@dataclass(frozen=True)
class SettleSinks:
    pass


@dataclass(frozen=True)
class End:
    status: JobStatus


Command = (
    FindRestorePoint
    | Deploy
    | Cancel
    | StartCheckpoints
    | StopCheckpoints
    | TakeFinalCheckpoint
    | TakeRescaleCheckpoint
    | FreeAllocations
    | StoodDown
    | Disproved
    | SettleSinks
    | End
)
