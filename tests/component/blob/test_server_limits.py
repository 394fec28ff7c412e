"""The BlobServer with many clients, slow ones and those that leave, and without space (B5, B9, B40)."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from pathlib import Path

import aiohttp
import pytest

from minflinkd.blob.server import BlobOptions, BlobServer
from tests.component.blob.raw_clients import JOB, MIB, head, nothing_runs, put, sha256, wire
from tests.waiting import until


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
