"""Messages of the HTTP endpoint to the Dispatcher about the state in a job's checkpoints (E19c).

`checkpoint` says which one: its number, the path of a savepoint or checkpoint, or nothing for the latest. `any_job`:
whether a path may lead to a savepoint of another job.
"""

from __future__ import annotations

from minflinkd.rpc.messages import Message, Request, StateFound, StateGrowth, StateQuestion
from minflinkd.runtime.ids import JobId, TaskId


class CheckpointRead(Message, frozen=True):
    """The checkpoint or savepoint that was read."""

    job_id: JobId
    checkpoint_id: int
    path: str
    triggered_ms: int
    savepoint: bool


class StatefulOperator(Message, frozen=True):
    number: int
    kind: str
    vertex: str


class TaskWithState(Message, frozen=True):
    """What a checkpoint's metadata says of a task. `size`: bytes of the files with its state."""

    task_id: TaskId
    batch_id: int
    size: int
    operators: tuple[StatefulOperator, ...]


class StateOfJob(Message, frozen=True):
    checkpoint: CheckpointRead
    tasks: tuple[TaskWithState, ...]


class ListState(Request[StateOfJob], frozen=True):
    """List the tasks with state. Reads metadata only. Refused with `not-found`, `no-checkpoint-there`."""

    job_id: JobId
    checkpoint: str = ""
    any_job: bool = False


class StateOfTask(Message, frozen=True):
    checkpoint: CheckpointRead
    task_id: TaskId
    batch_id: int
    found: StateFound


class ReadJobState(Request[StateOfTask], frozen=True):
    """Read the state of a task, named by its id or one of its vertices. Refused as ListState and ReadState are.

    Idempotent by `read_id`.
    """

    job_id: JobId
    vertex: str
    read_id: str
    question: StateQuestion
    timeout: float  # seconds that Spark may take
    checkpoint: str = ""
    any_job: bool = False


class GrowthOfTask(Message, frozen=True):
    before: CheckpointRead
    after: CheckpointRead
    task_id: TaskId
    growth: StateGrowth


class CompareJobState(Request[GrowthOfTask], frozen=True):
    """What grew between two checkpoints. Otherwise as ReadJobState."""

    job_id: JobId
    vertex: str
    read_id: str
    before: str
    after: str
    store: str
    largest: int
    timeout: float
    any_job: bool = False
