"""A job that is known is submitted as a new one.

`POST /jobs/{id}/submit-again` starts it from a checkpoint or savepoint. `POST /jobs/{id}/backfill` lets it compute a
past time again.

The daemon has the job as it was accepted, with what it hides from those who look at it. So nobody has to have its file
at hand. Its artifacts are there until the job has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from aiohttp import web
from msgspec.structs import replace

from minflinkd.blob.keys import BlobKey
from minflinkd.jobgraph.backfill import Backfill, backfill_of, in_words_of_a_backfill
from minflinkd.jobgraph.faults import GraphFault, InvalidJobGraph, at
from minflinkd.jobgraph.model import Artifact, JobGraph, Restore, RestoreMode, encode
from minflinkd.rest import route
from minflinkd.rest.artifacts import StoringBlobs
from minflinkd.rest.backend import JOB, Backend
from minflinkd.rest.declared import Body
from minflinkd.rest.errors import InvalidJob
from minflinkd.rest.guard import Limits
from minflinkd.rest.identity.access import identity_of
from minflinkd.rest.identity.roles import Role, require_job
from minflinkd.rest.schemas import Submitted
from minflinkd.rest.schemas.documents import BackfillRequest, Resubmission
from minflinkd.rest.submission import DRY_RUN, GIVEN_ID, submitted
from minflinkd.rpc.jobs import CheckpointJob, GetJob, GetSavepoint, JobDetails, SubmissionAnswer, SubmitJob
from minflinkd.runtime.errors import Conflict, Kind, MinflinkError, NotFound
from minflinkd.runtime.ids import IdSource, JobId

_RESTORE = Body(Resubmission, "Where the new job starts")
_CHECKPOINT = 120.0  # seconds that a checkpoint before a backfill may take
_LOOK = 0.1  # seconds between two looks whether it is complete
_RANGE = Body(BackfillRequest, "Which time")


class _New(NamedTuple):
    """What a request says of the job to come."""

    job_id: JobId
    dry_run: bool
    owner: str


class ResubmissionRoutes:
    """`blobs`: None: jobs with artifacts cannot be submitted again."""

    def __init__(self, backend: Backend, *, blobs: StoringBlobs | None, limits: Limits, ids: IdSource) -> None:
        self._backend = backend
        self._blobs = blobs
        self._limits = limits
        self._ids = ids

    def routes(self) -> list[route.Route]:
        return [
            route.post(
                "/jobs/{jobid}/submit-again",
                self.submit,
                Role.SUBMIT,
                "Submit the job once more, as a new one, from a checkpoint or savepoint",
                {202: Submitted, 200: Submitted},
                query=(GIVEN_ID, DRY_RUN),
                body=_RESTORE,
                errors=(409,),
                more=(
                    "Not in Flink. The job itself is not touched. Artifacts are deleted "
                    "when a job ends: a dry run under the new `jobId`, before that, keeps a copy for "
                    "`blob.retention.interval`. See [savepoints.md](savepoints.md#the-same-job-again)"
                ),
            ),
            route.post(
                "/jobs/{jobid}/backfill",
                self.backfill,
                Role.SUBMIT,
                "Compute a past time again, in a batch job beside the job",
                {202: Submitted, 200: Submitted},
                query=(GIVEN_ID, DRY_RUN),
                body=_RANGE,
                errors=(409,),
                more="Not in Flink. The job itself is not touched. See [backfill.md](backfill.md)",
            ),
        ]

    async def submit(self, request: web.Request) -> web.Response:
        """Answer 202 with the new job's id; with `?dry-run` 200, starting nothing. With `?jobId=` it may be repeated.

        Raises InvalidJob, and what the Dispatcher raises.
        """
        new = self._new(request)
        asked = await _RESTORE.of(request, self._limits)
        job = await self._backend.job(request)
        restore = Restore(
            path=asked.path,
            mode=RestoreMode.CLAIM if asked.claim else RestoreMode.NO_CLAIM,
            allow_non_restored_state=asked.allow_non_restored_state,
            allow_changed_state=asked.allow_changed_state,
        )
        return await self._submit(request, new, job.job_id, replace(job.graph, restore=restore))

    async def backfill(self, request: web.Request) -> web.Response:
        """Answer as `submit` does, but take a checkpoint of the job first if both write to the same place.

        So the checkpoint has, or publishes, what the job has written of that time, and a recovery does not write it
        again. Raises InvalidJob, Conflict, and what the Dispatcher raises.
        """
        new = self._new(request)
        body = await _RANGE.of(request, self._limits)
        asked = msgspec.convert(body, Backfill, from_attributes=True)
        if GIVEN_ID.of(request) is not None and await self._is_known(new.job_id):
            return submitted(SubmissionAnswer(job_id=new.job_id), dry_run=new.dry_run)
        job = await self._backend.job(request)
        now = self._backend.clock.epoch_ms()
        try:
            made = backfill_of(job.graph, asked, now_ms=now, done_ms=_done(job))
        except InvalidJobGraph as error:
            raise InvalidJob(error.faults) from error
        require_job(identity_of(request), made.graph.name)
        if made.shares and not job.status.terminal and not new.dry_run:
            await self._take_checkpoint(job.job_id, trigger_id=new.job_id)
        try:
            return await self._submit(request, new, job.job_id, made.graph, made.notes)
        except InvalidJob as error:
            raise InvalidJob(tuple(map(in_words_of_a_backfill, error.faults))) from error

    async def _is_known(self, job_id: JobId) -> bool:
        """Whether the job is there. The request may be a repetition, and what it was made of may have changed since."""
        try:
            await self._backend.dispatcher(GetJob(job_id=job_id))
        except MinflinkError as error:
            if error.info().kind is Kind.NOT_FOUND:
                return False
            raise
        return True

    async def _take_checkpoint(self, job_id: JobId, trigger_id: str) -> None:
        """Take a checkpoint, and wait until it is complete. A repetition waits for the same one. Raises Conflict."""
        await self._backend.dispatcher(CheckpointJob(job_id=job_id, trigger_id=trigger_id))
        clock = self._backend.clock
        deadline = clock.monotonic() + _CHECKPOINT
        while not (status := await self._backend.dispatcher(GetSavepoint(job_id=job_id, trigger_id=trigger_id))).done:
            if clock.monotonic() >= deadline:
                raise Conflict(
                    f"the job's checkpoint before the backfill is not complete after {_CHECKPOINT:g} s",
                    hint="`minflinkd checkpoints JOB` shows why; try again when it is",
                )
            await clock.sleep(_LOOK)
        if status.error is not None:
            raise Conflict(f"the job's checkpoint before the backfill failed: {status.error.message}", hint="try again")

    def _new(self, request: web.Request) -> _New:
        return _New(GIVEN_ID.of(request) or self._ids.job(), DRY_RUN.of(request), identity_of(request).name)

    async def _submit(
        self, request: web.Request, new: _New, old: JobId, graph: JobGraph, notes: Sequence[str] = ()
    ) -> web.Response:
        """Submit a graph with copies of the artifacts of the job `old`. `notes`: for the user, beside warnings."""
        request[JOB] = new.job_id
        held = list[BlobKey]()
        try:
            graph = replace(graph, artifacts=await self._copied(old, new.job_id, graph, new.owner, held))
            question = SubmitJob(job_id=new.job_id, document=encode(graph), dry_run=new.dry_run, owner=new.owner)
            answer = await self._backend.dispatcher(question, self._backend.submit_timeout())
            if answer.faults:
                raise InvalidJob(answer.faults)
        finally:
            for key in held:
                assert self._blobs is not None
                await self._blobs.release(new.job_id, key)
        return submitted(replace(answer, warnings=(*notes, *answer.warnings)), dry_run=new.dry_run)

    async def _copied(
        self, old: JobId, new: JobId, graph: JobGraph, user: str, held: list[BlobKey]
    ) -> tuple[Artifact, ...]:
        """Return the artifacts with their keys for the new job. `held`: what to release afterwards.

        Raises InvalidJob if any of them is gone.
        """
        copied, faults = list[Artifact](), list[GraphFault]()
        for i, artifact in enumerate(graph.artifacts):
            if (key := await self._copy(old, artifact, new, user)) is None:
                faults.append(_gone(i, artifact))
                continue
            held.append(key)
            copied.append(Artifact(name=artifact.name, key=str(key), size=artifact.size))
        if faults:
            raise InvalidJob(tuple(faults))
        return tuple(copied)

    async def _copy(self, old: JobId, artifact: Artifact, new: JobId, user: str) -> BlobKey | None:
        if artifact.key is None or self._blobs is None:
            return None
        try:
            return await self._blobs.copy(old, BlobKey.parse(artifact.key), new, user=user)
        except NotFound:
            return None


def _gone(i: int, artifact: Artifact) -> GraphFault:
    return GraphFault(
        path=at("artifacts", i),
        problem=f"the artifact {artifact.name} is not there any more: artifacts are deleted when their job ends",
        hint="submit the job file with its artifacts: on the page, or with `minflinkd run JOB.yaml`, from a savepoint "
        "with --from-savepoint; for a past time with `mode: batch` and an input-range",
    )


def _done(job: JobDetails) -> int | None:
    """Return the time up to which all tasks of a job are done with their input; 0: one of them does not say yet.

    None: the job has ended, or has no watermark.
    """
    if job.status.terminal:
        return None
    told = [
        task.metrics.watermark_ms or 0
        for task in job.tasks
        if task.metrics.watermark_ms is not None or any(vertex.watermark for vertex in task.task.vertices)
    ]
    return min(told, default=None)
