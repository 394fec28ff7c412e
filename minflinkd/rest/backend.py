"""The basis of all routes: requests with timeouts to the parties behind the endpoint, and JSON answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
from aiohttp import web

from minflinkd.rest.declared import JOB_ID, JSON
from minflinkd.rpc.jobs import GetJob, JobDetails, JobOverview, ListJobs
from minflinkd.rpc.messages import (
    GetResourceOverview,
    ListTaskManagers,
    Request,
    ResourceOverview,
    TaskManagerInfo,
)
from minflinkd.rpc.network import DISPATCHER, RESOURCE_MANAGER, Network, task_manager
from minflinkd.runtime.clock import Clock, SystemClock
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import ResourceId
from minflinkd.runtime.units import encode_unit

R = TypeVar("R")
T = TypeVar("T")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

JOB = web.RequestKey("job", str)  # the job that a request is about, if its path does not say so
SNAPSHOT_AGE = 0.05  # seconds for which everybody gets the same answer about the whole cluster (E4)

_encoder = msgspec.json.Encoder(enc_hook=encode_unit)


def encode(body: msgspec.Struct | Mapping[str, Any] | list[Any]) -> bytes:
    return _encoder.encode(body)


def json_bytes(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type=JSON, charset="utf-8")


def json_answer(body: msgspec.Struct | Mapping[str, Any] | list[Any], status: int = 200) -> web.Response:
    return json_bytes(encode(body), status)


class Shared(Generic[T]):
    """One answer for all callers within `max_age` seconds, and one request at a time.

    A failure is the answer for those who waited for it, but not for later callers.
    """

    def __init__(self, ask: Callable[[], Awaitable[T]], clock: Clock, max_age: float = SNAPSHOT_AGE) -> None:
        self._ask = ask
        self._clock = clock
        self._max_age = max_age
        self._asking = asyncio.Lock()
        self._asked = float("-inf")  # when the current answer was requested
        self._answers = 0
        self._answer: Callable[[], T] | None = None
        self._changes = 0
        self._answered_change = 0  # the last change that the current answer must show

    def forget(self) -> None:
        """Call after a change, so that later callers see it."""
        self._changes += 1
        self._asked = float("-inf")

    async def get(self) -> T:
        """Return the shared answer. Raises what the request raises."""
        answers, changes = self._answers, self._changes
        if self._answer is not None and self._clock.monotonic() - self._asked <= self._max_age:
            return self._answer()
        async with self._asking:
            # An answer that came while this waited will do, unless it may not show a change made before the call.
            if self._answer is None or self._answers == answers or self._answered_change < changes:
                await self._renew()
            assert self._answer is not None
            return self._answer()

    async def _renew(self) -> None:
        asked, changes = self._clock.monotonic(), self._changes
        try:
            answer = await self._ask()
        except MinflinkError as error:
            self._answer, self._asked = _raising(error), float("-inf")
        else:
            self._answer, self._asked = (lambda: answer), asked
        self._answers += 1
        self._answered_change = changes
        if self._changes != changes:  # the answer may not show this change
            self._asked = float("-inf")


def _raising(error: MinflinkError) -> Callable[[], Any]:
    def fail() -> Any:
        raise error

    return fail


@dataclass
class Backend:
    """The parties behind the endpoint. Every method raises RemoteError, Fenced, Unreachable and RpcTimeout."""

    network: Network
    clock: Clock = field(default_factory=SystemClock)
    timeout: float = 10.0  # seconds for one request
    # seconds; a submission waits for Spark's analysis, perhaps for a TaskManager
    submit_timeout: Callable[[], float] = lambda: 180.0
    hand_over: Callable[[], None] = lambda: None  # ends the daemon, but leaves its TaskManagers running for the next
    stop: Callable[[], None] = lambda: None  # begins to end the daemon and its TaskManagers
    uploads: Path | None = None  # where files are kept that jobs are made of later; None: nowhere
    jobs: Shared[tuple[JobOverview, ...]] = field(init=False)
    resources: Shared[ResourceOverview] = field(init=False)
    task_managers: Shared[tuple[TaskManagerInfo, ...]] = field(init=False)

    def __post_init__(self) -> None:
        self.jobs = Shared(lambda: self.dispatcher(ListJobs()), self.clock)
        self.resources = Shared(lambda: self.resource_manager(GetResourceOverview()), self.clock)
        self.task_managers = Shared(lambda: self.resource_manager(ListTaskManagers()), self.clock)

    async def dispatcher(self, request: Request[R], timeout: float | None = None) -> R:
        return await self.network.ask(DISPATCHER, request, timeout=self.timeout if timeout is None else timeout)

    async def job(self, http: web.Request) -> JobDetails:
        """Return the job that the path names. Raises InvalidId too."""
        return await self.dispatcher(GetJob(job_id=JOB_ID.of(http)))

    async def task_manager(self, resource_id: ResourceId, request: Request[R], timeout: float | None = None) -> R:
        wait = self.timeout if timeout is None else timeout
        return await self.network.ask(task_manager(resource_id), request, timeout=wait)

    async def resource_manager(self, request: Request[R]) -> R:
        return await self.network.ask(RESOURCE_MANAGER, request, timeout=self.timeout)


class _Named(msgspec.Struct, frozen=True):
    name: str = ""


def job_name(document: bytes) -> str:
    """Return the name in a job document; empty if there is none, or the document is none: it will be refused."""
    try:
        return msgspec.json.decode(document, type=_Named).name
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
