"""A mount that hangs: who has to wait, and what its late answers do. A FIFO without a writer hangs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from minflinkd.storage.conformance import names, read, write
from minflinkd.storage.interface import Storage, StorageUnavailable
from minflinkd.storage.options import CommonOptions
from minflinkd.storage.resilient import ResilientStorage
from minflinkd_local import LocalStorage, files, threads
from tests.waiting import until

HURRIED = CommonOptions(request_timeout=0.2, deadline=0.3, retries=1, pause=0.01)


def release(fifo: Path) -> None:
    os.close(os.open(fifo, os.O_RDWR))


@asynccontextmanager
async def hanging_reads(storage: Storage, fifo: Path, count: int) -> AsyncIterator[None]:
    os.mkfifo(fifo)
    tasks = [asyncio.create_task(read(storage, str(fifo), 0, 1)) for _ in range(count)]
    try:
        name = f"storage {fifo.parent}"
        await until(lambda: sum(thread.name == name for thread in threading.enumerate()) >= threads.MOST)
        yield
    finally:
        async with asyncio.timeout(30):
            while not all(task.done() for task in tasks):
                release(fifo)
                await asyncio.sleep(0.01)
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_mount_that_hangs_holds_up_no_other_and_not_the_event_loops_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away, here = tmp_path / "away", tmp_path / "here"
    away.mkdir()
    monkeypatch.setattr(threads, "mount_points", lambda: [str(away), "/"])
    local = LocalStorage()
    storage = ResilientStorage(local)
    async with hanging_reads(storage, away / "fifo", 3 * threads.MOST), asyncio.timeout(30):
        await write(storage, f"{here}/x", b"1")
        assert await read(storage, f"{here}/x") == b"1"
        assert await names(storage, str(here)) == ["x"]
        await asyncio.gather(*(asyncio.to_thread(lambda: None) for _ in range(50)))
        with pytest.raises(StorageUnavailable, match=r"away/x: no answer in time"):
            await ResilientStorage(local, HURRIED).stat(f"{away}/x")


HANGING = """
import asyncio, sys
from minflinkd_local import LocalStorage
async def main():
    stream = LocalStorage().open_read(sys.argv[1])
    try:
        await asyncio.wait_for(anext(stream), 0.1)
    except TimeoutError:
        print("given up")
asyncio.run(main())
"""


def test_a_process_ends_although_a_mount_hangs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    argv = [sys.executable, "-c", HANGING, str(tmp_path / "fifo")]
    assert subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout == "given up\n"


@pytest.fixture
def slow_publication(monkeypatch: pytest.MonkeyPatch) -> Callable[[], threading.Event]:
    """Return a function. After its call, the next publication waits in its thread for the returned event."""

    def arm() -> threading.Event:
        go_on, first, publish = threading.Event(), threading.Lock(), files.Draft.publish

        def slow(draft: files.Draft, *, exclusive: bool = False) -> object:
            if first.acquire(blocking=False):
                go_on.wait(60)
            return publish(draft, exclusive=exclusive)

        monkeypatch.setattr(files.Draft, "publish", slow)
        return go_on

    return arm


async def test_what_comes_back_late_does_not_undo_what_came_after_it(
    tmp_path: Path, slow_publication: Callable[[], threading.Event]
) -> None:
    """A commit is given up while its thread hangs. Other content is written, and then the thread goes on."""
    storage, path = LocalStorage(), f"{tmp_path}/x"
    go_on = slow_publication()
    with pytest.raises(StorageUnavailable, match="no answer"):
        await write(ResilientStorage(storage, HURRIED), path, b"first")
    later = asyncio.create_task(write(storage, path, b"second"))
    with pytest.raises(StorageUnavailable, match="no answer"):  # given up before it began
        await ResilientStorage(storage, HURRIED).delete([path])
    other = await write(storage, f"{tmp_path}/other", b"")  # other paths are not held up
    assert other.size == 0
    assert not later.done()
    go_on.set()
    await asyncio.wait_for(later, 30)
    assert await read(storage, path) == b"second"


async def test_a_call_that_was_given_up_before_it_began_is_not_made(
    tmp_path: Path, slow_publication: Callable[[], threading.Event]
) -> None:
    storage, path = LocalStorage(), f"{tmp_path}/x"
    go_on = slow_publication()
    first = asyncio.create_task(write(storage, path, b"first"))
    await asyncio.sleep(0)
    await until(lambda: storage._threads._last, "the first call has begun", pause=0.001)
    deletion = asyncio.create_task(storage.delete([path]))
    await asyncio.sleep(0)
    deletion.cancel()
    await asyncio.gather(deletion, return_exceptions=True)
    go_on.set()
    await first
    await storage.rename(path, f"{tmp_path}/y")  # waits for all of the above
    assert await names(storage, str(tmp_path)) == ["y"]
    await until(lambda: not storage._threads._last, "the last call on each path is forgotten")


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
    """The system gives no thread to the storage, for example because the limit of a container is reached."""
    real = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("storage "):
            raise RuntimeError("can't start new thread")
        real(thread)

    @contextmanager
    def refused() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            yield

    return refused


async def test_a_path_is_writable_again_once_there_are_threads_again(
    tmp_path: Path, no_threads: Callable[[], AbstractContextManager[None]]
) -> None:
    """S4"""
    storage, path = LocalStorage(), f"{tmp_path}/x"
    with no_threads():
        for _ in range(2 * threads.MOST):
            with pytest.raises(StorageUnavailable, match=r"no thread for storage .*can't start new thread"):
                await storage.create_exclusive(path, b"1")
    async with asyncio.timeout(30):
        await storage.create_exclusive(path, b"2")
        assert await read(storage, path) == b"2"
    await until(lambda: not storage._threads._last, "the last call on each path is forgotten")


def test_calls_share_the_threads_that_there_are(no_threads: Callable[[], AbstractContextManager[None]]) -> None:
    pool, go_on = threads.Threads("storage test"), threading.Event()
    first = pool.submit(lambda: go_on.wait(30))
    with no_threads():
        later = [pool.submit(lambda: 1) for _ in range(2 * threads.MOST)]
    go_on.set()
    assert first.result(30)
    assert [call.result(30) for call in later] == [1] * 2 * threads.MOST


def test_a_path_lies_on_the_longest_mount_point_that_leads_to_it() -> None:
    mounts = ["/mnt/a/b", "/mnt/a", "/"]
    paths = ["/mnt/a/b/x", "/mnt/a/bx", "/mnt/a", "/mnt/ab", "/x", "/"]
    assert [threads.mount_of(path, mounts) for path in paths] == ["/mnt/a/b", "/mnt/a", "/mnt/a", "/", "/", "/"]
    assert "/" in threads.mount_points()
    assert threads._unescaped(r"/with\040blank\134") == "/with blank\\"
