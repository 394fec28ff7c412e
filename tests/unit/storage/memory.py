"""A storage in memory that fails, hangs and breaks off as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from minflinkd.storage.interface import (
    Capabilities,
    Entry,
    ObjectExists,
    ObjectNotFound,
    Storage,
    StorageUnavailable,
    Writer,
)
from minflinkd.storage.options import CommonOptions
from minflinkd.storage.resilient import SHORT, ResilientStorage

OPTIONS = CommonOptions(request_timeout=10, deadline=60, retries=3, pause=1, longest_pause=4, parallelism=4)
LOST = StorageUnavailable("mem: the answer was lost")


class Memory(Storage):
    """Objects in a dict. `script` says what happens to the next requests."""

    scheme = ("mem",)
    capabilities = Capabilities(atomic_rename=True, exclusive_create=True, consistent_list=True)

    def __init__(self, **objects: bytes) -> None:
        super().__init__()
        self.objects = objects
        self.versions = dict.fromkeys(objects, 1)
        self.script: list[str | Exception] = []  # "hang", "lost" (done, but not answered), an error, or "" (no fault)
        self.requests: list[str] = []
        self.at_once = self.most_at_once = 0
        self.piece = SHORT
        self.hung: list[str] = []

    async def act(self, name: str, path: str) -> bool:
        """Carry out the next step of the script. Return whether the answer is lost."""
        self.requests.append(name)
        step = self.script.pop(0) if self.script else ""
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        try:
            await asyncio.sleep(0.001)
            if isinstance(step, Exception):
                raise step
            if step == "hang":
                self.hung.append(path)
                await asyncio.get_running_loop().create_future()
        finally:
            self.at_once -= 1
        return step == "lost"

    def put(self, path: str, data: bytes) -> None:
        self.objects[path] = data
        self.versions[path] = self.versions.get(path, 0) + 1

    def entry(self, path: str) -> Entry:
        if path not in self.objects:
            raise ObjectNotFound(f"mem: {path} does not exist")
        return Entry(path, len(self.objects[path]), 0, str(self.versions[path]))

    async def open_read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        await self.act("open", path)
        self.entry(path)
        data = self.objects[path][offset : None if length is None else offset + length]
        for start in range(0, len(data), self.piece):
            if start and await self.act("piece", path):
                return
            yield data[start : start + self.piece]

    async def create(self, path: str) -> Writer:
        await self.act("create", path)
        return MemoryWriter(self, path)

    async def create_exclusive(self, path: str, data: bytes) -> None:
        lost = await self.act("create_exclusive", path)
        if path in self.objects:
            raise ObjectExists(f"mem: {path} exists")
        self.put(path, data)
        if lost:
            raise StorageUnavailable("mem: the answer was lost")

    async def list(self, prefix: str) -> AsyncIterator[Entry]:
        await self.act("list", prefix)
        for path in sorted(self.objects):
            await self.act("entry", path)
            yield self.entry(path)

    async def delete(self, paths: Sequence[str], *, below: str | None = None) -> None:
        lost = await self.act("delete", paths[0])
        for path in paths:
            self.objects.pop(path, None)
        if lost:
            raise StorageUnavailable("mem: the answer was lost")

    async def stat(self, path: str) -> Entry:
        await self.act("stat", path)
        return self.entry(path)

    async def rename(self, source: str, target: str) -> None:
        lost = await self.act("rename", source)
        self.entry(source)
        self.put(target, self.objects.pop(source))
        if lost:
            raise StorageUnavailable("mem: the answer was lost")


class MemoryWriter(Writer):
    def __init__(self, storage: Memory, path: str) -> None:
        self.storage, self.path, self.data = storage, path, b""

    async def append(self, data: bytes | memoryview) -> None:
        await self.storage.act("append", self.path)
        self.data += data

    async def commit(self) -> Entry:
        lost = await self.storage.act("commit", self.path)
        self.storage.put(self.path, self.data)
        if lost:
            raise StorageUnavailable("mem: the answer was lost")
        return self.storage.entry(self.path)

    async def abort(self) -> None:
        await self.storage.act("abort", self.path)


def unavailable() -> StorageUnavailable:
    return StorageUnavailable("mem: come again")


def around(memory: Storage, options: CommonOptions = OPTIONS) -> ResilientStorage:
    return ResilientStorage(memory, options)


async def read(storage: Storage, path: str, offset: int = 0, length: int | None = None) -> bytes:
    return b"".join([piece async for piece in storage.open_read(path, offset, length)])


async def collect(pieces: AsyncIterator[bytes], into: list[bytes]) -> None:
    async for piece in pieces:
        into.append(piece)  # noqa: PERF401 - a test wants to see what came before a failure


async def fill(writer: Writer, data: bytes) -> None:
    await writer.append(data)
    await writer.commit()


async def write(storage: Storage, path: str, data: bytes) -> None:
    async with await storage.create(path) as writer:
        await fill(writer, data)


def now() -> float:
    return asyncio.get_running_loop().time()
