"""The API server as the daemon uses it: Pods are created, read, listed, deleted and watched, and nothing else.

A request whose answer is not known, or that the server is too busy for, is repeated for a bounded time, with growing
and random pauses. All of them may be repeated: a Pod has a name of its own and is deleted by its uid.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import aiohttp
import msgspec
import stamina

from minflinkd import __version__
from minflinkd.resourcemanager.kubernetes.access import Access, Credentials
from minflinkd.resourcemanager.kubernetes.wire import Json, Pod, PodList, Status, WatchEvent
from minflinkd.runtime.errors import MALFORMED, Consequence, MinflinkError

ANSWER_TIMEOUT = 10.0  # seconds for one answer
PATIENCE = 20.0  # seconds for which a request is repeated
FIRST_PAUSE = 0.2  # seconds between two attempts, doubled with each
LONGEST_PAUSE = 5.0
LONGEST_RETRY_AFTER = 30.0  # seconds that the server may ask to wait for
WATCH_SECONDS = 60  # after which the server ends a watch, and another one begins where it ended
LARGEST_LINE = 16 << 20  # bytes of one object; etcd stores no more than 1.5 MiB

T = TypeVar("T")


class ApiUnknown(MinflinkError):
    """It is not known whether the API server did what it was asked for: there was no answer, or it is too busy."""

    code = "kubernetes-unreachable"
    consequence = Consequence.RETRYABLE

    def __init__(self, message: str, *, hint: str = "", retry_after: float = 0.0) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after  # seconds


class ApiRefused(MinflinkError):
    """The API server did not do it. `causes`: the fields that are wrong, with the reason."""

    code = "kubernetes-refused"
    consequence = Consequence.REFUSED

    def __init__(self, message: str, *, status: int, causes: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.causes = causes


class WatchExpired(Exception):
    """The server does not remember any more what happened since this version: list again."""


Trouble = Callable[[ApiUnknown], None]


class KubernetesClient:
    """`select`: the labels of the Pods that are listed and watched. Use it on one event loop; close it at the end."""

    def __init__(self, access: Access, *, select: str = "") -> None:
        self._path = f"/api/v1/namespaces/{access.namespace}/pods"
        self._server = access.server
        self._credentials = Credentials(access)
        self._select = {"labelSelector": select} if select else {}
        self._session: aiohttp.ClientSession | None = None
        self._opening = asyncio.Lock()

    async def create(
        self, manifest: Json, *, dry_run: bool = False, patience: float | None = None, trouble: Trouble | None = None
    ) -> Pod:
        """Create a Pod, or with `dry_run` only learn whether it could be created.

        `patience`: seconds. `trouble` is told of each attempt that failed. Raises ApiRefused (409: there is a Pod of
        this name), ApiUnknown, UnusableAccess.
        """
        # Without this, the server would leave out fields that it does not know, such as misspelled ones.
        params = {"fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
        return _decoded(Pod, await self._ask("POST", "", params, manifest, patience=patience, trouble=trouble))

    async def read(self, name: str) -> Pod | None:
        """Return a Pod, or None if there is none. Raises ApiRefused, ApiUnknown, UnusableAccess."""
        try:
            return _decoded(Pod, await self._ask("GET", f"/{name}"))
        except ApiRefused as error:
            if error.status == 404:
                return None
            raise

    async def list_pods(self) -> PodList:
        """Raises ApiRefused, ApiUnknown, UnusableAccess."""
        return _decoded(PodList, await self._ask("GET", "", self._select, patience=0.0))

    async def delete(self, name: str, *, uid: str = "", grace: int | None = None) -> bool:
        """Ask for the deletion of a Pod. Return False if there is none, or another one has its name.

        `grace`: seconds from SIGTERM to SIGKILL; None: what the Pod says. Raises ApiRefused, ApiUnknown,
        UnusableAccess.
        """
        options: Json = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            await self._ask("DELETE", f"/{name}", None, options)
        except ApiRefused as error:
            if error.status in (404, 409):
                return False
            raise
        return True

    async def watch(self, version: str) -> AsyncIterator[tuple[str, Pod]]:
        """Yield what happens after this version, until the server ends the watch.

        Also yields bookmarks, which only have a version. Raises WatchExpired, ApiRefused, ApiUnknown, UnusableAccess.
        """
        params = self._select | {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        silence = aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_TIMEOUT, sock_read=WATCH_SECONDS + 15.0)
        try:
            async with self._answer("GET", "", params, None, silence) as answer:
                async for line in answer.content:
                    if line.strip():
                        yield _event(line)
        except ApiRefused as error:
            if error.status == 410:
                raise WatchExpired from error
            raise

    async def aclose(self) -> None:
        """Idempotent."""
        if self._session is not None:
            await self._session.close()

    async def _ask(
        self,
        method: str,
        path: str,
        params: dict[str, str] | None = None,
        body: Json | None = None,
        *,
        patience: float | None = None,
        trouble: Trouble | None = None,
    ) -> bytes:
        """Return the answer. `patience`: seconds for which it is repeated; None: PATIENCE, 0: it is not."""
        patience = PATIENCE if patience is None else patience

        async def once() -> bytes:
            try:
                timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT)
                async with self._answer(method, path, params or {}, body, timeout) as answer:
                    return await answer.read()
            except ApiUnknown as error:
                if trouble is not None:
                    trouble(error)
                if patience and error.retry_after:
                    await asyncio.sleep(min(error.retry_after, LONGEST_RETRY_AFTER))
                raise

        if not patience:
            return await once()
        pauses = {"wait_initial": FIRST_PAUSE, "wait_max": LONGEST_PAUSE, "wait_jitter": FIRST_PAUSE}
        async for attempt in stamina.retry_context(on=ApiUnknown, attempts=None, timeout=patience, **pauses):
            with attempt:
                return await once()
        raise AssertionError("the last attempt returns or raises")

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, params: dict[str, str], body: Json | None, timeout: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Raises what the answer says if it is not a success."""
        session, headers = await self._opened(), await self._credentials.headers()
        url = self._server + self._path + path
        try:
            async with session.request(
                method, url, params=params, json=body, headers=headers, timeout=timeout, allow_redirects=False
            ) as answer:
                if answer.status >= 300:
                    raise self._refusal(answer, await answer.read())
                yield answer
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            what = "did not answer in time" if isinstance(error, TimeoutError) else f"cannot be reached: {error}"
            raise ApiUnknown(
                f"the API server of Kubernetes, {self._server}, {what}", hint="is it up, and is the network?"
            ) from error

    async def _opened(self) -> aiohttp.ClientSession:
        async with self._opening:
            if self._session is None:
                self._session = aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(ssl=await self._credentials.tls()),
                    headers={"User-Agent": f"minflinkd/{__version__}", "Accept": "application/json"},
                    read_bufsize=LARGEST_LINE,
                )
            return self._session

    def _refusal(self, answer: aiohttp.ClientResponse, body: bytes) -> MinflinkError:
        try:
            status = msgspec.json.decode(body, type=Status)
        except MALFORMED:  # a proxy on the way may answer in its own words
            status = Status(message=body[:200].decode(errors="replace"))
        if answer.status == 401:
            self._credentials.refused()
        return _error(answer.status, status, answer.headers.get("Retry-After", ""))


def _error(number: int, status: Status, retry_after: str = "") -> MinflinkError:
    """Return what an answer means. A token that is refused may have been replaced just now, so it is shown again."""
    said = status.message or status.reason or f"status {number}"
    details = status.details
    if number in (401, 408, 429) or number >= 500:
        after = float(retry_after) if retry_after.isdecimal() else float((details and details.retry_after_seconds) or 0)
        hint = "is the token of the daemon's service account valid?" if number == 401 else ""
        return ApiUnknown(f"the API server of Kubernetes answers {number}: {said}", hint=hint, retry_after=after)
    causes = tuple((each.field or "", each.message or "") for each in (details and details.causes) or ())
    return ApiRefused(f"the API server of Kubernetes refuses it: {said}", status=number, causes=causes)


def _event(line: bytes) -> tuple[str, Pod]:
    """Return the type of an event and its object. Raises WatchExpired, ApiRefused, ApiUnknown."""
    event = _decoded(WatchEvent, line)
    if event.type == "ERROR":
        status = _decoded(Status, bytes(event.object))
        if status.number == 410:
            raise WatchExpired
        raise _error(status.number or 500, status)
    return event.type, _decoded(Pod, bytes(event.object))


def _decoded(kind: type[T], data: bytes) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except MALFORMED as error:
        raise ApiUnknown(f"the API server of Kubernetes answers what is no {kind.__name__}: {error}") from error
