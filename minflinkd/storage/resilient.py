"""Adds a time limit to each request of a backend, and retries while that is safe and makes sense (S4).

A retry after a lost answer must not turn success into an error; comments in each operation say how it can tell. This
is the outermost wrapper. `RecordedStorage` is below it, so that it counts what the backend sees.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import TypeVar

import structlog

from minflinkd.runtime.errors import MinflinkError
from minflinkd.storage.attempts import Requests
from minflinkd.storage.failures import Failures
from minflinkd.storage.interface import (
    Entry,
    ObjectExists,
    ObjectNotFound,
    Storage,
    StorageError,
    StorageUnavailable,
    Writer,
    closable,
)
from minflinkd.storage.masking import Mask
from minflinkd.storage.options import CommonOptions
from minflinkd.storage.recording import RecordedStorage
from minflinkd.storage.streams import Stream
from minflinkd.storage.writing import Unbroken

T = TypeVar("T")

SHORT = 1 << 20  # bytes; a range up to this size is read, and retried, as a whole
_PIECES_AHEAD = 2
_ENTRIES_AHEAD = 1000

log = structlog.get_logger(__name__)


class ResilientStorage(Storage):
    """Wraps `inner`, and also sets its `attempts`."""

    def __init__(self, inner: Storage, options: CommonOptions | None = None, mask: Mask | None = None) -> None:
        self.inner = RecordedStorage(inner)
        self.scheme = inner.scheme
        self.capabilities = inner.capabilities
        self.read_only = inner.read_only
        self.proven = inner.proven
        self._failures = Failures(inner.scheme[0], mask or Mask())
        self._requests = Requests(options or CommonOptions(), self._failures, self.inner, inner.lane)
        self.inner.attempts = self._attempt_of_backend

    async def open_read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Resume a stream that breaks off where it stopped.

        Raises StorageUnavailable if the object was replaced meanwhile, so that two contents are never mixed.
        """
        if length is not None and length <= SHORT:
            if piece := await self._requests("open_read", path, lambda: self._read_range(path, offset, length)):
                yield piece
            return
        async with aclosing(self._read_long(path, offset, length)) as pieces:
            async for piece in pieces:
                yield piece

    async def list(self, prefix: str) -> AsyncIterator[Entry]:
        """Resume a listing that breaks off after its last path.

        Raises StorageError if the backend lists in another order, because a resumed listing would then miss entries.
        """
        tries, last = self._requests.tries("list", prefix), ""
        while True:
            stream, before = Stream(self._requests, tries, self.inner.list(prefix), ahead=_ENTRIES_AHEAD), ""
            try:
                while (entry := await stream.next()) is not None:
                    if entry.path < before:
                        why = f"the backend lists {entry.path!r} after {before!r}, out of order"
                        raise self._failures.of(prefix, StorageError(f"{self.scheme[0]}: {prefix}: {why}"))
                    before = entry.path
                    if entry.path > last:
                        last = entry.path
                        yield entry
                        tries.progress()  # after `yield`: the reader's time does not count
                return
            except StorageUnavailable as error:
                failure = error
            finally:
                await stream.aclose()
            await tries.failed(failure)

    async def create(self, path: str) -> Writer:
        inner = await self._requests("create", path, lambda: self.inner.create(path))
        return _ResilientWriter(self._requests, self._failures, path, inner)

    async def create_exclusive(self, path: str, data: bytes) -> None:
        repeated = False

        async def create() -> None:
            nonlocal repeated
            first, repeated = not repeated, True
            try:
                await self.inner.create_exclusive(path, data)
            except ObjectExists:
                if first or not await self._holds(path, data):
                    raise  # otherwise an earlier try won and its answer was lost

        await self._requests("create_exclusive", path, create)

    async def delete(self, paths: Sequence[str], *, below: str | None = None) -> None:
        named = paths[0] if paths else (below or "")
        await self._requests("delete", named, lambda: self.inner.delete(paths, below=below))

    async def stat(self, path: str) -> Entry:
        return await self._requests("stat", path, lambda: self.inner.stat(path))

    async def rename(self, source: str, target: str) -> None:
        async def find() -> Entry | None:
            return await self._find(target)

        moved = await self.stat(source)  # tells a lost answer from a source that never existed
        replaced = None if self.capabilities.atomic_rename else await self._requests("stat", target, find)
        repeated = False

        async def rename() -> None:
            nonlocal repeated
            first, repeated = not repeated, True
            try:
                await self.inner.rename(source, target)
            except ObjectNotFound:
                if first or not self._arrived(moved, replaced, await find()):
                    raise  # otherwise an earlier try moved it and its answer was lost

        await self._requests("rename", source, rename)

    async def copy(self, source: str, target: str) -> Entry:
        if not self.capabilities.server_side_copy:
            return await super().copy(source, target)
        return await self._requests("copy", source, lambda: self.inner.copy(source, target))

    async def sync(self, paths: Sequence[str]) -> None:
        await self._requests("sync", paths[0] if paths else "", lambda: self.inner.sync(paths))

    async def aclose(self) -> None:
        await self._requests.aclose()
        await self.inner.aclose()

    async def _attempt_of_backend(self, what: str, path: str, step: Callable[[], Awaitable[T]]) -> T:
        async def recorded() -> T:
            with self.inner.measure(what):
                return await step()

        return await self._requests(what, path, recorded)

    async def _holds(self, path: str, data: bytes) -> bool:
        try:
            return await self._read_range(path, 0, len(data) + 1) == data
        except ObjectNotFound:
            return False

    async def _find(self, path: str) -> Entry | None:
        try:
            return await self.inner.stat(path)
        except ObjectNotFound:
            return None

    def _arrived(self, moved: Entry, replaced: Entry | None, found: Entry | None) -> bool:
        """Whether the object at a target is the moved one, not the one that was there before.

        An atomic rename keeps the time of the object. After another one, the target differs from what was there before.
        """
        if found is None or found.size != moved.size:
            return False
        return found.modified_ms == moved.modified_ms if self.capabilities.atomic_rename else found != replaced

    async def _read_range(self, path: str, offset: int, length: int) -> bytes:
        async with aclosing(closable(self.inner.open_read(path, offset, length))) as pieces:
            return b"".join([piece async for piece in pieces])

    async def _read_long(self, path: str, offset: int, length: int | None) -> AsyncGenerator[bytes, None]:
        """Stat the object first, to notice a stream that ends early and, at the next try, a replaced object."""
        before = await self.stat(path)
        end = before.size if length is None else min(before.size, offset + length)
        tries, position, resumed = self._requests.tries("open_read", path), offset, False
        while True:
            left = None if length is None else offset + length - position
            stream = Stream(self._requests, tries, self.inner.open_read(path, position, left), ahead=_PIECES_AHEAD)
            try:
                while (piece := await stream.next()) is not None:
                    if resumed:
                        await self._check_same(before)
                        resumed = False
                    position += len(piece)
                    yield piece
                    tries.progress()
                if position >= end:
                    return
                failure = self._failures.unavailable(path, f"the stream ended at {position} of {end} bytes")
            except StorageUnavailable as error:
                failure = error
            finally:
                await stream.aclose()
            if position >= end:
                return
            await tries.failed(failure)
            resumed = True

    async def _check_same(self, before: Entry) -> None:
        """Call this after the first piece of the new stream has arrived: the piece is then not from later content."""
        if await self.stat(before.path) != before:
            raise self._failures.unavailable(before.path, "was replaced while it was read", settled=True)


class _ResilientWriter(Writer):
    """Makes each request of a writer once, within a limit, unless it is `paced`. The caller may repeat the write."""

    def __init__(self, requests: Requests, failures: Failures, path: str, inner: Writer) -> None:
        self._requests = requests
        self._failures = failures
        self._path = path
        self._inner = inner
        self._unbroken = Unbroken(f"{failures.scheme}: {path}")
        self._committed = False

    async def append(self, data: bytes | memoryview) -> None:
        await self._once(lambda: self._inner.append(data), self._requests.options.request_timeout)

    async def commit(self) -> Entry:
        entry = await self._once(self._inner.commit, self._requests.options.deadline)
        self._committed = True
        return entry

    async def abort(self) -> None:
        """Retry within the time of one request only, because the caller is about to leave."""
        if self._committed:  # nothing is left to abort, so this must not fail
            return
        aborting = self._requests("create", self._path, self._inner.abort)
        task = self._requests.start(self._path, aborting, "storage abort")
        try:
            await asyncio.wait({task}, timeout=self._requests.options.request_timeout)
        finally:
            if not task.done():
                await self._requests.stop(task)
        if task.cancelled():
            raise self._failures.unavailable(self._path, "what was begun could not be removed in time")
        task.result()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.abort()
        except MinflinkError as left_over:
            log.warning("what was begun to be written may be left", path=self._path, error=str(left_over))
            if error is None:
                raise

    async def _once(self, step: Callable[[], Awaitable[T]], limit: float) -> T:
        with self._unbroken.step():  # the backend may not know that a piece is missing
            if self._inner.paced:
                return await self._paced(step)
            return await self._requests.tries("create", self._path).once(step, limit=limit)

    async def _paced(self, step: Callable[[], Awaitable[T]]) -> T:
        try:
            return await step()
        except Exception as error:
            failure = error
        raise self._failures.of(self._path, failure)
