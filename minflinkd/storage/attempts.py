"""Requests with a time limit, retried while that makes sense, a limited number at a time: the driver of `Patience`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

import structlog

from minflinkd.storage.failures import Failures
from minflinkd.storage.interface import StorageUnavailable
from minflinkd.storage.options import CommonOptions
from minflinkd.storage.patience import Patience

T = TypeVar("T")

_SHORTEST_WAIT = 0.001  # seconds; the loop's clock may not resolve less
GRACE = 1.0  # seconds that a cancelled request has to end; then it is abandoned

log = structlog.get_logger(__name__)


class Book(Protocol):
    """Records tries."""

    def retried(self, kind: str) -> None: ...

    def timed_out(self, kind: str) -> None: ...


class Scope:
    """A try that is under way, as the steps inside it see it.

    A step that an operation passes to `attempts` has its own time limits. The operation's limits pause meanwhile.
    """

    def __init__(self, now: float) -> None:
        self._began = now
        self._rests = 0
        self._rest_began = 0.0
        self._rested = 0.0  # seconds of rest since the try began
        self._total = self._told = 0.0

    @property
    def resting(self) -> bool:
        return self._rests > 0

    def own_time(self, now: float) -> float:
        """Return the seconds that the try itself has taken. Correct only while it is not resting."""
        return now - self._began - self._rested

    def restart(self) -> None:
        """Start timing again, for the next item of a stream."""
        self._began, self._rested = _now(), 0.0

    def take_rest(self) -> float:
        """Return the seconds of rest since the last call."""
        rested, self._told = self._total - self._told, self._total
        return rested

    @contextmanager
    def rest(self) -> Iterator[None]:
        if not self._rests:
            self._rest_began = _now()
        self._rests += 1
        try:
            yield
        finally:
            self._rests -= 1
            if not self._rests:
                rested = _now() - max(self._rest_began, self._began)
                self._rested += rested
                self._total += rested


_scope: ContextVar[Scope | None] = ContextVar("storage request", default=None)


class Requests:
    """All requests to one backend. `aclose` cancels those under way, and no new ones are possible afterwards.

    `lane` maps a path to the resource that may hang (`Storage.lane`). Each lane has a limited number of places.
    """

    def __init__(
        self,
        options: CommonOptions,
        failures: Failures,
        book: Book,
        lane: Callable[[str], str],
        *,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.options = options
        self.failures = failures
        self._book = book
        self._chance = chance
        self._lane = lane
        self._rooms = WeakValueDictionary[str, asyncio.Semaphore]()  # by lane, while somebody is in it or waits
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    def tries(self, kind: str, path: str) -> Tries:
        self._check_open(path)
        return Tries(self, kind, path)

    async def __call__(self, kind: str, path: str, step: Callable[[], Awaitable[T]]) -> T:
        """Return what `step` returns. Retries after StorageUnavailable. Raises the kinds of StorageError."""
        tries = self.tries(kind, path)
        while True:
            try:
                return await tries.once(step)
            except StorageUnavailable as error:
                await tries.failed(error)

    async def aclose(self) -> None:
        self._closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=GRACE)

    def start(self, path: str, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start a task that `aclose` cancels. Raises StorageUnavailable after `aclose`."""
        try:
            self._check_open(path)
        except StorageUnavailable:
            coroutine.close()
            raise
        task = asyncio.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def stop(self, task: asyncio.Task[Any]) -> None:
        """Cancel a task and wait for it briefly: one that hangs in a thread or in the kernel does not end."""
        task.cancel()
        await asyncio.wait({task}, timeout=GRACE)

    def room(self, path: str) -> asyncio.Semaphore:
        return self._rooms.setdefault(self._lane(path), asyncio.Semaphore(self.options.parallelism))

    def _check_open(self, path: str) -> None:
        if self._closed:  # a backend would open connections again that nobody closes
            raise self.failures.unavailable(path, "the storage is closed", settled=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # mark as retrieved, even if nobody waits any more


class Tries:
    """The tries of one operation: `once` makes one; `failed` waits until the next one, or raises."""

    def __init__(self, requests: Requests, kind: str, path: str) -> None:
        self.kind = kind
        self.path = path
        self._requests = requests
        self._outer = _scope.get()
        self._patience = Patience(requests.options, _now())

    async def once(self, step: Callable[[], Awaitable[T]], *, limit: float | None = None) -> T:
        """Make one try of at most `limit` seconds, by default a try's usual limit. Raises the kinds of StorageError."""
        if self._outer is not None:
            with self._outer.rest():
                return await self._once(step, limit)
        async with self.room():
            return await self._once(step, limit)

    def progress(self) -> None:
        self._patience.progress(_now())

    async def failed(self, error: StorageUnavailable) -> None:
        """Wait and return, so that the caller tries again; or raise `error`."""
        requests, now = self._requests, _now()
        pause = None if error.settled else self._patience.failed(now, requests._chance())
        if pause is None:
            if not error.settled and self._patience.failures > 1:
                error.message += f" ({self._patience.failures} tries in {self._patience.elapsed(now):.1f} s)"
                error.args = (error.message,)
            error.settled = True
            raise error
        requests._book.retried(self.kind)
        log.info("a storage request is repeated", request=self.kind, error=error.message, pause=round(pause, 3))
        with self._outer.rest() if self._outer is not None else nullcontext():
            await asyncio.sleep(pause)

    @asynccontextmanager
    async def room(self) -> AsyncIterator[None]:
        """Hold one of the limited places for requests under way. Raises StorageUnavailable at the deadline."""
        requests, left = self._requests, self._patience.left(_now())
        scope, room = _scope.get(), requests.room(self.path)
        try:
            with scope.rest() if scope is not None else nullcontext():
                async with asyncio.timeout(left):
                    await room.acquire()
        except TimeoutError:
            why = f"{requests.options.parallelism} requests are under way, and none ended within {left:.0f} s"
            raise requests.failures.unavailable(self.path, why, settled=True) from None
        try:
            yield
        finally:
            room.release()

    async def wait(self, future: asyncio.Future[Any], scope: Scope, limit: float | None = None) -> bool:
        """Wait for a future, for as long as one try may take. Returns whether it is done; does not cancel it."""
        if limit is None:
            limit = self._patience.limit(_now())
        while not future.done() and (scope.resting or scope.own_time(_now()) < limit):
            left = limit if scope.resting else limit - scope.own_time(_now())
            await asyncio.wait({future}, timeout=max(left, _SHORTEST_WAIT))
        self._patience.rested(scope.take_rest())
        return future.done()

    def timed_out(self) -> StorageUnavailable:
        self._requests._book.timed_out(self.kind)
        return self._requests.failures.unavailable(self.path, "no answer in time")

    def outcome(self, task: asyncio.Task[T]) -> T:
        """Return the result of a task that is done. Raises the kinds of StorageError."""
        if task.cancelled():
            requests = self._requests
            raise requests.failures.unavailable(self.path, "the request was broken off", settled=requests._closed)
        failure = task.exception()
        if isinstance(failure, Exception):
            raise self._requests.failures.of(self.path, failure)
        if failure is not None:
            raise failure
        return task.result()

    async def _once(self, step: Callable[[], Awaitable[T]], limit: float | None) -> T:
        async def run() -> T:
            return await step()

        requests, scope = self._requests, Scope(_now())
        with inside(scope):
            task = requests.start(self.path, run(), f"{requests.failures.scheme} {self.kind}")
        try:
            if await self.wait(task, scope, limit):
                return self.outcome(task)
        finally:
            if not task.done():
                await requests.stop(task)
        if task.done() and not task.cancelled():  # it ended at the last moment
            return self.outcome(task)
        raise self.timed_out()


@contextmanager
def inside(scope: Scope) -> Iterator[None]:
    """Tasks started in this context are steps of this try."""
    token = _scope.set(scope)
    try:
        yield
    finally:
        _scope.reset(token)


def _now() -> float:
    return asyncio.get_running_loop().time()
