"""A backend with a request that fails, before or after its work, as if a process died or an answer was lost."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import TypeVar

from minflinkd.storage.interface import Entry, Storage, StorageFull, StorageUnavailable, Writer, closable
from minflinkd.storage.wrapper import StorageWrapper

T = TypeVar("T")


class FaultyStorage(StorageWrapper):
    """The `fail_at`-th request fails once, or with `hang` is never answered. Answers are `latency` seconds late.

    The first stream or listing with `cut_after` items breaks off after them. With `fail_every`, every n-th write fails.
    With `full`, every write fails for lack of space. Both may be changed at any time.
    """

    def __init__(
        self,
        inner: Storage,
        fail_at: int | None = None,
        *,
        after: bool = False,
        hang: bool = False,
        latency: float = 0.0,
        cut_after: int | None = None,
        fail_every: int | None = None,
        full: bool = False,
    ) -> None:
        super().__init__(inner)
        self.fail_at = fail_at
        self.after = after
        self.hang = hang
        self.latency = latency
        self.cut_after = cut_after
        self.fail_every = fail_every
        self.full = full
        self.requests = 0
        self.writes = 0

    def _count(self, *, done: bool) -> None:
        if not done:
            self.requests += 1
        if self.requests == self.fail_at and self.after == done:
            self.fail_at = None
            raise StorageUnavailable(f"injected at request {self.requests}")

    async def _step(self, *, done: bool, write: bool = False) -> None:
        if write and not done:
            self._count_write()
        try:
            self._count(done=done)
        except StorageUnavailable:
            if not self.hang:
                raise
            await asyncio.get_running_loop().create_future()
        if done and self.latency:
            await asyncio.sleep(self.latency)

    def _count_write(self) -> None:
        self.writes += 1
        if self.full:
            raise StorageFull(f"injected at write {self.writes}")
        if self.fail_every is not None and self.writes % self.fail_every == 0:
            raise StorageUnavailable(f"injected at write {self.writes}")

    async def _cut(self, items: AsyncIterator[T]) -> AsyncGenerator[T, None]:
        async with aclosing(closable(items)) as inner:
            count = 0
            async for item in inner:
                yield item
                count += 1
                if count == self.cut_after:
                    self.cut_after = None
                    raise StorageUnavailable(f"injected after item {count}")

    async def open_read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        await self._step(done=False)
        async with aclosing(self._cut(self.inner.open_read(path, offset, length))) as pieces:
            async for data in pieces:
                yield data

    async def create(self, path: str) -> Writer:
        return FaultyWriter(self, await self.inner.create(path))

    async def create_exclusive(self, path: str, data: bytes) -> None:
        await self._step(done=False, write=True)
        await self.inner.create_exclusive(path, data)
        await self._step(done=True)

    async def list(self, prefix: str) -> AsyncIterator[Entry]:
        await self._step(done=False)
        async with aclosing(self._cut(self.inner.list(prefix))) as entries:
            async for entry in entries:
                yield entry

    async def delete(self, paths: Sequence[str], *, below: str | None = None) -> None:
        await self._step(done=False)
        await self.inner.delete(paths, below=below)
        await self._step(done=True)

    async def stat(self, path: str) -> Entry:
        await self._step(done=False)
        entry = await self.inner.stat(path)
        await self._step(done=True)
        return entry

    async def rename(self, source: str, target: str) -> None:
        await self._step(done=False, write=True)
        await self.inner.rename(source, target)
        await self._step(done=True)

    async def copy(self, source: str, target: str) -> Entry:
        await self._step(done=False, write=True)
        entry = await self.inner.copy(source, target)
        await self._step(done=True)
        return entry

    async def sync(self, paths: Sequence[str]) -> None:
        await self._step(done=False)
        await self.inner.sync(paths)


class FaultyWriter(Writer):
    def __init__(self, storage: FaultyStorage, inner: Writer) -> None:
        self._storage = storage
        self._inner = inner
        self.paced = inner.paced

    async def append(self, data: bytes | memoryview) -> None:
        await self._storage._step(done=False, write=True)
        await self._inner.append(data)

    async def commit(self) -> Entry:
        await self._storage._step(done=False, write=True)
        entry = await self._inner.commit()
        await self._storage._step(done=True)
        return entry

    async def abort(self) -> None:
        await self._inner.abort()
