"""`/applications`: Flink's dashboard begins with them. A job is an application of its own here, with the job's id."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from minflinkd.rest import route
from minflinkd.rest.backend import JOB, Backend, json_answer, json_bytes
from minflinkd.rest.declared import APPLICATION_ID
from minflinkd.rest.exceptions import exceptions_of
from minflinkd.rest.identity.access import identity_of
from minflinkd.rest.identity.roles import Role, require_job
from minflinkd.rest.jobs import job_summary
from minflinkd.rest.overviews import EncodedJobs, duration
from minflinkd.rest.schemas import Empty
from minflinkd.rest.schemas.applications import (
    ApplicationException,
    ApplicationExceptionHistory,
    ApplicationExceptions,
    ApplicationInfo,
    ApplicationsOverview,
    ApplicationSummary,
)
from minflinkd.rpc.jobs import CancelJob, GetJob, JobDetails, JobOverview, JobStatus

SHOWN = 20  # failures, as many as GET /jobs/:jobid/exceptions shows

# Flink's ApplicationState of a job. Flink has fewer states for an application than for a job.
STATES: Mapping[JobStatus, str] = {
    JobStatus.INITIALIZING: "CREATED",
    JobStatus.CREATED: "RUNNING",
    JobStatus.RECONCILING: "RUNNING",
    JobStatus.RUNNING: "RUNNING",
    JobStatus.RESTARTING: "RUNNING",
    JobStatus.SUSPENDED: "RUNNING",
    JobStatus.FAILING: "FAILING",
    JobStatus.FAILED: "FAILED",
    JobStatus.CANCELLING: "CANCELING",
    JobStatus.CANCELED: "CANCELED",
    JobStatus.FINISHED: "FINISHED",
}


class ApplicationRoutes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._overview = EncodedJobs("applications", _summary)

    def routes(self) -> list[route.Route]:
        return [
            route.get(
                "/applications/overview",
                self.overview,
                Role.VIEW,
                "The jobs, as Flink's applications",
                {200: ApplicationsOverview},
            ),
            route.get(
                "/applications/{applicationid}",
                self.details,
                Role.VIEW,
                "A job, as an application",
                {200: ApplicationInfo},
            ),
            route.get(
                "/applications/{applicationid}/exceptions",
                self.exceptions,
                Role.VIEW,
                "The failures of an application's job, newest first",
                {200: ApplicationExceptions},
            ),
            route.post(
                "/applications/{applicationid}/cancel",
                self.cancel,
                Role.OPERATE,
                "Cancel an application's job",
                {202: Empty},
                errors=(409,),
                names_job=True,
            ),
        ]

    async def overview(self, _: web.Request) -> web.Response:
        jobs = await self._backend.jobs.get()
        return json_bytes(self._overview.of(jobs, self._backend.clock.epoch_ms()))

    async def details(self, request: web.Request) -> web.Response:
        job = await self._job(request)
        now = self._backend.clock.epoch_ms()
        overviews = [each for each in await self._backend.jobs.get() if each.job_id == job.job_id]
        return json_answer(
            ApplicationInfo(
                id=job.job_id,
                name=job.graph.name,
                status=STATES[job.status],
                start_time=job.start_ms,
                end_time=job.end_ms,
                duration=duration(job.start_ms, job.end_ms, now),
                timestamps=timestamps_of(job),
                jobs=tuple(job_summary(each, now) for each in overviews),
            )
        )

    async def exceptions(self, request: web.Request) -> web.Response:
        job = await self._job(request)
        entries = exceptions_of(job, limit=SHOWN).history.entries
        found = (
            ApplicationException(
                exception_name=entry.exception_name,
                stacktrace=entry.stacktrace,
                timestamp=entry.timestamp,
                job_id=job.job_id,
            )
            for entry in entries
        )
        return json_answer(ApplicationExceptions(history=ApplicationExceptionHistory(entries=tuple(found))))

    async def cancel(self, request: web.Request) -> web.Response:
        job = await self._job(request)
        request[JOB] = job.job_id
        await self._backend.dispatcher(CancelJob(job_id=job.job_id))
        return json_answer(Empty(), status=202)

    async def _job(self, request: web.Request) -> JobDetails:
        """Return the application's job, if the client reaches it. Raises Forbidden too."""
        job = await self._backend.dispatcher(GetJob(job_id=APPLICATION_ID.of(request)))
        require_job(identity_of(request), job.graph.name)
        return job


def timestamps_of(job: JobDetails) -> dict[str, int]:
    """Return when the application first entered each of its states."""
    found = dict.fromkeys(STATES.values(), 0)
    for status, state in STATES.items():
        at = job.timestamps.get(status, 0)
        if at and (not found[state] or at < found[state]):
            found[state] = at
    return found


def _summary(job: JobOverview, now: int) -> ApplicationSummary:
    return ApplicationSummary(
        id=job.job_id,
        name=job.name,
        start_time=job.start_ms,
        end_time=job.end_ms,
        duration=duration(job.start_ms, job.end_ms, now),
        status=STATES[job.status],
        jobs={job.status.value: 1},
    )
