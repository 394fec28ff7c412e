"""Moving blobs over HTTP: pieces of a useful size, and no more transfers at once than allowed (B9, B40)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from aiohttp import StreamReader

from minflinkd.blob.errors import BlobServerBusy

CHUNK = 1024 * 1024  # bytes


class StoredBlob(msgspec.Struct, frozen=True):
    """The server's answer to an upload or an offer."""

    key: str
    size: int


async def pieces(stream: StreamReader, *, idle_timeout: float) -> AsyncIterator[bytes]:
    """The stream in pieces of about CHUNK bytes, as each costs a trip to a thread.

    Raises TimeoutError when nothing comes for `idle_timeout` seconds.
    """
    waiting, size = list[bytes](), 0
    while True:
        try:
            async with asyncio.timeout(idle_timeout):
                data = await stream.readany()
        except Exception:
            if size:
                yield b"".join(waiting)  # what came is kept, so that a resumed transfer need not fetch it again
            raise
        waiting.append(data)
        size += len(data)
        if size and (size >= CHUNK or not data):
            yield b"".join(waiting)
            waiting, size = [], 0
        if not data:
            return


class TransferGate:
    """At most `limit` transfers run, at most `backlog` wait; more are refused."""

    def __init__(self, limit: int, backlog: int) -> None:
        self._room = asyncio.Semaphore(limit)
        self._backlog = backlog
        self.running = 0
        self.waiting = 0

    @asynccontextmanager
    async def transfer(self) -> AsyncIterator[None]:
        """Raises BlobServerBusy."""
        if self._room.locked() and self.waiting >= self._backlog:
            raise BlobServerBusy(f"{self.running} transfers run and {self.waiting} wait", hint="try again later")
        self.waiting += 1
        try:
            await self._room.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._room.release()
