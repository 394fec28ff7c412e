"""Clients that connect and say nothing do not keep a daemon from its work, nor fill its log (E45)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import ssl
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import aiohttp
import pytest
import pytest_asyncio

from minflinkd.runtime.tls import Tls
from tests.cluster import free_port
from tests.tls import CaInTest
from tests.tokens import bearer
from tests.waiting import until

FILES = 256  # that the daemon may have open
CLIENTS = 300  # on each port


@dataclass(frozen=True)
class Daemon:
    """`tls`: how its clients speak; False without TLS."""

    rpc: int
    http_url: str
    blob_url: str
    tls: ssl.SSLContext | Literal[False]

    @property
    def ports(self) -> tuple[int, ...]:
        return (int(self.http_url.rpartition(":")[2]), int(self.blob_url.rpartition(":")[2]), self.rpc)

    def http(self, url: str, headers: dict[str, str] | None = None) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(ssl=self.tls or True)
        return aiohttp.ClientSession(url, headers=headers, connector=connector)


@pytest_asyncio.fixture(params=["plain", "TLS"])
async def daemon(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Daemon]:
    """A daemon in a process of its own, and where it listens."""
    rpc, settings = free_port(), dict[str, object]()
    files = CaInTest(tmp_path / "tls").files() if request.param == "TLS" else None
    if files is not None:
        for which in ("internal", "rest"):
            settings |= {f"security.ssl.{which}.{name}": getattr(files, name) for name in ("certificate", "key", "ca")}
            settings[f"security.ssl.{which}.enabled"] = "true"
    settings |= {"resourcemanager.driver": "standalone", "jobmanager.rpc.port": rpc, "rest.port": 0}
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
        yield Daemon(rpc, found["url"], found["blob_url"], False if files is None else Tls(files).client)
    finally:
        process.terminate()
        async with asyncio.timeout(30):
            await process.wait()


async def test_hundreds_of_silent_connections_keep_nobody_out(daemon: Daemon, tmp_path: Path) -> None:
    """The daemon may have fewer files open than there are clients on one port. With TLS, they do not even begin it."""
    async with contextlib.AsyncExitStack() as stack:
        for port in daemon.ports:
            for _ in range(CLIENTS):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                stack.callback(writer.close)
        async with daemon.http(daemon.http_url, bearer(tmp_path / "state")) as http:
            for _ in range(20):
                async with http.get("/overview", headers={"Connection": "close"}) as response:
                    assert response.status == 200
        async with daemon.http(daemon.blob_url) as http, http.get("/") as response:
            assert response.status in (401, 404)
        challenge, writer = await asyncio.open_connection("127.0.0.1", daemon.rpc, ssl=daemon.tls or None)
        stack.callback(writer.close)
        async with asyncio.timeout(5):
            assert await challenge.read(4), "the daemon begins the handshake"
    assert (tmp_path / "log").stat().st_size < 50_000
    assert "Too many open files" not in (tmp_path / "log").read_text()
