"""A BlobServer in its own process, and the memory that it takes.

`python -m benchmarks.blob_server DIRECTORY [HA-DIRECTORY]` prints its URL and serves until stdin ends.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.child import child
from minflinkd.blob.server import BlobOptions, BlobServer
from minflinkd.storage.registry import Storages

MIB = 1 << 20


@dataclass(frozen=True)
class ServerProcess:
    url: str
    pid: int

    def resident(self) -> float:
        """Return the current MiB."""
        return _status(self.pid, "VmRSS")

    def peak(self) -> float:
        """Return the maximum MiB since the start or since `forget_peak`."""
        return _status(self.pid, "VmHWM")

    def forget_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")


@asynccontextmanager
async def served(directory: Path, ha_directory: Path | None = None) -> AsyncIterator[ServerProcess]:
    arguments = [str(directory)] + ([] if ha_directory is None else [str(ha_directory)])
    command = (sys.executable, "-m", "benchmarks.blob_server", *arguments)
    async with child(*command, cwd=Path(__file__).parents[1]) as process:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().strip()
        if not url:
            raise RuntimeError("the BlobServer did not start; stderr has the reason")
        yield ServerProcess(url, process.pid)


def _status(pid: int, name: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024 / MIB
    raise KeyError(name)


async def serve(directory: Path, ha_directory: Path | None) -> None:
    storages = Storages()
    ha_store = None if ha_directory is None else storages.at(str(ha_directory))
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
    for number in (signal.SIGINT, signal.SIGTERM):  # the benchmark ends it through stdin
        signal.signal(number, signal.SIG_IGN)
    async with BlobServer(options=BlobOptions(directory=directory), ha_store=ha_store) as server:
        print(server.url, flush=True)
        await ended.wait()
    await storages.aclose()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None))
