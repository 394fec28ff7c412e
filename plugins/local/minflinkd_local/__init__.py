"""The local file system as a storage backend: directories of one machine, or shared by all through a mount."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from functools import partial
from itertools import islice

import msgspec

from minflinkd.storage.interface import Capabilities, Entry, InvalidPath, ObjectExists, Storage, Writer
from minflinkd.storage.os_errors import os_errors
from minflinkd.storage.writing import Unbroken
from minflinkd_local import files
from minflinkd_local.threads import MountThreads

_PAGE = 1000  # entries of a listing per call in a thread
_BATCH = 1000  # paths of a deletion per call


class LocalStorage(Storage):
    """Calls that hang in the kernel hang in threads that nothing else needs (`threads`). Callers set time limits."""

    scheme = ("file",)
    capabilities = Capabilities(atomic_rename=True, exclusive_create=True, consistent_list=True)

    def __init__(self, options: msgspec.Struct | None = None) -> None:
        super().__init__(options)
        self._threads = MountThreads()

    def lane(self, path: str) -> str:
        return self._threads.mount(path)

    async def open_read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        reading = files.Reading(_checked(path), offset, length)
        try:
            while True:
                with os_errors(path):
                    data = await self._threads.run(path, reading.next)
                if not data:
                    return
                yield data
        finally:
            await self._threads.run(path, reading.close)

    async def create(self, path: str) -> Writer:
        return LocalWriter(self._threads, _checked(path))

    async def create_exclusive(self, path: str, data: bytes) -> None:
        def write() -> None:
            draft = files.Draft(path)
            try:
                draft.write(data)
                draft.publish(exclusive=True)
            finally:
                draft.discard()

        with os_errors(path):
            try:
                await self._threads.change([_checked(path)], write)
            except FileExistsError as error:
                raise ObjectExists(f"file: {path} exists") from error

    async def list(self, prefix: str) -> AsyncIterator[Entry]:
        found = files.walk(_checked(prefix).rstrip("/") or "/")
        while True:
            with os_errors(prefix):
                page = await self._threads.run(prefix, lambda: [*islice(found, _PAGE)])
            for entry in page:
                yield entry
            if len(page) < _PAGE:
                return

    async def delete(self, paths: Sequence[str], *, below: str | None = None) -> None:
        doomed = [_checked(path) for path in paths]
        if len(doomed) <= _BATCH:
            await self._delete(doomed, below)
            return
        for start in range(0, len(doomed), _BATCH):  # each batch has its own time limits
            batch = doomed[start : start + _BATCH]
            await self.attempts("delete", batch[0], partial(self._delete, batch, below))

    async def stat(self, path: str) -> Entry:
        with os_errors(path):
            return await self._threads.run(path, partial(files.entry, _checked(path)))

    async def rename(self, source: str, target: str) -> None:
        pair = (_checked(source), _checked(target))
        with os_errors(f"{source} -> {target}"):
            await self._threads.change(pair, partial(files.rename, *pair))

    async def sync(self, paths: Sequence[str]) -> None:
        def sync_all() -> None:
            for path in paths:
                with os_errors(path):
                    files.sync(_checked(path))

        if paths:
            await self._threads.run(paths[0], sync_all)

    async def _delete(self, paths: Sequence[str], below: str | None) -> None:
        def delete_all() -> None:
            for path in paths:
                with os_errors(path):
                    files.delete(path, below)

        await self._threads.change(paths, delete_all)


class LocalWriter(Writer):
    """Collects small pieces, so that a call in a thread writes at least one MiB."""

    def __init__(self, threads: MountThreads, path: str) -> None:
        self._threads = threads
        self._path = path
        self._draft = files.Draft(path)
        self._waiting = bytearray()
        self._unbroken = Unbroken(path)
        self._committed: Entry | None = None

    async def append(self, data: bytes | memoryview) -> None:
        if self._waiting or len(data) < files.CHUNK:
            self._waiting += data
            if len(self._waiting) < files.CHUNK:
                return
            data, self._waiting = memoryview(self._waiting), bytearray()
        with self._unbroken.step(), os_errors(self._path):
            await self._threads.run(self._path, partial(self._draft.write, data))

    async def commit(self) -> Entry:
        if self._committed is None:
            with self._unbroken.step(), os_errors(self._path):
                waiting, self._waiting = self._waiting, bytearray()
                self._committed = await self._threads.change([self._path], partial(self._finish, waiting))
        return self._committed

    async def abort(self) -> None:
        self._waiting.clear()
        await self._threads.run(self._path, self._draft.discard)

    def _finish(self, rest: bytearray) -> Entry:
        self._draft.write(rest)
        return self._draft.publish()


def _checked(path: str) -> str:
    """Return the path. Raises InvalidPath if it is not absolute or contains `..`."""
    if not os.path.isabs(path) or "\0" in path or ".." in path.split("/"):
        raise InvalidPath(f"file: {path[:200]!r} is not an absolute path without ..")
    return path
