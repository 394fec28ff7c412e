"""The events that a job's scheduler receives, and the commands that it returns. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from minflinkd.jobmaster.scheduler.phases import Predecessors
from minflinkd.jobmaster.scheduler.restart import RestartHistory
from minflinkd.jobmaster.scheduler.streak import NO_FAILURES, Failure, Streak
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.messages import (
    ExchangeSource,
    Library,
    OfferedTask,
    SlotOffer,
    TaskMetrics,
    TaskRestore,
    TaskStatus,
)
from minflinkd.rpc.snapshot import RowCounts
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import AllocationId, AttemptId, ResourceId, TaskId
from minflinkd.runtime.resource_profile import NO_PROFILE, ResourceProfile

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
    """The JobMaster is up.

    The job begins, or, if `recovered`, goes on from a checkpoint of an earlier JobMaster. If `cancelled`, the job was
    already cancelled under an earlier JobMaster, and this one only brings it to its end. With `predecessors`, its tasks
    may still run, and are looked for (A14a).
    """

    recovered: bool = False
    cancelled: bool = False
    ran_with: Mapping[TaskId, int] = field(default_factory=dict)  # parallelism of each task's state in that checkpoint
    rows: Mapping[TaskId, RowCounts] = field(default_factory=dict)  # up to that checkpoint
    past: Past = NO_PAST
    predecessors: Predecessors | None = None


@dataclass(frozen=True)
class CheckpointCompleted:
    """A checkpoint of any kind completed."""


@dataclass(frozen=True)
class SlotsOffered:
    resource_id: ResourceId
    address: str
    offers: tuple[SlotOffer, ...]
    data_url: str = ""
    tasks: tuple[OfferedTask, ...] = ()  # that run there
    draining: bool = False  # as in `Draining`
    libraries: tuple[Library, ...] = ()  # that the session there holds
    profile: ResourceProfile = NO_PROFILE  # of its slots (R40)


@dataclass(frozen=True)
class Draining:
    """The TaskManager says whether it is draining. If so, nothing more is deployed there (A15b)."""

    resource_id: ResourceId
    draining: bool


@dataclass(frozen=True)
class SlotsGone:
    """The TaskManager does not, or no longer, know these allocations."""

    allocations: tuple[AllocationId, ...]
    reason: str


@dataclass(frozen=True)
class TaskManagerGone:
    resource_id: ResourceId
    reason: str


@dataclass(frozen=True)
class NeedsAnswered:
    """The ResourceManager's reasons for not serving needs: those in `refused` never, those in `waiting` not yet."""

    refused: Mapping[AllocationId, str]
    waiting: Mapping[AllocationId, str] = field(default_factory=dict)
    largest: int = 0  # as in NeedsAnswer


@dataclass(frozen=True)
class RestorePointFound:
    round: int
    checkpoint_id: int | None  # None: start empty
    tasks: Mapping[TaskId, TaskRestore]
    rows: Mapping[TaskId, RowCounts] = field(default_factory=dict)  # of the job, up to this checkpoint
    warning: ErrorInfo | None = None  # what users must know: later checkpoints are damaged
    oldest: int = 0  # earlier checkpoints have ended


@dataclass(frozen=True)
class AllTasksNeeded:
    """The tasks that run on cannot: they restart together with the others. This is not a failure of its own."""

    round: int


@dataclass(frozen=True)
class RestorePointFailed:
    """`all_tasks`: the tasks that run on must stop as well, since all have to go back to the same checkpoint."""

    round: int
    error: ErrorInfo
    all_tasks: bool = False


@dataclass(frozen=True)
class DamageFound:
    """A retained checkpoint is damaged. The job runs on: it may never be needed."""

    error: ErrorInfo


@dataclass(frozen=True)
class DeployAccepted:
    attempt_id: AttemptId


@dataclass(frozen=True)
class TaskResized:
    """The running attempt has this parallelism from its next micro-batch on."""

    attempt_id: AttemptId
    parallelism: int


@dataclass(frozen=True)
class TaskNotResized:
    """The running attempt cannot have another parallelism, or nobody knows whether it has."""

    attempt_id: AttemptId


@dataclass(frozen=True)
class DeployFailed:
    """The deployment was refused: nothing of the attempt runs."""

    attempt_id: AttemptId
    error: ErrorInfo


@dataclass(frozen=True)
class DeployUnanswered:
    """The deployment may have been carried out."""

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
    """Nothing of the attempt runs any more: it was cancelled, or lost with its TaskManager."""

    attempt_id: AttemptId


@dataclass(frozen=True)
class CheckpointsFailed:
    """Too many checkpoints failed in a row (C23), or the final checkpoint failed."""

    error: ErrorInfo


@dataclass(frozen=True)
class FinalCheckpointDone:
    round: int


@dataclass(frozen=True)
class StopDone:
    """The tasks of this round have stopped reading and the savepoint is written: the job may finish (C24)."""

    round: int


@dataclass(frozen=True)
class RescaleCheckpointDone:
    """The checkpoint to rescale from is complete: the job may stop and restart with another parallelism (R20)."""

    round: int


@dataclass(frozen=True)
class RescaleCheckpointFailed:
    round: int


@dataclass(frozen=True)
class SlotsReserved:
    """Another version will follow and wants this many slots for each group.

    The job asks for them while this version runs. It also asks for slots to replace those on draining TaskManagers
    (A15b), those in sessions that cannot hold the other version's `libraries` (B31), and those that have less than its
    `profiles` say (R40). If `groups` is empty, no version follows, and the job wants no more slots than its own.
    """

    groups: Mapping[str, int] = field(default_factory=dict)
    libraries: tuple[Library, ...] = ()
    profiles: Mapping[str, ResourceProfile] | None = None  # by group; None: as in this version


@dataclass(frozen=True)
class DrainBegun:
    """The sources were told to stop at the input they see now, and event time advances to its end."""


@dataclass(frozen=True)
class StandDown:
    """Another version of the job will follow: the tasks end, the slots stay with the job (H3, H3a)."""


@dataclass(frozen=True)
class GoOn:
    """No other version will follow after all: the job goes on from its last checkpoint."""


@dataclass(frozen=True)
class Proven:
    """The version is no longer on trial: it has completed a checkpoint (H7)."""


@dataclass(frozen=True)
class CancelRequested:
    pass


@dataclass(frozen=True)
class SinksSettled:
    """All output that completed checkpoints promised is published, and all other staged output is discarded.

    If that cannot be done, `error` says why.
    """

    error: ErrorInfo | None = None


@dataclass(frozen=True)
class Tick:
    pass


Event = (
    Started
    | CheckpointCompleted
    | SlotsOffered
    | Draining
    | SlotsGone
    | TaskManagerGone
    | NeedsAnswered
    | RestorePointFound
    | AllTasksNeeded
    | RestorePointFailed
    | DamageFound
    | DeployAccepted
    | TaskResized
    | TaskNotResized
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
    """Find what these tasks start from, and prepare their sinks. The other tasks run on."""

    round: int
    tasks: frozenset[TaskId]


@dataclass(frozen=True)
class Deploy:
    task_id: TaskId
    parallelism: int
    partitions: int
    attempt_id: AttemptId
    number: int
    allocation_id: AllocationId
    address: str
    restore: TaskRestore | None
    inputs: tuple[ExchangeSource, ...] = ()
    oldest: int = 0  # earlier checkpoints have ended


@dataclass(frozen=True)
class Cancel:
    attempt_id: AttemptId
    address: str


@dataclass(frozen=True)
class Resize:
    """Give a running attempt another parallelism, without a stop."""

    attempt_id: AttemptId
    parallelism: int
    address: str


@dataclass(frozen=True)
class AdoptTasks:
    """These attempts of an earlier JobMaster belong to this one now, and run on.

    `unsettled`: checkpoints whose end they were not told.
    """

    attempts: frozenset[AttemptId]
    unsettled: frozenset[int]


@dataclass(frozen=True)
class StartCheckpoints:
    attempts: Mapping[TaskId, AttemptId]


@dataclass(frozen=True)
class HastenCheckpoint:
    """Take the next periodic checkpoint now."""


@dataclass(frozen=True)
class StopCheckpoints:
    """Take no checkpoints until all tasks run again. The tasks in `survivors` run on."""

    survivors: frozenset[AttemptId] = frozenset()


@dataclass(frozen=True)
class TakeFinalCheckpoint:
    round: int


@dataclass(frozen=True)
class TakeRescaleCheckpoint:
    round: int


@dataclass(frozen=True)
class FreeAllocations:
    """Free these allocations, and the `surplus` slots of allocations that the job keeps."""

    address: str
    allocations: tuple[AllocationId, ...]
    job_ended: bool
    surplus: Mapping[AllocationId, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class StoodDown:
    """Nothing of the job runs any more, and nothing will run again under this JobMaster."""


@dataclass(frozen=True)
class Disproved:
    """The version on trial has failed. Its tasks are being stopped (H7)."""

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
    | Resize
    | Cancel
    | AdoptTasks
    | StartCheckpoints
    | HastenCheckpoint
    | StopCheckpoints
    | TakeFinalCheckpoint
    | TakeRescaleCheckpoint
    | FreeAllocations
    | StoodDown
    | Disproved
    | SettleSinks
    | End
)
