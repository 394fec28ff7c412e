"""`/jars`: a job is uploaded as a file, looked at, and run. Here a jar is an archive with a job file, or a job file."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Annotated

import msgspec
from aiohttp import BodyPartReader, web
from msgspec import Meta

from minflinkd.blob.keys import BlobKey, BlobKind
from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.faults import InvalidJobGraph
from minflinkd.jobgraph.model import Artifact, JobGraph, encode
from minflinkd.jobgraph.validation import parse_job
from minflinkd.rest import route
from minflinkd.rest.artifacts import StoringBlobs
from minflinkd.rest.backend import JOB, Backend, json_answer
from minflinkd.rest.declared import JAR, Body, InQuery, flag
from minflinkd.rest.errors import BodyTooLarge, BodyTooSlow, InvalidJob, InvalidRequest, UnsupportedMediaType
from minflinkd.rest.flink import uploads
from minflinkd.rest.flink.uploads import Upload, Uploads
from minflinkd.rest.guard import Limits
from minflinkd.rest.identity.access import identity_of
from minflinkd.rest.identity.roles import Role, require_job
from minflinkd.rest.plan import plan_of_tasks
from minflinkd.rest.schemas import Empty, JobPlan
from minflinkd.rest.schemas.jars import (
    Jar,
    JarApplicationStarted,
    JarEntry,
    JarRequest,
    Jars,
    JarStarted,
    JarUploaded,
)
from minflinkd.rpc.jobs import SubmitJob
from minflinkd.runtime.errors import Kind, MinflinkError
from minflinkd.runtime.ids import IdSource, JobId, parse_job_id

_PIECE = 1 << 16
_ENTRY = InQuery[str | None]("entry-class", "Which of its job files; without it, the first", str, None)
_PARALLELISM = InQuery[int | None](
    "parallelism", "Instead of what the job file says", Annotated[int, Meta(ge=1, le=2**31 - 1)], None
)
_ARGUMENTS = InQuery[tuple[str, ...] | None](
    "programArg",
    "The job's params, with commas between them: key=value",
    str,
    None,
    lambda text: tuple(text.split(",")),
)
_SAVEPOINT = InQuery[str | None]("savepointPath", "Where the job starts from", str, None)
_ALLOW = flag("allowNonRestoredState", "State that nothing takes over may be lost")
_REQUEST = Body(JarRequest, "The same as in the query")


class JarRoutes:
    """`blobs`: None: jobs with artifacts cannot be run."""

    def __init__(
        self, backend: Backend, directory: Path, *, blobs: StoringBlobs | None, limits: Limits, ids: IdSource
    ) -> None:
        self._backend = backend
        self._uploads = Uploads(directory)
        self._blobs = blobs
        self._limits = limits
        self._ids = ids

    def routes(self) -> list[route.Route]:
        plan = (_ENTRY, _PARALLELISM, _ARGUMENTS)
        run = (*plan, _SAVEPOINT, _ALLOW)
        return [
            route.get("/jars", self.listed, Role.VIEW, "The uploaded files, latest first", {200: Jars}),
            route.post(
                "/jars/upload",
                self.upload,
                Role.SUBMIT,
                "Upload an archive with a job file in it, or a job file, as a form's file `jarfile`",
                {200: JarUploaded},
                errors=(408, 409),
            ),
            route.delete("/jars/{jarid}", self.delete, Role.SUBMIT, "Delete an uploaded file", {200: Empty}),
            route.get(
                "/jars/{jarid}/plan", self.plan, Role.VIEW, "The tasks that its job becomes", {200: JobPlan}, query=plan
            ),
            route.post(
                "/jars/{jarid}/plan",
                self.plan,
                Role.SUBMIT,
                "The tasks that its job becomes",
                {200: JobPlan},
                query=plan,
                body=_REQUEST,
                names_job=True,
            ),
            route.post(
                "/jars/{jarid}/run",
                self.run,
                Role.SUBMIT,
                "Submit its job",
                {200: JarStarted},
                query=run,
                body=_REQUEST,
                errors=(409,),
                names_job=True,
            ),
            route.post(
                "/jars/{jarid}/run-application",
                self.run_application,
                Role.SUBMIT,
                "Submit its job",
                {202: JarApplicationStarted},
                query=run,
                body=_REQUEST,
                errors=(409,),
                names_job=True,
            ),
        ]

    async def listed(self, request: web.Request) -> web.Response:
        found = await asyncio.to_thread(self._uploads.list)
        address = f"{request.scheme}://{request.host}"
        return json_answer(Jars(address=address, files=tuple(map(_jar, found))))

    async def upload(self, request: web.Request) -> web.Response:
        """Answer with the file's name, whose last part is its id. A file without a job in it is not kept."""
        if request.content_type != "multipart/form-data":
            raise UnsupportedMediaType("the file must come as a form", hint="multipart/form-data with a file `jarfile`")
        draft = await asyncio.to_thread(self._uploads.draft)
        try:
            name = await self._receive(request, draft)
            kept = await asyncio.to_thread(self._uploads.keep, draft, name)
        finally:
            await asyncio.to_thread(draft.unlink, missing_ok=True)
        return json_answer(JarUploaded(filename=str(kept.path)))

    async def _receive(self, request: web.Request, draft: Path) -> str:
        """Write the form's file, and return its name. Raises BodyTooLarge, BodyTooSlow, InvalidRequest."""
        limits = self._limits
        try:
            async with asyncio.timeout(limits.body_seconds):
                reader = await request.multipart()
                part = await reader.next()
                if not isinstance(part, BodyPartReader) or not part.filename:
                    raise InvalidRequest("the form has no file", hint="multipart/form-data with a file `jarfile`")
                size = 0
                with draft.open("xb") as file:
                    while data := await part.read_chunk(_PIECE):
                        size += len(data)
                        if size > limits.body_bytes:
                            raise BodyTooLarge(
                                f"the file has more than {limits.body_bytes:,} bytes", hint="upload less"
                            )
                        await asyncio.to_thread(file.write, data)
                return part.filename
        except TimeoutError as error:
            raise BodyTooSlow(
                f"the file did not arrive within {limits.body_seconds:g} s", hint="send it again"
            ) from error
        except ValueError as error:
            raise InvalidRequest(f"the form cannot be read: {str(error)[:200]}") from error

    async def delete(self, request: web.Request) -> web.Response:
        await asyncio.to_thread(self._uploads.delete, JAR.of(request))
        return json_answer(Empty())

    async def plan(self, request: web.Request) -> web.Response:
        graph, _ = await self._job(request, await self._asked(request))
        require_job(identity_of(request), graph.name)
        return json_answer(JobPlan(plan=plan_of_tasks(self._ids.job(), graph, chain(graph))))

    async def run(self, request: web.Request) -> web.Response:
        job_id = await self._submit(request)
        return json_answer(JarStarted(jobid=job_id, application_id=job_id))

    async def run_application(self, request: web.Request) -> web.Response:
        return json_answer(JarApplicationStarted(applicationid=await self._submit(request)), status=202)

    async def _submit(self, request: web.Request) -> JobId:
        """Submit the job, and return its id. Raises InvalidJob, and what the Dispatcher raises."""
        asked = await self._asked(request)
        if _SAVEPOINT.is_in(request) and asked.savepoint_path is None:
            asked = msgspec.structs.replace(asked, savepoint_path=_SAVEPOINT.of(request) or None)
        if _ALLOW.of(request) and asked.allow_non_restored_state is None:
            asked = msgspec.structs.replace(asked, allow_non_restored_state=True)
        graph, files = await self._job(request, asked)
        identity = identity_of(request)
        require_job(identity, graph.name)
        job_id = parse_job_id(asked.job_id) if asked.job_id else self._ids.job()
        request[JOB] = job_id
        held: list[BlobKey] = []
        try:
            graph = await self._stored(job_id, graph, files, held)
            question = SubmitJob(job_id=job_id, document=encode(graph), owner=identity.name)
            answer = await self._backend.dispatcher(question, self._backend.submit_timeout())
            if answer.faults:
                raise InvalidJob(answer.faults)
        except MinflinkError as error:
            stopping = error.info().kind is Kind.STOPPING  # then the daemon deletes them
            if held and self._blobs is not None and not stopping and asked.job_id is None:  # the id is nobody else's
                with contextlib.suppress(MinflinkError):  # otherwise the cleanup finds that no job refers to them
                    await self._blobs.delete_job(job_id)
            raise
        finally:
            for key in held:
                if self._blobs is not None:
                    await self._blobs.release(job_id, key)
        return job_id

    async def _stored(self, job_id: JobId, graph: JobGraph, files: dict[str, bytes], held: list[BlobKey]) -> JobGraph:
        """Store the artifacts, and return the graph with their keys. `held`: what to release afterwards."""
        if files and self._blobs is None:
            raise InvalidRequest("the job has artifacts, and there is no BlobServer here")
        artifacts = []
        for name, data in files.items():
            assert self._blobs is not None
            held.append(await self._blobs.put(job_id, data, BlobKind.PERMANENT))
            artifacts.append(Artifact(name=name, key=str(held[-1]), size=len(data)))
        return msgspec.structs.replace(graph, artifacts=tuple(artifacts))

    async def _asked(self, request: web.Request) -> JarRequest:
        """Return what the body asks for, and what the query does where the body says nothing."""
        has_body = request.method == "POST" and request.body_exists
        asked = await _REQUEST.of(request, self._limits) if has_body else JarRequest()
        return msgspec.structs.replace(
            asked,
            entry_class=asked.entry_class or _ENTRY.of(request) or None,
            parallelism=asked.parallelism or _PARALLELISM.of(request),
            program_args_list=asked.program_args_list or _ARGUMENTS.of(request),
        )

    async def _job(self, request: web.Request, asked: JarRequest) -> tuple[JobGraph, dict[str, bytes]]:
        """Return the job, and its artifacts. Raises NotFound, InvalidRequest, InvalidJob."""
        upload = await asyncio.to_thread(self._uploads.find, JAR.of(request))
        job = await asyncio.to_thread(uploads.read_job, upload, asked.entry_class)
        value = dict(job.value)
        if params := uploads.as_params(asked.program_args_list or ()):
            own = value.get("params") or {}
            value["params"] = {**own, **params} if isinstance(own, dict) else own
        if asked.parallelism:
            value["parallelism"] = _whole(asked.parallelism)
        if asked.savepoint_path:
            value["restore"] = {
                "path": asked.savepoint_path,
                "mode": "claim" if asked.claim_mode == "CLAIM" else "no-claim",
                "allow-non-restored-state": bool(asked.allow_non_restored_state),
            }
        try:
            return await asyncio.to_thread(parse_job, value), dict(job.artifacts)
        except InvalidJobGraph as error:
            raise InvalidJob(error.faults) from error


def _whole(parallelism: int | str) -> int:
    """Return a parallelism that Flink's dashboard sends as the text of a field."""
    try:
        return int(parallelism)
    except ValueError as error:
        raise InvalidRequest(f"parallelism is {str(parallelism)[:80]!r}", hint="a whole number from 1 on") from error


def _jar(upload: Upload) -> Jar:
    entries = (JarEntry(name=name, description=f"job {job}") for name, job in upload.entries.items())
    return Jar(id=upload.id, name=upload.name, uploaded=upload.uploaded_ms, entry=tuple(entries))
