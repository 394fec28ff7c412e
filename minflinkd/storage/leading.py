"""A backend that accepts writes only while this daemon leads (A11).

Example: a leader is stopped for a minute (SIGSTOP), and another daemon leads meanwhile. When the old leader wakes up,
it sees that no TaskManager has sent a heartbeat, and restarts its jobs. For this it would delete the staged output of
their tasks, but the other daemon has adopted these tasks. The storage cannot know who sends a request. So the daemon
checks that it leads before each request that changes something, and before each retry.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from minflinkd.storage.interface import Entry, Storage, StorageUnavailable, Writer
from minflinkd.storage.wrapper import StorageWrapper


class WrittenByLeader(StorageWrapper):
    """Refuses requests that change something while `leads` returns False. Reading stays possible."""

    def __init__(self, inner: Storage, leads: Callable[[], bool]) -> None:
        super().__init__(inner)
        self._leads = leads

    def open_read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        return self.inner.open_read(path, offset, length)

    async def create(self, path: str) -> Writer:
        self.check(path)
        return _Writer(self, path, await self.inner.create(path))

    async def create_exclusive(self, path: str, data: bytes) -> None:
        self.check(path)
        await self.inner.create_exclusive(path, data)

    def list(self, prefix: str) -> AsyncIterator[Entry]:
        return self.inner.list(prefix)

    async def delete(self, paths: Sequence[str], *, below: str | None = None) -> None:
        self.check(paths[0] if paths else below or "")
        await self.inner.delete(paths, below=below)

    async def stat(self, path: str) -> Entry:
        return await self.inner.stat(path)

    async def rename(self, source: str, target: str) -> None:
        self.check(source)
        await self.inner.rename(source, target)

    async def copy(self, source: str, target: str) -> Entry:
        self.check(target)
        return await self.inner.copy(source, target)

    async def sync(self, paths: Sequence[str]) -> None:
        await self.inner.sync(paths)

    def check(self, path: str) -> None:
        """Raises StorageUnavailable."""
        if not self._leads():
            raise StorageUnavailable(
                f"{self.scheme[0]}: {path} is not changed: it is not certain that this daemon leads",
                hint="the leader continues from here",
                settled=True,
            )


class _Writer(Writer):
    def __init__(self, storage: WrittenByLeader, path: str, inner: Writer) -> None:
        self._storage = storage
        self._path = path
        self._inner = inner
        self.paced = inner.paced

    async def append(self, data: bytes | memoryview) -> None:
        self._storage.check(self._path)
        await self._inner.append(data)

    async def commit(self) -> Entry:
        self._storage.check(self._path)
        return await self._inner.commit()

    async def abort(self) -> None:
        """Delete data that only this writer knows of. This is allowed without a check, because nobody else needs it."""
        await self._inner.abort()
