"""Small objects in ZooKeeper that only the leader can write or delete (A11a, A12), with the interface of a storage.

Each write and each deletion is one transaction with a check of the leader's claim. So ZooKeeper refuses a daemon that
no longer leads, whatever that daemon believes. A node's data begins with one letter:

    i<data, compressed>   the object itself
    p<size>:<name>        the size and name of a file in `overflow`, for objects that are too large for a node

The name of a file in `overflow` contains the epoch of its leader, and is never used again. The file is written before
the node that names it, and deleted after the node. So a crash in between leaves at most an unreferenced file, which
`sweep` deletes.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import structlog
from kazoo import exceptions as zk

from minflinkd.ha.service import ClaimGone, ServiceFull, ServiceRefused, ServiceUnavailable
from minflinkd.ha.zookeeper.ballot import Fence, transact
from minflinkd.ha.zookeeper.session import ZooKeeperSession
from minflinkd.storage.interface import (
    Capabilities,
    Entry,
    InvalidPath,
    ObjectExists,
    ObjectNotFound,
    PermissionDenied,
    Storage,
    StorageCorrupt,
    StorageFull,
    StorageUnavailable,
    Writer,
)
from minflinkd.storage.location import Location

SCHEME = "zookeeper"
INLINE = 256 * 1024  # bytes, compressed; a server takes 1 MiB in one request
RECORDS = "records"
_SMALL = 16 * 1024  # bytes; compressing them takes less time than starting a thread
_INLINE, _POINTER, _DIRECTORY = b"i", b"p", b""
_LISTED_AT_ONCE = 64  # nodes of up to 256 KiB each
_DIRECTORY_TRIES = 5  # whoever deletes the last record of a directory also deletes the directory, even a new one
_POINTER_VALUE = re.compile(rb"p([0-9]{1,15}):([0-9]{10}-[0-9a-f]{32})")
_NOT_IN_NAMES = re.compile("[\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]")  # of nodes
T = TypeVar("T")

log = structlog.get_logger(__name__)


class ZooKeeperRecords(Storage):
    scheme = (SCHEME,)
    capabilities = Capabilities(exclusive_create=True, consistent_list=True)

    def __init__(
        self,
        session: ZooKeeperSession,
        root: str,
        *,
        fence: Fence,
        epoch: int,
        overflow: Location,
    ) -> None:
        """`root`: the cluster's path in ZooKeeper. `fence` and `epoch` are those of one leadership.

        If this daemon leads again later, it has another claim. ZooKeeper then refuses unfinished work of the first
        leadership, such as a write that is still being retried.
        """
        super().__init__()
        self._session = session
        self._root = f"{root}/{RECORDS}"
        self._fence = fence
        self._epoch = epoch
        self._overflow = overflow

    async def open_read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        data = await self._read(path)
        end = None if length is None else offset + length
        if piece := data[offset:end]:
            yield piece

    async def create(self, path: str) -> Writer:
        return RecordWriter(self, _checked(path))

    async def create_exclusive(self, path: str, data: bytes) -> None:
        async with self._kept(path, data) as value:
            try:
                await self._write(path, ("create", self._node(path), value))
            except zk.NodeExistsError as error:
                raise ObjectExists(f"{SCHEME}: {path} exists") from error

    async def put(self, path: str, data: bytes) -> Entry:
        """Write an object. Replaces one of the same name."""
        node = self._node(path)
        async with self._kept(path, data) as value:
            old = await self._value(path)
            if old is None:
                with contextlib.suppress(zk.NodeExistsError):
                    await self._write(path, ("create", node, value))
                    return _entry(path, data)
                old = await self._value(path)
            await self._write(path, ("set_data", node, value))
        await self._drop_file(old)
        return _entry(path, data)

    async def list(self, prefix: str) -> AsyncIterator[Entry]:
        async for path, value, stat in self._below(_checked(prefix).rstrip("/")):
            if value != _DIRECTORY:
                yield Entry(path, await _size(path, value), stat.mtime, str(stat.version))

    async def delete(self, paths: Sequence[str], *, below: str | None = None) -> None:
        for path in paths:
            old = await self._value(_checked(path))
            if old is None or not await self._delete_node(path):
                continue
            await self._drop_file(old)
            parent = path.rpartition("/")[0]
            while parent.strip("/") and parent != below and await self._delete_node(parent, directory=True):
                parent = parent.rpartition("/")[0] if below is not None else ""

    async def stat(self, path: str) -> Entry:
        value, stat = await self._get(path)
        if value is None or value == _DIRECTORY:
            raise ObjectNotFound(f"{SCHEME}: {path} does not exist")
        return Entry(path, await _size(path, value), stat.mtime, str(stat.version))

    async def rename(self, source: str, target: str) -> None:
        """No caller renames records, but every storage must be able to. A write that comes in between is not lost."""
        value, stat = await self._get(source)
        if value is None or value == _DIRECTORY:
            raise ObjectNotFound(f"{SCHEME}: {source} does not exist")
        node = self._node(target)
        old, replaced = await self._get(target)
        write = ("create", node, value) if old is None else ("set_data", node, value, replaced.version)
        try:
            await self._write(target, write, ("delete", self._node(source), stat.version))
        except (zk.BadVersionError, zk.NodeExistsError, zk.NoNodeError) as error:
            raise StorageUnavailable(f"{SCHEME}: {source} or {target} changed while it was renamed") from error
        await self._drop_file(old)

    async def sweep(self) -> int:
        """Delete the files of earlier epochs that no record names. Return how many.

        If a record cannot be read, delete no file and return 0: it is unknown which file the record names (A12).
        """
        named = set()
        async for path, value, _ in self._below(""):
            if (name := _file_of(value)) is not None:
                named.add(name)
            elif value and value[:1] != _INLINE:
                log.error("a record cannot be read, so large records are not swept", record=path)
                return 0
        found = [self._overflow.relative(entry.path) async for entry in self._overflow.list()]
        left = [name for name in found if name not in named and _epoch_of(name) < self._epoch]
        await self._overflow.delete_children(left)
        return len(left)

    # --- nodes ---

    def _node(self, path: str) -> str:
        return f"{self._root}{_checked(path)}"

    async def _get(self, path: str) -> tuple[bytes | None, Any]:
        try:
            return await self._call("get", self._node(path))  # type: ignore[no-any-return]
        except zk.NoNodeError:
            return None, None

    async def _value(self, path: str) -> bytes | None:
        return (await self._get(path))[0]

    async def _read(self, path: str) -> bytes:
        value = await self._value(path)
        if value is None or value == _DIRECTORY:
            raise ObjectNotFound(f"{SCHEME}: {path} does not exist")
        if (name := _file_of(value)) is not None:
            try:
                return await self._overflow.child(name).read_bytes()
            except ObjectNotFound as error:
                if await self._value(path) != value:  # replaced meanwhile
                    raise StorageUnavailable(f"{SCHEME}: {path} was replaced while it was read") from error
                raise StorageCorrupt(f"{SCHEME}: {path} names a file that is not there: {error.message}") from error
        return await _unpacked(path, value)

    async def _below(self, path: str) -> AsyncIterator[tuple[str, bytes, Any]]:
        """Yield path, value and stat of all nodes below, including directories, in the order of their paths.

        The next leader lists all results before it leads, perhaps thousands. Each node needs a request, so many
        requests run at a time.
        """
        try:
            names = await self._call("get_children", f"{self._root}{path}")
        except zk.NoNodeError:
            return
        paths = [f"{path}/{name}" for name in sorted(names, key=lambda name: f"{name}/")]  # "a.json" before "a/b"
        for first in range(0, len(paths), _LISTED_AT_ONCE):
            batch = paths[first : first + _LISTED_AT_ONCE]
            for child, (value, stat) in zip(batch, await asyncio.gather(*map(self._get, batch)), strict=True):
                if value is None:
                    continue  # deleted since it was listed
                yield child, value, stat
                if stat.numChildren:
                    async for below in self._below(child):
                        yield below

    async def _write(self, path: str, *operations: tuple[Any, ...]) -> None:
        """Carry out the leader's operations; the first is on `path`. Create missing directories of its node."""
        for _ in range(_DIRECTORY_TRIES):
            try:
                await self._fenced(*operations)
                return
            except zk.NoNodeError:
                with contextlib.suppress(zk.NoNodeError):  # somebody deleted a directory meanwhile
                    await self._call("ensure_path", self._node(path).rpartition("/")[0])
        raise StorageUnavailable(f"{SCHEME}: {path}: its node or its directory was deleted again and again meanwhile")

    async def _delete_node(self, path: str, *, directory: bool = False) -> bool:
        """Delete a node. Returns False if it is gone, or if something is below it."""
        try:
            if directory and await self._value(path) != _DIRECTORY:
                return False
            await self._fenced(("delete", self._node(path)))
        except (zk.NoNodeError, zk.NotEmptyError):
            return False
        return True

    async def _fenced(self, *operations: tuple[Any, ...]) -> None:
        await _answered(lambda: transact(self._session, self._fence, *operations))

    async def _call(self, method: str, *args: Any) -> Any:
        return await _answered(lambda: self._session.call(method, *args))

    # --- files for large objects ---

    @contextlib.asynccontextmanager
    async def _kept(self, path: str, data: bytes) -> AsyncIterator[bytes]:
        """Yield the node's value for `data`. It may name a file: delete that if the node is certainly not written."""
        value = _INLINE + await _beside(zlib.compress, data)
        if len(value) <= INLINE:
            yield value
            return
        name = f"{self._epoch:010d}-{secrets.token_hex(16)}"
        file = self._overflow.child(name)
        await file.write_bytes(data)
        try:
            yield _POINTER + f"{len(data)}:{name}".encode()
        except (ObjectExists, PermissionDenied, StorageFull):
            await file.delete()
            raise

    async def _drop_file(self, old: bytes | None) -> None:
        if old is not None and (name := _file_of(old)) is not None:
            await self._overflow.child(name).delete()


class RecordWriter(Writer):
    def __init__(self, records: ZooKeeperRecords, path: str) -> None:
        self._records = records
        self._path = path
        self._data = bytearray()

    async def append(self, data: bytes | memoryview) -> None:
        self._data += data

    async def commit(self) -> Entry:
        return await self._records.put(self._path, bytes(self._data))

    async def abort(self) -> None:
        self._data.clear()


async def _beside(work: Callable[[bytes], bytes], data: bytes) -> bytes:
    """Do work whose time grows with `data`. Use a thread if it would block the event loop (10 MB: 0.25 s)."""
    return work(data) if len(data) <= _SMALL else await asyncio.to_thread(work, data)


async def _answered(request: Callable[[], Awaitable[T]]) -> T:
    """Return the answer. Raises the errors of a storage; the caller handles errors of a node (NoNodeError, ...)."""
    try:
        return await request()
    except ClaimGone as error:
        raise StorageUnavailable(f"{SCHEME}: {error.message}", settled=True) from error
    except ServiceUnavailable as error:
        raise StorageUnavailable(f"{SCHEME}: {error.message}", hint=error.hint) from error
    except ServiceFull as error:
        raise StorageFull(f"{SCHEME}: {error.message}", hint=error.hint) from error
    except ServiceRefused as error:
        raise PermissionDenied(f"{SCHEME}: {error.message}", hint=error.hint) from error


def _checked(path: str) -> str:
    parts = path.split("/")
    if not path.startswith("/") or _NOT_IN_NAMES.search(path) or any(part in (".", "..") for part in parts):
        raise InvalidPath(f"{SCHEME}: {path[:200]!r} is not a path")
    return path


def _entry(path: str, data: bytes) -> Entry:
    return Entry(path, len(data), time.time_ns() // 1_000_000)


def _epoch_of(name: str) -> int:
    number = name.partition("-")[0]
    return int(number) if number.isdecimal() else 1 << 62  # not our file: never swept


def _file_of(value: bytes) -> str | None:
    """Return the name of the file that a node names. None: it names no file, or is damaged."""
    pointer = _POINTER_VALUE.fullmatch(value)
    return None if pointer is None else pointer[2].decode()


async def _size(path: str, value: bytes) -> int:
    """Return the size of an object. Damaged objects are listed as well, so that whoever reads them learns of it."""
    if (pointer := _POINTER_VALUE.fullmatch(value)) is not None:
        return int(pointer[1])
    try:
        return len(await _unpacked(path, value))
    except StorageCorrupt:
        return len(value)


async def _unpacked(path: str, value: bytes) -> bytes:
    """Return the object from a node that contains it. Raises StorageCorrupt."""
    if value[:1] != _INLINE:
        raise StorageCorrupt(f"{SCHEME}: {path} contains data that no version of minflinkd writes")
    try:
        return await _beside(zlib.decompress, value[1:])
    except zlib.error as error:
        raise StorageCorrupt(f"{SCHEME}: {path}: {error}") from error
