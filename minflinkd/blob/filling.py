"""Writes a blob to the disk while it arrives, in a thread that is taken only while there is something to write."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager, suppress

from minflinkd.blob.incoming import Incoming
from minflinkd.blob.transfer import CHUNK, finish

WORTH_A_THREAD = CHUNK // 2  # bytes
MOST_WAITING = 2 * CHUNK  # bytes


class Filling:
    """Writes one blob. Its thread takes piece after piece while there are any, without going through the event loop."""

    def __init__(self, incoming: Incoming, threads: Executor | None) -> None:
        self._incoming = incoming
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._kept = True  # all of it so far, because it is so small
        self._progress = asyncio.Event()  # there is room again, or nothing is being written
        self._lock = threading.Lock()  # guards all that follows
        self._waiting: deque[bytes] = deque()
        self._size = 0  # bytes that wait or are being written
        self._writing = False
        self._error: Exception | None = None

    @property
    def writing(self) -> bool:
        return self._writing

    async def put(self, piece: bytes) -> None:
        """Add a piece; wait while too much is queued.

        Raises BlobTooLarge, StorageError, for this piece or an earlier one.
        """
        self._kept = self._kept and self._incoming.keep(piece)
        if self._kept:
            return
        with self._lock:
            self._waiting.append(piece)
            self._size += len(piece)
        if self._size >= WORTH_A_THREAD:
            self._start()
        await self._until(lambda: self._size <= MOST_WAITING)
        self._check()

    async def flush(self) -> None:
        """Write everything. Raises what `put` raises."""
        self._start()
        await self._until(lambda: False)
        self._check()

    async def stop(self) -> None:
        """Stop writing. What is still queued is dropped."""
        with self._lock:
            self._waiting.clear()
        await self._until(lambda: False)

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds or nothing is being written."""
        while self._writing and not condition():
            self._progress.clear()
            if self._writing and not condition():  # otherwise the thread may have set the event already
                await self._progress.wait()

    def _start(self) -> None:
        with self._lock:
            if self._writing or self._error is not None or not self._waiting:
                return
            self._writing = True
        try:
            self._loop.run_in_executor(self._threads, self._write)
        except BaseException:
            self._writing = False
            raise

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    # --- in the thread -----------------------------------------------------------------------------------------------

    def _write(self) -> None:
        while (piece := self._next()) is not None:
            try:
                self._incoming.write(piece)
            except Exception as error:
                with self._lock:
                    self._error = error
                    self._waiting.clear()
            with self._lock:
                before, self._size = self._size, self._size - len(piece)
                room = before > MOST_WAITING // 2 >= self._size
            if room:
                self._loop.call_soon_threadsafe(self._progress.set)
        self._loop.call_soon_threadsafe(self._progress.set)

    def _next(self) -> bytes | None:
        with self._lock:
            if not self._waiting:
                self._writing = False
                return None
            return self._waiting.popleft()


@asynccontextmanager
async def placed_or_discarded(incoming: Incoming) -> AsyncIterator[Incoming]:
    """Discard the blob at the end of the block if it was not placed."""
    try:
        yield incoming
    finally:
        if not incoming.closed:
            await finish(asyncio.to_thread(incoming.discard))


@asynccontextmanager
async def filling(incoming: Incoming, threads: Executor | None = None) -> AsyncIterator[Filling]:
    """Write what is put in this block.

    All of it is written at the end, even if the block raises, so that another try can continue after it. If the block
    is cancelled, the rest is dropped. Either way nothing is being written after the block. `threads`: the loop's own by
    default.
    """
    one = Filling(incoming, threads)
    try:
        try:
            yield one
        except Exception:
            with suppress(Exception):
                await one.flush()
            raise
        await one.flush()
    finally:
        if one.writing:
            await finish(one.stop())


async def fill(
    incoming: Incoming,
    source: AsyncIterator[bytes],
    *,
    threads: Executor | None = None,
    progress: Callable[[int], object] = lambda _: None,
) -> None:
    """Fill `incoming` with all of `source`; see `filling`. `progress` is told how much has arrived."""
    async with filling(incoming, threads) as one:
        size = incoming.size
        async for piece in source:
            await one.put(piece)
            size += len(piece)
            progress(size)
