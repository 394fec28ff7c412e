"""A backend whose n-th request fails, before or after it did its work, as a killed process or a lost answer would."""

from collections.abc import AsyncIterator, Sequence

from minflinkd.storage.interface import Entry, Storage, StorageUnavailable, Writer


class FaultyStorage(Storage):
    def __init__(self, inner: Storage, fail_at: int | None = None, *, after: bool = False) -> None:
        self.inner = inner
        self.scheme = inner.scheme
        self.capabilities = inner.capabilities
        self.fail_at = fail_at
        self.after = after
        self.requests = 0

    def _count(self, *, done: bool) -> None:
        if not done:
            self.requests += 1
        if self.requests == self.fail_at and self.after == done:
            self.fail_at = None
            raise StorageUnavailable(f"injected at request {self.requests}")

    async def open_read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        self._count(done=False)
        async for data in self.inner.open_read(path, offset, length):
            yield data

    async def create(self, path: str) -> Writer:
        return FaultyWriter(self, await self.inner.create(path))

    async def create_exclusive(self, path: str, data: bytes) -> None:
        self._count(done=False)
        await self.inner.create_exclusive(path, data)
        self._count(done=True)

    async def list(self, prefix: str) -> AsyncIterator[Entry]:
        self._count(done=False)
        async for entry in self.inner.list(prefix):
            yield entry

    async def delete(self, paths: Sequence[str], *, below: str | None = None) -> None:
        self._count(done=False)
        await self.inner.delete(paths, below=below)
        self._count(done=True)

    async def stat(self, path: str) -> Entry:
        self._count(done=False)
        return await self.inner.stat(path)

    async def rename(self, source: str, target: str) -> None:
        self._count(done=False)
        await self.inner.rename(source, target)
        self._count(done=True)


class FaultyWriter(Writer):
    def __init__(self, storage: FaultyStorage, inner: Writer) -> None:
        self._storage = storage
        self._inner = inner

    async def append(self, data: bytes | memoryview) -> None:
        self._storage._count(done=False)
        await self._inner.append(data)

    async def commit(self) -> Entry:
        self._storage._count(done=False)
        entry = await self._inner.commit()
        self._storage._count(done=True)
        return entry

    async def abort(self) -> None:
        await self._inner.abort()
