"""`/jobs/:jobid/rescales`: the hot restarts that changed how parallel a job is, as Flink's rescales."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from aiohttp import web

from minflinkd.checkpoint.statistics import summary
from minflinkd.dispatcher.versions import KEPT
from minflinkd.jobgraph.model import Task
from minflinkd.rest import route
from minflinkd.rest.backend import Backend, encode, json_answer, json_bytes
from minflinkd.rest.declared import RESCALE
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.plan import vertex_id
from minflinkd.rest.schemas.rescales import (
    DurationStats,
    LatestRescales,
    Rescale,
    RescaleConfig,
    RescaleCounts,
    RescaledGroup,
    RescaledVertex,
    RescalesOverview,
    RescalesSummary,
    SchedulerState,
)
from minflinkd.rest.schemas.taskmanagers import ResourceProfile
from minflinkd.rpc.jobs import HotRestart, JobDetails, Rescaled, RestartState
from minflinkd.runtime.errors import NotFound

COMPLETED, FAILED, IGNORED = "COMPLETED", "FAILED", "IGNORED"

# How Flink calls the end of a restart, and why it ended.
_ENDS = {
    RestartState.COMPLETED: (COMPLETED, "SUCCEEDED"),
    RestartState.ROLLED_BACK: (FAILED, "EXCEPTION_OCCURRED"),
    RestartState.FAILED: (FAILED, "EXCEPTION_OCCURRED"),
    RestartState.REPLACED: (IGNORED, "RESOURCE_REQUIREMENTS_UPDATED"),
    RestartState.ABANDONED: (IGNORED, "JOB_CANCELED"),
}


class RescaleRoutes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[route.Route]:
        rescales = "/jobs/{jobid}/rescales"
        return [
            route.get(
                f"{rescales}/overview",
                self.overview,
                Role.VIEW,
                "How many rescales, and the last",
                {200: RescalesOverview},
            ),
            route.get(
                f"{rescales}/summary", self.summary, Role.VIEW, "How long rescales have taken", {200: RescalesSummary}
            ),
            route.get(
                f"{rescales}/history", self.history, Role.VIEW, "The rescales, newest first", {200: list[Rescale]}
            ),
            route.get(f"{rescales}/config", self.config, Role.VIEW, "How many rescales are kept", {200: RescaleConfig}),
            route.get(f"{rescales}/details/{{rescaleuuid}}", self.details, Role.VIEW, "One rescale", {200: Rescale}),
        ]

    async def overview(self, request: web.Request) -> web.Response:
        found = rescales_of(await self._backend.job(request))
        latest = {
            state: next((r for r in found if r.terminal_state == state), None) for state in (COMPLETED, FAILED, IGNORED)
        }
        return json_answer(
            RescalesOverview(
                rescales_counts=_counts(found),
                latest=LatestRescales(completed=latest[COMPLETED], failed=latest[FAILED], ignored=latest[IGNORED]),
            )
        )

    async def summary(self, request: web.Request) -> web.Response:
        found = rescales_of(await self._backend.job(request))
        return json_answer(
            RescalesSummary(
                counts=_counts(found),
                all=_stats(found),
                completed=_stats(r for r in found if r.terminal_state == COMPLETED),
                ignored=_stats(r for r in found if r.terminal_state == IGNORED),
                failed=_stats(r for r in found if r.terminal_state == FAILED),
            )
        )

    async def history(self, request: web.Request) -> web.Response:
        return json_bytes(encode(rescales_of(await self._backend.job(request))))

    async def config(self, request: web.Request) -> web.Response:
        await self._backend.job(request)
        return json_answer(RescaleConfig(history=KEPT))

    async def details(self, request: web.Request) -> web.Response:
        job, wanted = await self._backend.job(request), RESCALE.of(request)
        for found in rescales_of(job):
            if found.rescale_uuid == wanted:
                return json_answer(found)
        raise NotFound(f"job {job.job_id} has no rescale {wanted}", hint="GET /jobs/:jobid/rescales/history lists them")


def rescales_of(job: JobDetails) -> list[Rescale]:
    """Return the rescales of a job, newest first."""
    return [_rescale(job, restart) for restart in job.hot_restarts if restart.rescaled]


def _rescale(job: JobDetails, restart: HotRestart) -> Rescale:
    terminal, reason = _ENDS.get(restart.state, (None, None))
    lasted = round(max(restart.phases.values(), default=0.0) * 1000)
    end = restart.requested_ms + lasted if restart.state.over else None
    state = SchedulerState(
        state=restart.state.value,
        entered=restart.requested_ms,
        left=end,
        duration=lasted if restart.state.over else None,
        exception=None if restart.error is None else str(restart.error),
    )
    done = restart.state in (RestartState.COMPLETED, RestartState.ON_TRIAL)
    tasks = [(task.task, _of_task(task.task, restart.rescaled)) for task in job.tasks]
    changed = [(task, one) for task, one in tasks if one is not None]
    return Rescale(
        rescale_uuid=uuid_of(job.job_id, restart.number),
        resource_requirements_uuid=uuid_of(job.job_id, restart.number, "requirements"),
        rescale_attempt_id=restart.number,
        vertices={vertex_id(task.id): _vertex(job, task, one, done=done) for task, one in changed},
        slots=_groups(job, changed, done=done),
        scheduler_states=(state,),
        start=restart.requested_ms,
        end=end,
        terminal_state=terminal,
        trigger_cause="UPDATE_REQUIREMENT",
        terminated_reason=reason,
    )


def _of_task(task: Task, rescaled: Sequence[Rescaled]) -> Rescaled | None:
    """Return the change of the task's most parallel vertex, if one of its vertices has changed."""
    own = {vertex.id for vertex in task.vertices}
    return max((one for one in rescaled if one.vertex in own), key=lambda one: one.after, default=None)


def _vertex(job: JobDetails, task: Task, one: Rescaled, *, done: bool) -> RescaledVertex:
    return RescaledVertex(
        job_vertex_id=vertex_id(task.id),
        job_vertex_name=task.name,
        slot_sharing_group_id=vertex_id(task.slot_sharing_group),
        slot_sharing_group_name=task.slot_sharing_group,
        desired_parallelism=one.after,
        sufficient_parallelism=min(job.graph.min_parallelism, one.after),
        pre_rescale_parallelism=one.before,
        post_rescale_parallelism=one.after if done else None,
    )


def _groups(job: JobDetails, changed: Iterable[tuple[Task, Rescaled]], *, done: bool) -> dict[str, RescaledGroup]:
    """Return the slot sharing groups. The tasks of a group use the same slots, so it has as many as the widest."""
    widest: dict[str, Rescaled] = {}
    for task, one in changed:
        known = widest.get(task.slot_sharing_group)
        if known is None or one.after > known.after:
            widest[task.slot_sharing_group] = one
    profile = ResourceProfile(cpu_cores=0.0)  # a slot has no size: a session's memory belongs to Spark
    return {
        vertex_id(group): RescaledGroup(
            slot_sharing_group_id=vertex_id(group),
            slot_sharing_group_name=group,
            request_resource_profile=profile,
            desired_slots=one.after,
            minimal_required_slots=min(job.graph.min_parallelism, one.after),
            pre_rescale_slots=one.before,
            post_rescale_slots=one.after if done else None,
            acquired_resource_profile=profile if done else None,
        )
        for group, one in widest.items()
    }


def uuid_of(job_id: str, number: int, what: str = "rescale") -> str:
    """Return an id in Flink's form for a hot restart, always the same."""
    text = f"{job_id}:{number}:{what}"
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def _counts(found: Sequence[Rescale]) -> RescaleCounts:
    states = [one.terminal_state for one in found]
    return RescaleCounts(
        ignored=states.count(IGNORED),
        in_progress=states.count(None),
        completed=states.count(COMPLETED),
        failed=states.count(FAILED),
    )


def _stats(found: Iterable[Rescale]) -> DurationStats:
    made = summary([one.end - one.start for one in found if one.end is not None])
    return DurationStats(
        min=round(made.min),
        max=round(made.max),
        avg=round(made.avg),
        p50=made.p50,
        p90=made.p90,
        p95=made.p95,
        p99=made.p99,
        p999=made.p999,
    )
