"""The interface that a storage backend implements: small, async, streaming, with declared capabilities (S2, S4).

Paths have the backend's own form (`/data/x` for the local one, `bucket/key` for object stores); `storage.registry`
turns a URI into a backend and a path. Every operation is safe to repeat.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import ClassVar, Protocol, Self, TypeVar

import msgspec

from minflinkd.runtime.errors import Consequence, Kind, MinflinkError

T = TypeVar("T")


class StorageError(MinflinkError):
    """Base of the few kinds of errors (S4). The message names backend, path and cause, and never a credential."""

    code = "storage"
    kind = Kind.STORAGE


class ObjectNotFound(StorageError):
    code = "storage-not-found"
    consequence = Consequence.REFUSED


class ObjectExists(StorageError):
    code = "storage-exists"
    consequence = Consequence.REFUSED


class PermissionDenied(StorageError):
    code = "storage-permission"


class StorageUnavailable(StorageError):
    """The operation may succeed later. `settled`: retrying now is useless, e.g. after enough retries."""

    code = "storage-transient"
    consequence = Consequence.RETRYABLE

    def __init__(self, message: str, *, hint: str = "", settled: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.settled = settled


class StorageFull(StorageError):
    code = "storage-full"
    consequence = Consequence.RETRYABLE


class ObjectTooLarge(StorageError):
    """Larger than what minflinkd writes there: it is something else, and is not read into memory."""

    code = "storage-too-large"
    consequence = Consequence.REFUSED


class StorageCorrupt(StorageError):
    code = "storage-corrupt"


class InvalidPath(StorageError):
    """A path that leaves its directory, or that no backend can store. Raised before the storage is accessed."""

    code = "storage-invalid-path"
    consequence = Consequence.REFUSED


class NotSupported(StorageError):
    """An operation that the backend cannot do, as its capabilities say."""

    code = "storage-not-supported"
    consequence = Consequence.REFUSED


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend can do. Callers check this, never the backend's name."""

    atomic_rename: bool = False
    exclusive_create: bool = False
    server_side_copy: bool = False
    consistent_list: bool = False


class Entry(msgspec.Struct, frozen=True):
    """One object: its path, size in bytes, and time of last change in milliseconds since 1970.

    `version` changes whenever the content is replaced, as an ETag or a generation does; empty if the backend has none.
    Listings and commits may leave it empty. The time that a commit returns is only approximately that of `stat`.
    """

    path: str
    size: int
    modified_ms: int
    version: str = ""


class Writer(ABC):
    """An object being written. It appears whole at `commit`, or never.

    After a step that failed or was cancelled, only `abort` works; the others raise StorageError (`storage.writing`).
    """

    paced: bool = False  # True: it passes each of its requests to the storage's `attempts` itself

    @abstractmethod
    async def append(self, data: bytes | memoryview) -> None: ...

    @abstractmethod
    async def commit(self) -> Entry:
        """Make the object durable and visible. Replaces an object of the same name."""

    @abstractmethod
    async def abort(self) -> None:
        """Delete what was written. Idempotent; does nothing after `commit`."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.abort()  # does nothing after a commit


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of a backend without its own options."""


class Attempts(Protocol):
    """Decides how one step of an operation is tried: how often, for how long, with which pauses."""

    async def __call__(self, what: str, path: str, step: Callable[[], Awaitable[T]]) -> T:
        """Return what `step` returns. After StorageUnavailable it is called again, so it must be safe to repeat."""
        ...


async def once(what: str, path: str, step: Callable[[], Awaitable[T]]) -> T:
    """Make one attempt, without a deadline."""
    return await step()


def closable(items: AsyncIterator[T]) -> AsyncGenerator[T, None]:
    """Return a stream as an async generator, for `aclosing`. Wraps it if it is not one already."""
    return items if isinstance(items, AsyncGenerator) else _generate(items)


async def _generate(items: AsyncIterator[T]) -> AsyncGenerator[T, None]:
    async for item in items:
        yield item


class Storage(ABC):
    """One backend. Each process creates an instance, with the backend's options, and closes it in the end.

    An operation raises StorageUnavailable if it may succeed later, and need not retry itself: the registry adds retries
    and deadlines to every operation (`storage.resilient`). An operation of many steps, such as a write in parts, passes
    each step to `attempts`, so that only the step is retried.
    """

    scheme: tuple[str, ...]  # a class attribute, except in wrappers; the first names the options: storage.<scheme>.*
    capabilities: Capabilities
    options_type: ClassVar[type[msgspec.Struct]] = NoOptions  # the constructor's options, each with a default
    attempts: Attempts = staticmethod(once)
    read_only: bool = False  # everything that writes or deletes raises NotSupported
    proven: bool = True  # False: what it can do differs by place, so `Storages.require_writable` checks each place

    def __init__(self, options: msgspec.Struct | None = None) -> None:
        """`options` is an `options_type`; None: the defaults."""
        return

    def lane(self, path: str) -> str:
        """Return the lane of a path. Requests in different lanes never delay each other, however many there are."""
        return ""

    @abstractmethod
    def open_read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Stream `length` bytes from `offset`; None: to the end. Raises ObjectNotFound."""

    @abstractmethod
    async def create(self, path: str) -> Writer: ...

    @abstractmethod
    async def create_exclusive(self, path: str, data: bytes) -> None:
        """Create a small object, with exactly one winner. Raises ObjectExists; NotSupported without the capability.

        Contenders must write different bytes: if an answer is lost, the content tells who won.
        """

    @abstractmethod
    def list(self, prefix: str) -> AsyncIterator[Entry]:
        """Yield every object below the directory `prefix`, in the order of paths; none if it does not exist."""

    @abstractmethod
    async def delete(self, paths: Sequence[str], *, below: str | None = None) -> None:
        """Delete objects; it is no error if one does not exist.

        If the backend has directories, those left empty are deleted too: the directory of each object, and with
        `below` its parents under that directory. `below` itself is kept, since other programs may use it. A path that
        is a directory is deleted, with the empty directories in it, if it holds no object; otherwise it is left alone.
        """

    @abstractmethod
    async def stat(self, path: str) -> Entry:
        """Raises ObjectNotFound."""

    @abstractmethod
    async def rename(self, source: str, target: str) -> None:
        """Atomic if the capabilities say so; then `modified_ms` is kept. Raises ObjectNotFound without a `source`."""

    async def copy(self, source: str, target: str) -> Entry:
        """Write the content of `source` to `target`, replacing an object of that name. Raises ObjectNotFound.

        The data passes through this process, unless the capabilities say that the server copies.
        """
        async with aclosing(closable(self.open_read(source))) as pieces, await self.create(target) as writer:
            async for piece in pieces:
                await writer.append(piece)
            return await writer.commit()

    async def sync(self, paths: Sequence[str]) -> None:
        """Make objects durable that were not written with `create`, e.g. by Spark. Raises ObjectNotFound.

        Most backends only need to check that the objects exist.
        """
        for path in paths:
            await self.stat(path)

    async def aclose(self) -> None:
        """Close connections. Idempotent."""
        return
