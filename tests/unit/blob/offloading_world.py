"""A daemon and a TaskManager whose large messages travel as blobs, over a BlobServer that keeps them in memory."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import looptime

from minflinkd.blob.errors import BlobNotFound, BlobServerUnreachable
from minflinkd.blob.exchange import DaemonExchange
from minflinkd.blob.keys import Blob, BlobKey, BlobKind
from minflinkd.blob.lifecycle import BlobLifecycle
from minflinkd.blob.offloading import OffloadingNetwork
from minflinkd.rpc import messages as m
from minflinkd.rpc.faulty import FaultyWire
from minflinkd.rpc.network import RpcTimeout, Unreachable
from minflinkd.runtime.ids import JobId, LeaderId
from tests.unit.blob.messages import FIRST, MASTER, THERE, Party
from tests.waiting import until

SECOND = LeaderId("2" * 32)
MINSIZE = 4096


class Blobs:
    """The BlobServer's decisions about references, with blobs in memory."""

    def __init__(self) -> None:
        self.lifecycle = BlobLifecycle(retention=3600.0, now=0.0)
        self.data: dict[Blob, bytes] = {}
        self.stored: list[BlobKey] = []  # new content, in order of arrival
        self.fault: Callable[[], Awaitable[None]] | None = None  # called before anything is done

    async def put(self, job_id: JobId | None, data: bytes, kind: BlobKind) -> BlobKey:
        key = await self.upload(job_id, data, kind)
        self.lifecycle.acquire(Blob(job_id, key))
        return key

    async def upload(self, job_id: JobId | None, data: bytes, kind: BlobKind) -> BlobKey:
        await self._step()
        sha256 = hashlib.sha256(data).hexdigest()
        for blob in self.data:
            if (blob.job_id, blob.key.kind, blob.key.sha256) == (job_id, kind, sha256):
                self.lifecycle.offered(blob, None, 0.0)
                return blob.key
        blob = Blob(job_id, BlobKey.new(kind, sha256))
        self.lifecycle.receive(blob, None, 0.0)
        self.lifecycle.received(blob, None, 0.0)
        self.data[blob] = data
        self.stored.append(blob.key)
        return blob.key

    async def read(self, job_id: JobId | None, key: BlobKey) -> bytes:
        await self._step()
        blob = Blob(job_id, key)
        if blob not in self.data:
            raise BlobNotFound(f"there is no blob {key}")
        return self.data[blob]

    async def release(self, job_id: JobId | None, key: BlobKey, *, at_once: bool = False) -> None:
        blob = Blob(job_id, key)
        if self.lifecycle.release(blob, 0.0, at_once=at_once):
            self.data.pop(blob, None)
            self.lifecycle.deleted(blob)

    def referenced(self) -> set[BlobKey]:
        return {blob.key for blob in self.data if self.lifecycle.references(blob)}

    def transient(self) -> set[BlobKey]:
        return {blob.key for blob in self.data if not blob.is_permanent}

    async def _step(self) -> None:
        await asyncio.sleep(0.001)
        if self.fault is not None:
            await self.fault()


@dataclass
class Uploads:
    """The TaskManager's access to the blobs."""

    blobs: Blobs

    async def leave(self, job_id: JobId, data: bytes, *, lasting: bool) -> BlobKey:
        return await self.blobs.upload(job_id, data, BlobKind.TRANSIENT)

    async def find(self, job_id: JobId, key: BlobKey) -> bytes:
        return await self.blobs.read(job_id, key)

    async def sent(self, job_id: JobId, key: BlobKey, *, arrived: bool) -> None:
        if not arrived:
            await self.blobs.release(job_id, key, at_once=True)

    async def received(self, job_id: JobId, key: BlobKey) -> None: ...


class World:
    """A daemon with one JobMaster after another, and a TaskManager, on a network that may lose messages."""

    def __init__(self, minsize: int = MINSIZE, seed: int = 0) -> None:
        self.wire = FaultyWire(random.Random(seed))
        self.blobs = Blobs()
        self.daemon = OffloadingNetwork(self.wire.party("daemon"), DaemonExchange(self.blobs), minsize=minsize)
        self.there = OffloadingNetwork(self.wire.party(str(THERE)), Uploads(self.blobs), minsize=minsize)
        self.task_manager = Party(THERE)
        self.there.attach(self.task_manager.mailbox)
        self.master = self.new_master(FIRST)

    def new_master(self, leader: LeaderId) -> Party:
        self.master = Party(MASTER, leader)
        self.daemon.attach(self.master.mailbox)
        return self.master

    async def deploy(self, request: m.DeployTask, leader: LeaderId = FIRST, timeout: float = 5.0) -> m.Done:
        return await self.daemon.ask(THERE, request, timeout=timeout, fence=leader)

    async def acknowledge(self, request: m.AcknowledgeCheckpoint, leader: LeaderId = FIRST) -> m.Done:
        return await self.there.ask(MASTER, request, timeout=5.0, fence=leader)

    async def settled(self) -> None:
        """Wait until the releases of references have arrived."""
        await until(lambda: len(self.daemon.tasks) + len(self.there.tasks) + len(self.wire.tasks) == 0, pause=0.1)

    def sent(self, name: str) -> int:
        return sum(f" {name}" in line for line in self.wire.journal)


@asynccontextmanager
async def world(minsize: int = MINSIZE, seed: int = 0) -> AsyncIterator[World]:
    world = World(minsize, seed)
    try:
        yield world
    finally:
        await world.wire.aclose()
        await world.daemon.aclose()
        await world.there.aclose()


def run_virtually(story: Coroutine[Any, Any, None]) -> None:
    """Run the story in virtual time."""
    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        runner.run(story)


async def until_answered(ask: Callable[[], Awaitable[object]]) -> None:
    async def answered() -> bool:
        try:
            await ask()
        except (Unreachable, RpcTimeout):
            return False
        return True

    await until(answered, pause=0.001)


async def unreachable() -> None:
    raise BlobServerUnreachable("no way")


async def hang() -> None:
    await asyncio.Event().wait()
