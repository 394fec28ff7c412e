"""The events that the coordinator's machine receives, and the commands that it issues.

The result of a command is a later event. `request` and `checkpoint_id` link the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from minflinkd.checkpoint.causes import CheckpointKind, FailureCause, Refusal
from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.checkpoint.statistics import CheckpointRecord
from minflinkd.rpc.snapshot import TaskSnapshot
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import AttemptId, TaskId

# --- events ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tick:
    """Time has passed. `next_wakeup` says when one is due."""


@dataclass(frozen=True)
class TriggerRequested:
    request: int
    kind: CheckpointKind = CheckpointKind.MANUAL
    forced: bool = False  # skips these checks: already queued, too many in flight, too soon
    stop: bool = False  # the tasks publish no micro-batch after the cut
    full: bool = False  # refers to no file of an earlier checkpoint


@dataclass(frozen=True)
class FinalRequested:
    """All tasks have exhausted their input: one more checkpoint, then the job may finish (C4)."""


@dataclass(frozen=True)
class DrainBegun:
    """The tasks are about to be told to run to their end. Until all have ended, only the final checkpoint is taken."""


@dataclass(frozen=True)
class Unpinned:
    """The savepoint made from this checkpoint is written, or was given up."""

    checkpoint_id: int


@dataclass(frozen=True)
class ReadBegun:
    """Somebody reads the state in this checkpoint. It stays until as many readings have ended as have begun."""

    checkpoint_id: int


@dataclass(frozen=True)
class ReadEnded:
    checkpoint_id: int


@dataclass(frozen=True)
class TasksRunning:
    """All tasks of the job are RUNNING, as these attempts. `periodic`: periodic checkpoints are taken."""

    attempts: Mapping[TaskId, AttemptId]
    periodic: bool = True


@dataclass(frozen=True)
class PeriodicBegins:
    """Periodic checkpoints begin for tasks that have run without them."""


@dataclass(frozen=True)
class PeriodicHastened:
    """The next periodic checkpoint is due now, if periodic checkpoints are taken."""


@dataclass(frozen=True)
class TasksStopped:
    """A failover or cancellation has begun: no checkpoint until all tasks run again. `survivors` keep running (R16)."""

    survivors: frozenset[AttemptId] = frozenset()


@dataclass(frozen=True)
class TasksAdopted:
    """These attempts already ran under an earlier coordinator (A14a). Other tasks may still be deployed.

    `unsettled`: checkpoints whose end the attempts do not know. Those that are not complete never will be.
    """

    attempts: frozenset[AttemptId]
    unsettled: frozenset[int]


@dataclass(frozen=True)
class RestorePointTaken:
    """The next attempts start from this checkpoint. Before they run, they publish all that is owed up to it."""

    checkpoint_id: int


@dataclass(frozen=True)
class FellBack:
    """These completed checkpoints are damaged: the job goes on from an earlier one. No task runs at this time.

    What they promised to publish is not owed any more: the job makes that output again.
    """

    skipped: frozenset[int]


@dataclass(frozen=True)
class SetUpDone:
    request: int
    checkpoint_id: int
    at_ms: int  # the time of day; later times are measured from here, so a clock that jumps does no harm


@dataclass(frozen=True)
class SetUpFailed:
    request: int
    error: ErrorInfo


@dataclass(frozen=True)
class HookAnswered:
    checkpoint_id: int
    hook: str
    state: bytes = field(repr=False)


@dataclass(frozen=True)
class HookFailed:
    checkpoint_id: int
    error: ErrorInfo


@dataclass(frozen=True)
class TriggerTaken:
    checkpoint_id: int
    attempt_id: AttemptId


@dataclass(frozen=True)
class TriggerFailed:
    checkpoint_id: int
    attempt_id: AttemptId
    error: ErrorInfo


@dataclass(frozen=True)
class Acknowledged:
    snapshot: TaskSnapshot = field(repr=False)


@dataclass(frozen=True)
class Declined:
    checkpoint_id: int
    attempt_id: AttemptId
    error: ErrorInfo


@dataclass(frozen=True)
class MetadataWritten:
    checkpoint_id: int


@dataclass(frozen=True)
class MetadataFailed:
    checkpoint_id: int
    error: ErrorInfo


@dataclass(frozen=True)
class TaskNotified:
    """The task's sinks have published the checkpoint."""

    checkpoint_id: int
    attempt_id: AttemptId


@dataclass(frozen=True)
class MetadataDiscarded:
    checkpoint_id: int


@dataclass(frozen=True)
class FilesDeleted:
    """The files are deleted, or left for the sweep of orphans if that failed."""

    files: frozenset[str] = field(repr=False)


@dataclass(frozen=True)
class Stopped:
    """The coordinator shuts down."""


Event = (
    Tick
    | TriggerRequested
    | FinalRequested
    | DrainBegun
    | Unpinned
    | ReadBegun
    | ReadEnded
    | TasksRunning
    | PeriodicBegins
    | PeriodicHastened
    | TasksStopped
    | TasksAdopted
    | RestorePointTaken
    | FellBack
    | SetUpDone
    | SetUpFailed
    | HookAnswered
    | HookFailed
    | TriggerTaken
    | TriggerFailed
    | Acknowledged
    | Declined
    | MetadataWritten
    | MetadataFailed
    | TaskNotified
    | MetadataDiscarded
    | FilesDeleted
    | Stopped
)

# --- commands ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SetUp:
    """Allocate an id. Answered by SetUpDone or SetUpFailed."""

    request: int


@dataclass(frozen=True)
class CallHook:
    """Answered by HookAnswered or HookFailed."""

    hook: str
    checkpoint_id: int


@dataclass(frozen=True)
class CancelHooks:
    """Nobody waits for the hooks of this checkpoint any more."""

    checkpoint_id: int


@dataclass(frozen=True)
class SendTrigger:
    """Answered by TriggerTaken or TriggerFailed."""

    attempt_id: AttemptId
    checkpoint_id: int
    stop: bool = False
    full: bool = False


@dataclass(frozen=True)
class WriteMetadata:
    """Answered by MetadataWritten or MetadataFailed."""

    checkpoint: CompletedCheckpoint = field(repr=False)


@dataclass(frozen=True)
class NotifyComplete:
    """Repeat until TaskNotified, or until the attempt is gone."""

    attempt_id: AttemptId
    checkpoint_id: int


@dataclass(frozen=True)
class NotifyAborted:
    attempt_id: AttemptId
    checkpoint_id: int


@dataclass(frozen=True)
class DiscardMetadata:
    """Repeat until MetadataDiscarded. Nobody may restore from this checkpoint any more."""

    checkpoint_id: int


@dataclass(frozen=True)
class DeleteFiles:
    """Answered by FilesDeleted. Nothing refers to these files or ever will; a failure leaves only orphans."""

    files: frozenset[str]


@dataclass(frozen=True)
class FailJob:
    checkpoint_id: int
    cause: FailureCause
    error: ErrorInfo | None


@dataclass(frozen=True)
class Refuse:
    """Answers a request: the checkpoint was not begun."""

    request: int
    reason: Refusal


@dataclass(frozen=True)
class Fail:
    """Answers a request: the checkpoint was begun, and failed."""

    request: int
    checkpoint_id: int | None
    cause: FailureCause
    error: ErrorInfo | None


@dataclass(frozen=True)
class Complete:
    """Answers a request: the checkpoint is in the store."""

    request: int
    checkpoint: CompletedCheckpoint = field(repr=False)


@dataclass(frozen=True)
class ReportSetUpFailure:
    """For the statistics: a checkpoint that failed before it had an id."""

    cause: FailureCause


@dataclass(frozen=True)
class ReportPublished:
    """For the statistics: all tasks have confirmed a completed checkpoint."""

    checkpoint_id: int


@dataclass(frozen=True)
class Report:
    """For the statistics: a checkpoint as it stands now."""

    record: CheckpointRecord = field(repr=False)


Command = (
    SetUp
    | CallHook
    | CancelHooks
    | SendTrigger
    | WriteMetadata
    | NotifyComplete
    | NotifyAborted
    | DiscardMetadata
    | DeleteFiles
    | FailJob
    | Refuse
    | Fail
    | Complete
    | ReportSetUpFailure
    | ReportPublished
    | Report
)
