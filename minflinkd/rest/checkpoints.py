"""`/jobs/:jobid/checkpoints`. The coordinator's side produces the JSON; this module adds Flink's ids of tasks."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from minflinkd.rest.backend import Backend, json_bytes
from minflinkd.rest.errors import InvalidRequest
from minflinkd.rest.plan import vertex_id
from minflinkd.rpc.jobs import GetCheckpoints, GetOffsets
from minflinkd.runtime.errors import NotFound
from minflinkd.runtime.ids import parse_job_id


class CheckpointRoutes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/jobs/{jobid}/checkpoints", self.statistics),
            web.get("/jobs/{jobid}/checkpoints/config", self.config),
            web.get("/jobs/{jobid}/checkpoints/details/{checkpointid}", self.details),
            web.get("/jobs/{jobid}/checkpoints/details/{checkpointid}/subtasks/{vertexid}", self.subtasks),
            web.get("/jobs/{jobid}/offsets", self.offsets),
        ]

    async def statistics(self, request: web.Request) -> web.Response:
        return json_bytes(await self._ask(GetCheckpoints(job_id=parse_job_id(request.match_info["jobid"]))))

    async def config(self, request: web.Request) -> web.Response:
        return json_bytes(
            await self._ask(GetCheckpoints(job_id=parse_job_id(request.match_info["jobid"]), config=True))
        )

    async def details(self, request: web.Request) -> web.Response:
        return json_bytes(with_vertex_ids(await self._ask(_question(request))))

    async def subtasks(self, request: web.Request) -> web.Response:
        vertex, question = request.match_info["vertexid"], _question(request)
        answer = await self._ask(msgspec.structs.replace(question, subtasks=True))
        tasks: dict[str, Any] = msgspec.json.decode(answer)["tasks"]
        for task_id, task in tasks.items():
            if vertex in (task_id, vertex_id(task_id)):
                return json_bytes(msgspec.json.encode(_with_task_id(task, task_id)))
        raise NotFound(f"checkpoint {question.checkpoint_id} has no task {vertex[:80]!r}")

    async def offsets(self, request: web.Request) -> web.Response:
        """Answer the sources' offsets, by task. Flink has no such path."""
        question = GetOffsets(job_id=parse_job_id(request.match_info["jobid"]))
        return json_bytes((await self._backend.dispatcher(question)).body)

    async def _ask(self, question: GetCheckpoints) -> bytes:
        return (await self._backend.dispatcher(question)).body


def _question(request: web.Request) -> GetCheckpoints:
    job_id, text = parse_job_id(request.match_info["jobid"]), request.match_info["checkpointid"]
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidRequest(f"{text[:80]!r} is not a checkpoint's id", hint="a whole number")
    return GetCheckpoints(job_id=job_id, checkpoint_id=int(text))


def with_vertex_ids(body: bytes) -> bytes:
    """Key a checkpoint's tasks by job vertex id, as Flink does. Each keeps its own id as `minflinkd.task-id`."""
    details: dict[str, Any] = msgspec.json.decode(body)
    tasks = details.get("tasks", {})
    details["tasks"] = {vertex_id(task_id): _with_task_id(task, task_id) for task_id, task in tasks.items()}
    return msgspec.json.encode(details)


def _with_task_id(task: dict[str, Any], task_id: str) -> dict[str, Any]:
    return {**task, "minflinkd": {**task.get("minflinkd", {}), "task-id": task_id}}
