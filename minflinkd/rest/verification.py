"""`/jobs/:jobid/checkpoints/verification`: reads all of a job's checkpoints and compares their checksums.

One request starts it, further requests ask for the result, as for savepoints. Flink has no such path.
"""

from __future__ import annotations

from aiohttp import web

from minflinkd.checkpoint.inventory import VerifiedCheckpoint
from minflinkd.checkpoint.messages import GetVerification, VerifyCheckpoints
from minflinkd.rest import route
from minflinkd.rest import schemas as s
from minflinkd.rest.backend import Backend, json_answer
from minflinkd.rest.declared import JOB_ID, TRIGGER_ID, Body
from minflinkd.rest.guard import Limits
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.route import Route
from minflinkd.rest.schemas import verification as v
from minflinkd.rest.schemas.checkpoints import DamagedFile
from minflinkd.runtime.ids import IdSource

_VERIFICATION = Body(v.VerificationTrigger, "Nothing, or an id of its own", optional=True)


class VerificationRoutes:
    def __init__(self, backend: Backend, *, limits: Limits, ids: IdSource) -> None:
        self._backend = backend
        self._limits = limits
        self._ids = ids

    def routes(self) -> list[Route]:
        return [
            route.post(
                "/jobs/{jobid}/checkpoints/verification",
                self.trigger,
                Role.OPERATE,
                "Read the job's checkpoints and compare their checksums",
                {202: s.Triggered},
                body=_VERIFICATION,
                errors=(409,),
                more=(
                    "Not in Flink. The daemon reads all stored checkpoints of the job, one after another, also of a "
                    "job that has ended. The answer has a `request-id`. One verification runs at a time"
                ),
            ),
            route.get(
                "/jobs/{jobid}/checkpoints/verification/{triggerid}",
                self.result,
                Role.VIEW,
                "What a verification has found",
                {200: v.VerificationResult},
                more=(
                    "`status.id` is `IN_PROGRESS` or `COMPLETED`; then `operation` has the `checkpoints`, newest "
                    "first: `id`, `whole`, `given-up` (the job went on from an earlier one), `damaged-files` with "
                    "`file` and `why`, `files`, `state-size`, `trigger-timestamp`. If the storage did not let that be "
                    "found out, it has a `failure-cause`. The result ends with the daemon"
                ),
            ),
        ]

    async def trigger(self, request: web.Request) -> web.Response:
        """Answer 202 with the id of the verification. With a `triggerId` in the body the request may be repeated."""
        body, job_id = await _VERIFICATION.of(request, self._limits), JOB_ID.of(request)
        number = body.trigger_id or self._ids.hex()
        await self._backend.dispatcher(VerifyCheckpoints(job_id=job_id, trigger_id=number))
        return json_answer(s.Triggered(request_id=number), status=202)

    async def result(self, request: web.Request) -> web.Response:
        question = GetVerification(job_id=JOB_ID.of(request), trigger_id=TRIGGER_ID.of(request))
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
