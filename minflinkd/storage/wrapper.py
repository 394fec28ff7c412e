"""The base of all wrappers around a backend."""

from __future__ import annotations

from minflinkd.storage.interface import Attempts, Storage


class StorageWrapper(Storage):
    """Has the backend's scheme and capabilities, and passes every call on to it."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.scheme = inner.scheme
        self.capabilities = inner.capabilities
        self.read_only = inner.read_only
        self.proven = inner.proven

    @property
    def attempts(self) -> Attempts:
        return self.inner.attempts

    @attempts.setter
    def attempts(self, attempts: Attempts) -> None:
        self.inner.attempts = attempts

    def lane(self, path: str) -> str:
        return self.inner.lane(path)

    async def aclose(self) -> None:
        await self.inner.aclose()
