"""The BlobServer with blobs that are too large, and with a disk that is full (B5)."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from minflinkd.blob.server import BlobOptions, BlobServer
from minflinkd.storage.registry import Storages
from tests.component.blob.raw_clients import JOB, MIB, files, head, nothing_runs, put, sha256, wire
from tests.small_disk import small_disk
from tests.waiting import until


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
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 2) as directory:
        yield directory


@pytest.mark.parametrize("full", ["server", "ha"])
async def test_a_full_disk_is_an_error_that_leaves_nothing(disk: Path, tmp_path: Path, full: str) -> None:
    """Either of the two stores may be full. When there is space again, the same upload succeeds (B5)."""
    places = {"server": tmp_path / "server", "ha": tmp_path / "ha"} | {full: disk / full}
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
