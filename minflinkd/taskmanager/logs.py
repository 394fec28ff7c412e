"""The TaskManager's log files, by name and range, for the HTTP endpoint."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import BinaryIO

import structlog
from msgspec.structs import replace as copy

from minflinkd.blob.keys import BlobKey
from minflinkd.rpc.messages import ListLogs, LogFile, LogMark, LogRange, ReadLog
from minflinkd.rpc.network import Mailbox
from minflinkd.runtime.errors import MinflinkError, NotFound
from minflinkd.storage.os_errors import os_errors
from minflinkd.storage.own_thread import in_own_thread

log = structlog.get_logger(__name__)

LONGEST_RANGE = 4 * 1024 * 1024  # bytes per message or blob
LONGEST_INLINE = 256 * 1024  # bytes in a message, if a blob was requested but cannot be uploaded
UPLOAD_TIMEOUT = 5.0  # seconds; whoever asked waits a little longer for the answer
MARKED = 1024  # bytes at the end of a log that identify it by their digest


class Logs:
    """Serves the regular files of one directory, and nothing else. `upload` makes a TRANSIENT blob without a job.

    With `taskmanager.run-as`, the loop's own threads use files as the session's user, to whom the logs are closed. So
    they are read in others.
    """

    def __init__(self, directory: Path, upload: Callable[[bytes], Awaitable[BlobKey]]) -> None:
        self._directory = directory
        self._upload = upload

    def serve(self, mailbox: Mailbox) -> None:
        mailbox.on(ListLogs, self._list)
        mailbox.on(ReadLog, self._read)

    def _files(self) -> dict[str, Path]:
        with os_errors(self._directory):
            return {p.name: p for p in sorted(self._directory.iterdir()) if p.is_file() and not p.is_symlink()}

    async def _list(self, _: ListLogs) -> tuple[LogFile, ...]:
        return await in_own_thread(lambda: tuple(_sizes(self._files())), "logs")

    async def _read(self, request: ReadLog) -> LogRange:
        """Read a range of a log. Raises StorageError, and NotFound if the name is not one of those listed."""
        found = await in_own_thread(lambda: self._range(request), "logs")
        if not request.upload or not found.data:
            return found
        try:
            async with asyncio.timeout(UPLOAD_TIMEOUT):
                key = await self._upload(found.data)
        except (MinflinkError, TimeoutError) as error:
            # This very log may say what went wrong.
            log.info("a log cannot be uploaded and goes by message", name=request.name, error=str(error) or "timeout")
            return copy(found, data=found.data[:LONGEST_INLINE])
        return copy(found, data=b"", blob=str(key))

    def _range(self, request: ReadLog) -> LogRange:
        path = self._files().get(request.name)
        if path is None:
            raise NotFound(f"there is no log {request.name[:120]!r}", hint="list the logs of this TaskManager first")
        try:
            with os_errors(path), path.open("rb") as file:
                file.seek(max(0, request.offset))
                data = file.read(min(max(0, request.length), LONGEST_RANGE))
                # Mark the log after it was read, so that the mark belongs to the log that was read.
                mark = _mark(file, os.fstat(file.fileno()).st_size)
                continues = request.known is None or _continues(file, mark, request.known)
        except FileNotFoundError as error:
            raise NotFound(f"the log {request.name} has just gone", hint="list the logs again") from error
        return LogRange(mark=mark, continues=continues, data=data if continues else b"")


def _mark(file: BinaryIO, size: int) -> LogMark:
    found = os.fstat(file.fileno())
    return LogMark(file=f"{found.st_dev:x}-{found.st_ino:x}", size=size, end=_digest(file, size))


def _continues(file: BinaryIO, now: LogMark, known: LogMark) -> bool:
    return now.file == known.file and now.size >= known.size and _digest(file, known.size) == known.end


def _digest(file: BinaryIO, size: int) -> str:
    first = max(0, size - MARKED)
    return hashlib.blake2b(os.pread(file.fileno(), size - first, first), digest_size=16).hexdigest()


def _sizes(files: dict[str, Path]) -> list[LogFile]:
    found = []
    for name, path in files.items():
        try:
            stat = path.stat()
            found.append(LogFile(name=name, size=stat.st_size, modified_ms=stat.st_mtime_ns // 1_000_000))
        except FileNotFoundError:  # rotated away meanwhile
            continue
    return found
