"""HTTP to the BlobServer: one request, its retries, and the server's errors raised as what they were there."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import stamina

from minflinkd.blob.errors import (
    BlobInUse,
    BlobMismatch,
    BlobNotFound,
    BlobPermanent,
    BlobServerBusy,
    BlobServerUnreachable,
    BlobTooLarge,
    BlobUnauthorized,
)
from minflinkd.blob.transfer import CHUNK
from minflinkd.runtime.errors import MALFORMED, Consequence, ErrorInfo, MinflinkError, RemoteError, class_of
from minflinkd.runtime.tls_faults import why_refused
from minflinkd.storage.interface import StorageError

LONGEST_WAIT = 60.0  # the longest Retry-After that is obeyed, in seconds
LONGEST_PAUSE = 50  # times the first pause

_RAISED_AGAIN: tuple[type[MinflinkError], ...] = (
    BlobInUse,
    BlobMismatch,
    BlobNotFound,
    BlobPermanent,
    BlobServerBusy,
    BlobTooLarge,
    BlobUnauthorized,
)


class BlobConnection:
    """Calls the BlobServer at `url`, which may be set late. Close it with the process.

    A failed try is followed by up to `retries` more, after a growing, jittered pause that begins at `pause` seconds, or
    after as long as the server asks for. `idle_timeout`: seconds without a byte of an answer or a piece of a body.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None,
        retries: int,
        pause: float,
        idle_timeout: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.url = url
        self.idle_timeout = idle_timeout
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._retries = retries
        self._pause = pause
        self._tls = tls
        self._random = random.SystemRandom()
        self._session: aiohttp.ClientSession | None = None

    def attempts(self) -> AsyncIterator[stamina.Attempt]:
        """`async for attempt in ...: with attempt: ...` retries what may succeed later."""
        return stamina.retry_context(
            on=self._when_again,
            attempts=self._retries + 1,
            timeout=None,
            wait_initial=self._pause,
            wait_max=self._pause * LONGEST_PAUSE,
            wait_jitter=self._pause,
        ).__aiter__()

    @asynccontextmanager
    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: AsyncIterable[bytes] | None = None,
        asks_first: bool = False,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Make one request and yield the answer; 416 counts as one.

        Raises BlobServerUnreachable, and the server's errors.

        `asks_first`: the body is sent only after the server has said that it wants it.
        """
        if not self.url:
            raise BlobServerUnreachable(
                f"{method} {path}: the BlobServer's address is not known yet", hint="it comes with the registration"
            )
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=self.idle_timeout)
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                timeout=timeout,
                read_bufsize=CHUNK,
                connector=aiohttp.TCPConnector(ssl=self._tls or True),
            )
        # aiohttp's own timeouts cover connecting and reading the answer. `watch` covers sending the body, in between.
        watch = asyncio.timeout(None if body is None else self.idle_timeout)
        sent = None if body is None else _Sent(body, watch, self.idle_timeout)
        try:
            async with (
                watch,
                self._session.request(
                    method, self.url + path, params=params, headers=headers, data=sent, expect100=asks_first
                ) as response,
            ):
                if sent is not None:
                    sent.moved()
                if response.status >= 400 and response.status != 416:
                    raise _error(response, await response.read())
                yield response
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            if sent is not None and sent.error is not None:
                raise sent.error from None
            why = why_refused(error) or str(error)
            why = why or (f"nothing moved for {self.idle_timeout:g} s" if watch.expired() else repr(error))
            raise BlobServerUnreachable(
                f"{method} {self.url}{path}: {why}",
                hint="is the daemon running, and is its BlobServer's address (GET /config) reachable from here?",
            ) from error

    async def aclose(self) -> None:
        """Close the session. Idempotent."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _when_again(self, error: Exception) -> bool | float:
        if isinstance(error, BlobServerBusy) and error.retry_after:
            return min(error.retry_after, LONGEST_WAIT) * self._random.uniform(1.0, 1.5)  # spread out retries
        if isinstance(error, StorageError):
            return False  # of a local file: errors of the server's storage arrive as RemoteError
        return isinstance(error, MinflinkError) and error.info().consequence is Consequence.RETRYABLE


class _Sent:
    """A body being sent. Each of its pieces extends `watch` by another `idle_timeout` seconds."""

    def __init__(self, pieces: AsyncIterable[bytes], watch: asyncio.Timeout, idle_timeout: float) -> None:
        self.error: MinflinkError | None = None  # raised by the pieces; aiohttp would report it as a connection error
        self._pieces = pieces
        self._watch = watch
        self._idle_timeout = idle_timeout

    def moved(self) -> None:
        if not self._watch.expired():
            self._watch.reschedule(asyncio.get_running_loop().time() + self._idle_timeout)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.moved()  # the server wants the body
        try:
            async for piece in self._pieces:
                self.moved()
                yield piece
        except MinflinkError as error:
            self.error = error
            raise
        self.moved()


def _error(response: aiohttp.ClientResponse, body: bytes) -> MinflinkError:
    try:
        info = msgspec.json.decode(body, type=ErrorInfo)
    except MALFORMED:
        consequence = Consequence.RETRYABLE if response.status >= 500 else Consequence.FATAL
        message = f"HTTP {response.status} from {response.url.origin()}"
        info = ErrorInfo(code="blob-http", message=message, consequence=consequence, hint="is it a BlobServer?")
    found = class_of(info, _RAISED_AGAIN)
    if found is BlobServerBusy:
        return BlobServerBusy(info.message, hint=info.hint, retry_after=_seconds(response.headers.get("Retry-After")))
    return found(info.message, hint=info.hint) if found else RemoteError(info)


def _seconds(retry_after: str | None) -> float:
    """Parse a Retry-After; 0 if it is not given in seconds."""
    return float(retry_after) if retry_after is not None and retry_after.isascii() and retry_after.isdigit() else 0.0
