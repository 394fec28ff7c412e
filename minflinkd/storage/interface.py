"""The interface that a storage backend implements: small, async, in streams, and honest about what it can do (S2, S4).

Paths are the backend's own (`/data/x` for the local one, `bucket/key` for object stores); `storage.registry` turns a
URI into a backend and a path. Every operation is safe to repeat.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Self

import msgspec

from minflinkd.runtime.errors import Consequence, MinflinkError


class StorageError(MinflinkError):
    """Base of the few kinds (S4). The message names backend, path and cause; never a credential."""

    code = "storage"


class ObjectNotFound(StorageError):
    code = "storage-not-found"
    consequence = Consequence.REFUSED


class ObjectExists(StorageError):
    code = "storage-exists"
    consequence = Consequence.REFUSED


class PermissionDenied(StorageError):
    code = "storage-permission"


class StorageUnavailable(StorageError):
    code = "storage-transient"
    consequence = Consequence.RETRYABLE


class StorageFull(StorageError):
    code = "storage-full"
    consequence = Consequence.RETRYABLE


class StorageCorrupt(StorageError):
    code = "storage-corrupt"


class InvalidPath(StorageError):
    """A path that leaves its directory, or that no backend can hold; raised before it touches the storage."""

    code = "storage-invalid-path"
    consequence = Consequence.REFUSED


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend can do; callers look here, never at the backend's name."""

    append: bool = False
    atomic_rename: bool = False
    exclusive_create: bool = False
    server_side_copy: bool = False
    consistent_list: bool = False


class Entry(msgspec.Struct, frozen=True):
    """One object: its path, size in bytes, and time of last change in milliseconds since 1970."""

    path: str
    size: int
    modified_ms: int


class Writer(ABC):
    """An object being written. It appears whole at `commit`, or never."""

    @abstractmethod
    async def append(self, data: bytes | memoryview) -> None: ...

    @abstractmethod
    async def commit(self) -> Entry:
        """Make the object durable and visible, replacing one of that name."""

    @abstractmethod
    async def abort(self) -> None:
        """Leave nothing. Idempotent; after `commit` it does nothing."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.abort()  # nothing after a commit


class Storage(ABC):
    """One backend. Instances are made per process and closed with it."""

    scheme: tuple[str, ...]  # of the class, except for wrappers
    capabilities: Capabilities

    @abstractmethod
    def open_read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Stream `length` bytes (to the end without) from `offset`. Raises ObjectNotFound."""

    @abstractmethod
    async def create(self, path: str) -> Writer: ...

    @abstractmethod
    async def create_exclusive(self, path: str, data: bytes) -> None:
        """Create a small object, with exactly one winner. Raises ObjectExists."""

    @abstractmethod
    def list(self, prefix: str) -> AsyncIterator[Entry]:
        """Every object below the directory `prefix`, in the order of paths; nothing if it does not exist."""

    @abstractmethod
    async def delete(self, paths: Sequence[str], *, below: str | None = None) -> None:
        """Delete objects; one that does not exist is no error.

        Where directories exist, those left empty go as well: of each object its own directory, and with `below` all
        directories under that one, which stays itself. The bound keeps what other programs work in. A path that is
        a directory is removed with the empty directories in it if it holds no object, and is left alone otherwise.
        """

    @abstractmethod
    async def stat(self, path: str) -> Entry:
        """Raises ObjectNotFound."""

    @abstractmethod
    async def rename(self, source: str, target: str) -> None:
        """Atomic where capabilities say so. Raises ObjectNotFound when `source` is missing."""

    async def sync(self, paths: Sequence[str]) -> None:
        """Make objects durable that were not written through `create`, e.g. by Spark. Nothing to do for most."""
        return

    async def aclose(self) -> None:
        """Free connections. Idempotent."""
        return
