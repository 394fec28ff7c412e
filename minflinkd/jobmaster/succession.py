"""How one JobMaster of a job hands over to the next on purpose (H3): what it leaves, and what the next must know.

A planned succession goes as after a crash (R13): the TaskManagers end what the earlier leader deployed, and offer the
slots that they hold to the later one. So if anything is lost on the way, the result is the same as after a crash.

If the next version differs only in its parallelism, the tasks run on, and the next JobMaster adopts them, also as after
a crash. Then it gives them other slots (`scheduler/resizing.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace as copy

from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.checkpoint.state_matching import match_tasks
from minflinkd.checkpoint.statistics import CheckpointStatistics
from minflinkd.jobgraph.model import Task
from minflinkd.jobmaster.job_history import JobHistory
from minflinkd.jobmaster.sinks import SinkRoot
from minflinkd.rpc.messages import TaskRestore
from minflinkd.rpc.snapshot import TaskSnapshot
from minflinkd.runtime.errors import Consequence, ErrorInfo, MinflinkError
from minflinkd.runtime.ids import ResourceId, TaskId, VertexId


class NotStoodDown(MinflinkError):
    """The running version did not make way for another one, and goes on."""

    code = "hot-restart-failed"
    consequence = Consequence.RETRYABLE


@dataclass(frozen=True)
class PredecessorLeftovers:
    """What a JobMaster that stood down leaves to the next. It must be used at once or not at all."""

    statistics: CheckpointStatistics = field(default_factory=CheckpointStatistics)
    task_managers: tuple[ResourceId, ...] = ()  # those that hold slots of the job
    history: JobHistory | None = None  # None: read it from the storage
    tasks_run: bool = False  # it has not stopped its tasks: the next one adopts them


@dataclass(frozen=True)
class InheritedCheckpoints:
    """What a version needs to know about the versions before it.

    Checkpoints up to `base` belong to an earlier version: their state is matched to the tasks by vertices (C25). If
    `published`, its sinks have committed what they owe up to `base`, so a sink that was removed or moved owes nothing.
    """

    base: int = 0
    allow_non_restored: bool = False
    allow_changed: bool = False
    sinks: tuple[SinkRoot, ...] = ()  # of all versions so far; staged output may be left there
    published: bool = False

    def owed(self, point: CompletedCheckpoint, tasks: Mapping[TaskId, Task]) -> CompletedCheckpoint:
        """Return a checkpoint of this version without what sinks that it lacks owed for those of earlier versions.

        Checkpoints of those versions may still be retained, and then the point names what they owed (`restore_point`).
        """
        if point.checkpoint_id <= self.base or not self.published:
            return point
        own = {vertex.id for task in tasks.values() for vertex in task.vertices}
        kept = [
            copy(
                snapshot,
                transactions=tuple(
                    t for t in snapshot.transactions if t.checkpoint_id > self.base or VertexId(t.sink) in own
                ),
            )
            for snapshot in point.tasks
        ]
        return copy(point, tasks=tuple(kept))

    def restores(self, point: CompletedCheckpoint, tasks: Mapping[TaskId, Task]) -> dict[TaskId, TaskRestore]:
        """Return what each task starts from. Raises StateNotMatched."""
        found = {snapshot.task_id: snapshot for snapshot in point.tasks}
        inherited = point.checkpoint_id <= self.base
        allowed = inherited and self.allow_non_restored
        if inherited:
            vertices = {task_id: [vertex.id for vertex in task.vertices] for task_id, task in tasks.items()}
            matched = match_tasks(point.tasks, vertices, allow_non_restored=allowed)
            found = {task_id: self._inherited(tasks[task_id], snapshot) for task_id, snapshot in matched.items()}
        return {
            task_id: TaskRestore(
                checkpoint_id=point.checkpoint_id,
                snapshot=snapshot,
                allow_non_restored=allowed,
                same_meaning=inherited and not self.allow_changed,
            )
            for task_id, snapshot in found.items()
        }

    def _inherited(self, task: Task, snapshot: TaskSnapshot) -> TaskSnapshot:
        own = {vertex.id for vertex in task.vertices}
        owed = tuple(t for t in snapshot.transactions if not self.published or VertexId(t.sink) in own)
        return copy(snapshot, input_ended=False, transactions=owed)


@dataclass(frozen=True)
class Trial:
    """H7: The callbacks for the progress of a version that has not completed a checkpoint yet."""

    running: Callable[[], None]
    idle: Callable[[], None]  # it found no input
    proven: Callable[[int], None]  # receives the id of its first checkpoint
    disproved: Callable[[ErrorInfo], None]
    timeout: float = 60.0  # seconds after RUNNING, or after its first input, in which it must finish a micro-batch
    left: Callable[[], float | None] = lambda: None  # seconds until it is accepted without input; None: never
