"""The interface that a storage backend implements: small, async, in streams, and honest about what it can do (S2, S4).

Paths are the backend's own (`/data/x` for the local one, `bucket/key` for object stores); `storage.registry` turns a
URI into a backend and a path. Every operation is safe to repeat.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import ClassVar, Protocol, Self, TypeVar

import msgspec

from minflinkd.runtime.errors import Consequence, MinflinkError

T = TypeVar("T")


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
    """May succeed later. `settled`: not within the same call, e.g. since it was tried for long enough already."""

    code = "storage-transient"
    consequence = Consequence.RETRYABLE

    def __init__(self, message: str, *, hint: str = "", settled: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.settled = settled


class StorageFull(StorageError):
    code = "storage-full"
    consequence = Consequence.RETRYABLE


class StorageCorrupt(StorageError):
    code = "storage-corrupt"


class InvalidPath(StorageError):
    """A path that leaves its directory, or that no backend can hold; raised before it touches the storage."""

    code = "storage-invalid-path"
    consequence = Consequence.REFUSED


class NotSupported(StorageError):
    """An operation that the backend cannot do; its capabilities say so."""

    code = "storage-not-supported"
    consequence = Consequence.REFUSED


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend can do; callers look here, never at the backend's name."""

    atomic_rename: bool = False
    exclusive_create: bool = False
    server_side_copy: bool = False
    consistent_list: bool = False


class Entry(msgspec.Struct, frozen=True):
    """One object: its path, size in bytes, and time of last change in milliseconds since 1970.

    `version` is another one whenever the content was replaced, such as an ETag or a generation; empty where the backend
    has none. It need not be known to a listing or to a commit. Of a commit the time is about the one that `stat` tells.
    """

    path: str
    size: int
    modified_ms: int
    version: str = ""


class Writer(ABC):
    """An object being written: it appears whole at `commit`, or never.

    After a step that failed or was cancelled the others raise StorageError (`storage.writing`): only `abort` is left.
    """

    paced: bool = False  # True: passes each of its requests to the storage's `attempts` itself

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


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a backend that has none of its own."""


class Attempts(Protocol):
    """How one step of an operation is tried: how often, for how long, with which pauses."""

    async def __call__(self, what: str, path: str, step: Callable[[], Awaitable[T]]) -> T:
        """What `step` returns. It is called again after StorageUnavailable, and must be safe to repeat."""
        ...


async def once(what: str, path: str, step: Callable[[], Awaitable[T]]) -> T:
    """One attempt, without a deadline."""
    return await step()


def closable(items: AsyncIterator[T]) -> AsyncGenerator[T, None]:
    """A stream as what it nearly always is: an async generator; else one around it. For `aclosing`."""
    return items if isinstance(items, AsyncGenerator) else _generate(items)


async def _generate(items: AsyncIterator[T]) -> AsyncGenerator[T, None]:
    async for item in items:
        yield item


class Storage(ABC):
    """One backend. Instances are made per process, with the backend's options, and closed with it.

    An operation raises StorageUnavailable for what may succeed later, and need not try again itself: the registry puts
    retries and deadlines around every operation (`storage.resilient`). An operation of many steps, such as a write in
    parts, passes each step to `attempts`, so that the step alone is repeated.
    """

    scheme: tuple[str, ...]  # of the class, except for wrappers; the first one names its options: storage.<scheme>.*
    capabilities: Capabilities
    options_type: ClassVar[type[msgspec.Struct]] = NoOptions  # what the constructor takes, with a default for each
    attempts: Attempts = staticmethod(once)

    def __init__(self, options: msgspec.Struct | None = None) -> None:
        """`options`: of `options_type`; None: the defaults."""
        return

    def lane(self, path: str) -> str:
        """Requests in different lanes hold each other up in nothing, not even by their number."""
        return ""

    @abstractmethod
    def open_read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Stream `length` bytes (to the end without) from `offset`. Raises ObjectNotFound."""

    @abstractmethod
    async def create(self, path: str) -> Writer: ...

    @abstractmethod
    async def create_exclusive(self, path: str, data: bytes) -> None:
        """Create a small object, with exactly one winner. Raises ObjectExists; NotSupported without the capability.

        When an answer is lost, the winner is told by its bytes: those who contend write different ones.
        """

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
        """Atomic where capabilities say so; it then keeps `modified_ms`. Raises ObjectNotFound without a `source`."""

    async def copy(self, source: str, target: str) -> Entry:
        """Write `target` with the content of `source`, replacing one of that name. Raises ObjectNotFound.

        Through this process, unless capabilities say that the server does it.
        """
        async with aclosing(closable(self.open_read(source))) as pieces, await self.create(target) as writer:
            async for piece in pieces:
                await writer.append(piece)
            return await writer.commit()

    async def sync(self, paths: Sequence[str]) -> None:
        """Make objects durable that were not written through `create`, e.g. by Spark. Raises ObjectNotFound.

        Most have nothing to do but to see that they are there.
        """
        for path in paths:
            await self.stat(path)

    async def aclose(self) -> None:
        """Free connections. Idempotent."""
        return
