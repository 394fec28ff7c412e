"""Clients of a BlobServer that speak HTTP byte by byte, and what a server holds while they do."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from minflinkd.blob.keys import BlobKey
from minflinkd.blob.server import BlobServer
from minflinkd.runtime.ids import JobId

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
