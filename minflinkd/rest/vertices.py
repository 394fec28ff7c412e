"""`/jobs/:jobid/vertices`: one task of a job, and the rows of its collect sinks."""

from __future__ import annotations

import msgspec
from aiohttp import web

from minflinkd.rest import route
from minflinkd.rest.backend import Backend, json_answer
from minflinkd.rest.declared import VERTEX
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.jobs import max_parallelism, task_info
from minflinkd.rest.overviews import duration
from minflinkd.rest.partitions import Partitions
from minflinkd.rest.plan import find_task, vertex_id
from minflinkd.rest.schemas import CollectedRow, CollectedRows, Subtask, VertexDetails
from minflinkd.rest.subtasks import UNASSIGNED, SubtaskView, aggregated, endpoint, io_of, partition_info, subtasks_of
from minflinkd.rpc.jobs import ExecutionState, JobDetails, TaskDetails
from minflinkd.rpc.messages import ReadCollected, TaskPartitions
from minflinkd.runtime.errors import NotFound
from minflinkd.runtime.ids import VertexId

_TIMED = (
    ExecutionState.CREATED,
    ExecutionState.SCHEDULED,
    ExecutionState.DEPLOYING,
    ExecutionState.INITIALIZING,
    ExecutionState.RUNNING,
)


class VertexRoutes:
    def __init__(self, backend: Backend, partitions: Partitions) -> None:
        self._backend = backend
        self._partitions = partitions

    def routes(self) -> list[route.Route]:
        return [
            route.get(
                "/jobs/{jobid}/vertices/{vertexid}",
                self.vertex,
                Role.VIEW,
                "One task, and its subtasks",
                {200: VertexDetails},
                more="Also found by its own id. `minflinkd` of a subtask: its partition in the last micro-batch",
            ),
            route.get(
                "/jobs/{jobid}/vertices/{vertexid}/collected",
                self.collected,
                Role.VIEW,
                "The last rows of the collect sink of this id, oldest first",
                {200: CollectedRows},
                more=(
                    "Not in Flink: `rows` of `batch` and `row`, and how many were `dropped`. No rows if the attempt "
                    "has not begun; `unknown-attempt` if its TaskManager has forgotten it"
                ),
            ),
        ]

    async def vertex(self, request: web.Request) -> web.Response:
        """Answer the vertex with this id: Flink's or the task's own."""
        job = await self._backend.job(request)
        task = find_task(job, VERTEX.of(request))
        found = await self._partitions.of(task)
        return json_answer(vertex_details(job, task, self._backend.clock.epoch_ms(), found))

    async def collected(self, request: web.Request) -> web.Response:
        """Answer the rows of a collect sink, by the id of its vertex."""
        details = await self._backend.job(request)
        wanted = VERTEX.of(request)
        for task in details.tasks:
            for vertex in task.task.sinks:
                if vertex.id == wanted and vertex.sink is not None and vertex.sink.format == "collect":
                    return json_answer(await self._collected(task, vertex.id))
        raise NotFound(
            f"job {details.job_id} has no collect sink {wanted[:80]!r}", hint="GET /jobs/:jobid lists the sinks"
        )

    async def _collected(self, task: TaskDetails, vertex: VertexId) -> CollectedRows:
        """Return the rows; no rows if no attempt has begun."""
        if task.resource_id is None or task.attempt_id is None:
            return CollectedRows(vertex=vertex, attempt_id=None, rows=(), dropped=0)
        ask = ReadCollected(attempt_id=task.attempt_id, vertex_id=vertex)
        found = await self._backend.task_manager(task.resource_id, ask)
        rows = tuple(CollectedRow(batch=row.batch_id, row=msgspec.Raw(row.row.encode())) for row in found.rows)
        return CollectedRows(vertex=vertex, attempt_id=task.attempt_id, rows=rows, dropped=found.dropped)


def vertex_details(job: JobDetails, details: TaskDetails, now: int, found: TaskPartitions | None) -> VertexDetails:
    """Return Flink's JobVertexDetailsInfo. `found`: None if the TaskManager has not told of the partitions."""
    task = details.task
    subtasks = tuple(subtask_details(details, view, now) for view in subtasks_of(details, found))
    return VertexDetails(
        id=vertex_id(task.id),
        name=task.name,
        parallelism=len(subtasks),
        max_parallelism=max(max_parallelism(details, job), len(subtasks)),
        now=now,
        subtasks=subtasks,
        aggregated=aggregated([one.metrics for one in subtasks], [one.status_duration for one in subtasks]),
        minflinkd=task_info(details),
    )


def subtask_details(details: TaskDetails, view: SubtaskView, now: int) -> Subtask:
    """Return one subtask. All begin and end with their task."""
    return Subtask(
        subtask=view.index,
        status=details.state,
        attempt=details.attempt_number,
        endpoint=endpoint(details, view),
        start_time=details.start_ms,
        old_start_time=details.start_ms,
        end_time=details.end_ms,
        duration=duration(details.start_ms, details.end_ms, now),
        metrics=io_of(details, view),
        taskmanager_id=details.resource_id or UNASSIGNED,
        status_duration=status_durations(details, now),
        minflinkd=partition_info(view),
    )


def status_durations(details: TaskDetails, now: int) -> dict[str, int]:
    """Return for how many milliseconds the attempt has been in each of the states that Flink names; -1: not known."""
    entered = sorted((at, state) for state, at in details.entered.items())
    ends = [*(at for at, _ in entered), now][1:]
    lasted = {state: max(0, end - at) for (at, state), end in zip(entered, ends, strict=True)}
    return {state.value: lasted.get(state.value, -1) for state in _TIMED}
