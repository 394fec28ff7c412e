"""What all have in common that stand around a backend, and are a backend to others."""

from __future__ import annotations

from minflinkd.storage.interface import Attempts, Storage


class StorageWrapper(Storage):
    """Says of itself what the backend does, and gives on what it is given."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.scheme = inner.scheme
        self.capabilities = inner.capabilities

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
