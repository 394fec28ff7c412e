"""`/jobs/:jobid/execution-result`: how a job has ended, for Flink's clients that wait for its end."""

from __future__ import annotations

from aiohttp import web

from minflinkd.rest import route
from minflinkd.rest.backend import Backend, json_answer
from minflinkd.rest.exceptions import stack_trace
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.java_throwable import serialized_throwable
from minflinkd.rest.schemas.execution_result import ExecutionResult, JobResult
from minflinkd.rest.schemas.savepoints import FailureCause, QueueStatus
from minflinkd.rpc.jobs import JobDetails, JobStatus

_OUTCOMES = {JobStatus.FINISHED: "SUCCEEDED", JobStatus.FAILED: "FAILED", JobStatus.CANCELED: "CANCELED"}


class ExecutionResultRoutes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[route.Route]:
        return [
            route.get(
                "/jobs/{jobid}/execution-result",
                self.result,
                Role.VIEW,
                "How the job has ended, once it has",
                {200: ExecutionResult},
            )
        ]

    async def result(self, request: web.Request) -> web.Response:
        job = await self._backend.job(request)
        if not job.status.terminal:
            return json_answer(ExecutionResult(status=QueueStatus(id="IN_PROGRESS"), result=None))
        return json_answer(ExecutionResult(status=QueueStatus(id="COMPLETED"), result=result_of(job)))


def result_of(job: JobDetails) -> JobResult:
    """Return the result of a job that has ended."""
    cause = None
    if job.status is JobStatus.FAILED and job.failures:
        error = job.failures[0].error
        text = stack_trace(error)
        cause = FailureCause(
            kind=error.code, stack_trace=text, serialized_throwable=serialized_throwable(str(error), error.code, text)
        )
    return JobResult(
        id=job.job_id,
        name=job.graph.name,
        start_time=job.start_ms,
        end_time=job.end_ms,
        application_status=_OUTCOMES[job.status],
        accumulator_results={},
        net_runtime=max(0, job.end_ms - job.start_ms),
        failure_cause=cause,
    )
