"""Requests to Cloud Storage's JSON API, with gcsfs's session and credentials. Errors are the few storage kinds.

gcsfs finds and renews the credentials, and knows the endpoint and its certificates. Its own requests keep whole bodies
in memory and retry for minutes, so requests are made here, without retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from io import BytesIO
from typing import TypeVar

import aiohttp
import google.auth.exceptions
import msgspec
from gcsfs.core import GCSFileSystem  # not gcsfs.GCSFileSystem, which first asks for the bucket's kind, over gRPC
from yarl import URL

from minflinkd.storage.interface import (
    ObjectExists,
    ObjectNotFound,
    PermissionDenied,
    StorageError,
    StorageFull,
    StorageUnavailable,
)
from minflinkd_gcs.background import SharedWork
from minflinkd_gcs.options import GcsOptions

T = TypeVar("T")

_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=20)  # seconds; storage.gs.request-timeout covers the rest
_LIMITED = ("rateLimitExceeded", "userRateLimitExceeded", "quotaExceeded")  # reasons of a temporary 403
_KINDS: dict[int, tuple[type[StorageError], str]] = {
    401: (PermissionDenied, "give storage.gs.token, or the machine a service account"),
    403: (PermissionDenied, "give the account a role on the bucket, such as Storage Object User"),
    404: (ObjectNotFound, ""),
    408: (StorageUnavailable, ""),
    409: (StorageUnavailable, ""),  # a concurrent change of the same object
    412: (ObjectExists, ""),  # "does not exist" is the only condition that callers set
    429: (StorageUnavailable, ""),
    507: (StorageFull, "free space there"),
}


class Connection:
    """Opened at first use, in the running loop."""

    def __init__(self, options: GcsOptions) -> None:
        self._options = options
        self._opening = asyncio.Lock()
        self._system: GCSFileSystem | None = None
        self._connecting = SharedWork[GCSFileSystem]("search for Google's credentials")
        self._renewing = SharedWork[None]("renewal of Google's token")

    @asynccontextmanager
    async def request(
        self,
        method: str,
        url: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        data: bytes | memoryview | None = None,
        also: tuple[int, ...] = (),
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Make one request and yield its answer, with status 2xx or one of `also`. Errors name `path`.

        `url` is relative to the endpoint, or absolute. Raises StorageError.
        """
        system = await self._open(path)
        try:
            async with system.session.request(
                method,
                _target(system, url, params or {}),
                headers=await self._headers(system, path, headers),
                data=BytesIO(data) if data else data,  # so that it is sent in pieces
                timeout=_TIMEOUT,
                allow_redirects=False,
                middlewares=(_sent_once,) if method == "PUT" else None,
            ) as response:
                if response.status // 100 != 2 and response.status not in also:
                    raise refusal(path, response.status, await response.read())
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            name, text = type(error).__name__, str(error)
            if not text or isinstance(error, aiohttp.ClientResponseError | aiohttp.InvalidURL):
                raise StorageUnavailable(f"gs: {path}: {name}") from None  # the text has the URL, a credential
            raise StorageUnavailable(f"gs: {path}: {name}: {text}") from error

    async def ask(self, method: str, url: str, path: str, kind: type[T], *, params: Mapping[str, str]) -> T:
        """Make a request and decode its JSON answer as `kind`. Raises StorageError."""
        async with self.request(method, url, path, params=params) as response:
            return decoded(path, await response.read(), kind)

    async def aclose(self) -> None:
        """Close the connection. Idempotent; a later request reopens it."""
        system, self._system = self._system, None
        if system is not None and system._session is not None:
            await system._session.close()

    async def _open(self, path: str) -> GCSFileSystem:
        async with self._opening:
            self._system = self._system or await self._connect(path)
            await self._system._set_session()
            return self._system

    async def _connect(self, path: str) -> GCSFileSystem:
        with _credential_errors(path):
            return await self._connecting(self._file_system)  # may ask the machine's metadata server

    def _file_system(self) -> GCSFileSystem:
        options = self._options
        return GCSFileSystem(
            project=options.project,
            access="read_write",
            token=options.token or None,
            endpoint_url=options.endpoint_url.rstrip("/") or None,
            requester_pays=options.requester_pays,
            asynchronous=True,
            skip_instance_cache=True,  # an instance belongs to one loop
            session_kwargs={"auto_decompress": False},  # bytes as stored
        )

    async def _headers(self, system: GCSFileSystem, path: str, headers: Mapping[str, str] | None) -> dict[str, str]:
        given = {"Accept-Encoding": "identity", **(headers or {})}
        credentials = system.credentials.credentials
        if credentials is not None:
            with _credential_errors(path):
                if not credentials.valid:  # valid: for a few more minutes
                    await self._renewing(system.credentials.maybe_refresh)
                credentials.apply(given)
        return given


def decoded(path: str, body: bytes, kind: type[T]) -> T:
    """Decode JSON. Raises StorageError."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise StorageError(f"gs: {path}: the answer is not understood: {error}") from error


def refusal(path: str, status: int, body: bytes) -> StorageError:
    """Return the error for an error answer."""
    reason, message = _explanation(body)
    kind, hint = _KINDS.get(status, (StorageUnavailable if status >= 500 else StorageError, ""))
    if status == 403 and reason in _LIMITED:
        kind, hint = StorageUnavailable, ""
    if "no space left" in message:
        kind, hint = StorageFull, "free space there"
    return kind(f"gs: {path}: {message or 'refused'} (HTTP {status})", hint=hint)


class _Reason(msgspec.Struct):
    reason: str = ""


class _Details(msgspec.Struct):
    message: str = ""
    errors: list[_Reason] = []


class _Refusal(msgspec.Struct):
    error: _Details | str


def _explanation(body: bytes) -> tuple[str, str]:
    """Return reason and message. A body that is not Google's JSON is all message."""
    try:
        found = msgspec.json.decode(body, type=_Refusal).error
    except msgspec.DecodeError:
        found = body.decode(errors="replace")
    if isinstance(found, str):
        return "", found.strip()[:300]
    return found.errors[0].reason if found.errors else "", found.message.strip()[:300]


class _Disconnected(aiohttp.ClientError):
    pass


async def _sent_once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Keep aiohttp from resending a part of an upload, as it does if a reused connection breaks during a PUT."""
    try:
        return await send(request)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _Disconnected(str(error)) from error


def _target(system: GCSFileSystem, url: str, params: Mapping[str, str]) -> URL:
    target = URL(url if "://" in url else system._location + url, encoded=True)
    query = system._get_params(dict(params))  # adds who pays
    return target.update_query(query) if query else target


@contextmanager
def _credential_errors(path: str) -> Iterator[None]:
    """Replace errors about credentials, in the traceback too: their texts may contain what was sent."""
    try:
        yield
    except StorageError:
        raise
    except Exception as error:  # this reads arbitrary files and asks arbitrary servers
        reason = error.__cause__ or error
        if isinstance(reason, google.auth.exceptions.TransportError) or getattr(reason, "retryable", False):
            raise StorageUnavailable(f"gs: {path}: no token is to be had: {type(reason).__name__}") from None
        text = f"gs: {path}: the credentials cannot be used: {type(reason).__name__}"
        raise PermissionDenied(text, hint="check storage.gs.token, or the machine's service account") from None
