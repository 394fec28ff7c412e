"""What the BlobServer does in threads, and that it leaves enough of them to others (B9, B40)."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from pathlib import Path

import aiohttp
import pytest

from minflinkd.blob import delivery, store
from minflinkd.blob.keys import BlobKey, BlobKind
from minflinkd.blob.server import BlobOptions, BlobServer
from tests.component.blob.raw_clients import JOB, MIB, nothing_runs, put, sha256
from tests.waiting import until


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
