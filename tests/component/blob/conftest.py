"""A real server on loopback, and a connection to it that can be cut."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from minflinkd.blob.client import BlobClient
from minflinkd.blob.server import BlobOptions, BlobServer
from tests.component.blob.raw_clients import descriptors

TOKEN = "cluster-secret"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[BlobServer]:
    async with BlobServer(options=BlobOptions(directory=tmp_path / "server"), token=TOKEN) as server:
        yield server


@pytest.fixture
async def client(server: BlobServer) -> AsyncIterator[BlobClient]:
    async with BlobClient(server.url, token=TOKEN, retries=3, pause=0.01) as client:
        yield client


class Wire:
    """Carries bytes to a server.

    Each connection for which `cuts` has a number breaks after that many bytes of the answer.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._server = (parts.hostname, parts.port)
        self.cuts: list[int] = []
        self.connections = 0
        self.sent = 0  # bytes from the server
        self.received = 0  # bytes to the server
        self.damage = 0  # number of answers in which one byte will be changed
        self.damage_up = 0  # the same for what is sent to the server
        self.url = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Wire"]:
        listening = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            listening.close()
            await listening.wait_closed()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        left = self.cuts.pop(0) if self.cuts else 1 << 60
        there_reader, there_writer = await asyncio.open_connection(*self._server)

        async def upstream() -> None:
            while data := await reader.read(65536):
                self.received += len(data)
                if self.damage_up and self.received > 50_000:
                    self.damage_up, data = self.damage_up - 1, _changed(data)
                there_writer.write(data)
                await there_writer.drain()
            there_writer.transport.abort()

        forward = asyncio.create_task(upstream())
        with suppress(ConnectionError):
            while left > 0 and (data := await there_reader.read(min(left, 65536))):
                left -= len(data)
                self.sent += len(data)
                if self.damage and self.sent > 50_000:
                    self.damage, data = self.damage - 1, _changed(data)
                writer.write(data)
                await writer.drain()
        forward.cancel()
        with suppress(asyncio.CancelledError, ConnectionError):
            await forward
        writer.transport.abort()
        there_writer.transport.abort()


def _changed(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.fixture
async def wire(server: BlobServer) -> AsyncIterator[Wire]:
    async with Wire(server.url).open() as wire:
        yield wire


@pytest.fixture
def nothing_leaks() -> Iterator[None]:
    before = descriptors()
    yield
    assert descriptors() <= before
