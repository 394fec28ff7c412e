"""One task's current execution attempt, as the JobMaster sees it. The smallest example of the state machine pattern."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from minflinkd.rpc.jobs import ExecutionState as State
from minflinkd.rpc.messages import OfferedTask, TaskMetrics, TaskState
from minflinkd.rpc.snapshot import NO_ROWS, RowCounts
from minflinkd.runtime.ids import AllocationId, AttemptId, ResourceId, TaskId
from minflinkd.runtime.machine import move, table

LEGAL = table(
    {
        State.CREATED: {State.SCHEDULED, State.CANCELED},
        State.SCHEDULED: {State.DEPLOYING},  # in the same step
        State.DEPLOYING: {State.INITIALIZING, State.RUNNING, State.CANCELING, State.FAILED},
        State.INITIALIZING: {State.RUNNING, State.CANCELING, State.FAILED},
        State.RUNNING: {State.CANCELING, State.FAILED},
        State.CANCELING: {State.CANCELED, State.FAILED, State.FINISHED},
        # A new attempt, in CREATED, replaces an ended one.
        State.FINISHED: {State.CREATED},
        State.CANCELED: {State.CREATED},
        State.FAILED: {State.CREATED},
    }
)

ON_TASK_MANAGER = frozenset({State.DEPLOYING, State.INITIALIZING, State.RUNNING, State.CANCELING})
ENDED = frozenset({State.FINISHED, State.CANCELED, State.FAILED})


@dataclass(frozen=True)
class Execution:
    """Immutable; every change makes a new one. Times are seconds of the injected clock."""

    task_id: TaskId
    state: State = State.CREATED
    number: int = 0  # of the attempt, counted from 0
    parallelism: int = 0  # that the attempt has; 0 before it is deployed
    partitions: int = 0  # of its state; 0: it keeps none, as far as is known
    asked: int = 0  # the parallelism that it was told to have and has not confirmed; 0: none
    attempt_id: AttemptId | None = None
    allocation_id: AllocationId | None = None
    resource_id: ResourceId | None = None
    address: str = ""  # of the TaskManager
    accepted: bool = False  # the TaskManager accepted the deployment, so it knows the attempt until the attempt ends
    metrics: TaskMetrics = field(default_factory=TaskMetrics)
    base: RowCounts = NO_ROWS  # rows of earlier attempts, up to the state that this one started from
    input_ended: bool = False
    entered: tuple[tuple[State, float], ...] = ()  # when this attempt entered each state

    @property
    def rows(self) -> RowCounts:
        """Return the rows since the job's submission. Rows processed again after a failure count once."""
        return self.base + self.metrics.rows

    @property
    def on_task_manager(self) -> bool:
        """Whether the TaskManager may still run something of this attempt."""
        return self.state in ON_TASK_MANAGER

    @classmethod
    def adopted(cls, offered: OfferedTask, resource_id: ResourceId, address: str, now: float) -> Execution:
        """Return the execution of a task that runs, and that an earlier JobMaster deployed (A14a)."""
        status = offered.status
        return cls(
            status.task_id,
            state=State.RUNNING,
            number=offered.attempt_number,
            parallelism=offered.parallelism,
            partitions=offered.partitions,
            attempt_id=status.attempt_id,
            allocation_id=offered.allocation_id,
            resource_id=resource_id,
            address=address,
            accepted=True,
            metrics=status.metrics,
            base=offered.base,
            input_ended=status.state is TaskState.INPUT_ENDED,
            entered=((State.RUNNING, now),),
        )

    def to(self, state: State, now: float) -> Execution:
        """Move to `state`. Raises IllegalTransition."""
        if state is self.state:
            return self
        moved = move(LEGAL, self.state, state, what=f"task {self.task_id}, attempt {self.number}")
        return replace(self, state=moved, entered=(*self.entered, (moved, now)))

    def next_attempt(self) -> Execution:
        """Return a new attempt of the task, to be scheduled."""
        move(LEGAL, self.state, State.CREATED, what=f"task {self.task_id}, attempt {self.number}")
        return Execution(self.task_id, number=self.number + 1, base=self.rows)
