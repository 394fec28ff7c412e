"""The BlobServer (blob.md): keeps a job's artifacts, and serves them to TaskManagers over HTTP.

    POST   /blobs/<job>/offer?kind=p&sha256=...   200 with the key of content that is stored already, else 404
    PUT    /blobs/<job>?kind=p&sha256=...         the body is the blob; 201 with its key
    GET    /blobs/<job>/<key>                     with Range, ETag, If-Range, If-None-Match; HEAD
    DELETE /blobs/<job>                           all blobs of a job

<job> is a job id, or `none` for transient blobs of no job. Every request carries `Authorization: Bearer <secret>`
where the server has one. Errors are answered as JSON, as everywhere.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
import structlog
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from minflinkd.blob.errors import BlobNotFound, BlobServerBusy, BlobUnauthorized, http_status
from minflinkd.blob.ha_store import HaStore
from minflinkd.blob.keys import BlobKey, BlobKind, parse_kind, parse_owner, parse_sha256
from minflinkd.blob.store import BlobStore, Incoming
from minflinkd.blob.transfer import CHUNK, StoredBlob, TransferGate, pieces
from minflinkd.runtime.component import Component
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import JobId
from minflinkd.storage.interface import StorageError, Writer
from minflinkd.storage.location import Location
from minflinkd.storage.os_errors import os_errors
from minflinkd.storage.parallel import for_each

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class BlobOptions:
    directory: Path
    """Of the local store (`blob.storage.directory`)."""
    host: str = "127.0.0.1"
    ports: tuple[int, ...] = (0,)
    """Tried in this order (`blob.server.port`); 0 takes any free one."""
    max_size: int | None = None
    """Bytes of one blob (`blob.max-size`)."""
    transfers: int = 50
    """At a time (`blob.fetch.num-concurrent`)."""
    backlog: int = 1000
    """Transfers that may wait (`blob.fetch.backlog`)."""
    idle_timeout: float = 60.0
    """Seconds without a byte after which a transfer is given up."""


class BlobServer(Component):
    """`start` returns when it listens at `url`. `token` is the cluster's secret, `ha_store` where copies are kept."""

    def __init__(self, *, options: BlobOptions, token: str | None = None, ha_store: Location | None = None) -> None:
        super().__init__("blob server")
        self._options = options
        self._token = token
        self._store = BlobStore(options.directory)
        self._ha = None if ha_store is None else HaStore(ha_store)
        self._gate = TransferGate(options.transfers, options.backlog)
        self._locks: weakref.WeakValueDictionary[object, asyncio.Lock] = weakref.WeakValueDictionary()
        self._runner: web.AppRunner | None = None
        self._port = 0

    @property
    def url(self) -> str:
        host = f"[{self._options.host}]" if ":" in self._options.host else self._options.host
        return f"http://{host}:{self._port}"

    async def contains(self, job_id: JobId | None, key: BlobKey) -> bool:
        """Whether the blob can be served, from here or from the HA store."""
        try:
            await self._local(job_id, key)
        except BlobNotFound:
            return False
        return True

    async def delete_job(self, job_id: JobId | None) -> None:
        """When a job ended for good, or was refused: its blobs go, here and in the HA store."""
        await asyncio.to_thread(self._store.delete_job, job_id)
        if self._ha is not None:
            await self._ha.delete_job(job_id)

    # --- lifecycle ---------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        await asyncio.to_thread(self._store.open)
        app = web.Application(middlewares=[self._answer_errors, self._authenticate])
        app.router.add_post("/blobs/{job}/offer", self._offer)
        app.router.add_put("/blobs/{job}", self._put)
        app.router.add_get("/blobs/{job}/{key}", self._get)
        app.router.add_delete("/blobs/{job}", self._delete)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0, read_bufsize=CHUNK)
        await self._runner.setup()
        self._port = await self._listen(self._runner)

    async def _stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _listen(self, runner: web.AppRunner) -> int:
        for port in self._options.ports:
            try:
                await web.TCPSite(runner, self._options.host, port).start()
            except OSError as error:
                log.info("port is not free", port=port, error=str(error))
                continue
            return int(runner.addresses[0][1])
        raise PortsTaken(
            f"the blob server can listen on none of the ports {self._options.ports} of {self._options.host}",
            hint="set blob.server.port to 0, or to a range with a free port",
        )

    # --- requests ----------------------------------------------------------------------------------------------

    async def _offer(self, request: web.Request) -> web.StreamResponse:
        job_id, kind, sha256 = _announced(request)
        key = await asyncio.to_thread(self._store.find, job_id, kind, sha256)
        if key is None:
            raise BlobNotFound(f"no content with SHA-256 {sha256} is stored for this job")
        return await self._stored(job_id, key, status=200)

    async def _put(self, request: web.Request) -> web.StreamResponse:
        job_id, kind, sha256 = _announced(request)
        async with self._gate.transfer():
            key = await self._receive(request, job_id, BlobKey.new(kind, sha256))
        return await self._stored(job_id, key, status=201)

    async def _get(self, request: web.Request) -> web.StreamResponse:
        job_id, key = parse_owner(request.match_info["job"]), BlobKey.parse(request.match_info["key"])
        if request.method == hdrs.METH_HEAD:
            return await self._send(request, await self._local(job_id, key), key)
        async with self._gate.transfer():
            return await self._send(request, await self._local(job_id, key), key)

    async def _delete(self, request: web.Request) -> web.StreamResponse:
        await self.delete_job(parse_owner(request.match_info["job"]))
        return web.Response(status=204)

    async def _stored(self, job_id: JobId | None, key: BlobKey, *, status: int) -> web.Response:
        path = await self._local(job_id, key)
        with os_errors(path):
            size = (await asyncio.to_thread(path.stat)).st_size
        return _json(StoredBlob(str(key), size), status)

    # --- transfers ---------------------------------------------------------------------------------------------

    async def _receive(self, request: web.Request, job_id: JobId | None, key: BlobKey) -> BlobKey:
        """Store the body, and beside it a PERMANENT blob's HA copy; the key under which the content is now known."""
        async with self._incoming(job_id, key) as incoming, self._ha_writer(job_id, key) as copy:

            async def keep(piece: bytes) -> None:
                await asyncio.to_thread(incoming.write, piece)

            async def keep_both(piece: bytes) -> None:
                sinks = [keep] if copy is None else [keep, copy.append]
                await for_each(sinks, lambda sink: sink(piece), limit=2)

            async for piece in pieces(request.content, idle_timeout=self._options.idle_timeout):
                await keep_both(piece)
            incoming.verify()
            async with self._lock(job_id, key.kind, key.sha256):
                known = await asyncio.to_thread(self._store.find, job_id, key.kind, key.sha256)
                if known is not None:
                    return known
                if copy is not None:
                    await copy.commit()
                await asyncio.to_thread(incoming.place)
                return key

    async def _local(self, job_id: JobId | None, key: BlobKey) -> Path:
        """The verified local file, restored from the HA store where it is missing (B7). Raises BlobNotFound."""
        async with self._lock(job_id, key):
            try:
                return await asyncio.to_thread(self._store.get, job_id, key)
            except BlobNotFound:
                if self._ha is None or key.kind is not BlobKind.PERMANENT:
                    raise
            async with self._incoming(job_id, key) as incoming:
                try:
                    await self._ha.fetch(job_id, key, incoming)
                except (StorageError, MinflinkError) as error:
                    log.info("no good copy of a blob in the HA store", blob=str(key), job=job_id, error=str(error))
                    raise BlobNotFound(f"there is no good copy of blob {key} of job {job_id}") from error
                await asyncio.to_thread(incoming.place)
            return await asyncio.to_thread(self._store.get, job_id, key)

    async def _send(self, request: web.Request, path: Path, key: BlobKey) -> web.StreamResponse:
        etag = f'"{key.sha256}"'
        if request.headers.get(hdrs.IF_NONE_MATCH) == etag:
            return web.Response(status=304, headers={hdrs.ETAG: etag})
        with os_errors(path):
            file = await asyncio.to_thread(path.open, "rb")
        try:
            size = os.fstat(file.fileno()).st_size
            whole = request.headers.get(hdrs.IF_RANGE, etag) != etag
            start, stop = (0, size) if whole else _range(request, size)
            response = web.StreamResponse(status=200 if (start, stop) == (0, size) else 206)
            response.headers.update({hdrs.ETAG: etag, hdrs.ACCEPT_RANGES: "bytes"})
            response.content_type = "application/octet-stream"
            response.content_length = stop - start
            if response.status == 206:
                response.headers[hdrs.CONTENT_RANGE] = f"bytes {start}-{stop - 1}/{size}"
            await response.prepare(request)
            if request.method != hdrs.METH_HEAD:
                await self._send_range(request, response, file, start, stop)
            return response
        finally:
            await asyncio.to_thread(file.close)

    async def _send_range(
        self, request: web.Request, response: web.StreamResponse, file: BinaryIO, start: int, stop: int
    ) -> None:
        """What goes wrong here ends the connection, since the head of the answer is out already."""
        try:
            await asyncio.to_thread(file.seek, start)
            while start < stop:
                data = await asyncio.to_thread(_read, file, min(CHUNK, stop - start))
                start += len(data)
                async with asyncio.timeout(self._options.idle_timeout):
                    await response.write(data)
        except (OSError, TimeoutError) as error:
            log.info("a blob transfer broke off", path=request.path, peer=request.remote, error=repr(error))
            _hang_up(request)

    @asynccontextmanager
    async def _incoming(self, job_id: JobId | None, key: BlobKey) -> AsyncIterator[Incoming]:
        incoming = self._store.incoming(job_id, key, max_size=self._options.max_size)
        try:
            yield incoming
        finally:
            await asyncio.to_thread(incoming.discard)

    @asynccontextmanager
    async def _ha_writer(self, job_id: JobId | None, key: BlobKey) -> AsyncIterator[Writer | None]:
        """What it wrote goes again where the block fails, so that no copy is left of a blob that nobody was told of."""
        if self._ha is None or key.kind is not BlobKind.PERMANENT:
            yield None
            return
        async with await self._ha.create(job_id, key) as writer:
            try:
                yield writer
            except BaseException:
                await writer.abort()
                await self._ha.delete(job_id, key)
                raise

    def _lock(self, *what: object) -> asyncio.Lock:
        return self._locks.setdefault(what, asyncio.Lock())

    # --- around every request ----------------------------------------------------------------------------------

    @web.middleware
    async def _authenticate(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._token is not None:
            given = request.headers.get(hdrs.AUTHORIZATION, "")
            if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
                raise BlobUnauthorized("the blob server wants the cluster's secret", hint="set security.secret-file")
        return await handler(request)

    @web.middleware
    async def _answer_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except MinflinkError as error:
            headers = {"Retry-After": "1"} if isinstance(error, BlobServerBusy) else None
            return _json(error.info(), http_status(error), headers)
        except TimeoutError:
            log.info("a blob transfer stalled and was given up", path=request.path, peer=request.remote)
            _hang_up(request)
            return web.Response(status=408)


class PortsTaken(MinflinkError):
    code = "blob-ports-taken"


def _announced(request: web.Request) -> tuple[JobId | None, BlobKind, str]:
    job_id, kind = parse_owner(request.match_info["job"]), parse_kind(request.query.get("kind", "p"))
    if job_id is None and kind is BlobKind.PERMANENT:
        raise BlobNotFound("a permanent blob belongs to a job", hint="use a job's id, or kind=t")
    return job_id, kind, parse_sha256(request.query.get("sha256", ""))


def _range(request: web.Request, size: int) -> tuple[int, int]:
    """[start, stop) of the one range that was asked for; all of it without."""
    try:
        wanted = request.http_range
    except ValueError:
        raise web.HTTPRequestRangeNotSatisfiable(headers={hdrs.CONTENT_RANGE: f"bytes */{size}"}) from None
    start, stop, _ = wanted.indices(size)
    if wanted != slice(None, None, 1) and start >= stop:
        raise web.HTTPRequestRangeNotSatisfiable(headers={hdrs.CONTENT_RANGE: f"bytes */{size}"})
    return start, stop


def _hang_up(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _read(file: BinaryIO, size: int) -> bytes:
    if not (data := file.read(size)):
        raise OSError("the file became shorter")
    return data


def _json(value: msgspec.Struct, status: int, headers: dict[str, str] | None = None) -> web.Response:
    body = msgspec.json.encode(value)
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")
