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

_encoder = msgspec.json.Encoder(enc_hook=encode_unit)


def encode(body: msgspec.Struct | Mapping[str, Any] | list[Any]) -> bytes:
    return _encoder.encode(body)


def json_bytes(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type=JSON, charset="utf-8")


def json_answer(body: msgspec.Struct | Mapping[str, Any] | list[Any], status: int = 200) -> web.Response:
    return json_bytes(encode(body), status)


class Shared(Generic[T]):
    """One question at a time for all callers.

    An answer is for those who came before it was asked for. So it shows every change that a caller can know of (E4). A
    failure is the answer for those callers, too.
    """

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask = ask
        self._asking = asyncio.Lock()
        self._asked = 0  # questions
        self._answered = 0  # number of the question that `_answer` is about
        self._answer: Callable[[], T]

    async def get(self) -> T:
        """Return the shared answer. Raises what the question raises."""
        before = self._asked
        async with self._asking:
            if self._answered <= before:
                self._asked = number = self._asked + 1
                self._answer = await self._outcome()
                self._answered = number
            return self._answer()

    async def _outcome(self) -> Callable[[], T]:
        try:
            answer = await self._ask()
        except MinflinkError as error:
            return _raising(error)
        return lambda: answer


class Lasting(Shared[T]):
    """An answer serves later callers, too, for `max_age` seconds from when it was asked for. A failure does not."""

    def __init__(self, ask: Callable[[], Awaitable[T]], clock: Clock, max_age: float) -> None:
        async def timed() -> T:
            asked = clock.monotonic()
            answer = await ask()
            self._until = asked + max_age
            return answer

        super().__init__(timed)
        self._clock = clock
        self._until = float("-inf")

    async def get(self) -> T:
        """Return the answer. Raises what the question raises."""
        return self._answer() if self._clock.monotonic() <= self._until else await super().get()


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
        self.jobs = Shared(lambda: self.dispatcher(ListJobs()))
        self.resources = Shared(lambda: self.resource_manager(GetResourceOverview()))
        self.task_managers = Shared(lambda: self.resource_manager(ListTaskManagers()))

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
