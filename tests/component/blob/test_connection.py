"""Uploads that make no progress, and files that cannot be read while they are sent."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from io import BufferedReader, FileIO
from pathlib import Path

import pytest

from minflinkd.blob import client as client_module
from minflinkd.blob.client import BlobClient
from minflinkd.blob.connection import BlobConnection
from minflinkd.blob.errors import BlobServerUnreachable
from minflinkd.blob.keys import BlobKind
from minflinkd.blob.source import FileSource
from minflinkd.storage.interface import StorageUnavailable
from tests.component.blob.conftest import Wire

TOKEN = "cluster-secret"  # conftest's

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server like a stopped daemon: the system accepts the bytes, and nobody reads them."""


async def asks_and_stops_reading(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")


async def reads_and_does_not_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asks_and_stops_reading(reader, writer)
    await reader.read()


@pytest.mark.parametrize("peer", [silent, asks_and_stops_reading, reads_and_does_not_answer])
async def test_an_upload_that_stands_still_is_given_up(peer: Peer) -> None:
    held: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)
        await peer(reader, writer)

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, limit=4096)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with BlobClient(url, retries=0, idle_timeout=0.1) as client, asyncio.timeout(30):
        with pytest.raises(BlobServerUnreachable, match=r"PUT .*(nothing moved for 0\.1 s|Timeout)"):
            await client.put_bytes(None, bytes(30 << 20), BlobKind.TRANSIENT)
    for writer in held:
        writer.transport.abort()
    listening.close()
    await listening.wait_closed()


async def test_an_upload_that_goes_on_may_take_longer_than_the_idle_timeout() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asks_and_stops_reading(reader, writer)
        await reader.readexactly(10)
        writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok")
        await reader.read()
        writer.close()

    async def slow() -> AsyncIterator[bytes]:
        for _ in range(10):
            await asyncio.sleep(0.15)
            yield b"x"

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    connection = BlobConnection(url, token=None, retries=0, pause=0.01, idle_timeout=1.0)
    async with connection.request("PUT", "/blobs/none", headers={"Content-Length": "10"}, body=slow()) as response:
        assert await response.read() == b"ok"
    await connection.aclose()
    listening.close()
    await listening.wait_closed()


class FailingFile(BufferedReader):
    """A file that can be hashed and whose disk fails afterwards."""

    reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads += 1
        raise OSError(errno.EIO, os.strerror(errno.EIO))


async def test_a_file_that_cannot_be_read_is_named_and_not_tried_again(
    wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "artifact"
    path.write_bytes(os.urandom(200_000))
    file = FailingFile(FileIO(path))
    monkeypatch.setattr(client_module, "open_source", lambda _: FileSource(file))
    async with BlobClient(wire.url, token=TOKEN, retries=3, pause=0.01) as client:
        with pytest.raises(StorageUnavailable, match="artifact: Input/output error"):
            await client.upload(None, path, BlobKind.TRANSIENT)
    assert (file.reads, file.closed) == (1, True)
