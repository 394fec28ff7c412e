"""Uploads and downloads blobs, with retries."""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
from aiohttp import hdrs

from minflinkd.blob.connection import BlobConnection
from minflinkd.blob.errors import BlobMismatch
from minflinkd.blob.filling import fill, placed_or_discarded
from minflinkd.blob.incoming import SMALL, Incoming
from minflinkd.blob.keys import BlobKey, BlobKind, owner_name
from minflinkd.blob.source import BytesSource, Source, open_source
from minflinkd.blob.transfer import StoredBlob, pieces
from minflinkd.rpc.messages import ArtifactRef
from minflinkd.runtime.ids import JobId
from minflinkd.storage.parallel import for_each

UPLOADS = 4  # of one set at a time

_DOUBT: dict[str, str] = {hdrs.CACHE_CONTROL: "no-cache"}  # the server verifies its file before it sends it again

Progress = Callable[[int], None]  # bytes of the blob so far; fewer than before if a try starts over
SetProgress = Callable[[str, int], None]  # the same, with the artifact's name


def _ignore(_: int) -> None:
    pass


class BlobClient:
    """Calls the BlobServer at `url`, which may be set late. See `connection.BlobConnection` for the rest.

    Every call raises BlobServerUnreachable, BlobServerBusy and BlobUnauthorized once its tries are used up. It may be
    repeated after each of them.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        retries: int = 5,
        pause: float = 0.2,
        idle_timeout: float = 60.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`tls`: for an `https` URL; without it, the CAs of this machine."""
        self._connection = BlobConnection(
            url, token=token, retries=retries, pause=pause, idle_timeout=idle_timeout, tls=tls
        )

    @property
    def url(self) -> str:
        return self._connection.url

    @url.setter
    def url(self, url: str) -> None:
        self._connection.url = url

    # --- upload --------------------------------------------------------------------------------------------------

    async def upload(
        self,
        job_id: JobId | None,
        file: Path,
        kind: BlobKind = BlobKind.PERMANENT,
        *,
        upload_set: str | None = None,
        progress: Progress = _ignore,
    ) -> StoredBlob:
        """Upload a file and return the server's key for its content.

        Content that the server already has is not sent (B1).

        `upload_set`: 32 hexadecimal digits; see `complete`. Raises BlobTooLarge, and StorageError for the local file.
        """
        source = await asyncio.to_thread(open_source, file)
        try:
            return await self._put(job_id, source, kind, upload_set, progress)
        finally:
            await source.aclose()

    async def upload_all(
        self, job_id: JobId, files: Mapping[str, Path], *, progress: SetProgress | None = None
    ) -> tuple[ArtifactRef, ...]:
        """Upload a job's artifacts by name, as one set: all of them, or an error (B6). Raises what `upload` raises.

        They are kept until the last one is stored, and then for `blob.retention.interval`, for the submission.
        """
        upload_set = secrets.token_hex(16)

        async def one(name: str) -> ArtifactRef:
            tell = _ignore if progress is None else lambda size: progress(name, size)
            stored = await self.upload(job_id, files[name], upload_set=upload_set, progress=tell)
            return ArtifactRef(name=name, key=stored.key, size=stored.size)

        artifacts = tuple(await for_each(files, one, limit=UPLOADS))
        if artifacts:
            await self.complete(job_id, upload_set)
        return artifacts

    async def complete(self, job_id: JobId, upload_set: str) -> None:
        """The last blob of the set is stored. From now on all of them are kept as long as a blob just uploaded."""
        async for attempt in self._connection.attempts():
            with attempt:
                async with self._connection.request("POST", f"{_path(job_id)}/sets/{upload_set}/complete"):
                    pass

    async def put_bytes(self, job_id: JobId | None, data: bytes, kind: BlobKind) -> BlobKey:
        """Store a message that is too large to travel as one (B3). Raises BlobTooLarge."""
        return BlobKey.parse((await self._put(job_id, BytesSource(data), kind, None, _ignore)).key)

    async def _put(
        self, job_id: JobId | None, source: Source, kind: BlobKind, upload_set: str | None, progress: Progress
    ) -> StoredBlob:
        async for attempt in self._connection.attempts():
            with attempt:
                sha256, size = await source.digest()
                announced = {"kind": kind.value, "sha256": sha256} | ({} if upload_set is None else {"set": upload_set})
                length: dict[str, str] = {hdrs.CONTENT_LENGTH: str(size)}
                body = source.body(size, progress)
                asks = size > SMALL  # for a small body, sending is quicker than asking
                async with self._connection.request(
                    "PUT", _path(job_id), params=announced, headers=length, body=body, asks_first=asks
                ) as response:
                    stored = msgspec.json.decode(await response.read(), type=StoredBlob)
                progress(size)  # even if nothing had to be sent
                return stored
        raise AssertionError("unreachable")

    # --- download ------------------------------------------------------------------------------------------------

    async def download(
        self, job_id: JobId | None, key: BlobKey, incoming: Incoming, *, progress: Progress = _ignore
    ) -> None:
        """Fetch and verify a blob. A broken transfer resumes where it broke off.

        Raises BlobNotFound, BlobMismatch, StorageError.
        """
        doubted = False
        async for attempt in self._connection.attempts():
            with attempt:
                await self._fetch(job_id, key, incoming, progress, doubted=doubted)
                try:
                    incoming.verify()
                except BlobMismatch:
                    doubted = True
                    await asyncio.to_thread(incoming.restart)
                    raise

    async def download_to(
        self, job_id: JobId | None, key: BlobKey, target: Path, *, progress: Progress = _ignore
    ) -> None:
        """Like `download`, into a file that appears whole or not at all."""
        incoming = Incoming(target.with_name(f".{target.name}.{secrets.token_hex(8)}"), target, key.sha256)
        async with placed_or_discarded(incoming):
            await self.download(job_id, key, incoming, progress=progress)
            await asyncio.to_thread(incoming.place)

    async def get_bytes(self, job_id: JobId | None, key: BlobKey) -> bytes:
        """Return what `put_bytes` stored. Raises BlobNotFound, BlobMismatch."""
        doubted = False
        async for attempt in self._connection.attempts():
            with attempt:
                headers = _DOUBT if doubted else {}
                async with self._connection.request("GET", f"{_path(job_id)}/{key}", headers=headers) as response:
                    data = await response.read()
                found, _ = await BytesSource(data).digest()
                if found != key.sha256:
                    doubted = True
                    raise BlobMismatch(f"{len(data)} bytes with SHA-256 {found} arrived instead of {key.sha256}")
                return data
        raise AssertionError("unreachable")

    async def _fetch(
        self, job_id: JobId | None, key: BlobKey, incoming: Incoming, progress: Progress, *, doubted: bool
    ) -> None:
        """Make one try, from where the last one broke off."""
        offset = incoming.size
        headers: dict[str, str] = {hdrs.RANGE: f"bytes={offset}-", hdrs.IF_RANGE: f'"{key.sha256}"'} if offset else {}
        if doubted:
            headers |= _DOUBT
        async with self._connection.request("GET", f"{_path(job_id)}/{key}", headers=headers) as response:
            if response.status == 416:  # all of it is here already, or more than the server has
                return
            if offset and response.status != 206:
                await asyncio.to_thread(incoming.restart)
            progress(incoming.size)
            come = pieces(response.content, idle_timeout=self._connection.idle_timeout)
            await fill(incoming, come, progress=progress)

    # --- deletion ------------------------------------------------------------------------------------------------

    async def delete(self, job_id: JobId | None, key: BlobKey) -> None:
        """Delete a transient blob. It is no error if it does not exist. Raises BlobPermanent, BlobInUse."""
        await self._delete(f"{_path(job_id)}/{key}")

    async def delete_job(self, job_id: JobId) -> None:
        """Delete all blobs of a job."""
        await self._delete(_path(job_id))

    async def _delete(self, path: str) -> None:
        async for attempt in self._connection.attempts():
            with attempt:
                async with self._connection.request("DELETE", path):
                    pass

    # --- life ----------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Close the connection. Idempotent."""
        await self._connection.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _path(job_id: JobId | None) -> str:
    return f"/blobs/{owner_name(job_id)}"
