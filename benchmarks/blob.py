"""Blobs: PUT and GET of 1 KiB, 10 MiB and 500 MiB, 50 x 10 MiB at once, and the server's memory, also with 1 GiB (B40).

Each in turn beside a plain copy of the same file (read, SHA-256, write, fsync, rename) and, where Maven can fetch it,
beside Flink's own BlobServer and client. Servers and clients are processes of their own, ours in Python, Flink's each a
JVM, and all share this machine's cores. Our server has an HA store on the same disk, as the daemon has it by default; a
PUT is answered when both files are durable. `no HA copy` is a server without one. Content is new in every PUT.

What differs: a blob is hashed on both sides, by the client before it is sent (so that known content is not) and by the
server as it comes. A GET is that of a TaskManager's cache: it hashes on both sides at once. A copy hashes once, and
nothing travels. Flink hashes with SHA-1 while it sends, and calls no fsync; it writes no HA copy here.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks.blob_server import MIB, ServerProcess, served
from benchmarks.figures import Row
from benchmarks.flink_blobs import VERSION, FlinkClient, FlinkServer, flink_server
from benchmarks.running import quick_asked, run, say
from minflinkd.blob.cache import BlobCache
from minflinkd.blob.client import BlobClient
from minflinkd.blob.keys import BlobKey
from minflinkd.runtime.ids import IdSource
from tests.servers.install import NotInstalled

COPY = "copy with SHA-256"
FLINK = f"Flink {VERSION}"
SIZES = {"1 KiB": 1024, "10 MiB": 10 * MIB, "500 MiB": 500 * MIB}
AT_ONCE = 50

Seconds = dict[str, list[float]]
T = TypeVar("T")


async def measure(base: Path, quick: bool) -> Row:
    repetitions = {"1 KiB": 30, "10 MiB": 5, "500 MiB": 2} if quick else {"1 KiB": 200, "10 MiB": 20, "500 MiB": 7}
    together = 2 if quick else 7
    row = Row("blob", "Blobs up and down, beside a copy of the file with SHA-256 and beside Flink")
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(served(base / "with-ha", base / "ha"))
        alone = await stack.enter_async_context(served(base / "alone"))
        client = await stack.enter_async_context(BlobClient(server.url))
        client_alone = await stack.enter_async_context(BlobClient(alone.url))
        try:
            flink = await stack.enter_async_context(flink_server(base / "flink"))
        except NotInstalled as error:
            say(f"blob: without Flink: {error}")
            flink = None
        bench = _Bench(base, client, client_alone)
        async with bench.beside(flink):
            for _ in range(20):  # for the JVMs too
                await bench.round("warm-up", 10 * MIB)
            for name, size in SIZES.items():
                with _memory(row, server, f"{name} up and down"):
                    for n in range(repetitions[name]):
                        await bench.round(name, size)
                        if (n + 1) % max(1, repetitions[name] // 4) == 0:
                            say(f"blob: {name}, {n + 1} of {repetitions[name]}")
        async with bench.beside(flink):
            await bench.prepare_many()
            with _memory(row, server, f"{AT_ONCE} x 10 MiB down at once"):
                for n in range(together):
                    await bench.many()
                    say(f"blob: {AT_ONCE} at once, {n + 1} of {together}")
        with _memory(row, server, "1 GiB up and down"):
            await bench.round("1 GiB", 1024 * MIB)
    _add_figures(row, bench.seconds)
    return row


@contextmanager
def _memory(row: Row, server: ServerProcess, what: str) -> Iterator[None]:
    """Measure the server's memory while the block runs."""
    server.forget_peak()
    before = server.resident()
    yield
    row.add(f"server's memory before: {what}", "MiB", [before])
    row.add(f"server's memory at its peak: {what}", "MiB", [server.peak()])


class _Bench:
    def __init__(self, base: Path, client: BlobClient, client_alone: BlobClient) -> None:
        self.seconds: Seconds = {}
        self._base = base
        self._client = client
        self._client_alone = client_alone
        self._flink: FlinkClient | None = None
        self._keys: list[BlobKey] = []
        self._ids = IdSource()

    @asynccontextmanager
    async def beside(self, server: FlinkServer | None) -> AsyncIterator[None]:
        if server is None:
            yield
            return
        async with server.client(self._ids.job()) as self._flink:
            yield
        self._flink = None

    async def round(self, name: str, size: int) -> None:
        """Time each operation once, in turn. Our blobs are deleted afterwards."""
        file, copy = self._base / "file", self._base / "copy"
        job_id = self._ids.job()
        await asyncio.to_thread(_new_content, file, size)
        for what, client in (("PUT", self._client), ("PUT, no HA copy", self._client_alone)):
            stored = await self._timed(f"{what} {name}", partial(client.upload, job_id, file))
        if self._flink is not None:
            self._found(f"Flink PUT {name}", await self._flink.put(file))
        await self._timed(f"copy {name}", lambda: asyncio.to_thread(_copy, file, copy))
        key = BlobKey.parse(stored.key)
        async with BlobCache(directory=self._base / "cache", client=self._client_alone) as cache:
            await self._timed(f"GET {name}", lambda: cache.get(job_id, key))
        if self._flink is not None:
            self._found(f"Flink GET {name}", await self._flink.get())
        for client in (self._client, self._client_alone):
            await client.delete_job(job_id)

    async def prepare_many(self) -> None:
        for n in range(AT_ONCE):
            file = self._base / f"many{n}"
            await asyncio.to_thread(_new_content, file, 10 * MIB)
            self._keys.append(BlobKey.parse((await self._client.upload(_MANY, file)).key))
            if self._flink is not None:
                await self._flink.put(file)

    async def many(self) -> None:
        async def copy(n: int) -> None:
            await asyncio.to_thread(_copy, self._base / f"many{n}", self._base / f"copy{n}")

        async def all_at_once(one: Callable[[int], Awaitable[object]]) -> None:
            await asyncio.gather(*(one(n) for n in range(AT_ONCE)))

        async with BlobCache(directory=self._base / "cache", client=self._client) as cache:
            await self._timed("GET at once", lambda: all_at_once(lambda n: cache.get(_MANY, self._keys[n])))
        if self._flink is not None:
            self._found("Flink GET at once", await self._flink.get_all())
        await self._timed("copy at once", lambda: all_at_once(copy))

    def _found(self, what: str, seconds: float) -> None:
        self.seconds.setdefault(what, []).append(seconds)

    async def _timed(self, what: str, action: Callable[[], Awaitable[T]]) -> T:
        began = time.perf_counter()
        result = await action()
        self._found(what, time.perf_counter() - began)
        return result


_MANY = IdSource().job()


def _new_content(file: Path, size: int) -> None:
    """Write a file and flush it to disk, so that only the work itself is measured."""
    piece = os.urandom(min(size, MIB))
    with file.open("wb") as target:
        for n in range(0, size, len(piece)):
            target.write(n.to_bytes(8) + piece[8 : size - n])
        target.flush()
        os.fsync(target.fileno())


def _copy(source: Path, target: Path) -> None:
    temporary = target.with_name(f".{target.name}")
    hasher = hashlib.sha256()
    with source.open("rb") as reading, temporary.open("wb") as writing:
        while piece := reading.read(MIB):
            hasher.update(piece)
            writing.write(piece)
        writing.flush()
        os.fsync(writing.fileno())
    temporary.rename(target)


def _add_figures(row: Row, seconds: Seconds) -> None:
    def rates(what: str) -> list[float]:
        return [500 / value for value in seconds.get(what, ())]

    def ms(what: str) -> list[float]:
        return [value * 1000 for value in seconds.get(what, ())]

    for what, theirs in (("PUT", "Flink PUT"), ("PUT, no HA copy", "Flink PUT"), ("GET", "Flink GET")):
        for other, source in ((COPY, "copy"), (FLINK, theirs)):
            row.add(f"{what}: 1 KiB", "ms", ms(f"{what} 1 KiB"), (other, ms(f"{source} 1 KiB")))
            row.add(f"{what}: 10 MiB", "ms", ms(f"{what} 10 MiB"), (other, ms(f"{source} 10 MiB")))
            row.add(f"{what}: 500 MiB", "MiB/s", rates(f"{what} 500 MiB"), (other, rates(f"{source} 500 MiB")))
    together = f"GET: {AT_ONCE} x 10 MiB at once"
    row.add(together, "ms", ms("GET at once"), (f"{COPY}, {AT_ONCE} at once", ms("copy at once")))
    row.add(together, "ms", ms("GET at once"), (FLINK, ms("Flink GET at once")))


if __name__ == "__main__":
    run(measure, quick=quick_asked(__doc__))
