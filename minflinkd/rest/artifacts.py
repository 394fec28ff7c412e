"""`PUT /blobs/{job}`: artifacts that a browser uploads, as it cannot talk to the BlobServer, which is at another port.

Programs upload to the BlobServer itself, which takes files of any size: here a file is in memory as a whole.
"""

from __future__ import annotations

from typing import Protocol

from aiohttp import web

from minflinkd.blob.keys import BlobKey, BlobKind
from minflinkd.rest import route
from minflinkd.rest.backend import JOB, Backend, json_answer
from minflinkd.rest.declared import NEW_JOB_ID
from minflinkd.rest.guard import Limits, read_body
from minflinkd.rest.identity.access import identity_of
from minflinkd.rest.identity.roles import Identity, Role, require_job
from minflinkd.rest.schemas import UploadedBlob
from minflinkd.rpc.jobs import GetJob
from minflinkd.runtime.errors import Kind, MinflinkError
from minflinkd.runtime.ids import JobId


class StoringBlobs(Protocol):
    """The BlobServer, for those who store the artifacts of a job in it."""

    async def put(self, job_id: JobId | None, data: bytes, kind: BlobKind, *, user: str = "") -> BlobKey: ...

    async def copy(self, job_id: JobId, key: BlobKey, to: JobId, *, user: str = "") -> BlobKey: ...

    async def release(self, job_id: JobId | None, key: BlobKey, *, at_once: bool = False) -> None: ...

    async def delete_job(self, job_id: JobId) -> None: ...


class ArtifactRoutes:
    def __init__(self, backend: Backend, blobs: StoringBlobs, *, limits: Limits) -> None:
        self._backend = backend
        self._blobs = blobs
        self._limits = limits

    def routes(self) -> list[route.Route]:
        return [
            route.put(
                "/blobs/{newjobid}",
                self.upload,
                Role.SUBMIT,
                "Upload an artifact of a job, as the body",
                {201: UploadedBlob},
                errors=(408, 409),
                names_job=True,
                more=(
                    "Not in Flink. The answer has the `key` for the job file. The job is submitted under this id "
                    "within `blob.retention.interval`; otherwise the artifact is deleted. For a browser: programs "
                    "upload to the BlobServer, see [blobs.md](blobs.md)"
                ),
            )
        ]

    async def upload(self, request: web.Request) -> web.Response:
        """Raises Forbidden if the job exists and is not one of the user's, and what the BlobServer raises."""
        job_id, identity = NEW_JOB_ID.of(request), identity_of(request)
        request[JOB] = job_id
        if identity.jobs:
            await self._require(identity, job_id)
        data = await read_body(request, self._limits)
        key = await self._blobs.put(job_id, data, BlobKind.PERMANENT, user=identity.name)
        await self._blobs.release(job_id, key)  # staged, as every upload that no job has taken over
        return json_answer(UploadedBlob(key=str(key), size=len(data)), status=201)

    async def _require(self, identity: Identity, job_id: JobId) -> None:
        """A job that does not exist yet is anybody's: its name is checked when it is submitted. Raises Forbidden."""
        try:
            job = await self._backend.dispatcher(GetJob(job_id=job_id))
        except MinflinkError as error:
            if error.info().kind is Kind.NOT_FOUND:
                return
            raise
        require_job(identity, job.graph.name)
