"""`/jobs` and what a job is and does as a whole. Its vertices and checkpoints have modules of their own."""

from __future__ import annotations

from typing import Literal

from aiohttp import web

from minflinkd.checkpoint.row_counts import bad_records, sink_rows, source_rows
from minflinkd.jobgraph.delivery import delivery_in, stages
from minflinkd.jobgraph.model import RestartStrategy, Vertex
from minflinkd.rest import route
from minflinkd.rest.autoscaler import autoscaler_info
from minflinkd.rest.backend import Backend, json_answer, json_bytes
from minflinkd.rest.declared import JOB_ID, InQuery, whole
from minflinkd.rest.exceptions import exceptions_of
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.overviews import EncodedJobs, duration
from minflinkd.rest.plan import job_type, plan_of, state_counts, task_counts, vertex_id
from minflinkd.rest.restarts import restart_info
from minflinkd.rest.schemas import (
    BriefCheckpoints,
    BriefFailure,
    CompactionsInfo,
    Empty,
    ExecutionConfig,
    HotStandbyInfo,
    IOMetrics,
    JobConfig,
    JobExceptions,
    JobExtras,
    JobIds,
    JobIdWithStatus,
    JobInfo,
    JobPlan,
    JobsOverview,
    JobStatusInfo,
    JobSummary,
    JobVertex,
    PendingInfo,
    RealTimeInfo,
    Recovery,
    RepeatedRestarts,
    SinkInfo,
    SummaryExtras,
    TaskInfo,
)
from minflinkd.rpc.jobs import (
    CancelJob,
    CheckpointsInBrief,
    FailureRecord,
    HotStandbyStatus,
    JobDetails,
    JobOverview,
    JobStatus,
    RepeatedFailures,
    TaskDetails,
)
from minflinkd.rpc.messages import RealTimeFigures, SinkCompactions
from minflinkd.storage.masking import masked

_MOST_EXCEPTIONS = InQuery("maxExceptions", "How many failures to show", whole(most=2**31 - 1), 20)  # as in Flink
_MODE = InQuery("mode", "Flink's other modes have always been errors", Literal["cancel"], "cancel")


class JobRoutes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._overview = EncodedJobs("jobs", job_summary)

    def routes(self) -> list[route.Route]:
        return [
            route.get("/jobs", self.list, Role.VIEW, "The jobs and their states", {200: JobIds}),
            route.get(
                "/jobs/overview",
                self.overview,
                Role.VIEW,
                "The jobs and their tasks",
                {200: JobsOverview},
                more=(
                    "Under `minflinkd` of each: `restarts`, `restarting-repeatedly`, `on-trial` (true while a new "
                    "version has found no input), and the `owner` who has submitted it (empty: not known)"
                ),
            ),
            route.get(
                "/jobs/{jobid}",
                self.details,
                Role.VIEW,
                "A job, its tasks and its plan",
                {200: JobInfo},
                more=(
                    "Under `minflinkd`: `restarts`, `restarting-repeatedly`, `next-restart`, `source-records` and "
                    "`sink-records` of the whole job, recoveries, hot restarts, the phases of the submission, why the "
                    "job waits for slots, and its `owner`"
                ),
            ),
            route.patch(
                "/jobs/{jobid}",
                self.cancel,
                Role.OPERATE,
                "Cancel the job",
                {202: Empty},
                query=(_MODE,),
                errors=(409,),
                more="The answer comes when the cancellation has begun",
            ),
            route.get("/jobs/{jobid}/plan", self.plan, Role.VIEW, "The tasks, and what they read", {200: JobPlan}),
            route.get("/jobs/{jobid}/config", self.config, Role.VIEW, "The job's settings", {200: JobConfig}),
            route.get("/jobs/{jobid}/status", self.status, Role.VIEW, "The job's state", {200: JobStatusInfo}),
            route.get(
                "/jobs/{jobid}/exceptions",
                self.exceptions,
                Role.VIEW,
                "The job's failures, newest first",
                {200: JobExceptions},
                query=(_MOST_EXCEPTIONS,),
                more="With the traceback of user code or of Spark",
            ),
        ]

    async def list(self, _: web.Request) -> web.Response:
        jobs = await self._backend.jobs.get()
        return json_answer(JobIds(jobs=tuple(JobIdWithStatus(id=job.job_id, status=job.status) for job in jobs)))

    async def overview(self, _: web.Request) -> web.Response:
        jobs = await self._backend.jobs.get()
        return json_bytes(self._overview.of(jobs, self._backend.clock.epoch_ms()))

    async def details(self, request: web.Request) -> web.Response:
        return json_answer(job_info(await self._backend.job(request), self._backend.clock.epoch_ms()))

    async def plan(self, request: web.Request) -> web.Response:
        return json_answer(JobPlan(plan=plan_of(await self._backend.job(request))))

    async def config(self, request: web.Request) -> web.Response:
        return json_answer(_config(await self._backend.job(request)))

    async def status(self, request: web.Request) -> web.Response:
        return json_answer(JobStatusInfo(status=(await self._backend.job(request)).status))

    async def exceptions(self, request: web.Request) -> web.Response:
        limit = _MOST_EXCEPTIONS.of(request)
        return json_answer(exceptions_of(await self._backend.job(request), limit=limit))

    async def cancel(self, request: web.Request) -> web.Response:
        _MODE.of(request)
        await self._backend.dispatcher(CancelJob(job_id=JOB_ID.of(request)))
        return json_answer(Empty(), status=202)


def job_summary(job: JobOverview, now: int) -> JobSummary:
    return JobSummary(
        jid=job.job_id,
        name=job.name,
        start_time=job.start_ms,
        end_time=job.end_ms,
        duration=duration(job.start_ms, job.end_ms, now),
        state=job.status,
        last_modification=job.last_modification_ms,
        tasks=task_counts(job.tasks),
        job_type=job_type(job.mode),
        minflinkd=SummaryExtras(
            on_trial=job.on_trial,
            restarts=job.restarts,
            restarting_repeatedly=None if job.repeated is None else _repeated(job.repeated),
            owner=job.owner,
            next_restart=job.next_restart_ms if job.next_restart_ms >= 0 else None,
            waiting=job.waiting,
            last_failure=None if job.last_failure is None else _brief_failure(job.last_failure),
            checkpoints=None if job.checkpoints is None else _brief_checkpoints(job.checkpoints),
        ),
    )


def _brief_failure(found: FailureRecord) -> BriefFailure:
    task = found.task_name or found.task_id
    return BriefFailure(timestamp=found.timestamp_ms, code=found.error.code, message=found.error.message, task=task)


def _brief_checkpoints(found: CheckpointsInBrief) -> BriefCheckpoints:
    return BriefCheckpoints(
        completed=found.completed_ms,
        duration=found.duration_ms,
        interval=found.interval_ms,
        failed=found.failed_ms,
        failure_message=found.failure,
        consecutive_failures=found.consecutive_failures,
    )


def job_info(details: JobDetails, now: int) -> JobInfo:
    """Return Flink's JobDetailsInfo of a job."""
    graph = details.graph
    return JobInfo(
        jid=details.job_id,
        application_id=details.job_id,  # as in Flink: an application with one job has the job's id
        name=graph.name,
        state=details.status,
        job_type=job_type(graph.mode),
        start_time=details.start_ms,
        end_time=details.end_ms,
        duration=duration(details.start_ms, details.end_ms, now),
        max_parallelism=graph.max_parallelism or -1,
        now=now,
        timestamps={status: details.timestamps.get(status, 0) for status in JobStatus},
        vertices=tuple(_vertex(task, details, now) for task in details.tasks),
        status_counts=state_counts(task.state for task in details.tasks),
        plan=plan_of(details),
        minflinkd=JobExtras(
            source_records=sum(source_rows(task.task, task.rows) for task in details.tasks),
            source_records_per_second=sum(map(_source_rate, details.tasks)),
            pending_records=details.pending_records,
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
            hot_standby=None if details.hot_standby is None else _standby_info(details.hot_standby),
            sinks=tuple(_sink_info(details, vertex) for vertex in graph.vertices if vertex.sink is not None),
            bad_records={
                vertex: count for task in details.tasks for vertex, count in bad_records(task.task, task.rows).items()
            },
            owner=details.owner,
            autoscaler=autoscaler_info(details),
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


def _standby_info(found: HotStandbyStatus) -> HotStandbyInfo:
    return HotStandbyInfo(taskmanager_id=found.resource_id, ready=found.ready, why=found.why)


def _source_rate(details: TaskDetails) -> float:
    """Estimate the source rows per second of the last micro-batch.

    Only the rate of sources and exchanges together is known.
    """
    read = sum(details.metrics.rows.read.values())
    return details.metrics.rows_per_second * source_rows(details.task, details.metrics.rows) / read if read else 0.0


def _sink_info(details: JobDetails, vertex: Vertex) -> SinkInfo:
    assert vertex.sink is not None
    graph, sink = details.graph, vertex.sink
    task = next((task for task in details.tasks if vertex in task.task.vertices), None) if stages(sink) else None
    return SinkInfo(
        vertex=vertex.id,
        format="python" if sink.python is not None else sink.format,
        delivery=delivery_in(graph, sink),
        published=(task.published or None) if task is not None else None,
        unpublished=task.unpublished if task is not None else 0,
        compactions=_compactions(task.metrics.compactions.get(vertex.id)) if task is not None else None,
    )


def _compactions(told: SinkCompactions | None) -> CompactionsInfo | None:
    if told is None:
        return None
    return CompactionsInfo(
        done=told.done,
        failed=told.failed,
        files=told.files,
        into=told.into,
        overtaken=told.overtaken,
        deleted=told.deleted,
        last=told.last_ms,
        failure=told.failure or None,
    )


def max_parallelism(details: TaskDetails, job: JobDetails) -> int:
    """Return the highest parallelism for which the task's state need not be rewritten."""
    return job.graph.max_parallelism or max(details.partitions, details.task.parallelism)


def _vertex(details: TaskDetails, job: JobDetails, now: int) -> JobVertex:
    task = details.task
    return JobVertex(
        id=vertex_id(task.id),
        slot_sharing_group_id=vertex_id(task.slot_sharing_group),
        name=task.name,
        max_parallelism=max_parallelism(details, job),
        parallelism=task.parallelism,
        status=details.state,
        start_time=details.start_ms,
        end_time=details.end_ms,
        duration=duration(details.start_ms, details.end_ms, now),
        tasks=state_counts([details.state]),
        metrics=io_metrics(details),
        minflinkd=task_info(details),
    )


def io_metrics(details: TaskDetails) -> IOMetrics:
    return IOMetrics(
        read_records=sum(details.rows.read.values()),
        write_records=sum(details.rows.written.values()),
        accumulated_backpressured_time=round(details.metrics.backpressured_ms),
        accumulated_busy_time=details.metrics.busy_ms,
    )


def task_info(details: TaskDetails) -> TaskInfo:
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
        watermark=metrics.watermark_ms or None,
        first_batch=metrics.first_batch_ms,
        output_backlog=metrics.output_backlog,
        backpressured=metrics.backpressured,
        phases=details.phases,
        batch_phases=metrics.batch_phases,
        slot_sharing_group=details.task.slot_sharing_group,
        real_time=_real_time(metrics.real_time),
        pending={
            name: PendingInfo(records=told.records, partitions=told.partitions, parts=told.parts)
            for name, told in details.pending.items()
        },
    )


def _real_time(told: RealTimeFigures | None) -> RealTimeInfo | None:
    if told is None:
        return None
    return RealTimeInfo(
        read_records=told.rows,
        rows_per_second=told.rows_per_second,
        latency_p50=told.p50_ms,
        latency_p99=told.p99_ms,
        latency_longest=told.longest_ms,
        cut_pause=told.cut_pause_ms,
    )


def _config(details: JobDetails) -> JobConfig:
    graph = details.graph
    return JobConfig(
        jid=details.job_id,
        name=graph.name,
        execution_config=ExecutionConfig(
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
