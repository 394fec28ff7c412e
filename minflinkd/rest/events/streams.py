"""Sends the events of a topic to one client after the other's pace (E16, E45).

A client that reads nothing for a while is cut off, and so is one that is so slow that what it needs is no longer kept.
It comes back with `Last-Event-ID`, and either goes on from there, or begins anew after a `reset`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog
from aiohttp import web

from minflinkd.rest.backend import Backend
from minflinkd.rest.cluster import About
from minflinkd.rest.errors import Overloaded
from minflinkd.rest.events.changes import sample_of_cluster, sample_of_job
from minflinkd.rest.events.log import EVERYTHING, Place, View, told
from minflinkd.rest.events.topics import Topic, cluster_topic, job_topic
from minflinkd.rest.history.sampler import Sample
from minflinkd.rest.identity.access import Access, identity_of
from minflinkd.rest.identity.proving import Unauthenticated
from minflinkd.rest.identity.roles import Identity
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.component import Component
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import JobId

MEDIA: Final = "text/event-stream"
MOST_TOPICS: Final = 1000  # beside those to which somebody listens; the longest idle ones go first
GRACE: Final = 1.0  # seconds that streams have to end when the daemon does
PIECE: Final = 1 << 16  # bytes that are handed to the connection at once

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Pace:
    """In seconds."""

    keep_alive: float = 15.0  # between two comments, while nothing happens
    check: float = 5.0  # between two looks whether the client may still listen
    stalled: float = 20.0  # that a client may take for what was sent to it
    retry: float = 2.0  # after which a browser connects again


class Streams(Component):
    """`most`: how many clients may listen at once."""

    def __init__(self, backend: Backend, about: About, access: Access, *, most: int, pace: Pace | None = None) -> None:
        super().__init__("event streams")
        self._backend = backend
        self._about = about
        self._access = access
        self._most = most
        self.pace = pace or Pace()
        self._topics: dict[str, Topic] = {}
        self._open = 0
        self._ending = False
        self._all_gone = asyncio.Event()
        self._all_gone.set()

    @property
    def open(self) -> int:
        """How many clients listen."""
        return self._open

    def sampled(self, sample: Sample) -> None:
        """Tell those who listen of a sample."""
        if (cluster := self._topics.get("")) is not None:
            cluster.add(sample_of_cluster(sample))
        for job_id, job in sample.jobs.items():
            if (topic := self._topics.get(job_id)) is not None:
                topic.add(sample_of_job(sample.at_ms, job))

    async def of_cluster(self, request: web.Request) -> web.StreamResponse:
        """Raises Overloaded, and what the parties answer."""
        return await self._stream(request, "", lambda: cluster_topic(self._backend, self._about))

    async def of_job(self, request: web.Request, job_id: JobId) -> web.StreamResponse:
        """Raises Overloaded, and what the parties answer."""
        return await self._stream(request, job_id, lambda: job_topic(self._backend, job_id, lambda: len(self._topics)))

    async def _before_stop(self) -> None:
        """End all streams in an orderly way. Their clients come back to the next daemon."""
        self._ending = True
        for topic in self._topics.values():
            topic.end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE):
                await self._all_gone.wait()

    async def _stream(self, request: web.Request, name: str, make: Callable[[], Topic]) -> web.StreamResponse:
        if self._ending:
            raise Overloaded("the daemon is shutting down", hint="connect again when it is back")
        if self._open >= self._most:
            raise Overloaded(
                f"{self._most} event streams are open, which is the limit",
                hint="close pages that nobody looks at, or raise rest.server.max-event-streams",
            )
        self._open += 1
        self._all_gone.clear()
        try:
            topic = self._topic(name, make)
            with topic.listening():
                await topic.ready()
                return await _Stream(self, topic, request, self._access, self._backend.clock).run()
        finally:
            self._open -= 1
            if not self._open:
                self._all_gone.set()

    def _topic(self, name: str, make: Callable[[], Topic]) -> Topic:
        topic = self._topics.get(name)
        if topic is None or topic.ended:
            self._make_room()
            topic = self._topics[name] = make()
            self.tasks.job(f"watch {name or 'the cluster'}", self._watch(name, topic))
        return topic

    async def _watch(self, name: str, topic: Topic) -> None:
        try:
            await topic.watch()
        finally:
            topic.end()
            if self._topics.get(name) is topic:
                del self._topics[name]

    def _make_room(self) -> None:
        idle = [topic for topic in self._topics.values() if topic.idle_since is not None]
        for topic in sorted(idle, key=lambda one: one.idle_since or 0.0)[: max(0, len(idle) - MOST_TOPICS)]:
            topic.end()


class _Stream:
    def __init__(self, streams: Streams, topic: Topic, request: web.Request, access: Access, clock: Clock) -> None:
        self._pace = streams.pace
        self._topic = topic
        self._request = request
        self._access = access
        self._clock = clock
        self._identity = identity_of(request)
        self._view = view_of(self._identity)
        self._response = web.StreamResponse(
            headers={
                "Content-Type": MEDIA,
                "Cache-Control": "no-store",
                "X-Content-Type-Options": "nosniff",
                "X-Accel-Buffering": "no",  # a proxy would collect events
            }
        )

    async def run(self) -> web.StreamResponse:
        """Send events until the client, its right to listen, or the topic is gone."""
        await self._response.prepare(self._request)
        try:
            await self._send_all()
        except _Stalled:
            if self._request.transport is not None:
                self._request.transport.abort()
            log.info("a slow listener was cut off", topic=self._topic.name, peer=self._request.remote)
        return self._response

    async def _send_all(self) -> None:
        number = await self._begin()
        sent_at = checked_at = self._clock.monotonic()
        while not self._topic.ended:
            await self._topic.wait(number, min(self._pace.keep_alive, self._pace.check))
            if self._request.transport is None or self._request.transport.is_closing():
                return
            now = self._clock.monotonic()
            if now - checked_at >= self._pace.check:
                checked_at = now
                if not await self._may_listen():
                    return
            last, text = self._topic.log.last, self._topic.log.after(number, self._view)
            if text is None:
                return  # it needs the whole state, as if it had come back
            number = last
            if text or now - sent_at >= self._pace.keep_alive:
                await self._write(text or b": nothing new\n\n")
                sent_at = self._clock.monotonic()

    async def _begin(self) -> int:
        """Send what the client needs to go on, and return up to where that is."""
        events, given = self._topic.log, self._request.headers.get("Last-Event-ID")
        place = None if given is None else Place.parsed(given)
        head = f"retry: {round(self._pace.retry * 1000)}\n\n".encode()
        if place is not None and events.goes_on(place, self._view):
            await self._write(head)
            return place.number
        number, state = events.last, events.whole(self._view)
        await self._write(head if given is None else head + told("reset"))
        await self._write(state)
        return number

    async def _may_listen(self) -> bool:
        """Whether the client would be let in now, to see what it sees."""
        try:
            now = await self._access.still(self._request, self._identity)
        except (Unauthenticated, MinflinkError):
            return False
        return (now.role, now.jobs) == (self._identity.role, self._identity.jobs)

    async def _write(self, text: bytes) -> None:
        """Raises _Stalled, ConnectionError."""
        whole = memoryview(text)
        for start in range(0, len(whole), PIECE):
            try:
                async with asyncio.timeout(self._pace.stalled):
                    await self._response.write(whole[start : start + PIECE])
            except TimeoutError as error:
                raise _Stalled from error


class _Stalled(Exception):
    """The client has not read for too long."""


def view_of(identity: Identity) -> View:
    """Return what somebody may see. It has no name of a job in its own name, which others may read."""
    if not identity.jobs:
        return EVERYTHING
    name = hashlib.sha256("\0".join(identity.jobs).encode(errors="replace")).hexdigest()[:12]
    return View(name, identity.reaches)
