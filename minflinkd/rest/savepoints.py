"""Savepoints, stopping with one, and their disposal: triggered by one request, and followed by others, as Flink's."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from aiohttp import web

from minflinkd.rest.backend import Backend, json_answer
from minflinkd.rest.errors import InvalidRequest
from minflinkd.rest.guard import Limits, read_json_body
from minflinkd.rest.schemas import (
    FailureCause,
    Operation,
    OperationResult,
    QueueStatus,
    SavepointDisposal,
    SavepointTrigger,
    StopWithSavepoint,
    Triggered,
)
from minflinkd.rpc.jobs import DisposeSavepoint, GetDisposal, GetSavepoint, OperationStatus, TriggerSavepoint
from minflinkd.runtime.ids import IdSource, parse_job_id

T = TypeVar("T")


class SavepointRoutes:
    def __init__(self, backend: Backend, *, limits: Limits, ids: IdSource) -> None:
        self._backend = backend
        self._limits = limits
        self._ids = ids

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/jobs/{jobid}/savepoints", self.trigger),
            web.get("/jobs/{jobid}/savepoints/{triggerid}", self.status),
            web.post("/jobs/{jobid}/stop", self.stop),
            web.post("/savepoint-disposal", self.dispose),
            web.get("/savepoint-disposal/{triggerid}", self.disposal),
        ]

    async def trigger(self, request: web.Request) -> web.Response:
        """202 with the id to ask for. The body's `triggerId` makes a repetition harmless."""
        body = await self._body(request, SavepointTrigger)
        if body.cancel_job:
            raise InvalidRequest("cancel-job is not supported", hint="POST /jobs/:jobid/stop ends the job, too")
        job_id = parse_job_id(request.match_info["jobid"])
        trigger_id = self._trigger_id(body.trigger_id)
        directory = body.target_directory or ""
        await self._backend.dispatcher(TriggerSavepoint(job_id=job_id, trigger_id=trigger_id, directory=directory))
        return json_answer(Triggered(request_id=trigger_id), status=202)

    async def stop(self, request: web.Request) -> web.Response:
        body = await self._body(request, StopWithSavepoint)
        job_id = parse_job_id(request.match_info["jobid"])
        trigger_id = self._trigger_id(body.trigger_id)
        question = TriggerSavepoint(
            job_id=job_id,
            trigger_id=trigger_id,
            directory=body.target_directory or "",
            stop=True,
            drain=body.drain,
        )
        await self._backend.dispatcher(question)
        return json_answer(Triggered(request_id=trigger_id), status=202)

    async def status(self, request: web.Request) -> web.Response:
        job_id = parse_job_id(request.match_info["jobid"])
        question = GetSavepoint(job_id=job_id, trigger_id=request.match_info["triggerid"])
        return json_answer(_result(await self._backend.dispatcher(question)))

    async def dispose(self, request: web.Request) -> web.Response:
        body = await self._body(request, SavepointDisposal)
        trigger_id = self._ids.hex()
        await self._backend.dispatcher(DisposeSavepoint(trigger_id=trigger_id, path=body.savepoint_path))
        return json_answer(Triggered(request_id=trigger_id))

    async def disposal(self, request: web.Request) -> web.Response:
        question = GetDisposal(trigger_id=request.match_info["triggerid"])
        return json_answer(_result(await self._backend.dispatcher(question)))

    def _trigger_id(self, given: str | None) -> str:
        if given is None:
            return self._ids.hex()
        if not (len(given) == 32 and all(c in "0123456789abcdef" for c in given)):
            raise InvalidRequest(f"triggerId is {given[:80]!r}", hint="32 hex digits, or nothing")
        return given

    async def _body(self, request: web.Request, kind: type[T]) -> T:
        """An empty body stands for `{}`."""
        text = await read_json_body(request, self._limits) if request.body_exists else b"{}"
        try:
            return msgspec.json.decode(text or b"{}", type=kind)
        except msgspec.MsgspecError as error:
            raise InvalidRequest(f"the body is not what it must be: {error}") from error


def _result(status: OperationStatus) -> OperationResult:
    if not status.done:
        return OperationResult(status=QueueStatus(id="IN_PROGRESS"))
    error = status.error
    cause = None if error is None else FailureCause(kind=error.code, stack_trace=str(error))
    operation = Operation(location=status.location or None, failure_cause=cause)
    return OperationResult(status=QueueStatus(id="COMPLETED"), operation=operation)
