"""Moves blobs over HTTP: pieces of a useful size, and no more transfers at once than allowed (B9, B40)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec
from aiohttp import StreamReader

from minflinkd.blob.errors import BlobServerBusy

CHUNK = 1024 * 1024  # bytes
T = TypeVar("T")


class StoredBlob(msgspec.Struct, frozen=True):
    """The server's answer to an upload."""

    key: str
    size: int


class BlobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One entry in the server's list of blobs."""

    job: str  # its id, or `none`
    key: str
    kind: str  # p or t
    size: int  # bytes
    references: int
    state: str  # a value of `lifecycle.BlobState`
    modified_ms: int  # since 1970; when it was stored here


async def pieces(stream: StreamReader, *, idle_timeout: float) -> AsyncIterator[bytes]:
    """Yield the stream as it arrives.

    Raises TimeoutError when nothing arrives for `idle_timeout` seconds, or too little (`Pace`).
    """
    data, pace = b"", Pace(idle_timeout)
    while True:
        async with pace.step(len(data)):
            data, chunk_ends = await stream.readchunk()  # as it arrived: `readany` would copy it
        if data:
            yield data
        elif not chunk_ends or stream.at_eof():  # otherwise only a chunk ended (an empty stream keeps reporting that)
            return


async def in_chunks(source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield pieces of about CHUNK bytes, for a consumer that needs a thread call for each."""
    waiting, size = list[bytes](), 0
    async for piece in source:
        waiting.append(piece)
        size += len(piece)
        if size >= CHUNK:
            yield b"".join(waiting)
            waiting, size = [], 0
    if size:
        yield b"".join(waiting)


async def pump(source: AsyncIterator[bytes], write: Callable[[bytes], Awaitable[object]]) -> None:
    """Write each piece while the next one arrives.

    If `source` fails, what came before is still written. Nothing is being written when this returns or raises.
    """
    writing: asyncio.Future[object] | None = None
    try:
        async for piece in source:
            if writing is not None:
                await writing
            writing = asyncio.ensure_future(write(piece))
        if writing is not None:
            await writing
    except BaseException as error:
        if writing is not None:
            if isinstance(error, asyncio.CancelledError):
                writing.cancel()
            await asyncio.wait({writing})
            if not writing.cancelled():
                writing.exception()  # mark it as retrieved
        raise


async def finish(step: Awaitable[T]) -> T:
    """Finish `step` even if the caller is cancelled: the cancellation waits for it."""
    task = asyncio.ensure_future(step)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # mark it as retrieved
        raise


class Pace:
    """Limits how slow a transfer may be, so that no peer holds a place for ever.

    Something must move within every `idle_timeout` seconds, and at least SLOWEST bytes a second overall.
    """

    SLOWEST = 16 * 1024

    def __init__(self, idle_timeout: float) -> None:
        self._idle_timeout = idle_timeout
        self._clock = asyncio.get_running_loop().time
        self._latest = self._clock() + idle_timeout

    def step(self, moved: int = 0) -> asyncio.Timeout:
        """Return the timeout for the next step, after `moved` more bytes. It raises TimeoutError when it passes."""
        self._latest += moved / self.SLOWEST
        return asyncio.timeout_at(min(self._latest, self._clock() + self._idle_timeout))


class TransferGate:
    """At most `limit` transfers run. At most `backlog` wait, up to `longest_wait` seconds. More are refused."""

    def __init__(self, limit: int, backlog: int, longest_wait: float) -> None:
        self._room = asyncio.Semaphore(limit)
        self._backlog = backlog
        self._longest_wait = longest_wait
        self.running = 0
        self.waiting = 0

    @asynccontextmanager
    async def transfer(self) -> AsyncIterator[None]:
        """Hold a place for one transfer. Raises BlobServerBusy."""
        if self._room.locked() and self.waiting >= self._backlog:
            raise BlobServerBusy(f"{self.running} transfers run and {self.waiting} wait", hint="try again later")
        self.waiting += 1
        try:
            async with asyncio.timeout(self._longest_wait):
                await self._room.acquire()
        except TimeoutError:
            raise BlobServerBusy(f"{self.running} transfers run, and none ended for long", hint="try again") from None
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._room.release()
