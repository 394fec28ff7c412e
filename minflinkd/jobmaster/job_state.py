"""The state of one job's scheduler: immutable, with its table of legal moves and its invariants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from minflinkd.jobgraph.model import RestartStrategy, Task
from minflinkd.jobmaster import slot_pool
from minflinkd.jobmaster.execution import Execution
from minflinkd.jobmaster.restart import RestartHistory
from minflinkd.jobmaster.rollout import Rollout
from minflinkd.jobmaster.slot_pool import SlotPool
from minflinkd.rpc.jobs import ExecutionState, FailureRecord, JobStatus
from minflinkd.runtime.ids import AttemptId, TaskId
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
class JobState:
    tasks: Mapping[TaskId, Task]
    strategy: RestartStrategy
    slot_request_timeout: float  # seconds
    executions: Mapping[TaskId, Execution]
    pool: SlotPool
    status: JobStatus = S.INITIALIZING
    entered: Mapping[JobStatus, float] = field(default_factory=dict)
    round: int = 0  # of deployment; answers that belong to an older one change nothing
    restart_at: float | None = None  # a restart is due then; None while tasks are up or coming up
    finding_restore_point: bool = False
    final_checkpoint_asked: bool = False
    outcome: JobStatus | None = None  # set once the job is to end: the terminal state that it will reach
    settling: bool = False
    has_run: bool = False  # under this JobMaster or an earlier one
    history: RestartHistory = field(default_factory=RestartHistory)
    failures: tuple[FailureRecord, ...] = ()  # newest last
    rollouts: tuple[Rollout, ...] = ()  # newest last; the first is the submission's

    def to(self, status: JobStatus, now: float) -> JobState:
        """Raises IllegalTransition."""
        if status is self.status:
            return self
        moved = move(LEGAL, self.status, status, what="job")
        return replace(self, status=moved, entered={**self.entered, moved: now})

    def with_execution(self, execution: Execution) -> JobState:
        return replace(self, executions={**self.executions, execution.task_id: execution})

    def by_attempt(self, attempt_id: AttemptId) -> Execution | None:
        return next((e for e in self.executions.values() if e.attempt_id == attempt_id), None)

    def marked(self, phase: str, now: float) -> JobState:
        if not self.rollouts:
            return self
        return replace(self, rollouts=(*self.rollouts[:-1], self.rollouts[-1].mark(phase, now)))

    @property
    def live(self) -> tuple[Execution, ...]:
        """Executions of which a TaskManager may still run something."""
        return tuple(e for e in self.executions.values() if e.on_task_manager)


def new_job(tasks: tuple[Task, ...], strategy: RestartStrategy, slot_request_timeout: float) -> JobState:
    groups: dict[str, int] = {}
    for task in tasks:  # tasks of a group share its slots, so the widest one counts (J6)
        groups[task.slot_sharing_group] = max(groups.get(task.slot_sharing_group, 0), task.parallelism)
    return JobState(
        tasks={t.id: t for t in tasks},
        strategy=strategy,
        slot_request_timeout=slot_request_timeout,
        executions={t.id: Execution(t.id) for t in tasks},
        pool=SlotPool(groups=groups),
    )


def check_invariants(state: JobState) -> None:
    """Raises InvariantViolated."""
    slot_pool.check_invariants(state.pool)
    for execution in state.executions.values():
        runs_freely = execution.state in (
            ExecutionState.DEPLOYING,
            ExecutionState.INITIALIZING,
            ExecutionState.RUNNING,
        )
        if runs_freely and execution.allocation_id not in state.pool.held:
            raise InvariantViolated(f"{execution.task_id} is {execution.state} on a slot that the pool does not hold")
    if state.status is S.RUNNING and any(
        e.state is not ExecutionState.RUNNING for e in state.executions.values() if state.outcome is None
    ):
        raise InvariantViolated("the job is RUNNING while a task is not")
    if state.status.terminal and state.live:
        raise InvariantViolated(f"the job is {state.status} with {len(state.live)} attempts that may still run")
