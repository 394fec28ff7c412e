"""Blobs: PUT and GET of 1 KiB, 10 MiB and 500 MiB, 50 x 10 MiB at once, and the server's memory meanwhile (B40).

Each beside a plain copy of the same file in the same run, in turn: read, SHA-256, write, fsync, rename. The server is a
process of its own with an HA store on the same disk, as the daemon has it by default; a PUT is answered when both files
are durable. `no HA copy` is a server without one. Content is new in every PUT.

What differs: a blob is hashed on both sides, by the client before it is sent (so that known content is not) and by the
server as it comes; a GET hashes on both sides at once. A copy hashes once, and nothing travels. The figures of Flink's
BlobServer are the specification's, of another machine with 2 busy cores: it writes no HA copy and calls no fsync.
Client and server share this machine's cores, and the client is one Python process, also of the 50 at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks.blob_server import MIB, ServerProcess, served
from benchmarks.figures import Row
from benchmarks.running import quick_asked, run, say
from minflinkd.blob.client import BlobClient
from minflinkd.blob.keys import BlobKey
from minflinkd.runtime.ids import IdSource

COPY = "copy with SHA-256"
FLINK = "Flink's BlobServer, elsewhere"
SIZES = {"1 KiB": 1024, "10 MiB": 10 * MIB, "500 MiB": 500 * MIB}
AT_ONCE = 50
FLINK_PUT, FLINK_GET = 469.0, 544.0  # MiB/s for 500 MiB
FLINK_AT_ONCE = 965.0  # ms for 50 x 10 MiB
FLINK_SMALL = 0.8  # ms for a PUT of 1 KiB

Seconds = dict[str, list[float]]
T = TypeVar("T")


async def measure(base: Path, quick: bool) -> Row:
    repetitions = {"1 KiB": 30, "10 MiB": 5, "500 MiB": 2} if quick else {"1 KiB": 200, "10 MiB": 20, "500 MiB": 7}
    together = 2 if quick else 7
    seconds: Seconds = {}
    row = Row("blob", "Blobs up and down, beside a copy of the file with SHA-256")
    async with (
        served(base / "with-ha", base / "ha") as server,
        served(base / "alone") as alone,
        BlobClient(server.url) as client,
        BlobClient(alone.url) as client_alone,
    ):
        bench = _Bench(base, client, client_alone, seconds)
        await bench.round("warm-up", 1024)
        memory = [_Memory(server, "500 MiB up and down"), _Memory(server, f"{AT_ONCE} x 10 MiB down at once")]
        for name, size in SIZES.items():
            memory[0].begin()
            for n in range(repetitions[name]):
                await bench.round(name, size)
                if (n + 1) % max(1, repetitions[name] // 4) == 0:
                    say(f"blob: {name}, {n + 1} of {repetitions[name]}")
        memory[0].end()
        keys = await bench.prepare_many()
        memory[1].begin()
        for n in range(together):
            await bench.many(keys)
            say(f"blob: {AT_ONCE} at once, {n + 1} of {together}")
        memory[1].end()
    _add_figures(row, seconds)
    for one in memory:
        row.add(f"server's memory before: {one.what}", "MiB", [one.before])
        row.add(f"server's memory at its peak: {one.what}", "MiB", [one.peak])
    return row


class _Memory:
    """Of the server, over a while."""

    def __init__(self, server: ServerProcess, what: str) -> None:
        self.what = what
        self.before = 0.0
        self.peak = 0.0
        self._server = server

    def begin(self) -> None:
        self._server.forget_peak()
        self.before = self._server.resident()

    def end(self) -> None:
        self.peak = self._server.peak()


class _Bench:
    def __init__(self, base: Path, client: BlobClient, client_alone: BlobClient, seconds: Seconds) -> None:
        self._base = base
        self._client = client
        self._client_alone = client_alone
        self._seconds = seconds
        self._ids = IdSource()

    async def round(self, name: str, size: int) -> None:
        """One of each, in turn; nothing is left."""
        file, copy = self._base / "file", self._base / "copy"
        job_id = self._ids.job()
        await asyncio.to_thread(_new_content, file, size)
        for what, client in (("PUT", self._client), ("PUT, no HA copy", self._client_alone)):
            stored = await self._timed(f"{what} {name}", partial(client.upload, job_id, file))
        await self._timed(f"copy {name}", lambda: asyncio.to_thread(_copy, file, copy))
        key = BlobKey.parse(stored.key)
        await self._timed(f"GET {name}", lambda: self._client_alone.download_to(job_id, key, copy))
        for client in (self._client, self._client_alone):
            await client.delete_job(job_id)

    async def prepare_many(self) -> list[BlobKey]:
        keys = []
        for n in range(AT_ONCE):
            file = self._base / f"many{n}"
            await asyncio.to_thread(_new_content, file, 10 * MIB)
            keys.append(BlobKey.parse((await self._client.upload(_MANY, file)).key))
        return keys

    async def many(self, keys: list[BlobKey]) -> None:
        async def get(n: int) -> None:
            await self._client.download_to(_MANY, keys[n], self._base / f"copy{n}")

        async def copy(n: int) -> None:
            await asyncio.to_thread(_copy, self._base / f"many{n}", self._base / f"copy{n}")

        async def all_at_once(one: Callable[[int], Awaitable[None]]) -> None:
            await asyncio.gather(*(one(n) for n in range(AT_ONCE)))

        await self._timed("GET at once", lambda: all_at_once(get))
        await self._timed("copy at once", lambda: all_at_once(copy))

    async def _timed(self, what: str, action: Callable[[], Awaitable[T]]) -> T:
        began = time.perf_counter()
        result = await action()
        self._seconds.setdefault(what, []).append(time.perf_counter() - began)
        return result


_MANY = IdSource().job()


def _new_content(file: Path, size: int) -> None:
    """On the disk already, so that nothing but the work itself is measured."""
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
        return [500 / value for value in seconds[what]]

    def ms(what: str) -> list[float]:
        return [value * 1000 for value in seconds[what]]

    flink = {"PUT": FLINK_PUT, "PUT, no HA copy": FLINK_PUT, "GET": FLINK_GET}
    for what in ("PUT", "PUT, no HA copy", "GET"):
        copies = (COPY, ms("copy 1 KiB"))
        row.add(f"{what}: 1 KiB", "ms", ms(f"{what} 1 KiB"), copies)
        row.add(f"{what}: 10 MiB", "ms", ms(f"{what} 10 MiB"), (COPY, ms("copy 10 MiB")))
        row.add(f"{what}: 500 MiB", "MiB/s", rates(f"{what} 500 MiB"), (COPY, rates("copy 500 MiB")))
        row.add(f"{what}: 500 MiB", "MiB/s", rates(f"{what} 500 MiB"), (FLINK, [flink[what]]))
    row.add("PUT, no HA copy: 1 KiB", "ms", ms("PUT, no HA copy 1 KiB"), (FLINK, [FLINK_SMALL]))
    together = f"GET: {AT_ONCE} x 10 MiB at once"
    row.add(together, "ms", ms("GET at once"), (f"{COPY}, {AT_ONCE} at once", ms("copy at once")))
    row.add(together, "ms", ms("GET at once"), (FLINK, [FLINK_AT_ONCE]))


if __name__ == "__main__":
    run(measure, quick=quick_asked(__doc__))
