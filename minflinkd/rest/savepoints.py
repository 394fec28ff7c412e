"""Requested checkpoints and savepoints, stopping with a savepoint, and disposal. One request starts the operation.

Further requests ask for its status, as in Flink.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from aiohttp import web

from minflinkd.rest import route
from minflinkd.rest.backend import Backend, json_answer
from minflinkd.rest.errors import InvalidRequest
from minflinkd.rest.guard import Limits, read_json_body
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.schemas import (
    CheckpointOperation,
    CheckpointResult,
    CheckpointTrigger,
    FailureCause,
    Operation,
    OperationResult,
    QueueStatus,
    SavepointDisposal,
    SavepointTrigger,
    StopWithSavepoint,
    Triggered,
)
from minflinkd.rest.trigger_ids import trigger_id as trigger_id_of
from minflinkd.rpc.jobs import (
    CheckpointJob,
    DisposeSavepoint,
    GetDisposal,
    GetSavepoint,
    OperationStatus,
    TriggerSavepoint,
)
from minflinkd.runtime.errors import MALFORMED
from minflinkd.runtime.ids import IdSource, parse_job_id

INCREMENTAL = {"CONFIGURED", "INCREMENTAL"}  # accepted types of checkpoint; there is no full one

T = TypeVar("T")


class SavepointRoutes:
    def __init__(self, backend: Backend, *, limits: Limits, ids: IdSource) -> None:
        self._backend = backend
        self._limits = limits
        self._ids = ids

    def routes(self) -> list[route.Route]:
        return [
            route.post("/jobs/{jobid}/savepoints", self.trigger, Role.OPERATE),
            route.get("/jobs/{jobid}/savepoints/{triggerid}", self.status, Role.VIEW),
            route.post("/jobs/{jobid}/checkpoints", self.checkpoint, Role.OPERATE),
            route.get("/jobs/{jobid}/checkpoints/{triggerid}", self.checkpoint_status, Role.VIEW),
            route.post("/jobs/{jobid}/stop", self.stop, Role.OPERATE),
            route.post("/savepoint-disposal", self.dispose, Role.OPERATE),
            route.get("/savepoint-disposal/{triggerid}", self.disposal, Role.VIEW),
        ]

    async def trigger(self, request: web.Request) -> web.Response:
        """Answer 202 with the id of the operation. With a `triggerId` in the body the request may be repeated."""
        body = await self._body(request, SavepointTrigger)
        if body.cancel_job:
            raise InvalidRequest("cancel-job is not supported", hint="POST /jobs/:jobid/stop ends the job, too")
        job_id = parse_job_id(request.match_info["jobid"])
        trigger_id = trigger_id_of(body.trigger_id, self._ids)
        directory = body.target_directory or ""
        await self._backend.dispatcher(TriggerSavepoint(job_id=job_id, trigger_id=trigger_id, directory=directory))
        return json_answer(Triggered(request_id=trigger_id), status=202)

    async def checkpoint(self, request: web.Request) -> web.Response:
        body = await self._body(request, CheckpointTrigger)
        if body.checkpoint_type not in INCREMENTAL:
            raise InvalidRequest(
                f"checkpointType is {body.checkpoint_type[:80]!r}",
                hint="CONFIGURED or INCREMENTAL; a savepoint shares no file with others",
            )
        job_id = parse_job_id(request.match_info["jobid"])
        trigger_id = trigger_id_of(body.trigger_id, self._ids)
        await self._backend.dispatcher(CheckpointJob(job_id=job_id, trigger_id=trigger_id))
        return json_answer(Triggered(request_id=trigger_id), status=202)

    async def checkpoint_status(self, request: web.Request) -> web.Response:
        status = await self._status(request)
        if not status.done:
            return json_answer(CheckpointResult(status=QueueStatus(id="IN_PROGRESS")))
        number = int(status.location) if status.location else None
        operation = CheckpointOperation(checkpoint_id=number, failure_cause=_cause(status))
        return json_answer(CheckpointResult(status=QueueStatus(id="COMPLETED"), operation=operation))

    async def stop(self, request: web.Request) -> web.Response:
        body = await self._body(request, StopWithSavepoint)
        job_id = parse_job_id(request.match_info["jobid"])
        trigger_id = trigger_id_of(body.trigger_id, self._ids)
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
        return json_answer(_result(await self._status(request)))

    async def _status(self, request: web.Request) -> OperationStatus:
        job_id = parse_job_id(request.match_info["jobid"])
        return await self._backend.dispatcher(GetSavepoint(job_id=job_id, trigger_id=request.match_info["triggerid"]))

    async def dispose(self, request: web.Request) -> web.Response:
        body = await self._body(request, SavepointDisposal)
        trigger_id = self._ids.hex()
        await self._backend.dispatcher(DisposeSavepoint(trigger_id=trigger_id, path=body.savepoint_path))
        return json_answer(Triggered(request_id=trigger_id))

    async def disposal(self, request: web.Request) -> web.Response:
        question = GetDisposal(trigger_id=request.match_info["triggerid"])
        return json_answer(_result(await self._backend.dispatcher(question)))

    async def _body(self, request: web.Request, kind: type[T]) -> T:
        """Decode the body. An empty one means `{}`."""
        text = await read_json_body(request, self._limits) if request.body_exists else b"{}"
        try:
            return msgspec.json.decode(text or b"{}", type=kind)
        except MALFORMED as error:
            raise InvalidRequest(f"the body is not what it must be: {error}") from error


def _result(status: OperationStatus) -> OperationResult:
    if not status.done:
        return OperationResult(status=QueueStatus(id="IN_PROGRESS"))
    operation = Operation(location=status.location or None, failure_cause=_cause(status))
    return OperationResult(status=QueueStatus(id="COMPLETED"), operation=operation)


def _cause(status: OperationStatus) -> FailureCause | None:
    error = status.error
    return None if error is None else FailureCause(kind=error.code, stack_trace=str(error))
