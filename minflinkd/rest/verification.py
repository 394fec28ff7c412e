"""`/jobs/:jobid/checkpoints/verification`: reads all of a job's checkpoints and compares their checksums.

One request starts it, further requests ask for the result, as for savepoints. Flink has no such path.
"""

from __future__ import annotations

import msgspec
from aiohttp import web

from minflinkd.checkpoint.inventory import VerifiedCheckpoint
from minflinkd.checkpoint.messages import GetVerification, VerifyCheckpoints
from minflinkd.rest import route
from minflinkd.rest import schemas as s
from minflinkd.rest.backend import Backend, json_answer
from minflinkd.rest.errors import InvalidRequest
from minflinkd.rest.guard import Limits, read_json_body
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.route import Route
from minflinkd.rest.schemas import verification as v
from minflinkd.rest.schemas.checkpoints import DamagedFile
from minflinkd.rest.trigger_ids import trigger_id
from minflinkd.runtime.errors import MALFORMED
from minflinkd.runtime.ids import IdSource, parse_job_id


class VerificationRoutes:
    def __init__(self, backend: Backend, *, limits: Limits, ids: IdSource) -> None:
        self._backend = backend
        self._limits = limits
        self._ids = ids

    def routes(self) -> list[Route]:
        return [
            route.post("/jobs/{jobid}/checkpoints/verification", self.trigger, Role.OPERATE),
            route.get("/jobs/{jobid}/checkpoints/verification/{triggerid}", self.result, Role.VIEW),
        ]

    async def trigger(self, request: web.Request) -> web.Response:
        """Answer 202 with the id of the verification. With a `triggerId` in the body the request may be repeated."""
        text = await read_json_body(request, self._limits) if request.body_exists else b"{}"
        try:
            body = msgspec.json.decode(text or b"{}", type=v.VerificationTrigger)
        except MALFORMED as error:
            raise InvalidRequest(f"the body is not what it must be: {error}") from error
        number = trigger_id(body.trigger_id, self._ids)
        job_id = parse_job_id(request.match_info["jobid"])
        await self._backend.dispatcher(VerifyCheckpoints(job_id=job_id, trigger_id=number))
        return json_answer(s.Triggered(request_id=number), status=202)

    async def result(self, request: web.Request) -> web.Response:
        job_id = parse_job_id(request.match_info["jobid"])
        question = GetVerification(job_id=job_id, trigger_id=request.match_info["triggerid"])
        found = await self._backend.dispatcher(question)
        if not found.done:
            return json_answer(v.VerificationResult(status=s.QueueStatus(id="IN_PROGRESS")))
        if found.error is not None:
            cause = s.FailureCause(kind=found.error.code, stack_trace=str(found.error))
            operation = v.VerificationOperation(failure_cause=cause)
        else:
            operation = v.VerificationOperation(checkpoints=tuple(map(_shown, found.checkpoints)))
        return json_answer(v.VerificationResult(status=s.QueueStatus(id="COMPLETED"), operation=operation))


def _shown(one: VerifiedCheckpoint) -> v.VerifiedCheckpoint:
    return v.VerifiedCheckpoint(
        id=one.checkpoint_id,
        whole=not one.damage,
        given_up=one.given_up,
        damaged_files=tuple(DamagedFile(file=damage.file, why=damage.why) for damage in one.damage),
        files=one.files,
        state_size=one.size,
        trigger_timestamp=one.triggered_ms,
    )
