"""What a job's attempts start from, and what its sinks are owed before a start and at the job's end (J12)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from minflinkd.checkpoint.coordinator import CheckpointCoordinator
from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.checkpoint.row_counts import row_counts
from minflinkd.jobgraph.model import Task
from minflinkd.jobmaster.falling_back import FallingBack
from minflinkd.jobmaster.origin import Origin
from minflinkd.jobmaster.sinks import JobSinks
from minflinkd.jobmaster.succession import InheritedCheckpoints
from minflinkd.rpc.messages import TaskRestore
from minflinkd.rpc.snapshot import RowCounts
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.errors import Consequence, ErrorInfo, MinflinkError, error_info
from minflinkd.runtime.ids import JobId, TaskId

log = structlog.get_logger(__name__)

FIRST_PAUSE = 0.5  # seconds


class TasksHaveStopped(MinflinkError):
    """The tasks that run on process nothing any more, after a checkpoint that they stop with. They must restart too."""

    code = "tasks-stopped"
    consequence = Consequence.RETRYABLE


LONGEST_PAUSE = 30.0


@dataclass(frozen=True)
class RestorePoint:
    """What tasks start from, and the id of that checkpoint, if it has one. `rows` counts the rows of all tasks.

    `warning`: that later checkpoints are damaged.
    """

    checkpoint_id: int | None = None
    tasks: Mapping[TaskId, TaskRestore] = field(default_factory=dict)
    rows: Mapping[TaskId, RowCounts] = field(default_factory=dict)
    warning: ErrorInfo | None = None


class Restoring:
    def __init__(
        self,
        job_id: JobId,
        *,
        coordinator: CheckpointCoordinator,
        origin: Origin,
        sinks: JobSinks,
        inherited: InheritedCheckpoints,
        falling_back: FallingBack,
        clock: Clock,
    ) -> None:
        self._coordinator = coordinator
        self._origin = origin
        self._sinks = sinks
        self._inherited = inherited
        self._falling_back = falling_back
        self._clock = clock
        self._log = log.bind(job=job_id)

    @property
    def claims(self) -> bool:
        """Whether the job may delete what it started from."""
        return self._origin.is_claimed

    async def prepare(self, tasks: Mapping[TaskId, Task], of: frozenset[TaskId]) -> RestorePoint:
        """Publish what the sinks of the tasks `of` are owed, and return what these tasks start from.

        Raises what the coordinator, the job's origin and its sinks raise, StateNotMatched, TasksHaveStopped, and what
        FallingBack raises.
        """
        vertices = frozenset(v.id for task in of for v in tasks[task].vertices)
        await self._coordinator.settled()
        if len(of) < len(tasks) and self._coordinator.has_stopped_tasks:
            raise TasksHaveStopped("a task failed after a last checkpoint, with which the others have stopped")
        fallen_back = await self._falling_back.look(all_tasks=len(of) == len(tasks))
        point = await self._coordinator.restore_point()
        point = None if point is None else self._inherited.owed(point, tasks)
        start = await self._origin.find() if point is None else None
        covered = point if start is None else start.checkpoint
        if start is not None and start.checkpoint is not None and start.checkpoint_id is not None:
            await self._coordinator.restore_from(start.checkpoint, start.path)
        await self._sinks.prepare(covered, vertices if len(of) < len(tasks) else None)
        warning = None if fallen_back is None else await self._falling_back.confirm(fallen_back)
        if start is not None:
            return RestorePoint(start.checkpoint_id, start.restores)  # rows of another job do not count as this one's
        if point is None:
            return RestorePoint()
        restores = self._inherited.restores(point, tasks)
        return RestorePoint(point.checkpoint_id, restores, row_counts(point.tasks, tasks), warning)

    async def settle(self) -> CompletedCheckpoint | None:
        """At the job's end, publish what the last completed checkpoint promised, and discard the rest.

        Returns that checkpoint. Retries until it succeeds. Raises errors that no retry helps against.
        """
        pause = FIRST_PAUSE
        while True:
            try:
                point = await self._coordinator.settled()
                await self._sinks.close(point)
                if point is not None and self.claims:
                    await self._origin.discard()
                return point
            except Exception as error:
                info = error_info(error)
                if info.consequence is not Consequence.RETRYABLE:
                    raise
                self._log.warning("the sinks cannot be settled yet", error=info.message, pause=pause)
            await self._clock.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def drop_claimed(self) -> None:
        """Delete the claimed checkpoint, and return when it is gone.

        It waits until the tasks know that a later checkpoint is complete, so that nobody starts from this one.
        """
        await self._coordinator.first_confirmed()
        pause = FIRST_PAUSE
        while True:
            try:
                return await self._origin.discard()
            except MinflinkError as error:
                self._log.warning("the claimed checkpoint cannot be deleted yet", error=str(error), pause=pause)
            await self._clock.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
