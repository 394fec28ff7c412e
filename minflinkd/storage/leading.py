"""A backend that is written only while this daemon leads (A11).

Example: a leader is stopped for a minute (SIGSTOP), and another daemon leads meanwhile. When the first one wakes up it
sees that no TaskManager has sent a heartbeat, restarts its jobs, and would delete what their tasks have staged: output
of tasks that the other daemon has adopted. The storage cannot tell who asks. So the daemon asks itself, before each
request that changes something, and also before each repetition of one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from minflinkd.storage.interface import Entry, Storage, StorageUnavailable, Writer
from minflinkd.storage.wrapper import StorageWrapper


class WrittenByLeader(StorageWrapper):
    """Refuses what changes something once `leads` returns False. Reading stays possible."""

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
                f"{self.scheme[0]}: {path} is left alone: this daemon leads no more, or does not know",
                hint="the daemon that leads goes on from here",
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
        """Delete what only this writer knows of. Nobody else needs it."""
        await self._inner.abort()
