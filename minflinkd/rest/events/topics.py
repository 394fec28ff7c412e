"""A topic: what one kind of stream is about. It is looked at as long as somebody listens, and a minute longer."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import structlog

from minflinkd.checkpoint.messages import GetCheckpoints
from minflinkd.rest.backend import Backend
from minflinkd.rest.cluster import About, overview_of
from minflinkd.rest.events.changes import ClusterChanges, JobChanges
from minflinkd.rest.events.log import Event, EventLog
from minflinkd.rpc.jobs import GetJob
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.errors import Kind, MinflinkError
from minflinkd.runtime.ids import JobId

PAUSE: Final = 1.0  # seconds between two looks at the cluster
SHORTEST_PAUSE: Final = 0.25  # between two at a job
PER_TOPIC: Final = 0.01  # seconds by which that grows with each job that is looked at
LONGEST_PAUSE: Final = 5.0
SHARE: Final = 10  # it is looked at for at most a tenth of the time
IDLE: Final = 60.0  # seconds for which a subscriber may come back to what it has missed

log = structlog.get_logger(__name__)

Look = Callable[[], Awaitable[list[Event]]]


class Topic:
    """`look` returns what has changed since it was last called.

    It raises an error of the kind NOT_FOUND when what the topic is about is gone.
    """

    def __init__(self, name: str, look: Look, *, clock: Clock, pause: Callable[[], float] = lambda: PAUSE) -> None:
        """`pause`: seconds between two looks, if these do not take long."""
        self.name = name
        self._pause = pause
        self.log = EventLog(secrets.token_hex(6))
        self.ended = False
        self._look = look
        self._clock = clock
        self._looking = asyncio.Lock()
        self._looked = False
        self._listeners = 0
        self._idle_since = clock.monotonic()
        self._changed = asyncio.Event()

    @property
    def listeners(self) -> int:
        return self._listeners

    @property
    def idle_since(self) -> float | None:
        """Since when nobody has listened; None: somebody does."""
        return None if self._listeners else self._idle_since

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        self._listeners += 1
        try:
            yield
        finally:
            self._listeners -= 1
            self._idle_since = self._clock.monotonic()

    async def ready(self) -> None:
        """Return when the state is known. Raises what looking at it raises."""
        async with self._looking:
            if not self._looked:
                await self._look_now()

    async def watch(self) -> None:
        """Look again and again, until nobody has listened for a while, or the topic is gone."""
        while not self.ended and (self._listeners or self._clock.monotonic() - self._idle_since < IDLE):
            began = self._clock.monotonic()
            try:
                async with self._looking:
                    await self._look_now()
            except MinflinkError as error:
                if error.info().kind is Kind.NOT_FOUND:
                    break
                # Otherwise all is shown as it was: the next look will tell.
            except Exception:
                log.exception("a topic of events could not be looked at", topic=self.name)
            took = self._clock.monotonic() - began
            await self._clock.sleep(min(LONGEST_PAUSE, max(self._pause(), SHARE * took)))
        self.end()

    async def _look_now(self) -> None:
        found = await self._look()
        for event in found:
            self.log.add(event)
        self._looked = True
        if found:
            self.changed()

    def add(self, event: Event) -> None:
        self.log.add(event)
        self.changed()

    def changed(self) -> None:
        """Wake all subscribers. Each then waits for the next event of its own."""
        woken, self._changed = self._changed, asyncio.Event()
        woken.set()

    async def wait(self, number: int, seconds: float) -> None:
        """Return when there is more than this, or the topic has ended, or the time is over."""
        changed = self._changed
        if self.log.last > number or self.ended:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await changed.wait()

    def end(self) -> None:
        self.ended = True
        self.changed()


def cluster_topic(backend: Backend, about: About) -> Topic:
    changes = ClusterChanges()

    async def look() -> list[Event]:
        jobs = await backend.jobs.get()
        found = list(changes.of_jobs(jobs, backend.clock.epoch_ms()))
        with contextlib.suppress(MinflinkError):
            now = overview_of(about, jobs, await backend.resources.get(), about.standing())
            found = [*changes.of_overview(now), *found]
            known = await backend.task_managers.get()
            found += changes.of_task_managers(known, backend.clock.monotonic())
        return found

    return Topic("cluster", look, clock=backend.clock)


def job_topic(backend: Backend, job_id: JobId, topics: Callable[[], int]) -> Topic:
    """`topics`: how many there are. The more jobs are looked at, the less often each."""
    changes = JobChanges()

    async def look() -> list[Event]:
        details = await backend.dispatcher(GetJob(job_id=job_id))
        checkpoints = await backend.dispatcher(GetCheckpoints(job_id=job_id))
        return list(changes.of(details, checkpoints, backend.clock.epoch_ms()))

    pause = lambda: max(SHORTEST_PAUSE, PER_TOPIC * topics())  # noqa: E731
    return Topic(job_id, look, clock=backend.clock, pause=pause)
