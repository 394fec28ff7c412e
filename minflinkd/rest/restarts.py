"""Hot restarts and rescaling (H1): `POST /jobs/{id}/hot-restart`, and Flink's `/jobs/{id}/resource-requirements`."""

from __future__ import annotations

from typing import Literal

import msgspec
from aiohttp import web

from minflinkd.rest import route
from minflinkd.rest.backend import Backend, job_name, json_answer, json_bytes
from minflinkd.rest.declared import JOB_DOCUMENT, JOB_ID, Body, InQuery, flag
from minflinkd.rest.errors import InvalidJob, InvalidRequest
from minflinkd.rest.guard import Limits
from minflinkd.rest.identity.access import identity_of
from minflinkd.rest.identity.roles import Role, require_job
from minflinkd.rest.plan import vertex_id
from minflinkd.rest.schemas import (
    Empty,
    HotRestartInfo,
    ParallelismBounds,
    RestartAccepted,
    RestartError,
    VersionDiff,
    VertexRequirements,
)
from minflinkd.rpc.jobs import HotRestart, HotRestartJob, JobDetails, RescaleJob, RestartAnswer, VersionChanges

_CHECKPOINT = InQuery(
    "checkpoint",
    "What to go on from: a last checkpoint that is taken now, or the latest complete one",
    Literal["final", "latest"],
    "final",
)
_DRY_RUN = flag("dry-run", "Only answer what would change")
_ALLOW_NON_RESTORED = flag("allow-non-restored-state", "State that nothing takes over may be lost")
_ALLOW_CHANGED = flag("allow-changed-state", "State may get another meaning")
_REPLACE = flag("replace", "Take the place of a hot restart that is not done")
_REQUIREMENTS = Body(
    dict[str, VertexRequirements], "By the id of a vertex; what is left out, and -1, keep their present value"
)


class RestartRoutes:
    def __init__(self, backend: Backend, *, limits: Limits) -> None:
        self._backend = backend
        self._limits = limits

    def routes(self) -> list[route.Route]:
        return [
            route.post(
                "/jobs/{jobid}/hot-restart",
                self.restart,
                Role.SUBMIT,
                "Go on with a new version of the job, or see what it would change",
                {202: RestartAccepted, 200: RestartAccepted},
                query=(_CHECKPOINT, _DRY_RUN, _ALLOW_NON_RESTORED, _ALLOW_CHANGED, _REPLACE),
                body=JOB_DOCUMENT,
                errors=(409,),
                more=(
                    "Not in Flink. The answer has the `number` of the hot restart and the `changes`. The artifacts of "
                    "the new version are uploaded under the job's id. With `dry-run` the answer is 200, and nothing is "
                    "begun; see [hot-restart.md](hot-restart.md)"
                ),
            ),
            route.get(
                "/jobs/{jobid}/resource-requirements",
                self.requirements,
                Role.VIEW,
                "The parallelism of each task",
                {200: dict[str, VertexRequirements]},
                more="By vertex: `parallelism` with `lowerBound` and `upperBound`",
            ),
            route.put(
                "/jobs/{jobid}/resource-requirements",
                self.rescale,
                Role.OPERATE,
                "Go on with another parallelism",
                {202: Empty},
                body=_REQUIREMENTS,
                errors=(409,),
                more="It is listed among the hot restarts, and stops nothing if the TaskManagers have the slots",
            ),
        ]

    async def restart(self, request: web.Request) -> web.Response:
        """Answer 202 with the restart's number and what changes; with `?dry-run` 200, starting nothing."""
        checkpoint, dry_run, job_id = _CHECKPOINT.of(request), _DRY_RUN.of(request), JOB_ID.of(request)
        document = await JOB_DOCUMENT.text(request, self._limits)
        require_job(identity_of(request), job_name(document))  # the new version may have another name
        question = HotRestartJob(
            job_id=job_id,
            document=document,
            dry_run=dry_run,
            latest=checkpoint == "latest",
            allow_non_restored_state=_ALLOW_NON_RESTORED.of(request),
            allow_changed_state=_ALLOW_CHANGED.of(request),
            replace=_REPLACE.of(request),
        )
        answer = _accepted(await self._backend.dispatcher(question, self._backend.submit_timeout()))
        changes = _diff(answer.changes)
        accepted = RestartAccepted(jobid=answer.job_id, number=answer.number, dry_run=dry_run, changes=changes)
        return json_answer(accepted, status=200 if dry_run else 202)

    async def requirements(self, request: web.Request) -> web.Response:
        """Answer in Flink's form, by the id of a vertex, which is a task here."""
        job = await self._backend.job(request)
        found = {}
        for task in job.tasks:
            wanted = _wanted(job, task.task.id)
            bounds = ParallelismBounds(lower_bound=min(job.graph.min_parallelism, wanted), upper_bound=wanted)
            found[vertex_id(task.task.id)] = VertexRequirements(parallelism=bounds)
        return json_bytes(msgspec.json.encode(found))

    async def rescale(self, request: web.Request) -> web.Response:
        """Answer 202: a hot restart of the same version at another parallelism has begun."""
        wanted = await _REQUIREMENTS.of(request, self._limits)
        job = await self._backend.job(request)
        tasks = {vertex_id(task.task.id): task.task.id for task in job.tasks}
        tasks |= {task.task.id: task.task.id for task in job.tasks}
        if unknown := sorted(set(wanted) - set(tasks)):
            raise InvalidRequest(f"the job has no vertex {unknown[0][:80]!r}", hint="GET /jobs/:jobid lists them")
        bounds = {tasks[name]: requirements.parallelism for name, requirements in wanted.items()}
        question = RescaleJob(
            job_id=job.job_id,
            vertices={task: b.upper_bound for task, b in bounds.items() if b.upper_bound != -1},
            least=min((b.lower_bound for b in bounds.values() if b.lower_bound != -1), default=0),
        )
        _accepted(await self._backend.dispatcher(question, self._backend.submit_timeout()))
        return json_answer(Empty(), status=202)


def _wanted(job: JobDetails, task_id: str) -> int:
    """Return the parallelism that the job asks for. The task may run with less now."""
    task = next(task.task for task in job.tasks if task.task.id == task_id)
    own = {vertex.id for vertex in task.vertices}
    stated = [v.parallelism for v in job.graph.vertices if v.id in own and v.parallelism]
    return max(stated, default=job.graph.parallelism)


def _accepted(answer: RestartAnswer) -> RestartAnswer:
    """Return the answer. Raises InvalidJob if it has faults."""
    if answer.faults:
        raise InvalidJob(answer.faults)
    return answer


def _diff(changes: VersionChanges) -> VersionDiff:
    return msgspec.convert(msgspec.to_builtins(changes), VersionDiff)


def restart_info(restart: HotRestart) -> HotRestartInfo:
    error = restart.error
    return HotRestartInfo(
        number=restart.number,
        state=restart.state.value,
        over=restart.state.over,
        requested=restart.requested_ms,
        checkpoint_id=restart.checkpoint_id,
        phases=restart.phases,
        error=None if error is None else RestartError(code=error.code, message=error.message, hint=error.hint),
        reason=restart.reason,
    )
