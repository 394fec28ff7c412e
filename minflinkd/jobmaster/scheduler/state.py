"""The state of one job's scheduler: immutable, with its invariants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from minflinkd.jobgraph.model import Task
from minflinkd.jobmaster.options import JobMasterOptions
from minflinkd.jobmaster.scheduler import placement, slot_pool
from minflinkd.jobmaster.scheduler.exchanges import Exchanges, exchanges
from minflinkd.jobmaster.scheduler.execution import Execution
from minflinkd.jobmaster.scheduler.phases import (
    Ended,
    FindingRestorePoint,
    Initializing,
    Phase,
    Reconciling,
    Rescaling,
    Running,
    Settling,
    StandingDown,
    StoodDown,
    Stopping,
    WaitingForSlots,
    job_status,
)
from minflinkd.jobmaster.scheduler.placement import Bounds, Placement
from minflinkd.jobmaster.scheduler.restart import RestartHistory
from minflinkd.jobmaster.scheduler.rollout import Rollout
from minflinkd.jobmaster.scheduler.slot_pool import SlotPool
from minflinkd.jobmaster.scheduler.streak import NO_FAILURES, Failure, Streak
from minflinkd.rpc.jobs import ExecutionState, JobStatus
from minflinkd.rpc.messages import Library
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import AllocationId, AttemptId, ResourceId, TaskId
from minflinkd.runtime.machine import InvariantViolated
from minflinkd.runtime.resource_profile import ResourceProfile


@dataclass(frozen=True)
class Takeover:
    """TaskManagers may still run what an earlier JobMaster deployed, and hold its slots. Until the job runs again."""

    since: float
    offered_at: float | None = None  # when the last TaskManager offered such slots; nothing old runs there any more


@dataclass(frozen=True)
class JobState:
    """The state of one job. Times are seconds of the injected clock."""

    tasks: Mapping[TaskId, Task]
    options: JobMasterOptions
    executions: Mapping[TaskId, Execution]
    exchanges: Exchanges
    pool: SlotPool
    phase: Phase = field(default_factory=Initializing)
    entered: Mapping[JobStatus, float] = field(default_factory=dict)
    round: int = 0  # counts deployments; answers to an older round change nothing
    placement: Placement = field(default_factory=dict)  # of the groups, as last deployed
    ran_with: Mapping[str, int] = field(
        default_factory=dict
    )  # parallelism of the groups, also under earlier JobMasters
    proven: Mapping[str, int] = field(default_factory=dict)  # parallelism of the groups when the job was last RUNNING
    # Their placement then; empty if that was under an earlier JobMaster.
    proven_on: Placement = field(default_factory=dict)
    narrowed: bool = False  # to the proven parallelism, because the job did not come up wider
    failed_growths: int = 0  # since the last one that succeeded
    changed_at: float = 0.0  # of the last deployment, or attempt to grow
    on_trial: bool = False  # until the version has completed a checkpoint (H7)
    reserving: Mapping[str, Bounds] | None = None  # the job's own bounds, while slots for another version are asked for
    next_libraries: tuple[Library, ...] = ()  # of that version
    next_profiles: Mapping[str, ResourceProfile] | None = None  # of that version; None: as in this one (R40)
    takeover: Takeover | None = None
    leaving: Mapping[AttemptId, ResourceId] = field(default_factory=dict)  # of earlier JobMasters, told to end
    has_run: bool = False  # under this JobMaster or an earlier one
    history: RestartHistory = field(default_factory=RestartHistory)
    restarts: int = 0  # since the submission
    streak: Streak = NO_FAILURES
    failures: tuple[Failure, ...] = ()  # newest last
    waiting: Mapping[AllocationId, str] = field(default_factory=dict)  # why needs are not served yet (R5)
    largest: int = 0  # slots of the largest possible TaskManager, as far as is known
    sinks_error: ErrorInfo | None = None  # why what completed checkpoints promised could not be published
    rollouts: tuple[Rollout, ...] = ()  # newest last; the first is the submission's

    def with_execution(self, execution: Execution) -> JobState:
        return replace(self, executions={**self.executions, execution.task_id: execution})

    def by_attempt(self, attempt_id: AttemptId) -> Execution | None:
        return next((e for e in self.executions.values() if e.attempt_id == attempt_id), None)

    def group_of(self, task_id: TaskId) -> str:
        return self.tasks[task_id].slot_sharing_group

    # --- facts of the phase --------------------------------------------------------------------------------------

    @property
    def status(self) -> JobStatus:
        return job_status(self.phase, restarted=len(self.rollouts) > 1)

    @property
    def running(self) -> Running | None:
        """Return what is known of the job while all its tasks run, or None."""
        match self.phase:
            case Running():
                return self.phase
            case Rescaling(before):
                return before
            case _:
                return None

    @property
    def lacking_since(self) -> float | None:
        """Return since when tasks wait and some of the wanted slots are missing, or None."""
        match self.phase:
            case WaitingForSlots(lacking_since=since) | FindingRestorePoint(lacking_since=since):
                return since
            case _:
                return None

    @property
    def restart_at(self) -> float | None:
        """Return when a restart is due. None while tasks are up or coming up."""
        return self.phase.restart_at if isinstance(self.phase, WaitingForSlots) else None

    @property
    def outcome(self) -> JobStatus | None:
        """Return the terminal state that an ending job will reach, or None."""
        return self.phase.outcome if isinstance(self.phase, Stopping | Settling | Ended) else None

    @property
    def restarts_repeatedly(self) -> bool:
        return self.streak.failures >= self.options.warn_after_failures and self.outcome is None

    # --- facts of the executions ---------------------------------------------------------------------------------

    @property
    def live(self) -> tuple[Execution, ...]:
        """Return the executions that may still run something on a TaskManager."""
        return tuple(e for e in self.executions.values() if e.on_task_manager)

    @property
    def all_gone(self) -> bool:
        """Whether nothing of the job may still run on a TaskManager."""
        return not self.live and not self.leaving

    @property
    def known_attempts(self) -> frozenset[AttemptId]:
        """Return the attempts that may run: the job's own, those that may be adopted, and those told to end."""
        found = self.phase.found.values() if isinstance(self.phase, Reconciling) else ()
        own = {e.attempt_id for e in self.live if e.attempt_id is not None}
        return frozenset({*own, *self.leaving, *(f.task.status.attempt_id for f in found)})

    @property
    def all_run(self) -> bool:
        return all(e.state is ExecutionState.RUNNING for e in self.executions.values())

    @property
    def has_processed(self) -> bool:
        """Whether every task has finished a micro-batch, or has no more input."""
        return all(e.metrics.batches > 0 or e.input_ended for e in self.executions.values())

    @property
    def has_read(self) -> bool:
        """Whether every task has finished a micro-batch with rows, or has found no rows to process.

        A finished micro-batch alone says nothing: a restored query begins with one that has no rows.
        """
        return all(has_input(e) or e.metrics.waited or e.input_ended for e in self.executions.values())

    @property
    def has_input(self) -> bool:
        """Whether some task has processed rows, or no task has any left to process.

        Tasks do not wait for one with an empty source: until a checkpoint, none of their rows are published.
        """
        executions = self.executions.values()
        return any(map(has_input, executions)) or all(e.input_ended for e in executions)


def only_progress(before: JobState, after: JobState) -> bool:
    """Whether at most the figures of tasks have changed, as with every micro-batch. May be false all the same."""
    if before is after:
        return True
    old, new = vars(before), vars(after)
    if any(new[name] is not value for name, value in old.items() if name != "executions"):
        return False
    return all(
        execution is (earlier := before.executions.get(task_id)) or _only_figures(earlier, execution)
        for task_id, execution in after.executions.items()
    )


def _only_figures(before: Execution | None, after: Execution) -> bool:
    return before is not None and _shown(before) == _shown(after)


def _shown(execution: Execution) -> tuple[object, ...]:
    return execution.state, execution.allocation_id, execution.parallelism


def has_input(execution: Execution) -> bool:
    return execution.metrics.rows_in > 0 or execution.metrics.advanced


def widths(tasks: tuple[Task, ...]) -> dict[str, int]:
    """Return how many slots these tasks want, by slot sharing group."""
    desired: dict[str, int] = {}
    for task in tasks:  # tasks of a group share its slots, so the widest task counts (J6)
        desired[task.slot_sharing_group] = max(desired.get(task.slot_sharing_group, 0), task.parallelism)
    return desired


def new_job(tasks: tuple[Task, ...], options: JobMasterOptions) -> JobState:
    desired = widths(tasks)
    least = {g: min(n, options.min_parallelism) if options.adaptive else n for g, n in desired.items()}
    return JobState(
        tasks={t.id: t for t in tasks},
        options=options,
        executions={t.id: Execution(t.id) for t in tasks},
        exchanges=exchanges(tasks),
        pool=SlotPool({g: Bounds(n, least[g]) for g, n in desired.items()}, options.libraries, options.profiles),
        on_trial=options.on_trial,
    )


def check_invariants(state: JobState) -> None:
    """Check the state. Raises InvariantViolated."""
    slot_pool.check_invariants(state.pool)
    active = [e for e in state.live if e.state is not ExecutionState.CANCELING]
    running = {e.task_id for e in active}
    for task_id in sorted(running):
        if stopped := state.exchanges.sources[task_id] - running:
            raise InvariantViolated(f"{task_id} reads from {sorted(stopped)[0]}, which does not run")
    used = {state.group_of(e.task_id) for e in active}
    placement.check_invariants({g: state.placement[g] for g in sorted(used)}, state.pool.holdings)
    for execution in active:
        if execution.allocation_id not in state.pool.held:
            raise InvariantViolated(f"{execution.task_id} is {execution.state} on a slot that the pool does not hold")
    if broken := _contradiction(state.phase, state, active):
        raise InvariantViolated(f"the job is {type(state.phase).__name__} {broken}")


def _contradiction(phase: Phase, state: JobState, active: list[Execution]) -> str | None:
    """Return how the executions contradict the phase, or None. `active`: they were not told to end."""
    match phase:
        case Running() | Rescaling() if not state.all_run:
            return "while a task does not run"
        case Reconciling() if state.live:
            return "while an attempt of its own may run"
        case FindingRestorePoint(tasks) if any(state.executions[t].on_task_manager for t in tasks):
            return "while one of the tasks that it is for may still run"
        case StandingDown() | Stopping() if active:
            return "while a task was not told to end"
        case StoodDown() | Settling() | Ended() if state.live:
            return f"with {len(state.live)} attempts that may still run"
        case _:
            return None
