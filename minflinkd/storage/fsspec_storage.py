"""Reads storages for which there is no backend, through fsspec: savepoints and checkpoints from which a job starts.

Only reading. fsspec does not say of a file system whether a create is exclusive or a rename atomic, and some that are
asked for an exclusive create overwrite. So nothing is written where nobody has shown that it holds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import msgspec

from minflinkd.storage.fsspec_errors import Kind, install, kind_of, reason, unknown_scheme
from minflinkd.storage.interface import (
    Capabilities,
    Entry,
    NotSupported,
    ObjectNotFound,
    PermissionDenied,
    Storage,
    StorageError,
    StorageUnavailable,
    Writer,
)
from minflinkd.storage.own_thread import in_own_thread

T = TypeVar("T")

_PIECE = 4 << 20  # bytes of one request
_CREDENTIALS = "docs/storage.md says where credentials are looked for"
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "created", "modified", "Last-Modified")
_KINDS = {
    Kind.NOT_FOUND: (ObjectNotFound, ""),
    Kind.DIRECTORY: (ObjectNotFound, "it is a directory"),
    Kind.NO_PERMISSION: (PermissionDenied, _CREDENTIALS),
    Kind.TRANSIENT: (StorageUnavailable, ""),
}


class FsspecStorage(Storage):
    """One scheme. `path` is what follows `scheme://`."""

    capabilities = Capabilities()
    read_only = True

    def __init__(self, options: msgspec.Struct | None = None, *, scheme: str) -> None:
        super().__init__(options)
        self.scheme = (scheme,)
        self._systems: dict[str, Any] = {}  # by host

    async def open_read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        size = (await self.stat(path)).size
        end = size if length is None else min(size, offset + length)
        while offset < end:
            piece = await self._piece(path, offset, min(end, offset + _PIECE), size)
            offset += len(piece)
            yield piece

    async def _piece(self, path: str, first: int, end: int, size: int) -> bytes:
        def read(system: Any, inner: str) -> bytes:
            data = bytes(system.cat_file(inner, start=first, end=end))
            return data[first:end] if len(data) == size > end - first else data  # a web server without ranges sends all

        data = await self._call(path, read)
        if len(data) != end - first:
            raise StorageUnavailable(f"{self.scheme[0]}: {path}: {len(data)} bytes came instead of {end - first}")
        return data

    async def stat(self, path: str) -> Entry:
        return await self._call(path, lambda system, inner: self._entry(path, system.info(inner)))

    async def list(self, prefix: str) -> AsyncIterator[Entry]:
        def find(system: Any, inner: str) -> list[Entry]:
            entries = []
            for name, info in system.find(inner, detail=True).items():
                below = str(name).removeprefix(inner.rstrip("/")).strip("/")
                if below:
                    whole = info if info.get("size") is not None else system.info(name)
                    entries.append(self._entry(f"{prefix.rstrip('/')}/{below}", whole))
            return sorted(entries, key=lambda entry: entry.path)

        try:
            found = await self._call(prefix, find)
        except ObjectNotFound:
            return
        for entry in found:
            yield entry

    def _entry(self, path: str, info: dict[str, Any]) -> Entry:
        if info.get("type") == "directory":
            raise ObjectNotFound(f"{self.scheme[0]}: {path}: it is a directory")
        if info.get("size") is None:
            raise NotSupported(f"{self.scheme[0]}: {path}: the server does not say how long it is")
        moment = next((info[name] for name in _TIMES if info.get(name) is not None), None)
        version = info.get("ETag") or info.get("etag") or ""
        return Entry(path, int(info["size"]), _milliseconds(moment), str(version))

    async def create(self, path: str) -> Writer:
        raise self._only_read(path)

    async def create_exclusive(self, path: str, data: bytes) -> None:
        raise self._only_read(path)

    async def delete(self, paths: Sequence[str], *, below: str | None = None) -> None:
        for path in paths:
            raise self._only_read(path)

    async def rename(self, source: str, target: str) -> None:
        raise self._only_read(source)

    def _only_read(self, path: str) -> NotSupported:
        return NotSupported(
            f"{self.scheme[0]}: {path}: storages without a backend are only read, through fsspec",
            hint="write to a storage that `minflinkd plugins` lists",
        )

    async def _call(self, path: str, action: Callable[[Any, str], T]) -> T:
        """Call `action` with the file system and its own form of the path. Raises StorageError."""
        url = f"{self.scheme[0]}://{path}"

        def run() -> T:
            try:
                system, inner = self._system(url, path)
                system.invalidate_cache()  # of listings
                return action(system, inner)
            except StorageError:
                raise
            except Exception as error:
                raise self._error(path, url, error) from None  # the cause may have credentials in its text

        return await in_own_thread(run, f"fsspec {self.scheme[0]}")

    def _system(self, url: str, path: str) -> tuple[Any, str]:
        from fsspec.core import url_to_fs

        host = path.partition("/")[0]
        if host not in self._systems:
            options = {"client_kwargs": {"trust_env": True}} if self.scheme[0] in ("http", "https") else {}
            self._systems[host], _ = url_to_fs(url, skip_instance_cache=True, **options)
        system = self._systems[host]
        return system, system._strip_protocol(url)

    def _error(self, path: str, url: str, error: Exception) -> StorageError:
        kind, hint = _KINDS.get(kind_of(error), (StorageError, ""))
        return kind(f"{self.scheme[0]}: {path}: {reason(url, error)}", hint=hint)

    async def aclose(self) -> None:
        self._systems.clear()


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


def _milliseconds(moment: object) -> int:
    """Return a time in any of the forms that fsspec's file systems use; 0 if it is unknown."""
    if isinstance(moment, datetime):
        return int(moment.timestamp() * 1000)
    if isinstance(moment, int | float):
        return int(moment * 1000)
    try:
        return int(parsedate_to_datetime(str(moment)).timestamp() * 1000)
    except ValueError:
        return 0
