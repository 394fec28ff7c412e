"""The BlobServer with many clients, slow ones and those that leave, and without space (B5, B9, B40)."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from io import FileIO
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from minflinkd.blob import delivery, store
from minflinkd.blob.keys import BlobKey, BlobKind
from minflinkd.blob.server import BlobOptions, BlobServer
from minflinkd.blob.transfer import Pace
from minflinkd.runtime.ids import JobId
from minflinkd.storage.registry import Storages
from tests.waiting import until

JOB = JobId("a" * 32)
MIB = 1 << 20


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def files(directory: Path) -> list[str]:
    found = (Path(where) / name for where, _, names in os.walk(directory) for name in names)
    return sorted(str(path.relative_to(directory)) for path in found)


async def put(server: BlobServer, data: bytes) -> BlobKey:
    async with aiohttp.request("PUT", f"{server.url}/blobs/{JOB}", params={"sha256": sha256(data)}, data=data) as got:
        assert got.status == 201, await got.text()
        return BlobKey.parse((await got.json())["key"])


@asynccontextmanager
async def wire(server: BlobServer) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    address = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=4096)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def head(method: str, path: str, *lines: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *lines, "", ""]).encode()


def nothing_runs(server: BlobServer) -> bool:
    statistics = server.statistics()
    return (statistics.running, statistics.waiting) == (0, 0)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def nothing_leaks() -> Iterator[None]:
    before = descriptors()
    yield
    assert descriptors() <= before


# --- many ------------------------------------------------------------------------------------------------------------


async def download_at_once(server: BlobServer, many: int, size: int) -> None:
    data = os.urandom(size)
    key = await put(server, data)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(server.url, connector=connector) as http:

        async def get() -> str:
            async with http.get(f"/blobs/{JOB}/{key}") as response:
                hasher = hashlib.sha256()
                async for piece in response.content.iter_chunked(MIB):
                    hasher.update(piece)
                return hasher.hexdigest()

        assert set(await asyncio.gather(*(get() for _ in range(many)))) == {key.sha256}
    await until(lambda: nothing_runs(server))
    assert server.statistics().sent_bytes == many * size


@pytest.mark.parametrize(
    ("many", "size"), [(50, MIB // 4), pytest.param(50, 10 * MIB, marks=pytest.mark.slow)], ids=["small", "full"]
)
async def test_fifty_download_at_once(tmp_path: Path, many: int, size: int, nothing_leaks: None) -> None:
    """B9"""
    async with BlobServer(options=BlobOptions(directory=tmp_path)) as server:
        await download_at_once(server, many, size)


@pytest.mark.parametrize(
    ("running", "waiting", "asking"),
    [(2, 10, 40), pytest.param(50, 1000, 1100, marks=pytest.mark.slow)],
    ids=["small", "full"],
)
async def test_more_than_may_wait_come_again(
    tmp_path: Path, running: int, waiting: int, asking: int, nothing_leaks: None
) -> None:
    """Some are served, some wait, and the rest are told when to come again. Nobody is forgotten (B9)."""
    options = BlobOptions(directory=tmp_path, transfers=running, backlog=waiting)
    async with BlobServer(options=options) as server:
        data = os.urandom(8 * MIB)
        key = await put(server, data)
        async with contextlib.AsyncExitStack() as stack:
            slow = [await stack.enter_async_context(wire(server)) for _ in range(running)]
            for _, writer in slow:
                writer.write(head("GET", f"/blobs/{JOB}/{key}"))
            await until(lambda: server.statistics().running == running)
            connector = aiohttp.TCPConnector(limit=0)
            http = await stack.enter_async_context(aiohttp.ClientSession(server.url, connector=connector))
            answers: list[tuple[int, str]] = []

            async def ask() -> None:
                async with http.get(f"/blobs/{JOB}/{key}", headers={"Range": "bytes=0-9"}) as response:
                    assert response.status == 503 or await response.read() == data[:10]
                    answers.append((response.status, response.headers.get("Retry-After", "")))

            asked = [asyncio.create_task(ask()) for _ in range(asking)]
            refused = asking - waiting
            await until(lambda: len(answers) == refused)
            assert server.statistics().waiting == waiting
            assert set(answers) == {(503, "1")}
            async with http.put(f"/blobs/{JOB}", params={"sha256": sha256(b"1")}, data=b"1") as response:
                assert response.status == 503, "uploads take their turn like everything else"
            for _, writer in slow:
                writer.transport.abort()
            await asyncio.gather(*asked)
            assert sorted(answers) == [(206, "")] * waiting + [(503, "1")] * refused
        await until(lambda: nothing_runs(server))


async def test_who_waits_and_leaves_is_forgotten(tmp_path: Path) -> None:
    options = BlobOptions(directory=tmp_path, transfers=1, backlog=1)
    async with BlobServer(options=options) as server:
        key = await put(server, os.urandom(8 * MIB))
        async with wire(server) as (_, slow):
            slow.write(head("GET", f"/blobs/{JOB}/{key}"))
            await until(lambda: server.statistics().running == 1)
            for _ in range(3):
                async with wire(server) as (_, writer):
                    writer.write(head("GET", f"/blobs/{JOB}/{key}"))
                    await until(lambda: server.statistics().waiting == 1)
                await until(lambda: server.statistics().waiting == 0)


async def test_who_waits_to_upload_takes_no_memory(tmp_path: Path) -> None:
    """The body of an upload that waits stays on its sender's machine (B40)."""
    options = BlobOptions(directory=tmp_path, transfers=1)
    async with BlobServer(options=options) as server:
        key = await put(server, os.urandom(8 * MIB))
        async with contextlib.AsyncExitStack() as stack:
            _, slow = await stack.enter_async_context(wire(server))
            slow.write(head("GET", f"/blobs/{JOB}/{key}"))
            await until(lambda: server.statistics().running == 1)
            line = f"Content-Length: {16 * MIB}"
            uploads = [await stack.enter_async_context(wire(server)) for _ in range(4)]
            for _, writer in uploads:
                writer.write(head("PUT", f"/blobs/{JOB}?sha256={'0' * 64}", line) + bytes(16 * MIB))
            await until(lambda: server.statistics().waiting == 4)
            unsent = [0]

            def at_rest() -> bool:
                unsent.append(sum(writer.transport.get_write_buffer_size() for _, writer in uploads))
                return unsent[-1] == unsent[-2]

            await until(at_rest, pause=0.1)
            assert unsent[-1] > 4 * 8 * MIB
        await until(lambda: nothing_runs(server))


# --- the slow, and those who leave -----------------------------------------------------------------------------------


async def test_a_client_that_does_not_read_loses_its_place(tmp_path: Path, nothing_leaks: None) -> None:
    options = BlobOptions(directory=tmp_path, transfers=1, idle_timeout=0.3)
    async with BlobServer(options=options) as server:
        data = os.urandom(8 * MIB)
        key = await put(server, data)
        async with wire(server) as (_, writer), aiohttp.ClientSession(server.url) as http:
            writer.write(head("GET", f"/blobs/{JOB}/{key}"))
            await until(lambda: server.statistics().running == 1)
            async with http.get(f"/blobs/{JOB}/{key}") as response:
                assert await response.read() == data, "the next one, when its patience is over"


async def test_a_client_that_reads_a_little_now_and_then_loses_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that reads slowly is never idle, so fifty of them could hold the server for ever."""
    options = BlobOptions(directory=tmp_path, transfers=1, idle_timeout=0.3)
    async with BlobServer(options=options) as server:
        key = await put(server, os.urandom(32 * MIB))
        monkeypatch.setattr(Pace, "SLOWEST", 64 * MIB)
        async with wire(server) as (reader, writer):
            writer.write(head("GET", f"/blobs/{JOB}/{key}"))
            got = 0
            with contextlib.suppress(ConnectionError):
                while piece := await reader.read(65536):
                    got += len(piece)
                    await asyncio.sleep(0.01)
            assert got < 32 * MIB
        await until(lambda: nothing_runs(server))


async def test_a_client_that_sends_a_byte_now_and_then_is_given_up(tmp_path: Path) -> None:
    options = BlobOptions(directory=tmp_path, transfers=1, idle_timeout=0.3)
    async with BlobServer(options=options) as server, wire(server) as (reader, writer):
        writer.write(head("PUT", f"/blobs/{JOB}?sha256={'0' * 64}", "Content-Length: 1000000"))
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(20):
                while not reader.at_eof():
                    writer.write(b"x")
                    await writer.drain()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.02):
                            await reader.read(1)
        await until(lambda: nothing_runs(server) and files(tmp_path) == [])


@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_a_client_that_stops_in_the_middle_frees_everything(
    tmp_path: Path, method: str, nothing_leaks: None
) -> None:
    """B5"""
    ha = Storages().at(str(tmp_path / "ha"))
    async with BlobServer(options=BlobOptions(directory=tmp_path / "server"), ha_store=ha) as server:
        key = await put(server, os.urandom(8 * MIB))
        before = files(tmp_path)
        for _ in range(5):
            async with wire(server) as (reader, writer):
                if method == "GET":
                    writer.write(head("GET", f"/blobs/{JOB}/{key}"))
                    await reader.readexactly(100_000)
                else:
                    line = f"Content-Length: {8 * MIB}"
                    writer.write(head("PUT", f"/blobs/{JOB}?sha256={'0' * 64}", line) + bytes(4 * MIB))
                    await until(lambda: len(files(tmp_path)) > len(before))
            await until(lambda: nothing_runs(server) and files(tmp_path) == before)


async def test_an_upload_that_waits_and_leaves_gives_its_place_in_the_backlog_to_others(tmp_path: Path) -> None:
    """B9"""
    async with BlobServer(options=BlobOptions(directory=tmp_path, transfers=1, backlog=3)) as server:
        request = f"/blobs/{JOB}?sha256={sha256(bytes(10))}", "Content-Length: 10"
        async with wire(server) as (_, first):
            first.write(head("PUT", *request))
            await until(lambda: server.statistics().running == 1)
            async with AsyncExitStack() as waiting:
                for _ in range(3):
                    _, writer = await waiting.enter_async_context(wire(server))
                    writer.write(head("PUT", *request, "Expect: 100-continue"))
                await until(lambda: server.statistics().waiting == 3)
            await until(lambda: server.statistics().waiting == 0)
            async with wire(server) as (reader, writer):
                writer.write(head("PUT", *request, "Expect: 100-continue"))
                await until(lambda: server.statistics().waiting == 1)
                first.write(bytes(10))
                assert b" 100 " in await reader.readline()
                writer.write(bytes(10))
                await reader.readline()
                assert b" 20" in await reader.readline()
        await until(lambda: nothing_runs(server))


async def test_what_has_left_the_cache_is_read_in_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop never waits for a disk. The kernel sends a trusted file from memory (B9)."""
    reads, read = list[str](), delivery._read

    def seen(file: FileIO, at: int, size: int, hasher: hashlib._Hash | None) -> bytes:
        reads.append(threading.current_thread().name)
        return read(file, at, size, hasher)

    def would_wait(*_: object) -> int:
        raise BlockingIOError

    async with BlobServer(options=BlobOptions(directory=tmp_path)) as server:
        key = await put(server, data := os.urandom(2 * MIB + 1))
        os.utime(tmp_path / JOB / str(key), (0, 0))

        async def get() -> bytes:
            async with aiohttp.request("GET", f"{server.url}/blobs/{JOB}/{key}") as response:
                return await response.read()

        await until(lambda: (tmp_path / JOB / str(key)).stat().st_ctime_ns < time.time_ns() - 1e8)  # can be trusted
        assert await get() == data
        assert await get() == data
        monkeypatch.setattr(delivery, "_read", seen)
        monkeypatch.setattr(os, "preadv", lambda *_: 1)
        assert await get() == data
        assert reads == [], "it is trusted"
        monkeypatch.setattr(os, "preadv", would_wait)
        assert await get() == data
        assert len(reads) == 3
        assert threading.main_thread().name not in reads


async def test_what_was_hashed_to_be_opened_is_not_hashed_again_to_be_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request hashes a file once, even if the file is so young that the next request may not trust it (B9)."""
    hashed, digest = list[str](), hashlib.file_digest

    def seen(file: FileIO, name: str) -> hashlib._Hash:
        hashed.append(name)
        return digest(file, name)

    def unread(*_: object) -> bytes:
        raise AssertionError("it is sent by the kernel")

    monkeypatch.setattr(hashlib, "file_digest", seen)
    monkeypatch.setattr(store, "_GRANULARITY_NS", 10**18)
    monkeypatch.setattr(os, "preadv", lambda *_: 1)
    async with BlobServer(options=BlobOptions(directory=tmp_path)) as server:
        key = await put(server, data := os.urandom(MIB))
        monkeypatch.setattr(delivery, "_read", unread)
        for n in (1, 2):
            async with aiohttp.request("GET", f"{server.url}/blobs/{JOB}/{key}") as response:
                assert await response.read() == data
            assert len(hashed) == n


async def test_a_disk_that_hangs_holds_none_of_the_threads_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_leaks: None
) -> None:
    """TaskManagers are started with those threads. Requests that need no disk are served too (B9)."""
    many, data = 12, os.urandom(MIB)
    go_on, pwrite = threading.Event(), os.pwrite
    writing = list[str]()

    def hangs(fd: int, piece: memoryview, at: int) -> int:
        writing.append(threading.current_thread().name)
        assert go_on.wait(20)
        return pwrite(fd, piece, at)

    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    async with BlobServer(options=BlobOptions(directory=tmp_path)) as server:
        monkeypatch.setattr(os, "pwrite", hangs)
        async with asyncio.TaskGroup() as group:
            for n in range(many):
                group.create_task(put(server, bytes([n]) + data))
            try:
                await until(lambda: len(writing) == many)
                async with asyncio.timeout(5):
                    await asyncio.to_thread(int)
            finally:
                go_on.set()
        await until(lambda: nothing_runs(server))
        assert {name.partition("_")[0] for name in writing} == {"blob"}


@pytest.mark.parametrize("method", ["HEAD", "PUT", "GET"])
async def test_files_that_are_hashed_leave_the_threads_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Hashing takes a place among the transfers. Each file is hashed once, however many ask for it (B9)."""
    many, asked, hashed = 12, 3, list[str]()
    go_on = threading.Event()
    digest = hashlib.file_digest

    def slowly(file: FileIO, name: str) -> hashlib._Hash:
        hashed.append(threading.current_thread().name)
        assert go_on.wait(20)
        return digest(file, name)

    contents = [bytes([i]) * 1000 for i in range(many)]
    keys = [BlobKey.new(BlobKind.PERMANENT, sha256(content)) for content in contents]
    (tmp_path / JOB).mkdir()
    for key, content in zip(keys, contents, strict=True):
        (tmp_path / JOB / str(key)).write_bytes(content)
        os.utime(tmp_path / JOB / str(key), (0, 0))
    await until(lambda: (tmp_path / JOB / str(keys[-1])).stat().st_ctime_ns < time.time_ns() - 1e8)  # can be trusted
    monkeypatch.setattr(hashlib, "file_digest", slowly)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    async with (
        BlobServer(options=BlobOptions(directory=tmp_path)) as server,
        aiohttp.ClientSession(server.url, connector=aiohttp.TCPConnector(limit=0)) as http,
    ):
        await server.take_stock({JOB: keys})

        async def ask(key: BlobKey) -> int:
            if method == "PUT":
                params, content = {"sha256": key.sha256}, contents[keys.index(key)]
                async with http.put(f"/blobs/{JOB}", params=params, data=content, expect100=True) as response:
                    return response.status
            async with http.request(method, f"/blobs/{JOB}/{key}") as response:
                return response.status

        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(ask(key)) for key in keys * asked]
            try:
                await until(lambda: server.statistics().running == many * asked)
                async with asyncio.timeout(5):
                    await asyncio.to_thread(int)
            finally:
                go_on.set()
        assert {task.result() for task in asking} == {200}
        assert len(hashed) == many
        assert {name.partition("_")[0] for name in hashed} == {"blob"}


# --- too large, and no room ------------------------------------------------------------------------------------------


async def test_a_body_that_is_announced_too_large_is_refused_at_once(tmp_path: Path) -> None:
    """A body that is announced as too large is refused before a byte of it is read (B5)."""
    async with BlobServer(options=BlobOptions(directory=tmp_path, max_size=1000)) as server:
        async with wire(server) as (reader, writer):
            writer.write(head("PUT", f"/blobs/{JOB}?sha256={'0' * 64}", "Content-Length: 1001"))
            assert b" 413 " in await reader.readline()
        async with wire(server) as (reader, writer):
            lines = "Content-Length: 1001", "Expect: 100-continue"
            writer.write(head("PUT", f"/blobs/{JOB}?sha256={'0' * 64}", *lines))
            assert b" 413 " in await reader.readline(), "and not 100"

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(11):
                yield bytes(100)

        url = f"{server.url}/blobs/{JOB}"
        async with aiohttp.request("PUT", url, params={"sha256": "0" * 64}, data=chunks()) as response:
            assert response.status == 413, "of unknown length: while it comes"
        await until(lambda: nothing_runs(server) and files(tmp_path) == [])


@contextlib.contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Make the operating system fail in the middle of a write (EFBIG), in place of a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = (
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN) if threading.current_thread() is threading.main_thread() else 0
    )
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        if ignored:
            signal.signal(signal.SIGXFSZ, ignored)


async def test_a_write_that_fails_in_the_middle_leaves_nothing(tmp_path: Path, nothing_leaks: None) -> None:
    """B5"""
    async with BlobServer(options=BlobOptions(directory=tmp_path)) as server:
        data = os.urandom(4 * MIB)
        with file_size_limit(MIB):
            url = f"{server.url}/blobs/{JOB}"
            async with aiohttp.request("PUT", url, params={"sha256": sha256(data)}, data=data) as response:
                assert (response.status, (await response.json())["code"][:7]) == (500, "storage")
        await until(lambda: nothing_runs(server) and files(tmp_path) == [])
        await put(server, data)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MiB."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", directory], capture_output=True, check=False
    )
    if mount.returncode:
        pytest.skip("only root mounts a file system")
    try:
        yield directory
    finally:
        subprocess.run(["umount", directory], check=True)


@pytest.mark.parametrize("full", ["server", "ha"])
async def test_a_full_disk_is_an_error_that_leaves_nothing(small_disk: Path, tmp_path: Path, full: str) -> None:
    """Either of the two stores may be full. When there is space again, the same upload succeeds (B5)."""
    places = {"server": tmp_path / "server", "ha": tmp_path / "ha"} | {full: small_disk / full}
    storages = Storages()
    options = BlobOptions(directory=places["server"])
    async with BlobServer(options=options, ha_store=storages.at(str(places["ha"]))) as server:
        kept = await put(server, os.urandom(MIB))
        before = files(tmp_path)
        data = os.urandom(4 * MIB)
        url = f"{server.url}/blobs/{JOB}"
        async with aiohttp.request("PUT", url, params={"sha256": sha256(data)}, data=data) as response:
            assert (response.status, (await response.json())["code"]) == (507, "storage-full")
        await until(lambda: nothing_runs(server) and files(tmp_path) == before)
        await put(server, os.urandom(MIB // 2))
        assert sha256(await server.read(JOB, kept)) == kept.sha256
    await storages.aclose()
