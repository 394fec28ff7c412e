"""Uploading and downloading blobs, with retries (blob.md, BlobClient)."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import aiohttp
import msgspec
import stamina

from minflinkd.blob.errors import (
    BlobMismatch,
    BlobNotFound,
    BlobServerBusy,
    BlobServerUnreachable,
    BlobTooLarge,
    BlobUnauthorized,
)
from minflinkd.blob.keys import BlobKey, BlobKind, owner_name
from minflinkd.blob.store import Incoming
from minflinkd.blob.transfer import CHUNK, StoredBlob, pieces
from minflinkd.rpc.messages import ArtifactRef
from minflinkd.runtime.errors import Consequence, ErrorInfo, MinflinkError, RemoteError
from minflinkd.runtime.ids import JobId
from minflinkd.storage.os_errors import os_errors
from minflinkd.storage.parallel import for_each

_KINDS: tuple[type[MinflinkError], ...] = (
    BlobMismatch,
    BlobNotFound,
    BlobServerBusy,
    BlobTooLarge,
    BlobUnauthorized,
)


class BlobClient:
    """Speaks to one BlobServer. `retries` more tries follow a failed one, after a growing, jittered pause that begins
    at `pause` seconds; `idle_timeout` is in seconds without a byte. To be closed with the process."""

    def __init__(
        self, url: str, *, token: str | None = None, retries: int = 5, pause: float = 0.2, idle_timeout: float = 60.0
    ) -> None:
        self.url = url
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._retries = retries
        self._pause = pause
        self._idle_timeout = idle_timeout
        self._session: aiohttp.ClientSession | None = None

    async def upload(self, job_id: JobId | None, file: Path, kind: BlobKind = BlobKind.PERMANENT) -> StoredBlob:
        """The server's key of this content. Nothing is sent that the server has already (B1).

        Raises BlobTooLarge, BlobUnauthorized, BlobServerUnreachable, StorageError (the file cannot be read).
        """
        with os_errors(file):
            sha256 = await asyncio.to_thread(_sha256, file)
        announced = {"kind": kind.value, "sha256": sha256}
        async for attempt in self._attempts():
            with attempt:
                try:
                    async with self._request("POST", f"{_path(job_id)}/offer", params=announced) as response:
                        return msgspec.json.decode(await response.read(), type=StoredBlob)
                except BlobNotFound:
                    pass
                with os_errors(file):
                    opened = await asyncio.to_thread(file.open, "rb")
                try:
                    body = _body(opened)
                    async with self._request("PUT", _path(job_id), params=announced, data=body) as response:
                        return msgspec.json.decode(await response.read(), type=StoredBlob)
                finally:
                    await asyncio.to_thread(opened.close)
        raise AssertionError("unreachable")

    async def upload_all(self, job_id: JobId, files: Mapping[str, Path]) -> tuple[ArtifactRef, ...]:
        """A job's artifacts by name, as one set: all of them, or an error (B6)."""

        async def one(name: str) -> ArtifactRef:
            stored = await self.upload(job_id, files[name])
            return ArtifactRef(name=name, key=stored.key, size=stored.size)

        return tuple(await for_each(files, one, limit=4))

    async def download(self, job_id: JobId | None, key: BlobKey, incoming: Incoming) -> None:
        """Fetch and verify; a broken transfer goes on where it broke off.

        Raises BlobNotFound, BlobMismatch, BlobUnauthorized, BlobServerUnreachable, StorageError.
        """
        async for attempt in self._attempts():
            with attempt:
                await self._fetch(job_id, key, incoming)
                try:
                    incoming.verify()
                except BlobMismatch:
                    await asyncio.to_thread(incoming.restart)
                    raise

    async def download_to(self, job_id: JobId | None, key: BlobKey, target: Path) -> None:
        """As `download`, into a file that appears whole or not at all."""
        incoming = Incoming(target.with_name(f".{target.name}.{secrets.token_hex(8)}"), target, key.sha256)
        try:
            await self.download(job_id, key, incoming)
            await asyncio.to_thread(incoming.place)
        finally:
            await asyncio.to_thread(incoming.discard)

    async def delete_job(self, job_id: JobId) -> None:
        async for attempt in self._attempts():
            with attempt:
                async with self._request("DELETE", _path(job_id)):
                    pass

    async def aclose(self) -> None:
        """Idempotent."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _fetch(self, job_id: JobId | None, key: BlobKey, incoming: Incoming) -> None:
        offset = incoming.size
        headers = {"Range": f"bytes={offset}-", "If-Range": f'"{key.sha256}"'} if offset else {}
        async with self._request("GET", f"{_path(job_id)}/{key}", headers=headers) as response:
            if response.status == 416:  # all of it is here already, or more than there is
                return
            if offset and response.status != 206:
                await asyncio.to_thread(incoming.restart)
            async for piece in pieces(response.content, idle_timeout=self._idle_timeout):
                await asyncio.to_thread(incoming.write, piece)

    def _attempts(self) -> AsyncIterator[stamina.Attempt]:
        return stamina.retry_context(
            on=_may_succeed_later,
            attempts=self._retries + 1,
            timeout=None,
            wait_initial=self._pause,
            wait_max=self._pause * 50,
            wait_jitter=self._pause,
        ).__aiter__()

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        *,
        params: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
        data: AsyncIterator[bytes] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=self._idle_timeout)
            self._session = aiohttp.ClientSession(headers=self._headers, timeout=timeout, read_bufsize=CHUNK)
        try:
            async with self._session.request(
                method, self.url + path, params=params, headers=headers, data=data
            ) as response:
                if response.status >= 400 and response.status != 416:
                    raise _error(response, await response.read())
                yield response
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            why = str(error) or type(error).__name__
            raise BlobServerUnreachable(f"{method} {self.url}{path}: {why}", hint="is the daemon running?") from error


def _may_succeed_later(error: Exception) -> bool:
    return isinstance(error, MinflinkError) and error.info().consequence is Consequence.RETRYABLE


def _error(response: aiohttp.ClientResponse, body: bytes) -> MinflinkError:
    try:
        info = msgspec.json.decode(body, type=ErrorInfo)
    except msgspec.DecodeError:
        consequence = Consequence.RETRYABLE if response.status >= 500 else Consequence.FATAL
        info = ErrorInfo(code="blob-http", message=f"HTTP {response.status} from the server", consequence=consequence)
    kind = next((kind for kind in _KINDS if kind.code == info.code), None)
    return kind(info.message, hint=info.hint) if kind else RemoteError(info)


def _path(job_id: JobId | None) -> str:
    return f"/blobs/{owner_name(job_id)}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def _body(file: BinaryIO) -> AsyncIterator[bytes]:
    while data := await asyncio.to_thread(file.read, CHUNK):
        yield data
