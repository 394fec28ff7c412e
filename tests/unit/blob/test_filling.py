"""A thread writes a blob to disk while it arrives (B5, B8, B40)."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from minflinkd.blob.errors import BlobTooLarge
from minflinkd.blob.filling import MOST_WAITING, fill, filling
from minflinkd.blob.incoming import SMALL, Incoming
from tests.waiting import until

PIECE = 64 * 1024


class Threads(ThreadPoolExecutor):
    """Counts uses of the threads, and can make each write wait."""

    def __init__(self) -> None:
        super().__init__(2)
        self.visits = 0
        self.go_on = threading.Event()
        self.go_on.set()
        self.arrived = threading.Event()

    def submit(self, *call, **arguments):  # type: ignore[no-untyped-def]
        self.visits += 1
        return super().submit(*call, **arguments)


@pytest.fixture
def threads() -> Iterator[Threads]:
    with Threads() as threads:
        yield threads
        threads.go_on.set()


class Slow(Incoming):
    """Each write waits for permission."""

    threads: Threads

    def write(self, data: bytes) -> None:
        self.threads.arrived.set()
        assert self.threads.go_on.wait(20)
        super().write(data)


def incoming_of(directory: Path, data: bytes, threads: Threads, max_size: int | None = None) -> Slow:
    found = Slow(directory / "temporary", directory / "target", hashlib.sha256(data).hexdigest(), max_size=max_size)
    found.threads = threads
    return found


async def cut(data: bytes, size: int = PIECE) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]
        await asyncio.sleep(0)


@pytest.mark.parametrize("size", [0, 1, SMALL, SMALL + 1, 1_000_000, 5_000_000])
@pytest.mark.parametrize("piece", [1000, PIECE, 700_000])
async def test_all_that_comes_is_written_in_its_order(tmp_path: Path, threads: Threads, size: int, piece: int) -> None:
    data = os.urandom(size)
    incoming, seen = incoming_of(tmp_path, data, threads), list[int]()
    await fill(incoming, cut(data, piece), threads=threads, progress=seen.append)
    assert incoming.size == size
    assert seen == sorted(seen)
    assert seen[-1:] == ([size] if size else [])
    assert incoming.place().read_bytes() == data
    assert bool(threads.visits) == (size > SMALL)


async def test_no_more_waits_than_allowed(tmp_path: Path, threads: Threads) -> None:
    """A sender that is faster than the disk has to wait (B40)."""
    data = os.urandom(4 * MOST_WAITING)
    incoming, came = incoming_of(tmp_path, data, threads), list[int]()
    threads.go_on.clear()
    task = asyncio.create_task(fill(incoming, cut(data), threads=threads, progress=came.append))
    await asyncio.to_thread(threads.arrived.wait, 20)
    for _ in range(1000):
        await asyncio.sleep(0)
    assert came[-1] == SMALL + MOST_WAITING
    threads.go_on.set()
    await asyncio.wait_for(task, 20)
    assert threads.visits < len(data) / MOST_WAITING * 4, "a thread stays while there is something to write"
    assert incoming.place().read_bytes() == data


async def test_what_came_before_a_source_broke_off_is_written(tmp_path: Path, threads: Threads) -> None:
    """So the next try can continue after it (B8)."""
    data = os.urandom(300_000)
    incoming = incoming_of(tmp_path, data, threads)

    async def breaks_off() -> AsyncIterator[bytes]:
        async for piece in cut(data[:200_000]):
            yield piece
        raise ConnectionError("broke off")

    with pytest.raises(ConnectionError, match="broke off"):
        await fill(incoming, breaks_off(), threads=threads)
    assert incoming.size == 200_000
    await fill(incoming, cut(data[200_000:]), threads=threads)
    assert incoming.place().read_bytes() == data


async def test_nothing_is_being_written_where_it_was_cancelled(tmp_path: Path, threads: Threads) -> None:
    """Waiting data is dropped, and cancellation waits for the piece that is being written (B5)."""
    data = os.urandom(4 * MOST_WAITING)
    incoming = incoming_of(tmp_path, data, threads)
    threads.go_on.clear()
    task = asyncio.create_task(fill(incoming, cut(data), threads=threads))
    await asyncio.to_thread(threads.arrived.wait, 20)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=0.05)
    assert not done, "it is written still"
    threads.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 20)
    size = incoming.size
    assert size == 2 * PIECE, "what was kept at first, and one"
    incoming.discard()
    await asyncio.to_thread(threads.shutdown)
    assert incoming.size == size
    assert list(tmp_path.iterdir()) == []


async def test_an_error_of_the_disk_ends_it_and_nothing_is_written_behind_it(tmp_path: Path, threads: Threads) -> None:
    """`size` still says how much there is (B5)."""
    data = os.urandom(1_000_000)
    incoming = incoming_of(tmp_path, data, threads, max_size=5 * PIECE)
    with pytest.raises(BlobTooLarge):
        await fill(incoming, cut(data), threads=threads)
    assert incoming.size == 5 * PIECE
    with suppress(BlobTooLarge):
        async with filling(incoming, threads) as one:
            await one.put(data[:PIECE])
            await one.flush()
    assert incoming.size == 5 * PIECE
    incoming.discard()


async def test_many_fill_at_once_with_few_threads(tmp_path: Path, threads: Threads) -> None:
    """Waiting for a sender takes no thread (B9)."""
    held, data = asyncio.Event(), os.urandom(1_000_000)

    async def waits_in_the_middle() -> AsyncIterator[bytes]:
        yield data[:600_000]
        await held.wait()
        yield data[600_000:]

    blobs = []
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        for n in range(10):
            (tmp_path / str(n)).mkdir()
            blobs.append(incoming_of(tmp_path / str(n), data, threads))
            group.create_task(fill(blobs[-1], waits_in_the_middle(), threads=threads))
        await until(lambda: all(blob.size >= 600_000 for blob in blobs))
        held.set()
    assert [blob.place().read_bytes() == data for blob in blobs] == [True] * 10
