"""The subtasks of a vertex: their times, TaskManagers, backpressure, attempts and accumulators.

A task is one query on one TaskManager. Its subtasks are partitions, so they begin, end and wait together.
"""

from __future__ import annotations

from aiohttp import web

from minflinkd.rest import route
from minflinkd.rest.backend import Backend, json_answer
from minflinkd.rest.declared import ATTEMPT, SUBTASK, VERTEX
from minflinkd.rest.flink.rates import Rates
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.jobs import io_metrics
from minflinkd.rest.overviews import duration
from minflinkd.rest.partitions import Partitions
from minflinkd.rest.plan import find_task, vertex_id
from minflinkd.rest.schemas import Subtask
from minflinkd.rest.schemas.subtasks import (
    AttemptAccumulators,
    BackPressure,
    JobAccumulators,
    SubtaskAccumulators,
    SubtaskBackPressure,
    SubtasksAccumulators,
    SubtaskStateTimes,
    SubtasksTimes,
    VertexAccumulators,
    VertexOnTaskManager,
    VertexTaskManagers,
)
from minflinkd.rest.subtasks import UNASSIGNED, SubtaskView, endpoint, subtask_at, subtasks_of
from minflinkd.rest.vertices import subtask_details, vertex_details
from minflinkd.rpc.jobs import ExecutionState, TaskDetails
from minflinkd.runtime.errors import NotFound

LOW, HIGH = 0.1, 0.5  # Flink's bounds: backpressured for more of the time is low, and high


class SubtaskRoutes:
    def __init__(self, backend: Backend, partitions: Partitions) -> None:
        self._backend = backend
        self._partitions = partitions
        self._rates = Rates()

    def routes(self) -> list[route.Route]:
        vertex = "/jobs/{jobid}/vertices/{vertexid}"
        subtask = f"{vertex}/subtasks/{{subtaskindex}}"
        attempt = f"{subtask}/attempts/{{attempt}}"
        return [
            route.get(subtask, self.subtask, Role.VIEW, "A subtask's present attempt", {200: Subtask}),
            route.get(
                attempt, self.attempt, Role.VIEW, "A subtask's attempt; only the present one is known", {200: Subtask}
            ),
            route.get(
                f"{vertex}/subtasktimes",
                self.times,
                Role.VIEW,
                "When subtasks entered their states",
                {200: SubtasksTimes},
            ),
            route.get(
                f"{vertex}/taskmanagers",
                self.task_managers,
                Role.VIEW,
                "Where the vertex runs",
                {200: VertexTaskManagers},
            ),
            route.get(
                f"{vertex}/backpressure",
                self.backpressure,
                Role.VIEW,
                "How much of the time the vertex waited for those that read from it",
                {200: BackPressure},
            ),
            route.get(
                "/jobs/{jobid}/accumulators", self.of_job, Role.VIEW, "A job's accumulators", {200: JobAccumulators}
            ),
            route.get(
                f"{vertex}/accumulators",
                self.of_vertex,
                Role.VIEW,
                "A vertex's accumulators",
                {200: VertexAccumulators},
            ),
            route.get(
                f"{vertex}/subtasks/accumulators",
                self.of_subtasks,
                Role.VIEW,
                "The accumulators of its subtasks",
                {200: SubtasksAccumulators},
            ),
            route.get(
                f"{attempt}/accumulators",
                self.of_attempt,
                Role.VIEW,
                "The accumulators of an attempt",
                {200: AttemptAccumulators},
            ),
        ]

    async def subtask(self, request: web.Request) -> web.Response:
        task, view = await self._subtask(request)
        return json_answer(subtask_details(task, view, self._backend.clock.epoch_ms()))

    async def attempt(self, request: web.Request) -> web.Response:
        task, view = await self._attempt(request)
        return json_answer(subtask_details(task, view, self._backend.clock.epoch_ms()))

    async def times(self, request: web.Request) -> web.Response:
        task = await self._task(request)
        views = await self._views(task)
        now = self._backend.clock.epoch_ms()
        times = tuple(
            SubtaskStateTimes(
                subtask=view.index,
                endpoint=endpoint(task, view),
                duration=duration(task.start_ms, task.end_ms, now),
                timestamps={state: task.entered.get(state, 0) for state in ExecutionState},
            )
            for view in views
        )
        return json_answer(SubtasksTimes(id=vertex_id(task.task.id), name=task.task.name, now=now, subtasks=times))

    async def task_managers(self, request: web.Request) -> web.Response:
        job = await self._backend.job(request)
        task = find_task(job, VERTEX.of(request))
        found = await self._partitions.of(task)
        now = self._backend.clock.epoch_ms()
        details = vertex_details(job, task, now, found)
        here = VertexOnTaskManager(
            endpoint=task.resource_id or UNASSIGNED,
            status=task.state,
            start_time=task.start_ms,
            end_time=task.end_ms,
            duration=duration(task.start_ms, task.end_ms, now),
            metrics=io_metrics(task),
            status_counts={state: len(details.subtasks) if state is task.state else 0 for state in ExecutionState},
            taskmanager_id=task.resource_id or UNASSIGNED,
            aggregated=details.aggregated,
        )
        return json_answer(
            VertexTaskManagers(id=vertex_id(task.task.id), name=task.task.name, now=now, taskmanagers=(here,))
        )

    async def backpressure(self, request: web.Request) -> web.Response:
        task = await self._task(request)
        clock = self._backend.clock
        rates = self._rates.of(task, clock.monotonic(), clock.epoch_ms())
        if not rates:
            unknown = BackPressure(status="deprecated", level=None, old_level=None, end_timestamp=None, subtasks=None)
            return json_answer(unknown)
        held, busy = rates["backpressured"] / 1000, rates["busy"] / 1000
        level = level_of(held)
        subtasks = tuple(
            SubtaskBackPressure(
                subtask=view.index,
                attempt_number=task.attempt_number,
                level=level,
                old_level=level,
                ratio=round(held, 3),
                idle_ratio=round(max(0.0, 1 - held - busy * view.share), 3),
                busy_ratio=round(busy * view.share, 3),
            )
            for view in await self._views(task)
        )
        return json_answer(
            BackPressure(status="ok", level=level, old_level=level, end_timestamp=clock.epoch_ms(), subtasks=subtasks)
        )

    # --- accumulators --------------------------------------------------------------------------------------------

    async def of_job(self, request: web.Request) -> web.Response:
        await self._backend.job(request)
        return json_answer(JobAccumulators())

    async def of_vertex(self, request: web.Request) -> web.Response:
        task = await self._task(request)
        return json_answer(VertexAccumulators(id=vertex_id(task.task.id)))

    async def of_subtasks(self, request: web.Request) -> web.Response:
        task = await self._task(request)
        each = tuple(
            SubtaskAccumulators(subtask=view.index, attempt=task.attempt_number, endpoint=endpoint(task, view))
            for view in await self._views(task)
        )
        return json_answer(SubtasksAccumulators(id=vertex_id(task.task.id), parallelism=len(each), subtasks=each))

    async def of_attempt(self, request: web.Request) -> web.Response:
        task, view = await self._attempt(request)
        return json_answer(
            AttemptAccumulators(subtask=view.index, attempt=task.attempt_number, id=task.attempt_id or "")
        )

    # --- what a path names ---------------------------------------------------------------------------------------

    async def _task(self, request: web.Request) -> TaskDetails:
        return find_task(await self._backend.job(request), VERTEX.of(request))

    async def _views(self, task: TaskDetails) -> tuple[SubtaskView, ...]:
        return subtasks_of(task, await self._partitions.of(task))

    async def _subtask(self, request: web.Request) -> tuple[TaskDetails, SubtaskView]:
        """Raises NotFound."""
        task, wanted = await self._task(request), SUBTASK.of(request)
        return task, subtask_at(task, await self._views(task), wanted)

    async def _attempt(self, request: web.Request) -> tuple[TaskDetails, SubtaskView]:
        """Raises NotFound."""
        task, view = await self._subtask(request)
        if (number := ATTEMPT.of(request)) != task.attempt_number:
            raise NotFound(
                f"attempt {number} of task {task.task.id} is not known",
                hint=f"its present attempt is {task.attempt_number}",
            )
        return task, view


def level_of(held: float) -> str:
    """Return Flink's level of backpressure for this share of the time."""
    return "ok" if held <= LOW else "low" if held <= HIGH else "high"
