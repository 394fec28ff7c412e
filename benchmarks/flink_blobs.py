"""Flink's own BlobServer and client, each in its own JVM, measured in the same run as ours."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

from benchmarks.child import child
from tests.servers import install

VERSION = "2.3.0"
_JARS = install.HOME / f"flink-runtime-{VERSION}"
_SOURCE = Path(__file__).with_name("FlinkBlobs.java")
_LONGEST = 600  # seconds for one answer


class FlinkClient:
    """A client of one server. All answers are in seconds, measured in the client's JVM."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def put(self, file: Path) -> float:
        return await self._ask(f"put {file}")

    async def get(self) -> float:
        """Get what was put last."""
        return await self._ask("get")

    async def get_all(self) -> float:
        """Get everything that was put, at once."""
        return await self._ask("all")

    async def _ask(self, what: str) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n".encode())
        return int(await _line(self._process)) / 1e9


class FlinkServer:
    def __init__(self, port: int, directory: Path) -> None:
        self._port = port
        self._directory = directory

    @asynccontextmanager
    async def client(self, name: str) -> AsyncIterator[FlinkClient]:
        """Start a client with its own empty job. Its downloads are deleted at the end."""
        directory = self._directory / name
        directory.mkdir()
        async with _java("client", str(self._port), str(directory)) as process:
            yield FlinkClient(process)
        await asyncio.to_thread(shutil.rmtree, directory)


@asynccontextmanager
async def flink_server(directory: Path) -> AsyncIterator[FlinkServer]:
    """Start a server. Raises install.NotInstalled if there is no Maven or it cannot fetch Flink."""
    await asyncio.to_thread(install.jars, _JARS, [f"org.apache.flink:flink-runtime:{VERSION}"])
    async with AsyncExitStack() as stack:
        (directory / "server").mkdir(parents=True)
        process = await stack.enter_async_context(_java("server", str(directory / "server")))
        yield FlinkServer(int(await _line(process)), directory)


def _java(*arguments: str) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
    command = ("java", "-Xmx1g", "-cp", f"{_JARS}/*", str(_SOURCE), *arguments)
    return child(*command, stderr=asyncio.subprocess.DEVNULL)


async def _line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(_LONGEST):
        line = (await process.stdout.readline()).decode().strip()
    if not line:
        raise RuntimeError("Flink's process ended; run benchmarks/FlinkBlobs.java by hand to see why")
    return line
