"""The audit log (E43): who changed what, from where, with which result; one JSON line for each request.

Only requests of which it is known who sent them are here. Others are counted and logged elsewhere, at most one a
second: otherwise anybody who reaches the port could push out the lines that matter.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
import structlog

from minflinkd.runtime.clock import Clock, SystemClock
from minflinkd.runtime.component import Component
from minflinkd.runtime.doorkeeper import SeldomTold

log = structlog.get_logger(__name__)

LARGEST: Final = 10_000_000  # bytes of one file
KEPT: Final = 5  # older files, `audit.log.1` the newest
MOST_WAITING: Final = 10_000  # lines that are not yet written
AGAIN: Final = 1.0  # seconds until the next try, if a line cannot be written


class Deed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What somebody asked for, and what became of it."""

    who: str  # the name of a token, such as `uid 1000`, or anonymous
    role: str
    sender: str = msgspec.field(name="from")
    method: str
    path: str  # without the query
    job: str = ""
    status: int
    error: str = ""  # its code, if it was one


class AuditLog(Component):
    """`record` never waits. Lines that cannot be written for long are counted in the log, and lost."""

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        super().__init__("audit log")
        self._path = path
        self._clock = clock or SystemClock()
        self._waiting: deque[bytes] = deque()
        self._more = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None
        self._told = SeldomTold()

    def record(self, deed: Deed) -> None:
        if len(self._waiting) >= MOST_WAITING:
            self._told.warn("a line of the audit log is lost", who=deed.who, method=deed.method, path=deed.path)
            return
        now = datetime.fromtimestamp(self._clock.epoch_ms() / 1000, UTC).isoformat(timespec="milliseconds")
        self._waiting.append(b'{"time":"' + now.encode() + b'",' + msgspec.json.encode(deed)[1:] + b"\n")
        self._more.set()

    async def _start(self) -> None:
        self.tasks.loop("write the audit log", self._write_all)

    async def _stop(self) -> None:
        try:
            while self._waiting or self._writing is not None:
                await self._write()
        except OSError as error:
            log.error("the end of the audit log cannot be written", error=str(error), lines=len(self._waiting))

    async def _write_all(self) -> None:
        while True:
            await self._more.wait()
            self._more.clear()
            while self._waiting:
                try:
                    await self._write()
                except OSError as error:
                    self._told.warn("the audit log cannot be written", file=str(self._path), error=str(error))
                    await self._clock.sleep(AGAIN)

    async def _write(self) -> None:
        """Write what waits. A write that is under way is never begun again: its lines would be there twice.

        Raises OSError.
        """
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_lines(), name="audit log: write")
        writing = self._writing
        try:
            await asyncio.shield(writing)
        finally:
            if writing.done():
                self._writing = None

    async def _write_lines(self) -> None:
        lines = list(self._waiting)
        await asyncio.to_thread(append, self._path, b"".join(lines))
        for _ in lines:
            self._waiting.popleft()


def append(path: Path, lines: bytes) -> None:
    """Add to the file, after beginning another one if it is large. Raises OSError if nothing was added."""
    try:
        _rotate(path)
    except OSError as error:  # it may be written, and its directory not: better one large file than lines twice
        log.warning("the audit log cannot be rotated", file=str(path), error=str(error))
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        before = os.fstat(file).st_size
        try:
            left = memoryview(lines)
            while left:
                left = left[os.write(file, left) :]
        except OSError:  # the disk is full: the lines are written again later, so none may be here in part
            os.ftruncate(file, before)
            raise
    finally:
        os.close(file)


def _rotate(path: Path) -> None:
    """Raises OSError."""
    if not path.exists() or path.stat().st_size <= LARGEST:
        return
    for number in range(KEPT - 1, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{number + 1}"))
    path.replace(path.with_name(f"{path.name}.1"))
