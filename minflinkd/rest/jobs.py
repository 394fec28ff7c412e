"""`/jobs` and the paths below a job, except its checkpoints and its submission."""

from __future__ import annotations

import msgspec
from aiohttp import web

from minflinkd.checkpoint.row_counts import sink_rows, source_rows
from minflinkd.jobgraph.delivery import delivery_in
from minflinkd.jobgraph.model import JobGraph, RestartStrategy, Vertex
from minflinkd.rest import route
from minflinkd.rest.backend import Backend, encode, json_answer, json_bytes
from minflinkd.rest.errors import InvalidRequest
from minflinkd.rest.exceptions import exceptions_of
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.plan import job_type, plan_of, state_counts, task_counts, vertex_id
from minflinkd.rest.restarts import restart_info
from minflinkd.rest.schemas import (
    CollectedRow,
    CollectedRows,
    Empty,
    ExecutionConfig,
    IOMetrics,
    JobConfig,
    JobExtras,
    JobIds,
    JobIdWithStatus,
    JobInfo,
    JobPlan,
    JobsOverview,
    JobStatusInfo,
    JobSummary,
    JobVertex,
    Recovery,
    RepeatedRestarts,
    SinkInfo,
    Subtask,
    SummaryExtras,
    TaskInfo,
    VertexDetails,
)
from minflinkd.rpc.jobs import CancelJob, JobDetails, JobOverview, JobStatus, RepeatedFailures, TaskDetails
from minflinkd.rpc.messages import ReadCollected
from minflinkd.runtime.errors import NotFound
from minflinkd.runtime.ids import VertexId, parse_job_id
from minflinkd.storage.masking import masked

MAX_EXCEPTIONS = 20  # shown if the request names no number, as in Flink


class JobRoutes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._overview_of: tuple[JobOverview, ...] | None = None
        self._overview = b""

    def routes(self) -> list[route.Route]:
        return [
            route.get("/jobs", self.list, Role.VIEW),
            route.get("/jobs/overview", self.overview, Role.VIEW),
            route.get("/jobs/{jobid}", self.details, Role.VIEW),
            route.patch("/jobs/{jobid}", self.cancel, Role.OPERATE),
            route.get("/jobs/{jobid}/plan", self.plan, Role.VIEW),
            route.get("/jobs/{jobid}/config", self.config, Role.VIEW),
            route.get("/jobs/{jobid}/status", self.status, Role.VIEW),
            route.get("/jobs/{jobid}/exceptions", self.exceptions, Role.VIEW),
            route.get("/jobs/{jobid}/vertices/{vertexid}", self.vertex, Role.VIEW),
            route.get("/jobs/{jobid}/vertices/{vertexid}/collected", self.collected, Role.VIEW),
        ]

    async def list(self, _: web.Request) -> web.Response:
        jobs = await self._backend.jobs.get()
        return json_answer(JobIds(jobs=tuple(JobIdWithStatus(id=job.job_id, status=job.status) for job in jobs)))

    async def overview(self, _: web.Request) -> web.Response:
        """Answer the overview. Encoded only once for each answer of the Dispatcher (E4)."""
        jobs = await self._backend.jobs.get()
        if jobs is not self._overview_of:
            now = self._backend.clock.epoch_ms()
            self._overview = encode(JobsOverview(jobs=tuple(_summary(job, now) for job in jobs)))
            self._overview_of = jobs
        return json_bytes(self._overview)

    async def details(self, request: web.Request) -> web.Response:
        return json_answer(job_info(await self._backend.job(request), self._backend.clock.epoch_ms()))

    async def plan(self, request: web.Request) -> web.Response:
        return json_answer(JobPlan(plan=plan_of(await self._backend.job(request))))

    async def config(self, request: web.Request) -> web.Response:
        return json_answer(_config(await self._backend.job(request)))

    async def status(self, request: web.Request) -> web.Response:
        return json_answer(JobStatusInfo(status=(await self._backend.job(request)).status))

    async def exceptions(self, request: web.Request) -> web.Response:
        text = request.query.get("maxExceptions", str(MAX_EXCEPTIONS))
        if not text.isascii() or not text.isdigit():
            raise InvalidRequest(f"maxExceptions is {text[:80]!r}", hint="a whole number, such as 20")
        return json_answer(exceptions_of(await self._backend.job(request), limit=int(text[:9])))

    async def vertex(self, request: web.Request) -> web.Response:
        """Answer the vertex with this id: Flink's or the task's own."""
        details = await self._backend.job(request)
        wanted = request.match_info["vertexid"]
        for task in details.tasks:
            if wanted in (task.task.id, vertex_id(task.task.id)):
                return json_answer(_vertex_details(details, task, self._backend.clock.epoch_ms()))
        raise NotFound(f"job {details.job_id} has no vertex {wanted[:80]!r}", hint="GET /jobs/:jobid lists them")

    async def collected(self, request: web.Request) -> web.Response:
        """Answer the rows of a collect sink, by the id of its vertex."""
        details = await self._backend.job(request)
        wanted = request.match_info["vertexid"]
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

    async def cancel(self, request: web.Request) -> web.Response:
        """Cancel the job. Flink's default mode is `cancel`; its `stop` has always been an error."""
        mode = request.query.get("mode", "cancel")
        if mode != "cancel":
            raise InvalidRequest(f"mode is {mode[:80]!r}", hint="mode=cancel is the only one")
        job_id = parse_job_id(request.match_info["jobid"])
        await self._backend.dispatcher(CancelJob(job_id=job_id))
        self._backend.jobs.forget()
        return json_answer(Empty(), status=202)


def _duration(start_ms: int, end_ms: int, now: int) -> int:
    if start_ms < 0:
        return -1
    return max(0, (end_ms if end_ms >= 0 else now) - start_ms)


def _summary(job: JobOverview, now: int) -> JobSummary:
    return JobSummary(
        jid=job.job_id,
        name=job.name,
        start_time=job.start_ms,
        end_time=job.end_ms,
        duration=_duration(job.start_ms, job.end_ms, now),
        state=job.status,
        last_modification=job.last_modification_ms,
        tasks=task_counts(job.tasks),
        minflinkd=SummaryExtras(
            on_trial=job.on_trial,
            restarts=job.restarts,
            restarting_repeatedly=None if job.repeated is None else _repeated(job.repeated),
            owner=job.owner,
        ),
    )


def job_info(details: JobDetails, now: int) -> JobInfo:
    """Return Flink's JobDetailsInfo of a job."""
    graph = details.graph
    return JobInfo(
        jid=details.job_id,
        application_id=details.job_id,  # as in Flink: an application with one job has the job's id
        name=graph.name,
        state=details.status,
        job_type=job_type(details),
        start_time=details.start_ms,
        end_time=details.end_ms,
        duration=_duration(details.start_ms, details.end_ms, now),
        max_parallelism=graph.max_parallelism or -1,
        now=now,
        timestamps={status: details.timestamps.get(status, 0) for status in JobStatus},
        vertices=tuple(_vertex(task, details, now) for task in details.tasks),
        status_counts=state_counts(task.state for task in details.tasks),
        plan=plan_of(details),
        minflinkd=JobExtras(
            source_records=sum(source_rows(task.task, task.rows) for task in details.tasks),
            source_records_per_second=sum(map(_source_rate, details.tasks)),
            sink_records=sum(sink_rows(task.task, task.rows) for task in details.tasks),
            restarts=details.restarts,
            restarting_repeatedly=None if details.repeated is None else _repeated(details.repeated),
            next_restart=details.next_restart_ms if details.next_restart_ms >= 0 else None,
            recoveries=tuple(
                Recovery(
                    failed=r.failed_ms, cause=r.cause, checkpoint_id=r.checkpoint_id, phases=r.phases, tasks=r.tasks
                )
                for r in details.recoveries
            ),
            submission=details.submission,
            hot_restarts=tuple(map(restart_info, details.hot_restarts)),
            waiting=details.waiting,
            sinks=tuple(_sink_info(graph, vertex) for vertex in graph.vertices if vertex.sink is not None),
            owner=details.owner,
        ),
    )


def _repeated(found: RepeatedFailures) -> RepeatedRestarts:
    last = found.last
    return RepeatedRestarts(
        failures=found.failures,
        since=found.since_ms,
        timestamp=last.timestamp_ms,
        code=last.error.code,
        message=last.error.message,
        task=last.task_id,
        task_name=last.task_name,
        taskmanager_id=last.resource_id,
    )


def _source_rate(details: TaskDetails) -> float:
    """Estimate the source rows per second of the last micro-batch.

    Only the rate of sources and exchanges together is known.
    """
    read = sum(details.metrics.rows.read.values())
    return details.metrics.rows_per_second * source_rows(details.task, details.metrics.rows) / read if read else 0.0


def _sink_info(graph: JobGraph, vertex: Vertex) -> SinkInfo:
    assert vertex.sink is not None
    kind = "python" if vertex.sink.python is not None else vertex.sink.format
    return SinkInfo(vertex=vertex.id, format=kind, delivery=delivery_in(graph, vertex.sink))


def _vertex(details: TaskDetails, job: JobDetails, now: int) -> JobVertex:
    task = details.task
    return JobVertex(
        id=vertex_id(task.id),
        slot_sharing_group_id=vertex_id(task.slot_sharing_group),
        slot_sharing_group_name=task.slot_sharing_group,
        name=task.name,
        max_parallelism=job.graph.max_parallelism or task.parallelism,
        parallelism=task.parallelism,
        status=details.state,
        start_time=details.start_ms,
        end_time=details.end_ms,
        duration=_duration(details.start_ms, details.end_ms, now),
        tasks=state_counts([details.state]),
        metrics=_io(details),
        minflinkd=_task_info(details),
    )


def _io(details: TaskDetails) -> IOMetrics:
    return IOMetrics(
        read_records=sum(details.rows.read.values()),
        write_records=sum(details.rows.written.values()),
        accumulated_backpressured_time=round(details.metrics.backpressured_ms),
    )


def _task_info(details: TaskDetails) -> TaskInfo:
    metrics = details.metrics
    return TaskInfo(
        task_id=details.task.id,
        vertices=tuple(vertex.id for vertex in details.task.vertices),
        attempt_id=details.attempt_id,
        attempt_number=details.attempt_number,
        taskmanager_id=details.resource_id,
        attempt_read_records=metrics.rows_in,
        attempt_write_records=metrics.rows_out,
        batch_id=metrics.batch_id,
        batches=metrics.batches,
        batch_duration=metrics.batch_ms,
        rows_per_second=metrics.rows_per_second,
        state_rows=metrics.state_rows,
        state_bytes=metrics.state_bytes,
        watermark=metrics.watermark_ms,
        first_batch=metrics.first_batch_ms,
        output_backlog=metrics.output_backlog,
        backpressured=metrics.backpressured,
        phases=details.phases,
    )


def _vertex_details(job: JobDetails, details: TaskDetails, now: int) -> VertexDetails:
    task = details.task
    duration = _duration(details.start_ms, details.end_ms, now)
    subtask = Subtask(
        subtask=0,
        status=details.state,
        attempt=details.attempt_number,
        host=details.resource_id or "(unassigned)",
        endpoint=details.resource_id or "(unassigned)",
        start_time=details.start_ms,
        old_start_time=details.start_ms,
        end_time=details.end_ms,
        duration=duration,
        metrics=_io(details),
        taskmanager_id=details.resource_id or "(unassigned)",
        status_duration={details.state: duration},
    )
    return VertexDetails(
        id=vertex_id(task.id),
        name=task.name,
        parallelism=task.parallelism,
        max_parallelism=job.graph.max_parallelism or task.parallelism,
        now=now,
        subtasks=(subtask,),
        aggregated={"metrics": {}, "status-duration": {}},
        minflinkd=_task_info(details),
    )


def _config(details: JobDetails) -> JobConfig:
    graph = details.graph
    return JobConfig(
        jid=details.job_id,
        name=graph.name,
        execution_config=ExecutionConfig(
            execution_mode="PIPELINED",
            restart_strategy=_restart_strategy(graph.restart_strategy),
            job_parallelism=graph.parallelism,
            user_config=masked({**graph.spark, **graph.params}),
        ),
    )


def _restart_strategy(strategy: RestartStrategy | None) -> str:
    if strategy is None:
        return "Cluster level default restart strategy"
    attempts = "" if strategy.attempts is None else f" (at most {strategy.attempts} attempts)"
    return f"{strategy.kind.value}{attempts}"
