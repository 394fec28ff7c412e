"""Looks at the jobs, and tells listeners what has changed (E19b). No job waits for that, or is harmed by it.

It looks once a second instead of being told by the Dispatcher: so nothing in the Dispatcher depends on plugins, and a
daemon that begins to lead sees what its predecessor could not tell any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from functools import partial

import structlog

from minflinkd.listeners.changes import Seen, changes, look
from minflinkd.listeners.interface import JobChange, Listener
from minflinkd.rpc.jobs import GetJob, ListJobs
from minflinkd.rpc.network import DISPATCHER, Network
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.component import Component
from minflinkd.runtime.errors import MinflinkError

log = structlog.get_logger(__name__)

INTERVAL = 1.0  # seconds between two looks
TIMEOUT = 10.0  # seconds for an answer of the Dispatcher
MOST = 1000  # changes that wait for one listener; the oldest are dropped
PATIENCE = 60.0  # seconds for a listener to take a change
LAST = 5.0  # seconds at the end for what still waits, and to close


class Queue:
    """The changes that wait for one listener."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dropped = 0
        self._waiting: deque[JobChange] = deque()
        self._more = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()

    def put(self, change: JobChange) -> None:
        if len(self._waiting) >= MOST:
            self._waiting.popleft()
            self.dropped += 1
            if self.dropped == 1 or self.dropped % MOST == 0:
                log.warning("a listener is too slow: changes of jobs are dropped", listener=self.name, all=self.dropped)
        self._waiting.append(change)
        self.idle.clear()
        self._more.set()

    async def get(self) -> JobChange:
        while not self._waiting:
            self.idle.set()
            self._more.clear()
            await self._more.wait()
        return self._waiting.popleft()


class Listeners(Component):
    def __init__(
        self, *, network: Network, clock: Clock, listeners: Mapping[str, Listener], interval: float = INTERVAL
    ) -> None:
        super().__init__("listeners")
        self._network = network
        self._clock = clock
        self._listeners = dict(listeners)
        self._queues = {name: Queue(name) for name in listeners}
        self._interval = interval
        self._seen = Seen()

    @property
    def dropped(self) -> dict[str, int]:
        """Changes that were dropped, by listener."""
        return {name: queue.dropped for name, queue in self._queues.items()}

    async def _start(self) -> None:
        for name, listener in self._listeners.items():
            self.tasks.loop(f"tell {name}", partial(self._tell, name, listener))
        if self._listeners:
            self.tasks.loop("look at the jobs", self._look)

    async def _before_stop(self) -> None:
        """Tell what waits, for a moment: a job may have ended with the daemon."""
        try:
            async with asyncio.timeout(LAST):
                await self._look_once()
                await asyncio.gather(*(queue.idle.wait() for queue in self._queues.values()))
        except (MinflinkError, TimeoutError):
            log.warning("listeners were not told everything before the daemon ended")

    async def _stop(self) -> None:
        for name, listener in self._listeners.items():
            try:
                async with asyncio.timeout(LAST):
                    await listener.aclose()
            except Exception:
                log.exception("a listener does not close", listener=name)

    async def _look(self) -> None:
        while True:
            try:
                await self._look_once()
            except MinflinkError as error:  # the next look sees it
                log.debug("listeners cannot be told now", error=str(error))
            await self._clock.sleep(self._interval)

    async def _look_once(self) -> None:
        jobs = await self._network.ask(DISPATCHER, ListJobs(), timeout=TIMEOUT)
        found = look(self._seen, jobs, self._clock.epoch_ms())
        told: dict[str, JobChange] = {}
        for job_id, kinds in found.news:
            details = await self._network.ask(DISPATCHER, GetJob(job_id=job_id), timeout=TIMEOUT)
            for change in changes(details, kinds):
                told[f"{job_id} {change.kind}"] = change
        self._seen = found.seen  # only now: what could not be asked for is new at the next look, too
        for change in told.values():
            for queue in self._queues.values():
                queue.put(change)

    async def _tell(self, name: str, listener: Listener) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                await listener.start()
        except Exception:
            log.exception("a listener does not start", listener=name)
        while True:
            change = await self._queues[name].get()
            try:
                async with asyncio.timeout(PATIENCE):
                    await listener.told(change)
            except Exception:
                log.exception("a listener did not take a change", listener=name, job=change.job_id, change=change.kind)
