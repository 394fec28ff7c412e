"""A storage in memory that fails, with or without having done the work.

It is slow, and its listings are out of date.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from minflinkd.storage.interface import (
    Capabilities,
    Entry,
    ObjectExists,
    ObjectNotFound,
    Storage,
    StorageUnavailable,
    Writer,
)
from minflinkd.storage.wrapper import StorageWrapper


@dataclass
class Weather:
    """`failures` is the share of requests that fail. `delay` and `lateness` are at most so many seconds."""

    failures: float = 0.0
    delay: float = 0.05
    lateness: float = 0.0


CALM = Weather()
SLOWNESS = 5.0  # factor for the delay of every tenth request
SLOW = 3.0  # in seconds


class WeatherStorage(Storage):
    scheme = ("memory",)
    capabilities = Capabilities(exclusive_create=True)

    def __init__(self, rng: random.Random) -> None:
        self.objects: dict[str, bytes] = {}
        self.weather = CALM
        self._rng = rng
        self._changes: list[tuple[float, str, bool]] = []  # time, path, whether the object exists from then on
        self.slow = "/nothing"  # paths with this in them take up to SLOW seconds longer to write
        self.on_change: Callable[[str], None] = lambda path: None  # called after each change

    async def _do(self, act: Callable[[], None], what: str) -> None:
        slowness = SLOWNESS if self._rng.random() < 0.1 else 1.0
        await asyncio.sleep(self._rng.uniform(0, self.weather.delay) * slowness)
        fails, done = self._rng.random() < self.weather.failures, self._rng.random() < 0.5
        if not fails or done:
            act()
        if fails:
            raise StorageUnavailable(f"memory: {what}: no answer")

    async def _take_time(self, path: str) -> None:
        if self.slow in path:
            await asyncio.sleep(self._rng.uniform(0, SLOW))

    def put(self, path: str, data: bytes) -> None:
        self.objects[path] = data
        self._changes.append((asyncio.get_running_loop().time(), path, True))
        self.on_change(path)

    def _drop(self, path: str) -> None:
        if self.objects.pop(path, None) is not None:
            self._changes.append((asyncio.get_running_loop().time(), path, False))
            self.on_change(path)

    async def open_read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        await self._do(lambda: None, f"read {path}")
        if path not in self.objects:
            raise ObjectNotFound(f"memory: {path} does not exist")
        yield self.objects[path][offset : None if length is None else offset + length]

    async def create(self, path: str) -> Writer:
        return WeatherWriter(self, path)

    async def create_exclusive(self, path: str, data: bytes) -> None:
        if path in self.objects:
            raise ObjectExists(f"memory: {path} exists")
        await self._do(lambda: self.put(path, data), f"create {path}")

    async def list(self, prefix: str) -> AsyncIterator[Entry]:
        """List objects. Each is listed as it was at some moment of the last `lateness` seconds."""
        await self._do(lambda: None, f"list {prefix}")
        found = dict.fromkeys(self.objects, True)
        since = asyncio.get_running_loop().time() - self._rng.uniform(0, self.weather.lateness)
        for when, path, there in reversed(self._changes):
            if when > since and self._rng.random() < 0.7:
                found[path] = not there
        for path in sorted(path for path, there in found.items() if there):
            if path.startswith(prefix.rstrip("/") + "/"):
                yield Entry(path, len(self.objects.get(path, b"")), 0)

    async def delete(self, paths: Sequence[str], *, below: str | None = None) -> None:
        for path in paths:
            await self._do(lambda path=path: self._drop(path), f"delete {path}")  # type: ignore[misc]

    async def stat(self, path: str) -> Entry:
        if path not in self.objects:
            raise ObjectNotFound(f"memory: {path} does not exist")
        return Entry(path, len(self.objects[path]), 0)

    async def rename(self, source: str, target: str) -> None:
        raise NotImplementedError


class WeatherWriter(Writer):
    def __init__(self, storage: WeatherStorage, path: str) -> None:
        self._storage, self._path, self._data = storage, path, b""

    async def append(self, data: bytes | memoryview) -> None:
        await self._storage._do(lambda: None, f"append to {self._path}")
        self._data += data

    async def commit(self) -> Entry:
        await self._storage._take_time(self._path)
        await self._storage._do(lambda: self._storage.put(self._path, self._data), f"commit {self._path}")
        return Entry(self._path, len(self._data), 0)

    async def abort(self) -> None: ...


class Line(StorageWrapper):
    """One process's connection to the storage.

    A dead process sends no more requests. Requests that it sent before may still be carried out.
    """

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.alive = True

    def check(self) -> None:
        if not self.alive:
            raise StorageUnavailable("memory: the process is dead")

    async def open_read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        self.check()
        async for piece in self.inner.open_read(path, offset, length):
            yield piece

    async def create(self, path: str) -> Writer:
        self.check()
        return LineWriter(self, await self.inner.create(path))

    async def create_exclusive(self, path: str, data: bytes) -> None:
        self.check()
        await self.inner.create_exclusive(path, data)

    async def list(self, prefix: str) -> AsyncIterator[Entry]:
        self.check()
        async for entry in self.inner.list(prefix):
            yield entry

    async def delete(self, paths: Sequence[str], *, below: str | None = None) -> None:
        for path in paths:
            self.check()
            await self.inner.delete([path], below=below)

    async def stat(self, path: str) -> Entry:
        self.check()
        return await self.inner.stat(path)

    async def rename(self, source: str, target: str) -> None:
        raise NotImplementedError


class LineWriter(Writer):
    def __init__(self, line: Line, inner: Writer) -> None:
        self._line, self._inner = line, inner

    async def append(self, data: bytes | memoryview) -> None:
        self._line.check()
        await self._inner.append(data)

    async def commit(self) -> Entry:
        self._line.check()
        return await self._inner.commit()

    async def abort(self) -> None:
        self._line.check()
        await self._inner.abort()
