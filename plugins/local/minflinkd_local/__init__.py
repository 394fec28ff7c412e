"""The local file system as a storage backend: directories that one machine, or all through a mount, can reach."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from itertools import islice

from minflinkd.storage.interface import Capabilities, Entry, InvalidPath, ObjectExists, Storage, Writer
from minflinkd.storage.os_errors import os_errors
from minflinkd_local import files

_PAGE = 1000  # entries of a listing per trip to a thread


class LocalStorage(Storage):
    scheme = ("file",)
    capabilities = Capabilities(atomic_rename=True, exclusive_create=True, consistent_list=True)

    async def open_read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        reading = files.Reading(_checked(path), offset, length)
        try:
            while True:
                with os_errors(path):
                    data = await asyncio.to_thread(reading.next)
                if not data:
                    return
                yield data
        finally:
            await asyncio.to_thread(reading.close)

    async def create(self, path: str) -> Writer:
        return LocalWriter(_checked(path))

    async def create_exclusive(self, path: str, data: bytes) -> None:
        def write() -> None:
            draft = files.Draft(path)
            try:
                draft.write(data)
                draft.publish(exclusive=True)
            finally:
                draft.discard()

        _checked(path)
        with os_errors(path):
            try:
                await asyncio.to_thread(write)
            except FileExistsError as error:
                raise ObjectExists(f"file: {path} exists") from error

    async def list(self, prefix: str) -> AsyncIterator[Entry]:
        found = files.walk(_checked(prefix).rstrip("/") or "/")
        while True:
            with os_errors(prefix):
                page = await asyncio.to_thread(lambda: [*islice(found, _PAGE)])
            for entry in page:
                yield entry
            if len(page) < _PAGE:
                return

    async def delete(self, paths: Sequence[str], *, below: str | None = None) -> None:
        def delete_all() -> None:
            for path in paths:
                with os_errors(path):
                    files.delete(_checked(path), below)

        await asyncio.to_thread(delete_all)

    async def stat(self, path: str) -> Entry:
        with os_errors(path):
            return await asyncio.to_thread(files.entry, _checked(path))

    async def rename(self, source: str, target: str) -> None:
        with os_errors(f"{source} -> {target}"):
            await asyncio.to_thread(files.rename, _checked(source), _checked(target))

    async def sync(self, paths: Sequence[str]) -> None:
        def sync_all() -> None:
            for path in paths:
                with os_errors(path):
                    files.sync(_checked(path))

        await asyncio.to_thread(sync_all)


class LocalWriter(Writer):
    """Small pieces are collected, so that a trip to a thread carries at least a mebibyte."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._draft = files.Draft(path)
        self._waiting = bytearray()
        self._committed: Entry | None = None

    async def append(self, data: bytes | memoryview) -> None:
        if self._waiting or len(data) < files.CHUNK:
            self._waiting += data
            if len(self._waiting) < files.CHUNK:
                return
            data, self._waiting = memoryview(self._waiting), bytearray()
        with os_errors(self._path):
            await asyncio.to_thread(self._draft.write, data)

    async def commit(self) -> Entry:
        if self._committed is None:
            waiting, self._waiting = self._waiting, bytearray()
            with os_errors(self._path):
                self._committed = await asyncio.to_thread(self._finish, waiting)
        return self._committed

    async def abort(self) -> None:
        self._waiting.clear()
        await asyncio.to_thread(self._draft.discard)

    def _finish(self, rest: bytearray) -> Entry:
        self._draft.write(rest)
        return self._draft.publish()


def _checked(path: str) -> str:
    """Raises InvalidPath for what is not absolute, or climbs."""
    if not os.path.isabs(path) or "\0" in path or ".." in path.split("/"):
        raise InvalidPath(f"file: {path[:200]!r} is not an absolute path without ..")
    return path
