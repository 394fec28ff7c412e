"""HDFS as a storage backend. Its rename is atomic, and a rename that may not replace a file has one winner."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import AsyncIterator, Sequence
from functools import partial
from itertools import compress

import msgspec
import structlog
from hdfs_native import AsyncClient, FileStatus, WriteOptions

from minflinkd.storage.interface import (
    Capabilities,
    Entry,
    ObjectExists,
    ObjectNotFound,
    Storage,
    StorageError,
    StorageUnavailable,
    Writer,
)
from minflinkd.storage.parallel import for_each
from minflinkd.storage.temporary import is_temporary, temporary_beside
from minflinkd_hdfs.clients import client_of
from minflinkd_hdfs.errors import DirectoryNotEmpty, hdfs_errors
from minflinkd_hdfs.leftovers import Leftovers
from minflinkd_hdfs.options import HdfsOptions
from minflinkd_hdfs.paths import join, split
from minflinkd_hdfs.writer import HdfsWriter

CHUNK = 4 << 20  # bytes of a read
_PARALLEL = 16  # deletions at a time
_BATCH = 100  # paths per attempt
_VANISHED = 100  # how often a directory may be deleted during a rename before it gives up
_CLEANING = 5.0  # seconds for cleaning up broken-off writes when the process ends

log = structlog.get_logger(__name__)


class HdfsStorage(Storage):
    scheme = ("hdfs",)
    capabilities = Capabilities(atomic_rename=True, exclusive_create=True, consistent_list=True)
    options_type = HdfsOptions

    def __init__(self, options: msgspec.Struct | None = None) -> None:
        assert options is None or isinstance(options, HdfsOptions)
        self._options = options or HdfsOptions()
        self._leftovers = Leftovers(self._options.leftover_age)
        self._cleaning: set[asyncio.Task[None]] = set()

    async def open_read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        client, name = self._at(path)
        with hdfs_errors(path):
            reader = await client.read(name)
        size = len(reader)
        end = size if length is None else min(size, offset + length)
        while offset < end:
            with hdfs_errors(path):
                data = await reader.read_range(offset, min(CHUNK, end - offset))
            if not data:
                raise StorageUnavailable(f"hdfs: {path}: it ends at {offset} of {end} bytes")
            offset += len(data)
            yield data

    async def create(self, path: str) -> Writer:
        return await self._create(path)

    async def create_exclusive(self, path: str, data: bytes) -> None:
        if await self._status(path) is not None:
            raise ObjectExists(f"hdfs: {path} exists")
        async with await self._create(path) as writer:
            await writer.append(data)
            await writer.publish(exclusive=True)

    async def list(self, prefix: str) -> AsyncIterator[Entry]:
        authority, directory = split(prefix)
        async for entry in self._walk(authority, directory):
            yield entry

    async def delete(self, paths: Sequence[str], *, below: str | None = None) -> None:
        bound = None if below is None else split(below)[1]
        places = [split(path) for path in paths]
        for start in range(0, len(places), _BATCH):
            batch = places[start : start + _BATCH]
            await self.attempts("delete", join(*batch[0]), partial(self._delete_all, batch))
        parents = {(authority, posixpath.dirname(name)) for authority, name in places}
        emptied = {(*place, posixpath.dirname(place[1]) if bound is None else bound) for place in parents}
        await self._remove_upwards(emptied)
        due = self._leftovers.due({authority for authority, _ in places})
        await for_each(due, lambda place: self._look_again(*place), limit=_PARALLEL)

    async def stat(self, path: str) -> Entry:
        status = await self._status(path)
        if status is None or status.isdir:
            raise ObjectNotFound(f"hdfs: {path}: {'it is a directory' if status else 'no such file'}")
        return Entry(path, status.length, status.modification_time)

    async def rename(self, source: str, target: str) -> None:
        client, name = self._at(source)
        authority, new_name = split(target)
        if authority != split(source)[0]:
            raise StorageError(f"hdfs: {source} cannot be renamed to {target}, on another file system")
        for _ in range(_VANISHED):
            with hdfs_errors(f"{source} -> {target}"):
                try:
                    await client.rename(name, new_name, overwrite=True)
                    return
                except FileNotFoundError:  # the source or the target's directory is missing
                    if await self._status(source) is None:
                        raise
                await client.mkdirs(posixpath.dirname(new_name), create_parent=True)
        raise StorageUnavailable(f"hdfs: {target}: its directory is deleted again and again")

    async def sync(self, paths: Sequence[str]) -> None:
        """Check that the files exist: DataNodes have what was closed. Raises ObjectNotFound."""
        for start in range(0, len(paths), _BATCH):
            batch = paths[start : start + _BATCH]
            await self.attempts("stat", batch[0], partial(for_each, batch, self.stat, limit=_PARALLEL))

    async def aclose(self) -> None:
        """Wait for cleanups. Connections stay open: see `clients`."""
        if self._cleaning:
            _, late = await asyncio.wait(self._cleaning, timeout=_CLEANING)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=_CLEANING)

    # --- the parts of the above ---

    def _at(self, path: str) -> tuple[AsyncClient, str]:
        authority, name = split(path)
        return self._client(authority), name

    def _client(self, authority: str) -> AsyncClient:
        return client_of(authority, self._options)

    async def _status(self, path: str) -> FileStatus | None:
        client, name = self._at(path)
        with hdfs_errors(path):
            try:
                return await client.get_file_info(name)
            except FileNotFoundError:
                return None

    async def _create(self, path: str) -> HdfsWriter:
        client, name = self._at(path)
        temporary = temporary_beside(name)
        options = WriteOptions(
            block_size=self._options.block_size, replication=self._options.replication, create_parent=True
        )
        try:
            with hdfs_errors(path):
                file = await client.create(temporary, options)
        except BaseException:  # the file may exist all the same
            self._clean(client, temporary)
            raise
        return HdfsWriter(client, path, name, temporary, file, self.attempts)

    def _clean(self, client: AsyncClient, temporary: str) -> None:
        async def delete() -> None:
            try:
                with hdfs_errors(temporary):
                    await client.delete(temporary)
            except StorageError:
                return  # a leftover: see Leftovers

        task = asyncio.create_task(delete(), name=f"deletion of {temporary}")
        self._cleaning.add(task)
        task.add_done_callback(self._cleaning.discard)

    async def _walk(self, authority: str, directory: str) -> AsyncIterator[Entry]:
        """Yield the files below a directory, in the order of their paths."""
        for name, status in await self._children(authority, directory):
            if status.isdir:
                async for entry in self._walk(authority, name):
                    yield entry
            else:
                yield Entry(join(authority, name), status.length, status.modification_time)

    async def _children(self, authority: str, directory: str) -> Sequence[tuple[str, FileStatus]]:
        """Return the children of a directory, sorted so that a directory comes where its files' paths do.

        None if it is not a directory.
        """
        client, found = self._client(authority), list[tuple[str, FileStatus]]()
        with hdfs_errors(join(authority, directory)):
            try:
                async for status in client.list_status(directory):
                    if status.path != directory and (status.isdir or not is_temporary(status.path)):
                        found.append((status.path, status))
            except FileNotFoundError:
                return []
        return sorted(found, key=lambda child: child[0] + "/" if child[1].isdir else child[0])

    async def _delete_all(self, places: Sequence[tuple[str, str]]) -> None:
        await for_each(places, lambda place: self._delete(*place), limit=_PARALLEL)

    async def _delete(self, authority: str, name: str) -> None:
        client = self._client(authority)
        try:
            with hdfs_errors(join(authority, name)):
                await client.delete(name)
        except ObjectNotFound:
            return
        except DirectoryNotEmpty:
            await self._remove_empty(authority, name)

    async def _remove_empty(self, authority: str, directory: str) -> None:
        """Delete a directory and the directories in it, as far as they are empty."""
        for name, status in await self._children(authority, directory):
            if status.isdir:
                await self._remove_empty(authority, name)
        await self._remove_directory(authority, directory, posixpath.dirname(directory))

    async def _remove_upwards(self, emptied: set[tuple[str, str, str]]) -> None:
        """Delete empty directories, given as (authority, directory, bound), then emptied parents level by level."""

        async def remove(place: tuple[str, str, str]) -> bool:
            return await self.attempts("delete", join(*place[:2]), lambda: self._remove_directory(*place))

        waiting = {place for place in emptied if _is_inside(place[1], place[2])}
        while waiting:
            depth = max(directory.count("/") for _, directory, _ in waiting)
            level = [place for place in waiting if place[1].count("/") == depth]
            gone = await for_each(level, remove, limit=_PARALLEL)
            level_above = [(at, posixpath.dirname(name), stop) for at, name, stop in level]
            above = set(compress(level_above, gone))
            waiting = waiting.difference(level) | {place for place in above if _is_inside(place[1], place[2])}

    async def _look_again(self, authority: str, directory: str, bound: str) -> None:
        """Retry a directory that leftovers of killed writers kept from being deleted. No caller sees a failure."""
        self._leftovers.forget(authority, directory)
        try:
            await self._remove_upwards({(authority, directory, bound)})
        except BaseException as error:
            self._leftovers.look_later(authority, directory, bound)
            if not isinstance(error, StorageError):
                raise
            path = join(authority, directory)
            log.warning("what killed writers left is looked for again later", path=path, error=error.message)

    async def _remove_directory(self, authority: str, directory: str, bound: str) -> bool:
        """Delete a directory if it is empty. Returns whether it is gone."""
        client, path = self._client(authority), join(authority, directory)
        for _ in range(2):
            status = await self._status(path)
            if status is None or not status.isdir:
                self._leftovers.forget(authority, directory)
                return status is None
            try:
                with hdfs_errors(path):
                    await client.delete(directory)
                self._leftovers.forget(authority, directory)
                return True
            except DirectoryNotEmpty:
                if not await self._leftovers.clear(client, authority, directory, bound):
                    return False
        return False


def _is_inside(directory: str, bound: str) -> bool:
    return directory != "/" and directory.startswith(bound.rstrip("/") + "/")
