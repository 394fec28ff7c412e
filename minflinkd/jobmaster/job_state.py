"""The state of one job's scheduler: immutable, with its table of legal moves and its invariants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.model import JobGraph, Task
from minflinkd.jobmaster import events as ev
from minflinkd.jobmaster import placement, slot_pool
from minflinkd.jobmaster.execution import Execution
from minflinkd.jobmaster.options import JobMasterOptions
from minflinkd.jobmaster.placement import Bounds, Placement
from minflinkd.jobmaster.regions import regions
from minflinkd.jobmaster.restart import RestartHistory
from minflinkd.jobmaster.rollout import Rollout
from minflinkd.jobmaster.slot_pool import SlotPool
from minflinkd.jobmaster.streak import NO_FAILURES, Failure, Streak
from minflinkd.rpc.jobs import ExecutionState, JobStatus
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import AllocationId, AttemptId, TaskId
from minflinkd.runtime.machine import InvariantViolated, move, table

S = JobStatus

LEGAL = table(
    {
        S.INITIALIZING: {S.CREATED, S.CANCELLING, S.FAILING, S.SUSPENDED},
        S.CREATED: {S.RUNNING, S.RESTARTING, S.CANCELLING, S.FAILING, S.SUSPENDED},
        S.RUNNING: {S.RESTARTING, S.CANCELLING, S.FAILING, S.FINISHED, S.SUSPENDED},
        S.RESTARTING: {S.RUNNING, S.CANCELLING, S.FAILING, S.SUSPENDED},
        S.FAILING: {S.FAILED, S.SUSPENDED},
        S.CANCELLING: {S.CANCELED, S.SUSPENDED},
        S.FAILED: set(),
        S.CANCELED: set(),
        S.FINISHED: set(),
        S.SUSPENDED: set(),
    }
)
KEPT_FAILURES = 32
KEPT_ROLLOUTS = 32


@dataclass(frozen=True)
class Growth:
    """More slots are held than are used: the total parallelism that is possible, and since when."""

    parallelism: int
    since: float


@dataclass(frozen=True)
class JobState:
    """The state of one job. Times are seconds of the injected clock."""

    tasks: Mapping[TaskId, Task]
    options: JobMasterOptions
    executions: Mapping[TaskId, Execution]
    regions: Mapping[TaskId, frozenset[TaskId]]
    pool: SlotPool
    status: JobStatus = S.INITIALIZING
    entered: Mapping[JobStatus, float] = field(default_factory=dict)
    round: int = 0  # counts deployments; answers to an older round change nothing
    restart_at: float | None = None  # when a restart is due; None while tasks are up or coming up
    finding: frozenset[TaskId] = frozenset()  # tasks whose restore point is being looked for
    placement: Placement = field(default_factory=dict)  # of the groups, as last deployed
    ran_with: Mapping[str, int] = field(
        default_factory=dict
    )  # parallelism of the groups, also under earlier JobMasters
    proven: Mapping[str, int] = field(default_factory=dict)  # parallelism of the groups when the job was last RUNNING
    # Their placement then; empty if that was under an earlier JobMaster.
    proven_on: Placement = field(default_factory=dict)
    narrowed: bool = False  # to the proven parallelism, because the job did not come up wider
    failed_growths: int = 0  # since the last one that succeeded
    lacking_since: float | None = None  # since when tasks wait and some of the wanted slots are missing
    changed_at: float = 0.0  # of the last deployment, or attempt to grow
    growth: Growth | None = None
    draining: bool = False  # sources stop at what they see now; until tasks stop or the job has ended
    rescaling: bool = False  # the checkpoint that the job grows from is being taken
    idle: Mapping[AllocationId, float] = field(default_factory=dict)  # held but unused slots, and since when (R4)
    final_checkpoint_asked: bool = False
    on_trial: bool = False  # until the version has completed a checkpoint (H7)
    reserving: Mapping[str, Bounds] | None = None  # the job's own bounds, while slots for another version are asked for
    standing_down: bool = False  # the tasks end, and another JobMaster brings up what follows (H3)
    stood_down: bool = False  # they have ended, and StoodDown was sent
    outcome: JobStatus | None = None  # the terminal state that an ending job will reach
    settling: bool = False
    heir_since: float | None = None  # TaskManagers may still run what an earlier JobMaster deployed, and hold its slots
    inherited_at: float | None = None  # when the last TaskManager offered those slots; nothing old runs there any more
    has_run: bool = False  # under this JobMaster or an earlier one
    history: RestartHistory = field(default_factory=RestartHistory)
    restarts: int = 0  # since the submission
    streak: Streak = NO_FAILURES
    checkpointed: bool = False  # since the job last started running
    failures: tuple[Failure, ...] = ()  # newest last
    waiting: Mapping[AllocationId, str] = field(default_factory=dict)  # why needs are not served yet (R5)
    largest: int = 0  # slots of the largest possible TaskManager, as far as is known
    sinks_error: ErrorInfo | None = None  # why what completed checkpoints promised could not be published
    rollouts: tuple[Rollout, ...] = ()  # newest last; the first is the submission's

    def to(self, status: JobStatus, now: float) -> JobState:
        """Move to `status`. Raises IllegalTransition."""
        if status is self.status:
            return self
        moved = move(LEGAL, self.status, status, what="job")
        return replace(self, status=moved, entered={**self.entered, moved: now})

    def with_execution(self, execution: Execution) -> JobState:
        return replace(self, executions={**self.executions, execution.task_id: execution})

    def by_attempt(self, attempt_id: AttemptId) -> Execution | None:
        return next((e for e in self.executions.values() if e.attempt_id == attempt_id), None)

    def marked(self, phase: str, now: float) -> JobState:
        if not self.rollouts or (rollout := self.rollouts[-1].mark(phase, now)) is self.rollouts[-1]:
            return self
        return replace(self, rollouts=(*self.rollouts[:-1], rollout))

    def group_of(self, task_id: TaskId) -> str:
        return self.tasks[task_id].slot_sharing_group

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

    @property
    def running_since(self) -> float | None:
        """Return when all tasks came to run, in seconds of the injected clock, or None if not all run."""
        return self.entered[S.RUNNING] if self.status is S.RUNNING else None

    @property
    def restarts_repeatedly(self) -> bool:
        return self.streak.failures >= self.options.warn_after_failures and self.outcome is None

    @property
    def live(self) -> tuple[Execution, ...]:
        """Return the executions that may still run something on a TaskManager."""
        return tuple(e for e in self.executions.values() if e.on_task_manager)


Step = tuple[JobState, tuple[ev.Command, ...]]


def has_input(execution: Execution) -> bool:
    return execution.metrics.rows_in > 0 or execution.metrics.advanced


def widths(graph: JobGraph) -> Mapping[str, int]:
    """Return how many slots a version of a job wants, by slot sharing group."""
    return _widths(chain(graph))


def _widths(tasks: tuple[Task, ...]) -> dict[str, int]:
    desired: dict[str, int] = {}
    for task in tasks:  # tasks of a group share its slots, so the widest task counts (J6)
        desired[task.slot_sharing_group] = max(desired.get(task.slot_sharing_group, 0), task.parallelism)
    return desired


def new_job(tasks: tuple[Task, ...], options: JobMasterOptions) -> JobState:
    desired = _widths(tasks)
    least = {g: min(n, options.min_parallelism) if options.adaptive else n for g, n in desired.items()}
    return JobState(
        tasks={t.id: t for t in tasks},
        options=options,
        executions={t.id: Execution(t.id) for t in tasks},
        regions=regions(tasks),
        pool=SlotPool(groups={g: Bounds(n, least[g]) for g, n in desired.items()}),
        on_trial=options.on_trial,
    )


def check_invariants(state: JobState) -> None:
    """Check the state. Raises InvariantViolated."""
    slot_pool.check_invariants(state.pool)
    used = {state.group_of(e.task_id) for e in state.live if e.state is not ExecutionState.CANCELING}
    placement.check_invariants({g: state.placement[g] for g in sorted(used)}, state.pool.holdings)
    for execution in state.live:
        if execution.state is not ExecutionState.CANCELING and execution.allocation_id not in state.pool.held:
            raise InvariantViolated(f"{execution.task_id} is {execution.state} on a slot that the pool does not hold")
    running = all(e.state is ExecutionState.RUNNING for e in state.executions.values())
    if state.status is S.RUNNING and state.outcome is None and not running:
        raise InvariantViolated("the job is RUNNING while a task is not")
    if state.standing_down and any(e.on_task_manager and e.state is not ExecutionState.CANCELING for e in state.live):
        raise InvariantViolated("the job stands down while a task is not told to end")
    if state.stood_down and (state.live or not state.standing_down):
        raise InvariantViolated("the job has stood down while something may still run")
    if state.status.terminal and state.live:
        raise InvariantViolated(f"the job is {state.status} with {len(state.live)} attempts that may still run")
