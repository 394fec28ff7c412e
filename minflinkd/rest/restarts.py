"""Hot restarts and rescaling (H1): `POST /jobs/{id}/hot-restart`, and Flink's `/jobs/{id}/resource-requirements`."""

from __future__ import annotations

import msgspec
from aiohttp import web

from minflinkd.rest import route
from minflinkd.rest.backend import Backend, flag, job_name, json_answer, json_bytes
from minflinkd.rest.errors import InvalidJob, InvalidRequest
from minflinkd.rest.guard import Limits, read_json_body
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
from minflinkd.runtime.errors import MALFORMED
from minflinkd.runtime.ids import parse_job_id

_LATEST = "latest"  # `?checkpoint=`: use the last completed one instead of taking another


class RestartRoutes:
    def __init__(self, backend: Backend, *, limits: Limits) -> None:
        self._backend = backend
        self._limits = limits

    def routes(self) -> list[route.Route]:
        return [
            route.post("/jobs/{jobid}/hot-restart", self.restart, Role.SUBMIT),
            route.get("/jobs/{jobid}/resource-requirements", self.requirements, Role.VIEW),
            route.put("/jobs/{jobid}/resource-requirements", self.rescale, Role.OPERATE),
        ]

    async def restart(self, request: web.Request) -> web.Response:
        """Answer 202 with the restart's number and what changes; with `?dry-run` 200, starting nothing."""
        checkpoint = request.query.get("checkpoint", "final")
        if checkpoint not in ("final", _LATEST):
            raise InvalidRequest(f"checkpoint is {checkpoint[:80]!r}", hint="final, which is the default, or latest")
        dry_run = flag(request, "dry-run")
        job_id = parse_job_id(request.match_info["jobid"])
        document = await read_json_body(request, self._limits)
        require_job(identity_of(request), job_name(document))  # the new version may have another name
        question = HotRestartJob(
            job_id=job_id,
            document=document,
            dry_run=dry_run,
            latest=checkpoint == _LATEST,
            allow_non_restored_state=flag(request, "allow-non-restored-state"),
            allow_changed_state=flag(request, "allow-changed-state"),
            replace=flag(request, "replace"),
        )
        answer = _accepted(await self._backend.dispatcher(question, self._backend.submit_timeout()))
        self._backend.jobs.forget()
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
        body = await read_json_body(request, self._limits)
        try:
            wanted = msgspec.json.decode(body, type=dict[str, VertexRequirements])
        except MALFORMED as error:
            raise InvalidRequest(f"the body is not what it must be: {error}") from error
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
        self._backend.jobs.forget()
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
    )
