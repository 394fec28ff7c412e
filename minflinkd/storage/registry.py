"""Backends by URI scheme (S1): found through entry points, loaded when first used, one instance of each a process."""

from __future__ import annotations

import posixpath
import re
from importlib.metadata import EntryPoint, entry_points

from minflinkd.runtime.errors import Consequence
from minflinkd.storage.interface import InvalidPath, Storage, StorageError
from minflinkd.storage.location import Location
from minflinkd.storage.recording import RecordedStorage, StorageStatistics

GROUP = "minflinkd.storage"
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?(.*)", re.DOTALL)
_EXTRAS = {"hdfs": "hdfs", "s3": "s3", "s3a": "s3", "gs": "gcs", "abfs": "azure", "abfss": "azure", "az": "azure"}


class UnknownScheme(StorageError):
    """No backend for a URI, or one whose dependencies are missing."""

    code = "storage-unknown-scheme"
    consequence = Consequence.REFUSED


class Storages:
    """All storage of one process; made once, passed to those who need it, closed with the process."""

    def __init__(self) -> None:
        self._plugins: dict[str, EntryPoint] = {point.name: point for point in entry_points(group=GROUP)}
        self._open: dict[str, RecordedStorage] = {}

    def at(self, uri: str) -> Location:
        """The place that a URI or a plain absolute path names. Raises UnknownScheme, InvalidPath."""
        scheme, path = parse_uri(uri)
        return Location(self._storage(scheme), scheme, path)

    def add(self, storage: Storage) -> None:
        """Use this instance for its schemes, instead of what entry points give."""
        recorded = RecordedStorage(storage)
        self._open.update(dict.fromkeys(storage.scheme, recorded))

    def statistics(self) -> dict[str, StorageStatistics]:
        """Requests so far by scheme, of the backends in use (S6)."""
        return {scheme: storage.statistics() for scheme, storage in sorted(self._open.items())}

    async def aclose(self) -> None:
        """Idempotent."""
        opened, self._open = set(self._open.values()), {}
        for storage in opened:
            await storage.aclose()

    def _storage(self, scheme: str) -> Storage:
        if scheme not in self._open:
            self.add(self._load(scheme))
        return self._open[scheme]

    def _load(self, scheme: str) -> Storage:
        install = f"pip install 'minflinkd[{_EXTRAS[scheme]}]'" if scheme in _EXTRAS else ""
        if scheme not in self._plugins:
            known = ", ".join(sorted({*self._plugins, *self._open}))
            hint = install or "install the package that brings it"
            raise UnknownScheme(f"no storage backend for {scheme}://; there are: {known}", hint=hint)
        point = self._plugins[scheme]
        try:
            kind = point.load()
        except ImportError as error:
            hint = install or "install the backend's dependencies"
            raise UnknownScheme(f"the backend of {scheme}:// cannot be loaded: {error}", hint=hint) from error
        storage = kind()
        if not isinstance(storage, Storage) or scheme not in storage.scheme:
            raise UnknownScheme(f"entry point {point.value!r} is no storage backend for {scheme}://")
        return storage


def parse_uri(uri: str) -> tuple[str, str]:
    """(scheme, path): `file:///a/b` and `/a/b` give (file, /a/b), `s3://b/k` gives (s3, b/k). Raises InvalidPath.

    Nothing is unquoted: a name may hold % or a blank, as in Hadoop's paths.
    """
    if uri.startswith("/"):
        return "file", _normal(uri, uri)
    match = _URI.fullmatch(uri)
    if match is None:
        raise InvalidPath(
            f"{uri[:200]!r} is neither a URI nor an absolute path", hint="e.g. file:///var/lib/x or /var/lib/x"
        )
    scheme, path = match[1].lower(), match[3]
    if scheme == "file" and not path.startswith("/"):
        raise InvalidPath(f"{uri[:200]!r} names no absolute path", hint=f"file:///{path}")
    return scheme, _normal(path, uri)


def _normal(path: str, uri: str) -> str:
    if "\0" in path or ".." in path.split("/") or not path:
        raise InvalidPath(f"{uri[:200]!r} is not a path without ..")
    return "/" + posixpath.normpath(path).lstrip("/") if path.startswith("/") else posixpath.normpath(path)
