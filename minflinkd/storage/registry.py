"""Backends by URI scheme (S1): found by entry points, loaded at first use, one instance of each per process."""

from __future__ import annotations

import asyncio
import posixpath
import re
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points

import msgspec

from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.storage.failures import Failures
from minflinkd.storage.fsspec_storage import FsspecOptions, FsspecStorage, missing_package
from minflinkd.storage.interface import (
    Capabilities,
    InvalidPath,
    Storage,
    StorageError,
    StorageUnavailable,
)
from minflinkd.storage.leading import WrittenByLeader
from minflinkd.storage.location import Location
from minflinkd.storage.masking import Mask, secrets_of
from minflinkd.storage.options import CommonOptions, InvalidStorageOption, common, for_scheme, parse
from minflinkd.storage.proving import Proofs
from minflinkd.storage.recording import RecordedStorage, StorageStatistics
from minflinkd.storage.resilient import ResilientStorage

GROUP = "minflinkd.storage"
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?(.*)", re.DOTALL)
_AUTHORITY = re.compile(r"([^:@]*@)?([^:]*|\[[0-9A-Fa-f:.]*\])(:\d*)?", re.DOTALL)  # no user:password
_EXTRAS = {"hdfs": "hdfs", "s3": "s3", "s3a": "s3", "gs": "gcs", "abfs": "azure", "abfss": "azure", "az": "azure"}
_NO_PACKAGE = "install the package that brings it"


class UnknownScheme(StorageError):
    """There is no backend for a URI, or its dependencies are missing."""

    code = "storage-unknown-scheme"
    consequence = Consequence.REFUSED


class Storages:
    """All storage of one process. Created once, passed to those who need it, closed when the process ends."""

    def __init__(self, options: Mapping[str, str] | None = None, *, leads: Callable[[], bool] | None = None) -> None:
        """`options` are the values below `storage.`, by `<scheme>.<option>`. Raises InvalidStorageOption.

        With `leads`, requests that change something are refused while it returns False (`storage.leading`).

        Imports the backends of these schemes now rather than at first use, because that may take a second.
        """
        self._options = dict(options or {})
        self._leads = leads
        self._plugins: dict[str, EntryPoint] = {point.name: point for point in entry_points(group=GROUP)}
        self._rivals = _rivals()
        self._mask = Mask(secrets_of(self._options))
        self._open: dict[str, RecordedStorage | ResilientStorage] = {}
        self._closed = False
        self._proofs = Proofs()
        self._check_options()

    def at(self, uri: str) -> Location:
        """Return the place that a URI or a plain absolute path names. Raises UnknownScheme, InvalidPath.

        After `aclose`, this and every operation on its places raise StorageUnavailable.
        """
        scheme, path = parse_uri(uri)
        return Location(self._storage(scheme), scheme, path)

    async def require_writable(self, place: Location) -> None:
        """Return if objects can be kept at a place, which is checked there once if its backend does not vouch for it.

        Raises NotSupported if it is only read, StorageUnfit with the check that fails, StorageUnavailable.
        """
        await self._proofs.require(place)

    def add(self, storage: Storage) -> None:
        """Use this instance for its schemes. Its requests are counted, but have no retries and no time limits."""
        self._open.update(dict.fromkeys(storage.scheme, RecordedStorage(self._while_leading(storage))))

    def statistics(self) -> dict[str, StorageStatistics]:
        """Return the requests so far of the backends in use, each under the first of its schemes (S6)."""
        return {storage.scheme[0]: _recorded(storage).statistics() for _, storage in sorted(self._open.items())}

    async def aclose(self) -> None:
        """Close every backend, then raise the first error. Idempotent."""
        self._closed = True
        opened, self._open = {id(storage): storage for storage in self._open.values()}.values(), {}
        ends = await asyncio.gather(*(storage.aclose() for storage in opened), return_exceptions=True)
        for failure in ends:
            if isinstance(failure, BaseException):
                raise failure

    def _storage(self, scheme: str) -> Storage:
        if scheme not in self._open:
            if self._closed:
                raise StorageUnavailable(f"{scheme}: the storages of this process are closed", settled=True)
            if scheme not in self._plugins:
                self._open[scheme] = self._through_fsspec(scheme)
                return self._open[scheme]
            storage, mine = self._load(scheme), self._plugins[scheme].value
            for name in storage.scheme:  # a class may claim schemes that belong to another
                if name not in self._open and name in self._plugins and self._plugins[name].value == mine:
                    self._open[name] = storage
        return self._open[scheme]

    def _load(self, scheme: str) -> ResilientStorage:
        if scheme in self._rivals:
            packages = ", ".join(self._rivals[scheme])
            raise UnknownScheme(f"several packages bring {scheme}://: {packages}", hint="uninstall all but one")
        kind = backend_class(self._plugins[scheme])
        every, own = self._options_of(kind)
        make: Callable[[msgspec.Struct], Storage] = kind
        try:
            return ResilientStorage(self._while_leading(make(own)), every, self._mask)
        except MinflinkError as error:
            failure = error
        except Exception as error:
            failure = StorageError(f"the backend of {scheme}:// cannot be made: {type(error).__name__}: {error}")
            failure.__cause__ = error
        raise Failures(scheme, self._mask).of(scheme, failure)

    def _through_fsspec(self, scheme: str) -> ResilientStorage:
        """Return a storage that can only be read, unless its options say otherwise. Raises UnknownScheme."""
        missing = None if scheme in _EXTRAS else missing_package(scheme)
        if missing is None:
            known = ", ".join(sorted({*self._plugins, *self._open}))
            hint = _extra(scheme) if scheme in _EXTRAS else _NO_PACKAGE
            raise UnknownScheme(f"no storage backend for {scheme}://; there are: {known}", hint=hint)
        if missing:
            raise UnknownScheme(f"no storage backend for {scheme}://; fsspec can read it with a package", hint=missing)
        every, own = common(for_scheme(self._options, scheme), scheme)
        options = parse(FsspecOptions, own, scheme)
        return ResilientStorage(self._while_leading(FsspecStorage(options, scheme=scheme)), every, self._mask)

    def _while_leading(self, storage: Storage) -> Storage:
        return storage if self._leads is None else WrittenByLeader(storage, self._leads)

    def _options_of(self, kind: type[Storage]) -> tuple[CommonOptions, msgspec.Struct]:
        name = kind.scheme[0]
        every, own = common(for_scheme(self._options, name), name)
        return every, parse(kind.options_type, own, name)

    def _check_options(self) -> None:
        for scheme in sorted({key.partition(".")[0] for key in self._options}):
            if scheme not in self._plugins:
                if missing_package(scheme) is not None and scheme not in _EXTRAS:
                    continue  # checked at the first use
                known = f"there are: {', '.join(sorted(self._plugins))}"
                raise InvalidStorageOption(f"storage.{scheme}.*: no backend for {scheme}://", hint=known)
            try:
                kind = backend_class(self._plugins[scheme])
            except UnknownScheme:
                continue  # not installed here; matters only when it is used
            if kind.scheme[0] != scheme:
                raise InvalidStorageOption(
                    f"storage.{scheme}.*: no such options", hint=f"{scheme}:// has those of storage.{kind.scheme[0]}.*"
                )
            self._options_of(kind)


def _rivals() -> dict[str, list[str]]:
    """Return, by scheme, the packages that provide different backends for it."""
    found: dict[str, dict[str, str]] = {}
    for point in entry_points(group=GROUP):
        found.setdefault(point.name, {})[point.value] = point.dist.name if point.dist else point.value
    return {scheme: sorted(packages.values()) for scheme, packages in found.items() if len(packages) > 1}


def backend_class(point: EntryPoint) -> type[Storage]:
    """Return the class that an entry point names. It is complete: it can be instantiated.

    Raises UnknownScheme, with the command that installs what is missing.
    """
    scheme = point.name
    try:
        kind = point.load()
    except ImportError as error:
        why = f"the backend of {scheme}:// cannot be loaded: {error}"
        raise UnknownScheme(why, hint=_install(point, error)) from error
    except Exception as error:  # third-party code may raise anything
        why = f"the backend of {scheme}:// cannot be loaded: {type(error).__name__}: {error}"
        raise UnknownScheme(why, hint=f"see the package of {point.value}") from error
    if problem := _unfinished(kind, scheme):
        raise UnknownScheme(f"entry point {point.value!r} is no storage backend for {scheme}://: {problem}")
    whole: type[Storage] = kind
    return whole


def _unfinished(kind: object, scheme: str) -> str:
    """Return why a class cannot be a backend; empty if it can."""
    if not (isinstance(kind, type) and issubclass(kind, Storage)):
        return "no subclass of Storage"
    schemes = getattr(kind, "scheme", ())
    if not isinstance(schemes, tuple) or scheme not in schemes:
        return f"its `scheme` is {schemes!r}, not a tuple with {scheme!r}"
    if not isinstance(getattr(kind, "capabilities", None), Capabilities):
        return "its `capabilities` are missing"
    if not (isinstance(kind.options_type, type) and issubclass(kind.options_type, msgspec.Struct)):
        return "its `options_type` is no msgspec.Struct"
    missing = ", ".join(sorted(getattr(kind, "__abstractmethods__", ())))
    return f"it does not implement {missing}" if missing else ""


def _extra(scheme: str) -> str:
    extra = _EXTRAS[scheme]
    return f"install the extra: pip install 'minflinkd[{extra}]' (in a checkout: pip install '.[{extra}]')"


def _install(point: EntryPoint, error: ImportError) -> str:
    package = point.dist.name if point.dist else "minflinkd"
    if package == "minflinkd" and point.name in _EXTRAS:
        return _extra(point.name)
    missing = (error.name or "").partition(".")[0]
    return f"pip install --force-reinstall {package}" + (f", which needs {missing}" if missing else "")


def _recorded(storage: RecordedStorage | ResilientStorage) -> RecordedStorage:
    return storage.inner if isinstance(storage, ResilientStorage) else storage


def parse_uri(uri: str) -> tuple[str, str]:
    """Return (scheme, path): `file:///a/b`, `/a/b` give (file, /a/b); `s3://b/k` gives (s3, b/k). Raises InvalidPath.

    Nothing is unquoted: as in Hadoop's paths, a name may contain % or a space. Credentials are refused, without showing
    them.
    """
    if uri.startswith("/"):
        return "file", _normal(uri, uri)
    match = _URI.fullmatch(uri)
    if match is None:
        raise InvalidPath(
            f"{uri[:200]!r} is neither a URI nor an absolute path", hint="e.g. file:///var/lib/x or /var/lib/x"
        )
    scheme, path = match[1].lower(), match[3]
    if scheme != "file" and not _AUTHORITY.fullmatch(path.partition("/")[0]):
        raise InvalidPath(
            f"{scheme}://...: what stands before the first / is no host or bucket",
            hint="credentials do not belong in a URI, but in the options of the backend",
        )
    if scheme == "file" and not path.startswith("/"):
        raise InvalidPath(f"{uri[:200]!r} names no absolute path", hint=f"file:///{path}")
    return scheme, _normal(path, uri)


def _normal(path: str, uri: str) -> str:
    if "\0" in path or ".." in path.split("/") or not path:
        raise InvalidPath(f"{uri[:200]!r} is not a path without ..")
    return "/" + posixpath.normpath(path).lstrip("/") if path.startswith("/") else posixpath.normpath(path)
