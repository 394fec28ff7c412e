"""A TaskManager's logs as real files, with a real BlobServer and the real endpoint."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from minflinkd.blob.client import BlobClient
from minflinkd.blob.keys import BlobKey, BlobKind
from minflinkd.blob.server import BlobOptions, BlobServer
from minflinkd.metrics.registry import Metrics
from minflinkd.rest import log_copies
from minflinkd.rest.backend import Backend
from minflinkd.rest.cluster import About
from minflinkd.rest.identity.access import Access
from minflinkd.rest.server import Entrance, Listening, LogSources, RestServer
from minflinkd.rpc.local import LocalNetwork
from minflinkd.rpc.messages import ReadLog
from minflinkd.rpc.network import Mailbox, task_manager
from minflinkd.runtime.clock import SystemClock
from minflinkd.taskmanager.logs import Logs
from tests.unit.rest.parties import TM, ResourceManager
from tests.waiting import until

MINSIZE = 100_000
SEGMENT = 400_000  # a tenth of the real size, to save time
LARGE = 2 * SEGMENT + 150_000  # in bytes: three blobs


class HandClock(SystemClock):
    """A clock that runs by itself and can be moved on by hand."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self._moved = asyncio.Event()

    def monotonic(self) -> float:
        return super().monotonic() + self._ahead

    async def sleep(self, seconds: float) -> None:
        due = self.monotonic() + seconds
        while (left := due - self.monotonic()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._moved.wait()
            except TimeoutError:
                return

    def advance(self, seconds: float) -> None:
        self._ahead += seconds
        self._moved.set()
        self._moved = asyncio.Event()


def text(size: int, word: bytes = b"log") -> bytes:
    """Return text that is different at every position."""
    lines = b"".join(b"%s line %09d\n" % (word, i) for i in range(size // 16 + 1))
    return lines[:size]


@dataclass
class World:
    directory: Path
    store: Path
    blobs: BlobServer
    client: BlobClient
    http: aiohttp.ClientSession
    mailbox: Mailbox
    network: LocalNetwork
    clock: HandClock
    asked: list[ReadLog]
    upload: Callable[[bytes], Awaitable[BlobKey]]

    def write(self, data: bytes, name: str = "taskmanager.log") -> Path:
        path = self.directory / name
        path.write_bytes(data)
        return path

    async def read(self, name: str = "taskmanager.log", query: str = "") -> bytes:
        async with self.http.get(self.path(name) + query) as response:
            assert response.status == 200, await response.text()
            return await response.read()

    @staticmethod
    def path(name: str = "taskmanager.log") -> str:
        return f"/taskmanagers/{TM}/logs/{name}"

    @property
    def uploaded(self) -> int:
        """Return how many bytes the BlobServer has received."""
        return self.blobs.statistics().received_bytes

    def kept(self) -> int:
        """Return how many bytes of logs are in the BlobServer."""
        try:
            return sum(entry.stat().st_size for entry in os.scandir(self.store / "none"))
        except FileNotFoundError:
            return 0

    async def until_kept(self, size: int) -> None:
        await until(lambda: self.kept() == size, f"{size} bytes of logs are kept")


async def running(tmp_path: Path, max_size: int | None = None) -> AsyncIterator[World]:
    directory, store = tmp_path / "log", tmp_path / "blobs"
    directory.mkdir()
    network, clock = LocalNetwork(), HandClock()
    ResourceManager(network)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_copies, "SEGMENT", SEGMENT)
        async for world in _running(directory, store, network, clock, max_size):
            yield world
    assert not (store / "none").exists() or not os.listdir(store / "none"), "an endpoint that ends leaves none"
    await network.aclose()


async def _running(
    directory: Path, store: Path, network: LocalNetwork, clock: HandClock, max_size: int | None
) -> AsyncIterator[World]:
    async with (
        BlobServer(options=BlobOptions(directory=store, max_size=max_size)) as blobs,
        BlobClient(blobs.url, retries=1, pause=0.01) as client,
        RestServer(
            Backend(network, clock),
            listening=Listening(host="127.0.0.1", port=0),
            entrance=Entrance(access=Access.open_to_all()),
            about=About(version="0", config_items=list, blob_url=lambda: blobs.url),
            metrics=Metrics(version="0", rpc=network.figures),
            logs=LogSources(blobs=blobs, offload_minsize=MINSIZE),
        ) as server,
        aiohttp.ClientSession(server.url) as http,
    ):
        asked: list[ReadLog] = []
        mailbox = Mailbox(task_manager(TM))

        async def upload(data: bytes) -> BlobKey:
            return await world.upload(data)

        Logs(directory, upload).serve(mailbox)
        deliver = mailbox.deliver

        async def journal(message: object, fence: object) -> object:
            if isinstance(message, ReadLog):
                asked.append(message)
            return await deliver(message, fence)  # type: ignore[arg-type]  # handed on as it came

        mailbox.deliver = journal  # type: ignore[method-assign,assignment]  # it only watches
        network.attach(mailbox)

        async def put(data: bytes) -> BlobKey:
            return await client.put_bytes(None, data, BlobKind.TRANSIENT)

        world = World(directory, store, blobs, client, http, mailbox, network, clock, asked, put)
        yield world
