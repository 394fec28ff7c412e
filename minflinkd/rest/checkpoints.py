"""`/jobs/:jobid/checkpoints` and `/jobs/:jobid/offsets`."""

from __future__ import annotations

from aiohttp import web

from minflinkd.checkpoint import offsets
from minflinkd.checkpoint.messages import GetCheckpointOptions, GetCheckpoints, GetOffsets
from minflinkd.checkpoint.statistics import CheckpointStatistics
from minflinkd.rest import route
from minflinkd.rest.backend import Backend, json_answer, json_bytes
from minflinkd.rest.checkpoints_json import config_json, details_json, statistics_json, subtasks_json
from minflinkd.rest.errors import InvalidRequest
from minflinkd.rest.identity.roles import Role
from minflinkd.runtime.ids import JobId, parse_job_id


class CheckpointRoutes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[route.Route]:
        return [
            route.get("/jobs/{jobid}/checkpoints", self.statistics, Role.VIEW),
            route.get("/jobs/{jobid}/checkpoints/config", self.config, Role.VIEW),
            route.get("/jobs/{jobid}/checkpoints/details/{checkpointid}", self.details, Role.VIEW),
            route.get("/jobs/{jobid}/checkpoints/details/{checkpointid}/subtasks/{vertexid}", self.subtasks, Role.VIEW),
            route.get("/jobs/{jobid}/offsets", self.offsets, Role.VIEW),
        ]

    async def statistics(self, request: web.Request) -> web.Response:
        return json_answer(statistics_json(await self._statistics(_job_id(request))))

    async def config(self, request: web.Request) -> web.Response:
        question = GetCheckpointOptions(job_id=_job_id(request))
        return json_answer(config_json(await self._backend.dispatcher(question)))

    async def details(self, request: web.Request) -> web.Response:
        job_id, checkpoint_id = _job_id(request), _checkpoint_id(request)
        return json_answer(details_json(await self._statistics(job_id), checkpoint_id))

    async def subtasks(self, request: web.Request) -> web.Response:
        job_id, checkpoint_id = _job_id(request), _checkpoint_id(request)
        vertex = request.match_info["vertexid"]
        return json_answer(subtasks_json(await self._statistics(job_id), checkpoint_id, vertex))

    async def offsets(self, request: web.Request) -> web.Response:
        """Answer the sources' offsets, by task, in the form of `offsets.json`. Flink has no such path."""
        return json_bytes(offsets.encode(await self._backend.dispatcher(GetOffsets(job_id=_job_id(request)))))

    async def _statistics(self, job_id: JobId) -> CheckpointStatistics:
        return await self._backend.dispatcher(GetCheckpoints(job_id=job_id))


def _job_id(request: web.Request) -> JobId:
    return parse_job_id(request.match_info["jobid"])


def _checkpoint_id(request: web.Request) -> int:
    text = request.match_info["checkpointid"]
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidRequest(f"{text[:80]!r} is not a checkpoint's id", hint="a whole number")
    return int(text)
