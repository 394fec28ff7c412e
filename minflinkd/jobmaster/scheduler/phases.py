"""The phases of a job, each with the facts that only it has, and the table of legal moves between them.

Executions are kept per task, since tasks restart in part: in `WaitingForSlots`, other tasks may run on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.messages import OfferedTask
from minflinkd.runtime.ids import AllocationId, AttemptId, ResourceId, TaskId
from minflinkd.runtime.machine import table


@dataclass(frozen=True)
class Initializing:
    """It is not known yet what earlier JobMasters left."""


@dataclass(frozen=True)
class Predecessors:
    """What tells which tasks of earlier JobMasters may be adopted (A14a)."""

    version: str  # of the graph
    latest: int = 0  # the checkpoint that a restart would begin from; 0: none
    attempts: frozenset[AttemptId] = frozenset()  # those whose state it holds
    completed: frozenset[int] = frozenset()  # all checkpoints that are in the store
    ran: bool = False  # this version was RUNNING, and its tasks were not told to end with the daemon


@dataclass(frozen=True)
class FoundTask:
    """A task that runs on from before, and the TaskManager that offered it."""

    task: OfferedTask
    resource_id: ResourceId
    address: str


@dataclass(frozen=True)
class Reconciling:
    """TaskManagers may run tasks of an earlier JobMaster. They are waited for until then, to adopt their tasks (A14a).

    Nothing is deployed yet, and no slots are asked for: all tasks may be there.
    """

    until: float
    predecessors: Predecessors
    found: Mapping[TaskId, FoundTask] = field(default_factory=dict)


@dataclass(frozen=True)
class WaitingForSlots:
    """Tasks have to be deployed. First the tasks that stop must have stopped, and there must be slots enough.

    With `restart_at`, a restart is due then. A failure that comes before is handled by the same restart.
    """

    lacking_since: float | None = None  # since when some of the wanted slots are missing
    restart_at: float | None = None


@dataclass(frozen=True)
class FindingRestorePoint:
    """There are slots for `tasks`. What they start from is being looked for."""

    tasks: frozenset[TaskId]
    lacking_since: float | None = None  # as above: the job may start with fewer slots than it wants


@dataclass(frozen=True)
class ComingUp:
    """All tasks are deployed, and some do not run yet."""


@dataclass(frozen=True)
class Growth:
    """More slots are held than are used: the total parallelism that is possible, and since when."""

    parallelism: int
    since: float


@dataclass(frozen=True)
class Running:
    """All tasks run."""

    since: float
    checkpointed: bool  # it has completed a checkpoint since then, or takes none
    hastened: bool = True  # its first checkpoint need not come earlier than others, or has been asked for
    draining: bool = False  # sources stop at what they saw when the drain began
    final_checkpoint_asked: bool = False
    growth: Growth | None = None
    resized_from: Mapping[str, int] | None = None  # how wide the groups were, until all tasks have their new slots
    rigid: bool = False  # a task cannot have another parallelism while it runs
    idle: Mapping[AllocationId, float] = field(default_factory=dict)  # held but unused slots, and since when (R4)


@dataclass(frozen=True)
class Rescaling:
    """The checkpoint that the job grows from is being taken. All tasks run. If it fails, they run on as before."""

    before: Running


@dataclass(frozen=True)
class StandingDown:
    """The tasks end, and another JobMaster starts the next version (H3).

    Until `not_before`, TaskManagers may still offer tasks of an earlier JobMaster, which must end as well (A14c).
    """

    not_before: float = 0.0


@dataclass(frozen=True)
class StoodDown:
    """The tasks have ended, and the driver was told."""


@dataclass(frozen=True)
class Stopping:
    """The tasks end, and the job will end as `outcome`."""

    outcome: JobStatus


@dataclass(frozen=True)
class Settling:
    """Nothing runs any more. The sinks publish what they owe, and discard the rest."""

    outcome: JobStatus


@dataclass(frozen=True)
class Ended:
    outcome: JobStatus


Phase = (
    Initializing
    | Reconciling
    | WaitingForSlots
    | FindingRestorePoint
    | ComingUp
    | Running
    | Rescaling
    | StandingDown
    | StoodDown
    | Stopping
    | Settling
    | Ended
)

LEGAL = table(
    {
        Initializing: {Reconciling, WaitingForSlots, Stopping},
        Reconciling: {Running, WaitingForSlots, StandingDown, Stopping},
        WaitingForSlots: {FindingRestorePoint, StandingDown, Stopping},
        FindingRestorePoint: {ComingUp, WaitingForSlots, StandingDown, Stopping},
        ComingUp: {Running, WaitingForSlots, StandingDown, Stopping},
        Running: {Rescaling, WaitingForSlots, StandingDown, Stopping},
        Rescaling: {Running, WaitingForSlots, StandingDown, Stopping},
        StandingDown: {StoodDown, WaitingForSlots, Stopping},
        StoodDown: {WaitingForSlots, Stopping},
        Stopping: {Settling},
        Settling: {Ended},
        Ended: set(),
    },
    every=get_args(Phase),
)


def job_status(phase: Phase, *, restarted: bool) -> JobStatus:
    """Return Flink's word for the phase. `restarted`: the job has begun a restart since this JobMaster came up."""
    match phase:
        case Initializing():
            return JobStatus.INITIALIZING
        case Reconciling():
            return JobStatus.RECONCILING
        case WaitingForSlots() | FindingRestorePoint() | ComingUp():
            return JobStatus.RESTARTING if restarted else JobStatus.CREATED
        case Running() | Rescaling():
            return JobStatus.RUNNING
        case StandingDown() | StoodDown():
            return JobStatus.RESTARTING
        case Stopping(outcome) | Settling(outcome):
            return _ENDING[outcome]
        case Ended(outcome):
            return outcome


_ENDING = {
    JobStatus.FINISHED: JobStatus.RUNNING,  # as in Flink: RUNNING until it is FINISHED
    JobStatus.CANCELED: JobStatus.CANCELLING,
    JobStatus.FAILED: JobStatus.FAILING,
}
