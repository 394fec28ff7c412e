"""`POST /jobs`: the body is the job document as JSON; its artifacts are already on the BlobServer (E2).

Flink's CLI posts a Java JobGraph as multipart here; the answer says what to do instead.
"""

from __future__ import annotations

from aiohttp import web

from minflinkd.rest import route
from minflinkd.rest.backend import JOB, Backend, job_name, json_answer
from minflinkd.rest.declared import JOB_DOCUMENT, InQuery, flag, like
from minflinkd.rest.errors import InvalidJob
from minflinkd.rest.guard import Limits
from minflinkd.rest.identity.access import identity_of
from minflinkd.rest.identity.roles import Role, require_job
from minflinkd.rest.schemas import ExplainedOperator, Submitted, TaskExplanation
from minflinkd.rpc.jobs import ExplainedTask, SubmissionAnswer, SubmitJob
from minflinkd.runtime.ids import HEX32, IdSource, JobId, parse_job_id

DRY_RUN = flag("dry-run", "Only check the job")
_EXPLAIN = flag("explain", "With `dry-run`: also Spark's plan of each task, and its operators with state")
GIVEN_ID = InQuery[JobId | None](
    "jobId", "The job's id, under which its artifacts were uploaded", like(HEX32), None, parse_job_id
)


class SubmissionRoutes:
    def __init__(self, backend: Backend, *, limits: Limits, ids: IdSource) -> None:
        self._backend = backend
        self._limits = limits
        self._ids = ids

    def routes(self) -> list[route.Route]:
        return [
            route.post(
                "/jobs",
                self.submit,
                Role.SUBMIT,
                "Submit a job, or only check it",
                {202: Submitted, 200: Submitted},
                query=(GIVEN_ID, DRY_RUN, _EXPLAIN),
                body=JOB_DOCUMENT,
                errors=(409,),
                names_job=True,
                more="See [Submitting](#submitting)",
            )
        ]

    async def submit(self, request: web.Request) -> web.Response:
        """Answer 202 with the job's id; with `?dry-run` 200, storing nothing. With `?jobId=` it may be repeated."""
        dry_run = DRY_RUN.of(request)
        explain = _EXPLAIN.of(request) and dry_run  # a wrong value is refused in any case
        job_id = GIVEN_ID.of(request) or self._ids.job()
        request[JOB] = job_id
        document = await JOB_DOCUMENT.text(request, self._limits)
        identity = identity_of(request)
        require_job(identity, job_name(document))
        question = SubmitJob(job_id=job_id, document=document, dry_run=dry_run, owner=identity.name, explain=explain)
        answer = await self._backend.dispatcher(question, self._backend.submit_timeout())
        if answer.faults:
            raise InvalidJob(answer.faults)
        return submitted(answer, dry_run=dry_run)


def submitted(answer: SubmissionAnswer, *, dry_run: bool) -> web.Response:
    """Return the answer for a job that was accepted, or would be."""
    body = Submitted(
        jobid=answer.job_id,
        job_url=f"/jobs/{answer.job_id}",
        dry_run=dry_run,
        warnings=answer.warnings,
        tasks=tuple(map(_explained, answer.tasks)),
    )
    return json_answer(body, status=200 if dry_run else 202)


def _explained(task: ExplainedTask) -> TaskExplanation:
    return TaskExplanation(
        id=task.task_id,
        plan=task.plan,
        operators=tuple(
            ExplainedOperator(vertex=node.vertex, kind=node.kind, stateful=node.stateful) for node in task.operators
        ),
    )
