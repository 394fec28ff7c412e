"""Clients that connect and say nothing do not keep a daemon from its work, nor fill its log (E45)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest_asyncio

from tests.cluster import free_port
from tests.tokens import bearer
from tests.waiting import until

FILES = 256  # that the daemon may have open
CLIENTS = 300  # on each port


@pytest_asyncio.fixture
async def ports(tmp_path: Path) -> AsyncIterator[dict[str, int]]:
    """A daemon in a process of its own, and the ports on which it listens."""
    settings = {"resourcemanager.driver": "standalone", "jobmanager.rpc.port": free_port(), "rest.port": 0}
    overrides = [part for name, value in settings.items() for part in ("-D", f"{name}={value}")]
    with (tmp_path / "log").open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "minflinkd", "serve", "--state-dir", str(tmp_path / "state"), *overrides),
            stdout=out,
            stderr=out,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES)),
        )
    try:
        ready = tmp_path / "state" / "daemon.json"
        await until(ready.exists, "the daemon is ready", timeout=30)
        found: dict[str, Any] = json.loads(ready.read_bytes())
        yield {
            "HTTP": int(found["url"].rpartition(":")[2]),
            "blobs": int(found["blob_url"].rpartition(":")[2]),
            "RPC": int(settings["jobmanager.rpc.port"]),
        }
    finally:
        process.terminate()
        async with asyncio.timeout(30):
            await process.wait()


async def test_hundreds_of_silent_connections_keep_nobody_out(ports: dict[str, int], tmp_path: Path) -> None:
    """The daemon may have fewer files open than there are clients on one port."""
    async with contextlib.AsyncExitStack() as stack:
        for port in ports.values():
            for _ in range(CLIENTS):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                stack.callback(writer.close)
        async with aiohttp.ClientSession(
            f"http://127.0.0.1:{ports['HTTP']}", headers=bearer(tmp_path / "state")
        ) as http:
            for _ in range(20):
                async with http.get("/overview", headers={"Connection": "close"}) as response:
                    assert response.status == 200
        async with aiohttp.ClientSession(f"http://127.0.0.1:{ports['blobs']}") as http, http.get("/") as response:
            assert response.status in (401, 404)
        challenge, writer = await asyncio.open_connection("127.0.0.1", ports["RPC"])
        stack.callback(writer.close)
        async with asyncio.timeout(5):
            assert await challenge.read(4), "the daemon begins the handshake"
    assert (tmp_path / "log").stat().st_size < 50_000
    assert "Too many open files" not in (tmp_path / "log").read_text()
