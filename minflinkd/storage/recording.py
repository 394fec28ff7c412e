"""Counts requests (S6), for metrics, tests and benchmarks."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import TypeVar, cast

import msgspec

from minflinkd.storage.interface import Entry, ObjectExists, ObjectNotFound, Storage, Writer
from minflinkd.storage.wrapper import StorageWrapper
from minflinkd.storage.writing import Unbroken


class RequestStatistics(msgspec.Struct, frozen=True):
    """Requests of one kind.

    A stream or a written object is one request, however many pieces it has. The steps of a write in parts are kinds of
    their own; their bytes are counted once, with the object.
    """

    requests: int = 0  # retries included
    errors: int = 0  # requests that failed or timed out; "no such object" is an answer, not an error
    retries: int = 0
    bytes: int = 0
    seconds: float = 0.0  # in the backend, without the caller's time between pieces


T = TypeVar("T")
_END = object()

StorageStatistics = dict[str, RequestStatistics]  # by kind: open_read, create, list, delete, ...; put, part, ...


@dataclass
class _Request:
    bytes: int = 0
    seconds: float = 0.0
    errors: int = 0

    @contextmanager
    def time(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        except (ObjectNotFound, ObjectExists):  # answers, not errors
            raise
        except Exception:
            self.errors = 1
            raise
        finally:
            self.seconds += time.perf_counter() - started


class RecordedStorage(StorageWrapper):
    """Counts the requests to a backend."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self._kinds: StorageStatistics = {}

    def statistics(self) -> StorageStatistics:
        return dict(self._kinds)

    async def open_read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        with self._request("open_read") as request:
            async with aclosing(_timed(self.inner.open_read(path, offset, length), request)) as pieces:
                async for data in pieces:
                    request.bytes += len(data)
                    yield data

    async def create(self, path: str) -> Writer:
        return _RecordedWriter(self, path, await self.inner.create(path))

    async def create_exclusive(self, path: str, data: bytes) -> None:
        with self._request("create_exclusive") as request, request.time():
            request.bytes = len(data)
            await self.inner.create_exclusive(path, data)

    async def list(self, prefix: str) -> AsyncIterator[Entry]:
        with self._request("list") as request:
            async with aclosing(_timed(self.inner.list(prefix), request)) as entries:
                async for entry in entries:
                    yield entry

    async def delete(self, paths: Sequence[str], *, below: str | None = None) -> None:
        with self._request("delete") as request, request.time():
            await self.inner.delete(paths, below=below)

    async def stat(self, path: str) -> Entry:
        with self._request("stat") as request, request.time():
            return await self.inner.stat(path)

    async def rename(self, source: str, target: str) -> None:
        with self._request("rename") as request, request.time():
            await self.inner.rename(source, target)

    async def copy(self, source: str, target: str) -> Entry:
        with self._request("copy") as request, request.time():
            entry = await self.inner.copy(source, target)
            request.bytes = entry.size
            return entry

    async def sync(self, paths: Sequence[str]) -> None:
        with self._request("sync") as request, request.time():
            await self.inner.sync(paths)

    @contextmanager
    def _request(self, kind: str) -> Iterator[_Request]:
        request = _Request()
        try:
            yield request
        finally:
            self.record(kind, request)

    @contextmanager
    def measure(self, kind: str) -> Iterator[None]:
        """Measure a step that the backend takes by itself, inside an operation."""
        with self._request(kind) as request, request.time():
            yield

    def retried(self, kind: str) -> None:
        self._add(kind, RequestStatistics(retries=1))

    def timed_out(self, kind: str) -> None:
        """Count an error for a request that is already counted: its cancellation alone does not count as one."""
        self._add(kind, RequestStatistics(errors=1))

    def record(self, kind: str, request: _Request) -> None:
        self._add(kind, RequestStatistics(1, request.errors, 0, request.bytes, request.seconds))

    def _add(self, kind: str, more: RequestStatistics) -> None:
        before = self._kinds.get(kind, RequestStatistics())
        self._kinds[kind] = RequestStatistics(
            before.requests + more.requests,
            before.errors + more.errors,
            before.retries + more.retries,
            before.bytes + more.bytes,
            before.seconds + more.seconds,
        )


class _RecordedWriter(Writer):
    """Also makes sure that no backend is asked to continue a write that was broken off."""

    def __init__(self, storage: RecordedStorage, path: str, inner: Writer) -> None:
        self._storage = storage
        self._inner = inner
        self.paced = inner.paced
        self._unbroken = Unbroken(path)
        self._request: _Request | None = _Request()

    async def append(self, data: bytes | memoryview) -> None:
        request = self._request or _Request()
        with self._unbroken.step(), request.time():
            await self._inner.append(data)
        request.bytes += len(data)

    async def commit(self) -> Entry:
        with self._unbroken.step(), (self._request or _Request()).time():
            entry = await self._inner.commit()
        self._finish()
        return entry

    async def abort(self) -> None:
        try:
            await self._inner.abort()
        finally:
            self._finish()

    def _finish(self) -> None:
        if self._request is not None:
            self._storage.record("create", self._request)
            self._request = None


async def _timed(items: AsyncIterator[T], request: _Request) -> AsyncGenerator[T, None]:
    """Yield the items and count the time until each one arrives. Closes the stream when it is closed itself."""
    try:
        while True:
            with request.time():
                item = await anext(items, _END)
            if item is _END:
                return
            yield cast(T, item)
    finally:
        if isinstance(items, AsyncGenerator):
            await items.aclose()
