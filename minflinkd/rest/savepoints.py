"""Requested checkpoints and savepoints, stopping with a savepoint, and disposal. One request starts the operation.

Further requests ask for its status, as in Flink.
"""

from __future__ import annotations

from aiohttp import web

from minflinkd.rest import route
from minflinkd.rest.backend import Backend, json_answer
from minflinkd.rest.declared import JOB_ID, TRIGGER_ID, Body
from minflinkd.rest.guard import Limits
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.java_throwable import serialized_throwable
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
from minflinkd.rpc.jobs import (
    CheckpointJob,
    DisposeSavepoint,
    GetDisposal,
    GetSavepoint,
    OperationStatus,
    TriggerSavepoint,
)
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import IdSource

_SAVEPOINT = Body(SavepointTrigger, "Where the savepoint goes", optional=True)
_CHECKPOINT = Body(CheckpointTrigger, "What kind of checkpoint", optional=True)
_STOP = Body(StopWithSavepoint, "Where the savepoint goes, and how the job ends", optional=True)
_DISPOSAL = Body(SavepointDisposal, "What is deleted")


class SavepointRoutes:
    def __init__(self, backend: Backend, *, limits: Limits, ids: IdSource) -> None:
        self._backend = backend
        self._limits = limits
        self._ids = ids

    def routes(self) -> list[route.Route]:
        return [
            route.post(
                "/jobs/{jobid}/savepoints",
                self.trigger,
                Role.OPERATE,
                "Take a savepoint",
                {202: Triggered},
                body=_SAVEPOINT,
                errors=(409,),
                more=(
                    "The answer has a `request-id`. Without `target-directory`: see [savepoints.md](savepoints.md). "
                    "`triggerId` makes a repetition harmless, even under the next daemon. With `cancel-job` the tasks "
                    "process nothing after the savepoint, and in the end the job is CANCELED"
                ),
            ),
            route.get(
                "/jobs/{jobid}/savepoints/{triggerid}",
                self.status,
                Role.VIEW,
                "What became of a savepoint, or of a stop",
                {200: OperationResult},
                more=(
                    "`status.id` is `IN_PROGRESS` or `COMPLETED`; then `operation` has the `location` or a "
                    "`failure-cause`: `class` is the error's code, `stack-trace` its text, and `serialized-throwable` "
                    "an object of Java with both, for Flink's clients. The next daemon knows it, too: "
                    "[savepoints.md](savepoints.md#if-the-daemon-is-lost-meanwhile)"
                ),
            ),
            route.post(
                "/jobs/{jobid}/checkpoints",
                self.checkpoint,
                Role.OPERATE,
                "Take a checkpoint now",
                {202: Triggered},
                body=_CHECKPOINT,
                errors=(409,),
                more="The answer has a `request-id`",
            ),
            route.get(
                "/jobs/{jobid}/checkpoints/{triggerid}",
                self.checkpoint_status,
                Role.VIEW,
                "What became of a checkpoint that was asked for",
                {200: CheckpointResult},
                more=(
                    "`status.id` is `IN_PROGRESS` or `COMPLETED`; then `operation` has the `checkpointId` or a "
                    "`failureCause` (`class` is the error's code)"
                ),
            ),
            route.post(
                "/jobs/{jobid}/stop",
                self.stop,
                Role.OPERATE,
                "Take a savepoint and end the job",
                {202: Triggered},
                body=_STOP,
                errors=(409,),
                more="The answer has a `request-id`, as for a savepoint. In the end the job is FINISHED",
            ),
            route.post(
                "/savepoint-disposal",
                self.dispose,
                Role.OPERATE,
                "Delete a savepoint, or a checkpoint that no job needs",
                {200: Triggered},
                body=_DISPOSAL,
            ),
            route.get(
                "/savepoint-disposal/{triggerid}",
                self.disposal,
                Role.VIEW,
                "What became of a disposal",
                {200: OperationResult},
            ),
        ]

    async def trigger(self, request: web.Request) -> web.Response:
        """Answer 202 with the id of the operation. With a `triggerId` in the body the request may be repeated."""
        body = await _SAVEPOINT.of(request, self._limits)
        job_id = JOB_ID.of(request)
        trigger_id = body.trigger_id or self._ids.hex()
        question = TriggerSavepoint(
            job_id=job_id, trigger_id=trigger_id, directory=body.target_directory or "", cancel=body.cancel_job
        )
        await self._backend.dispatcher(question)
        return json_answer(Triggered(request_id=trigger_id), status=202)

    async def checkpoint(self, request: web.Request) -> web.Response:
        body = await _CHECKPOINT.of(request, self._limits)
        job_id = JOB_ID.of(request)
        trigger_id = body.trigger_id or self._ids.hex()
        full = body.checkpoint_type == "FULL"
        await self._backend.dispatcher(CheckpointJob(job_id=job_id, trigger_id=trigger_id, full=full))
        return json_answer(Triggered(request_id=trigger_id), status=202)

    async def checkpoint_status(self, request: web.Request) -> web.Response:
        status = await self._status(request)
        if not status.done:
            return json_answer(CheckpointResult(status=QueueStatus(id="IN_PROGRESS")))
        number = int(status.location) if status.location else None
        operation = CheckpointOperation(checkpoint_id=number, failure_cause=_cause(status))
        return json_answer(CheckpointResult(status=QueueStatus(id="COMPLETED"), operation=operation))

    async def stop(self, request: web.Request) -> web.Response:
        body = await _STOP.of(request, self._limits)
        job_id = JOB_ID.of(request)
        trigger_id = body.trigger_id or self._ids.hex()
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
        job_id = JOB_ID.of(request)
        return await self._backend.dispatcher(GetSavepoint(job_id=job_id, trigger_id=TRIGGER_ID.of(request)))

    async def dispose(self, request: web.Request) -> web.Response:
        body = await _DISPOSAL.of(request, self._limits)
        trigger_id = self._ids.hex()
        await self._backend.dispatcher(DisposeSavepoint(trigger_id=trigger_id, path=body.savepoint_path))
        return json_answer(Triggered(request_id=trigger_id))

    async def disposal(self, request: web.Request) -> web.Response:
        question = GetDisposal(trigger_id=TRIGGER_ID.of(request))
        return json_answer(_result(await self._backend.dispatcher(question)))


def _result(status: OperationStatus) -> OperationResult:
    if not status.done:
        return OperationResult(status=QueueStatus(id="IN_PROGRESS"))
    operation = Operation(location=status.location or None, failure_cause=_cause(status))
    return OperationResult(status=QueueStatus(id="COMPLETED"), operation=operation)


def _cause(status: OperationStatus) -> FailureCause | None:
    return None if status.error is None else failure_cause(status.error)


def failure_cause(error: ErrorInfo) -> FailureCause:
    text = str(error)
    return FailureCause(
        kind=error.code, stack_trace=text, serialized_throwable=serialized_throwable(text, error.code, text)
    )
