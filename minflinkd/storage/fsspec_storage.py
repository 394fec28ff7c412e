"""Storages for which there is no backend, through fsspec: read everywhere, written where it is shown to be safe.

fsspec does not say of a file system whether a create is exclusive or a rename atomic, and some that are asked for an
exclusive create overwrite. So nothing is written unless the operator says so (`storage.<scheme>.writable`), the file
system has one-step operations for it (`fsspec_files`), and the checks at the place pass (`proving`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec

from minflinkd.storage import fsspec_files as files
from minflinkd.storage.fsspec_connections import Connections
from minflinkd.storage.fsspec_errors import install, unknown_scheme
from minflinkd.storage.interface import (
    Capabilities,
    Entry,
    NotSupported,
    ObjectExists,
    ObjectNotFound,
    Storage,
    StorageUnavailable,
    Writer,
)
from minflinkd.storage.writing import Unbroken

_PIECE: Final = 4 << 20  # bytes that one request reads
_KEPT: Final = 1 << 20  # bytes that a writer collects before it sends them
_BATCH: Final = 100  # paths of a deletion per call


class FsspecOptions(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    writable: bool = False  # also then a place is written only if its checks pass


class FsspecStorage(Storage):
    """One scheme. `path` is what follows `scheme://`."""

    options_type = FsspecOptions
    proven = False

    def __init__(self, options: msgspec.Struct | None = None, *, scheme: str) -> None:
        super().__init__(options)
        self.scheme = (scheme,)
        self.read_only = not (isinstance(options, FsspecOptions) and options.writable)
        self._way = files.way_of(scheme)
        can = self._way is not None and not self.read_only
        self.capabilities = Capabilities(exclusive_create=can, atomic_rename=can, consistent_list=not self.read_only)
        self._connections = Connections(scheme, self._way)

    async def open_read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        before = await self.stat(path)
        end = before.size if length is None else min(before.size, offset + length)
        while offset < end:
            piece = await self._piece(before, offset, min(end, offset + _PIECE))
            offset += len(piece)
            yield piece

    async def _piece(self, before: Entry, first: int, end: int) -> bytes:
        path, size = before.path, before.size

        def read(system: Any, inner: str) -> bytes:
            data = bytes(system.cat_file(inner, start=first, end=end))
            if not self.read_only and first > 0 and self._entry(path, system.info(inner)) != before:
                raise StorageUnavailable(f"{self.scheme[0]}: {path}: was replaced while it was read", settled=True)
            return data[first:end] if len(data) == size > end - first else data  # a web server without ranges sends all

        data = await self._connections.run(path, read)
        if len(data) != end - first:
            raise StorageUnavailable(f"{self.scheme[0]}: {path}: {len(data)} bytes came instead of {end - first}")
        return data

    async def stat(self, path: str) -> Entry:
        return await self._connections.run(path, lambda system, inner: self._entry(path, system.info(inner)))

    async def list(self, prefix: str) -> AsyncIterator[Entry]:
        def find(system: Any, inner: str) -> Sequence[Entry]:
            entries, inside = [], inner.rstrip("/")
            for info in self._found(system, inner):
                below = str(info["name"]).removeprefix(inside).strip("/")
                if below:
                    entries.append(self._entry(f"{prefix.rstrip('/')}/{below}", info))
            return sorted(entries, key=lambda entry: entry.path)

        try:
            found = await self._connections.run(prefix, find)
        except ObjectNotFound:
            return
        for entry in found:
            yield entry

    def _found(self, system: Any, inner: str) -> Iterable[Mapping[str, Any]]:
        if self._way is not None:
            return files.walk(system, inner)
        found = system.find(inner, detail=True).items()
        return [{**(info if info.get("size") is not None else system.info(name)), "name": name} for name, info in found]

    def _entry(self, path: str, info: Mapping[str, Any]) -> Entry:
        if info.get("type") == "directory":
            raise ObjectNotFound(f"{self.scheme[0]}: {path}: it is a directory")
        if info.get("size") is None:
            raise NotSupported(f"{self.scheme[0]}: {path}: the server does not say how long it is")
        version = info.get("ETag") or info.get("etag") or ""
        return Entry(path, int(info["size"]), files.modified_ms(info), str(version))

    async def create(self, path: str) -> Writer:
        return FsspecWriter(self._connections, self._writing(path), path)

    async def create_exclusive(self, path: str, data: bytes) -> None:
        way = self._writing(path)

        def write(system: Any, inner: str) -> None:
            draft = files.Draft(way, inner)
            try:
                draft.write(system, data)
                draft.publish(system, exclusive=True)
            except FileExistsError:
                raise ObjectExists(f"{self.scheme[0]}: {path} exists") from None
            finally:
                draft.discard(system)

        await self._connections.run(path, write)

    async def delete(self, paths: Sequence[str], *, below: str | None = None) -> None:
        for start in range(0, len(paths), _BATCH):  # each batch has its own time limits
            batch = paths[start : start + _BATCH]
            deleting = partial(self._delete, self._writing(batch[0]), batch, below)
            if len(paths) <= _BATCH:
                await deleting()
            else:
                await self.attempts("delete", batch[0], deleting)

    async def _delete(self, way: files.Way, paths: Sequence[str], below: str | None) -> None:
        def delete_all(system: Any, _: str) -> None:
            for path in paths:
                files.delete(system, way, way.inner(path), None if below is None else way.inner(below))

        await self._connections.run(paths[0], delete_all)

    async def rename(self, source: str, target: str) -> None:
        way = self._writing(source)
        await self._connections.run(source, lambda system, inner: files.rename(system, way, inner, way.inner(target)))

    def _writing(self, path: str) -> files.Way:
        """Return how to write. Raises NotSupported."""
        if self.read_only:
            why = "storages without a backend are only read, through fsspec"
            hint = "write to a storage that `minflinkd plugins` lists"
            more = f", or set storage.{self.scheme[0]}.writable" if self._way is not None else ""
            raise NotSupported(f"{self.scheme[0]}: {path}: {why}", hint=hint + more)
        if self._way is None:
            raise NotSupported(f"{self.scheme[0]}: {path}: fsspec cannot create exclusively there")
        return self._way

    async def aclose(self) -> None:
        self._connections.close()


class FsspecWriter(Writer):
    """Keeps small pieces until they are a request's worth. It has a connection of its own from its first request on."""

    def __init__(self, connections: Connections, way: files.Way, path: str) -> None:
        self._connections = connections
        self._path = path
        self._draft = files.Draft(way, way.inner(path))
        self._connection = connections.take(path)
        self._waiting = bytearray()
        self._unbroken = Unbroken(path)
        self._begun = False
        self._committed: Entry | None = None

    async def append(self, data: bytes | memoryview) -> None:
        with self._unbroken.step():
            self._waiting += data
            if len(self._waiting) < _KEPT:
                return
            piece, self._waiting, self._begun = self._waiting, bytearray(), True
            await self._connection.run(self._path, lambda system, _: self._draft.write(system, piece))

    async def commit(self) -> Entry:
        if self._committed is None:
            with self._unbroken.step():
                self._begun = True
                self._committed = await self._connection.run(self._path, self._finish)
            self._connections.give(self._connection)
        return self._committed

    def _finish(self, system: Any, _: str) -> Entry:
        self._draft.write(system, self._waiting)
        info = self._draft.publish(system)
        return Entry(self._path, int(info["size"]), files.modified_ms(info))

    async def abort(self) -> None:
        """Delete the draft on another connection, because the writer's own may hang or be lost."""
        if self._committed is not None:
            return
        self._waiting.clear()
        self._connection.close()
        if self._begun:
            await self._connections.run(self._path, self._discard)

    def _discard(self, system: Any, _: str) -> None:
        self._draft.discard(system)
        with suppress(Exception):  # its connection is gone
            self._draft.close()


def missing_package(scheme: str) -> str | None:
    """Return what to install before fsspec can open a scheme: empty if nothing; None if it does not know the scheme."""
    from fsspec.registry import get_filesystem_class

    if unknown_scheme([scheme]):
        return None
    try:
        get_filesystem_class(scheme)
    except ImportError as error:
        return install([scheme], error)
    return ""
