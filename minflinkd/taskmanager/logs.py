"""The TaskManager's log files, by name and range, for the HTTP endpoint."""

from __future__ import annotations

import asyncio
from pathlib import Path

from minflinkd.rpc.messages import ListLogs, LogFile, LogRange, ReadLog
from minflinkd.rpc.network import Mailbox
from minflinkd.runtime.errors import NotFound

LONGEST_RANGE = 4 * 1024 * 1024  # bytes


class Logs:
    """Serves the regular files of one directory, and nothing else."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def serve(self, mailbox: Mailbox) -> None:
        mailbox.on(ListLogs, self._list)
        mailbox.on(ReadLog, self._read)

    def _files(self) -> dict[str, Path]:
        return {p.name: p for p in sorted(self._directory.iterdir()) if p.is_file() and not p.is_symlink()}

    async def _list(self, _: ListLogs) -> tuple[LogFile, ...]:
        files = await asyncio.to_thread(self._files)
        return tuple(LogFile(name=name, size=path.stat().st_size) for name, path in files.items())

    async def _read(self, request: ReadLog) -> LogRange:
        """Raises NotFound for a name that is not one of the listed."""
        path = (await asyncio.to_thread(self._files)).get(request.name)
        if path is None:
            raise NotFound(f"there is no log {request.name[:120]!r}", hint="list the logs of this TaskManager first")
        return await asyncio.to_thread(_range, path, request.offset, min(max(request.length, 0), LONGEST_RANGE))


def _range(path: Path, offset: int, length: int) -> LogRange:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size + offset) if offset < 0 else min(offset, size))
        return LogRange(data=file.read(length), size=size)
