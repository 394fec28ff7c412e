"""The BlobServer's requests. Parsed here, before anything becomes a path (B41), and answered as docs/blobs.md says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext

import msgspec
import structlog
from aiohttp import ClientError, hdrs, web
from aiohttp.typedefs import Handler

from minflinkd.blob.access import user_of
from minflinkd.blob.cleaning import BlobCleaner
from minflinkd.blob.delivery import Delivery, hang_up
from minflinkd.blob.depot import BlobDepot
from minflinkd.blob.errors import (
    BlobInUse,
    BlobNotFound,
    BlobPermanent,
    BlobTooLarge,
    BlobUnauthorized,
    http_status,
)
from minflinkd.blob.keys import Blob, BlobKey, BlobKind, parse_kind, parse_owner, parse_set, parse_sha256
from minflinkd.blob.reading import BlobReader, Turn
from minflinkd.blob.receiving import BlobReceiver
from minflinkd.blob.transfer import StoredBlob, TransferGate, finish, pieces
from minflinkd.runtime.errors import InvalidId, MinflinkError
from minflinkd.runtime.ids import JobId

log = structlog.get_logger(__name__)

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CONTINUED = web.RequestKey("continued", bool)
_USER = web.RequestKey("user", str)
_BEARER = "Bearer "


class BlobRoutes:
    """`token`: what requests must carry, if anything. `on_served` is told of every download."""

    def __init__(
        self,
        depot: BlobDepot,
        reader: BlobReader,
        receiver: BlobReceiver,
        cleaner: BlobCleaner,
        gate: TransferGate,
        *,
        on_served: Callable[[Blob], object],
        token: str | None,
        idle_timeout: float,
    ) -> None:
        self._depot = depot
        self._reader = reader
        self._receiver = receiver
        self._cleaner = cleaner
        self._gate = gate
        self._on_served = on_served
        self._token = token
        self._idle_timeout = idle_timeout
        self.received = 0  # bytes
        self.sent = 0

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._answer_errors, self._authenticate])
        app.router.add_get("/blobs", self._list, allow_head=False)
        app.router.add_post("/blobs/{job}/sets/{set}/complete", self._complete)
        app.router.add_put("/blobs/{job}", self._put, expect_handler=_decide_later)
        app.router.add_get("/blobs/{job}/{key}", self._get)
        app.router.add_delete("/blobs/{job}/{key}", self._delete_one)
        app.router.add_delete("/blobs/{job}", self._delete_job)
        return app

    # --- uploads -------------------------------------------------------------------------------------------------

    async def _put(self, request: web.Request) -> web.StreamResponse:
        job_id, kind, sha256, upload_set = announced(request)
        self._check_size(request.content_length)
        if asks_first(request):
            known = await self._receiver.find(job_id, kind, sha256, upload_set, turn=self._gate.transfer)
            if known is not None:
                key, size = known
                return _json(StoredBlob(str(key), size), 200)
        blob, user = Blob(job_id, BlobKey.new(kind, sha256)), request.get(_USER, "")
        async with self._turn_of_upload(request):
            counting = self._depot.uploads.receiving(blob, user, request.content_length)
            with counting as arrived:
                key, size = await self._received(request, blob, upload_set, arrived)
        # Not read again: a file written just now would be hashed once more.
        return _json(StoredBlob(str(key), size), 201)

    async def _received(
        self, request: web.Request, blob: Blob, upload_set: str | None, arrived: Callable[[int], None]
    ) -> tuple[BlobKey, int]:
        """Receive the body. Return the key under which the content is known, and its size."""
        if asks_first(request) and request.transport is not None:
            request[_CONTINUED] = True
            request.transport.write(_CONTINUE)
        body = _Counted(pieces(request.content, idle_timeout=self._idle_timeout), arrived)
        try:
            return await self._receiver.receive(blob, body.pieces(), upload_set), body.size
        finally:
            self.received += body.size

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self._receiver.complete(parse_owner(request.match_info["job"]), parse_set(request.match_info["set"]))
        return web.Response(status=204)

    def _check_size(self, size: int | None) -> None:
        limit = self._depot.max_size
        if limit is not None and size is not None and size > limit:
            raise BlobTooLarge(f"{size} bytes are more than {limit}", hint="raise blob.max-size")

    # --- downloads -----------------------------------------------------------------------------------------------

    async def _get(self, request: web.Request) -> web.StreamResponse:
        blob = _named(request)
        deletes = _flag(request, "delete")
        if deletes and blob.is_permanent:
            raise BlobPermanent(f"blob {blob.key} is permanent: it goes with its job", hint="ask without delete=true")
        if request.method == hdrs.METH_HEAD:
            return await self._send(request, blob, turn=self._gate.transfer)
        async with self._gate.transfer():
            return await self._send(request, blob, deletes=deletes)

    async def _send(
        self,
        request: web.Request,
        blob: Blob,
        *,
        turn: Turn = nullcontext,
        deletes: bool = False,
    ) -> web.StreamResponse:
        """Send the file. What follows is done even if the client leaves with the last byte, which cancels this."""
        store = self._depot.store
        if request.headers.get(hdrs.CACHE_CONTROL) == "no-cache":  # what this client received does not match the key
            store.doubt(*blob)
        file = await self._reader.open(blob, turn=turn)
        self._on_served(blob)
        delivery = Delivery(
            request,
            file,
            blob.key,
            trusted=store.trusted(*blob, file),
            unchanged=file.unchanged,
            threads=self._depot.threads,
            idle_timeout=self._idle_timeout,
        )
        try:
            return await delivery.run()
        finally:
            self.sent += delivery.sent
            if delivery.corrupt:
                store.doubt(*blob)
            elif delivery.verified:
                store.confirm(*blob, file)
            file.close()
            if deletes and delivery.reached_the_end:
                await finish(self._cleaner.delete(blob))

    async def _list(self, request: web.Request) -> web.StreamResponse:
        """List all blobs. The answer is streamed, because there may be many."""
        response = web.StreamResponse()
        response.content_type = "application/json"
        await response.prepare(request)
        between = b"["
        async for page in self._reader.pages():
            body = b",".join(msgspec.json.encode(blob) for blob in page)
            async with asyncio.timeout(self._idle_timeout):
                await response.write(between + body)
            between = b","
        await response.write(b"]" if between == b"," else b"[]")
        await response.write_eof()
        return response

    # --- deletion ------------------------------------------------------------------------------------------------

    async def _delete_one(self, request: web.Request) -> web.StreamResponse:
        await self._cleaner.delete(_named(request))
        return web.Response(status=204)

    async def _delete_job(self, request: web.Request) -> web.StreamResponse:
        job_id = parse_owner(request.match_info["job"])
        if job_id is None:
            raise BlobInUse("blobs of no job are deleted one by one", hint="DELETE /blobs/none/<key>")
        if self._depot.lifecycle.is_held(job_id):
            raise BlobInUse(f"job {job_id} has not ended; its blobs go when it does", hint="cancel it")
        await finish(self._cleaner.delete_job(job_id))  # even for a client that does not wait for it
        return web.Response(status=204)

    # --- around every request ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _turn_of_upload(self, request: web.Request) -> AsyncIterator[None]:
        """Wait for a place for an upload.

        A client that waits is not read from, so that its body takes no memory here. One that waits for `100 Continue`
        is read from: it sends nothing yet, and otherwise nobody would notice that it has left.
        """
        if asks_first(request):
            async with self._gate.transfer():
                yield
            return
        wire = request.transport
        if not isinstance(wire, asyncio.ReadTransport):  # it has gone already
            raise ConnectionResetError
        wire.pause_reading()
        try:
            async with self._gate.transfer():
                wire.resume_reading()
                yield
        finally:
            if not wire.is_closing():
                wire.resume_reading()

    @web.middleware
    async def _authenticate(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._token is not None:
            given = request.headers.get(hdrs.AUTHORIZATION, "")
            user = user_of(given.removeprefix(_BEARER), self._token) if given.startswith(_BEARER) else None
            if user is None:
                raise BlobUnauthorized(
                    "the request does not carry the BlobServer's token",
                    hint="a TaskManager's security.secret-file is a copy of the daemon's; others ask the HTTP "
                    "endpoint for the token: GET /blobs/access",
                )
            request[_USER] = user
        return await handler(request)

    @web.middleware
    async def _answer_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = await handler(request)
        except MinflinkError as error:
            status = http_status(error)
            response = _json(error.info(), status, {"Retry-After": "1"} if status == 503 else None)
        except TimeoutError:
            log.info("a blob transfer stalled and was given up", path=request.path, peer=request.remote)
            hang_up(request)
            return web.Response(status=408)
        except (ConnectionError, ClientError, web.RequestPayloadError) as error:
            log.info(
                "a blob transfer broke off",
                method=request.method,
                path=request.path,
                peer=request.remote,
                error=repr(error),
            )
            hang_up(request)
            return web.Response(status=400)
        if asks_first(request) and _CONTINUED not in request:
            response.force_close()  # the body does not come, and a following request could not be told from it
        return response


class _Counted:
    """`arrived` is told of the size so far."""

    def __init__(self, source: AsyncIterator[bytes], arrived: Callable[[int], None]) -> None:
        self.size = 0  # bytes so far
        self._source = source
        self._arrived = arrived

    async def pieces(self) -> AsyncIterator[bytes]:
        async for piece in self._source:
            self.size += len(piece)
            self._arrived(self.size)
            yield piece


def _named(request: web.Request) -> Blob:
    """Return the blob that the path names. Raises InvalidId."""
    return Blob(parse_owner(request.match_info["job"]), BlobKey.parse(request.match_info["key"]))


def announced(request: web.Request) -> tuple[JobId | None, BlobKind, str, str | None]:
    """Return (job, kind, SHA-256, set) of an upload. Raises InvalidId, BlobNotFound."""
    job_id, kind = parse_owner(request.match_info["job"]), parse_kind(request.query.get("kind", "p"))
    if job_id is None and kind is BlobKind.PERMANENT:
        raise BlobNotFound("a permanent blob belongs to a job", hint="use a job's id, or kind=t")
    upload_set = request.query.get("set")
    return (
        job_id,
        kind,
        parse_sha256(request.query.get("sha256", "")),
        None if upload_set is None else parse_set(upload_set),
    )


def asks_first(request: web.Request) -> bool:
    """Whether the client waits for an answer before it sends the body (B1)."""
    return request.headers.get(hdrs.EXPECT, "").lower() == "100-continue"


async def _decide_later(request: web.Request) -> None:
    """Do not answer `100 Continue` before anything is known."""


def _flag(request: web.Request, name: str) -> bool:
    """Raises InvalidId."""
    match request.query.get(name, "false"):
        case "true":
            return True
        case "false":
            return False
        case other:
            raise InvalidId(f"{name}={other[:80]!r} is neither true nor false")


def _json(value: msgspec.Struct, status: int, headers: dict[str, str] | None = None) -> web.Response:
    body = msgspec.json.encode(value)
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")
