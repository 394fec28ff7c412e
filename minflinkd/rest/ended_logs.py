"""Logs of ended TaskManagers, as far as they are on the daemon's host: the TaskManagers can no longer be asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from minflinkd.rpc.messages import LogFile
from minflinkd.runtime.errors import NotFound
from minflinkd.runtime.homes import LOGS
from minflinkd.runtime.ids import ResourceId
from minflinkd.storage.os_errors import os_errors

PIECE = 256 * 1024  # bytes


class EndedLogs:
    """Serves regular files only. `directory` holds the TaskManagers' working directories; None: there is none."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    async def list(self, task_manager: ResourceId) -> list[LogFile]:
        """Raises NotFound, StorageError."""
        return await asyncio.to_thread(lambda: list(self._files(task_manager).values()))

    async def size(self, task_manager: ResourceId, name: str) -> int:
        """Raises NotFound, StorageError."""
        found = await asyncio.to_thread(self._files, task_manager)
        if name not in found:
            raise NotFound(f"there is no log {name[:120]!r}", hint="list the logs of this TaskManager first")
        return found[name].size

    async def pieces(self, task_manager: ResourceId, name: str, first: int, end: int) -> AsyncIterator[bytes]:
        """Yield bytes of a listed file, which nobody writes to any more. Raises StorageError."""
        path = self._place(task_manager) / name
        while first < end and (data := await asyncio.to_thread(_read, path, first, min(PIECE, end - first))):
            first += len(data)
            yield data

    def _place(self, task_manager: ResourceId) -> Path:
        if self._directory is None:
            raise NotFound(f"no TaskManager {task_manager} is registered", hint="GET /taskmanagers lists them")
        return self._directory / task_manager / LOGS

    def _files(self, task_manager: ResourceId) -> dict[str, LogFile]:
        place = self._place(task_manager)
        if not place.is_dir():
            hint = "GET /taskmanagers lists them; the logs of one that has ended are on its own host"
            raise NotFound(f"no TaskManager {task_manager} is registered", hint=hint)
        with os_errors(place):
            files = [path for path in sorted(place.iterdir()) if path.is_file() and not path.is_symlink()]
            return {path.name: _described(path) for path in files}


def _described(path: Path) -> LogFile:
    stat = path.stat()
    return LogFile(name=path.name, size=stat.st_size, modified_ms=stat.st_mtime_ns // 1_000_000)


def _read(path: Path, offset: int, length: int) -> bytes:
    with os_errors(path), path.open("rb") as file:
        file.seek(offset)
        return file.read(length)
