"""`/jobs/:jobid/autoscaler`: what the autoscaler has decided for a job, and why (R62)."""

from __future__ import annotations

from aiohttp import web

from minflinkd.rest import route
from minflinkd.rest.backend import Backend, json_answer
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.schemas.autoscaler import AutoscaledGroup, AutoscalerChange, AutoscalerInfo
from minflinkd.rpc.jobs import JobDetails
from minflinkd.runtime.errors import NotFound


class AutoscalerRoutes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[route.Route]:
        return [
            route.get(
                "/jobs/{jobid}/autoscaler",
                self.status,
                Role.VIEW,
                "What the autoscaler has decided, and why",
                {200: AutoscalerInfo},
                more=(
                    "Not in Flink. 404 if the job file has no `autoscaler`, or the job has ended; see "
                    "[autoscaling.md](autoscaling.md)"
                ),
            )
        ]

    async def status(self, request: web.Request) -> web.Response:
        job = await self._backend.job(request)
        found = autoscaler_info(job)
        if found is None:
            problem = f"job {job.job_id} has no autoscaler" + (", as it has ended" if job.status.terminal else "")
            raise NotFound(problem, hint="`autoscaler` in the job file gives it one")
        return json_answer(found)


def autoscaler_info(job: JobDetails) -> AutoscalerInfo | None:
    """Return what is shown of it; None if the job has none."""
    told = job.autoscaler
    if told is None:
        return None
    return AutoscalerInfo(
        enabled=told.enabled,
        verdict=told.verdict,
        why=told.why,
        decided=told.decided_ms if told.decided_ms >= 0 else None,
        ready=told.ready_ms if told.ready_ms >= 0 else None,
        min=told.least,
        max=told.most,
        target_utilization=told.target,
        groups=tuple(
            AutoscaledGroup(
                group=each.group,
                slots=each.slots,
                wanted=each.wanted,
                utilization=each.utilization,
                task=each.task,
                rate=each.rate,
                capacity=each.capacity,
                backlog=each.backlog,
                sure=each.sure,
            )
            for each in told.groups
        ),
        changes=tuple(
            AutoscalerChange(
                number=restart.number,
                requested=restart.requested_ms,
                state=restart.state.value,
                vertices={one.vertex: (one.before, one.after) for one in restart.rescaled},
                why=restart.reason,
            )
            for restart in job.hot_restarts
            if restart.reason
        ),
    )
