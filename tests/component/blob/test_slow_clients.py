"""Clients that are slow, that stop in the middle, or that leave (A5, B5, B40)."""

from __future__ import annotations

import asyncio
import contextlib
import os
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from minflinkd.blob.server import BlobOptions, BlobServer
from minflinkd.blob.transfer import Pace
from minflinkd.storage.registry import Storages
from tests.component.blob.raw_clients import JOB, MIB, files, head, nothing_runs, put, sha256, wire
from tests.waiting import until


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
