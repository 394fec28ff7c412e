"""A copy of a log that is written elsewhere, for one reader here. It is always a prefix, from where the reader begins.

An entry appears after all of its data, in order. It is fetched under the same rule as it was written (J10): only while
no more than `max_backlog` bytes wait for the reader. Since both sides have the same bound, whatever was written comes
at once, barriers included, and a slow reader holds back the upstream task rather than this copy.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, TypeVar

import structlog

from minflinkd.blob.transfer import finish
from minflinkd.storage.parallel import for_each
from minflinkd.taskmanager.exchange.access import ExchangeUnreachable
from minflinkd.taskmanager.exchange.log import (
    DATA,
    DataFile,
    Entry,
    ExchangeDamaged,
    LogWriter,
    consumed,
    covered,
)

log = structlog.get_logger(__name__)

T = TypeVar("T")
FILES = 4  # fetched at a time
WINDOW = 32  # entries whose data is fetched at a time
WINDOW_BYTES = 32 * 1024**2
MOST_WAITING = 100_000  # entries: those without data cost little, but a broken upstream may write them without end
LOOK = 0.02  # seconds between two checks for what the reader has consumed
NOT_YET = 0.05  # seconds between two checks for a log that its task has not opened, or that answers without waiting
FIRST_PAUSE = 0.05  # seconds before a failed request is repeated
LONGEST_PAUSE = 2.0


class LogSource(Protocol):
    """Where a log is mirrored from, such as `remote_log.RemoteLog`. All methods raise ExchangeUnreachable."""

    async def schema(self) -> str | None: ...

    async def entries(self, first: int) -> list[Entry]: ...

    async def fetch(self, file: DataFile, target: Path) -> None: ...

    async def begin(self, reader: str, position: int) -> None: ...

    async def consumed(self, reader: str, position: int) -> None: ...

    async def covered(self, reader: str, position: int) -> None: ...


class Mirror:
    """Mirrors a log for `reader`, from its entry `first` on. Fails after `patience` seconds without any success."""

    def __init__(
        self,
        source: LogSource,
        directory: Path,
        *,
        reader: str,
        first: int,
        max_backlog: int,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._directory = directory
        self._reader = reader
        self._first = first
        self._max_backlog = max_backlog
        self._patience = patience
        self._clock = clock
        self._success = clock()
        self._writing = asyncio.Lock()
        self._random = random.SystemRandom()

    async def run(self) -> None:
        """Mirror for as long as the reader lives. Nothing is written after this has ended, even by cancellation.

        Raises ExchangeUnreachable, ExchangeDamaged, OSError.
        """
        writer = await finish(asyncio.to_thread(LogWriter, self._directory, (self._reader,), first=self._first))
        while (schema := await self._again(self._source.schema)) is None:  # noqa: ASYNC110 - it is elsewhere
            await asyncio.sleep(NOT_YET)  # its task is still being built; the reader limits its own wait
        await self._again(lambda: self._source.begin(self._reader, self._first))
        await finish(asyncio.to_thread(writer.describe, schema))
        try:
            async with asyncio.TaskGroup() as loops:
                loops.create_task(self._follow(writer))
                loops.create_task(self._report(writer))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _follow(self, writer: LogWriter) -> None:
        while True:
            asked = self._clock()
            entries = await self._again(lambda: self._source.entries(writer.next))
            if not entries and self._clock() - asked < NOT_YET:  # a good upstream waits for an entry
                await asyncio.sleep(NOT_YET)
            while entries:
                taken = await self._admit(writer, entries)
                files = [file for entry in taken for file in entry.files]
                await self._again(lambda files=files: for_each(files, self._fetch, limit=FILES))  # type: ignore[misc]
                async with self._writing:
                    await finish(asyncio.to_thread(_append, writer, taken))
                entries = entries[len(taken) :]

    async def _admit(self, writer: LogWriter, entries: list[Entry]) -> list[Entry]:
        """Return the first of `entries` that may come now. Wait for the reader if it is too far behind."""
        while True:
            async with self._writing:
                waiting = await asyncio.to_thread(writer.backlog)
            taken, size = 0, 0
            for entry in entries[:WINDOW]:
                if entry.files and (waiting + size > self._max_backlog or size > WINDOW_BYTES):
                    break
                if writer.waiting + taken >= MOST_WAITING:
                    break
                taken, size = taken + 1, size + entry.size
            if taken:
                return entries[:taken]
            self._success = self._clock()  # nothing is requested meanwhile that could fail
            await asyncio.sleep(LOOK)

    async def _fetch(self, file: DataFile) -> None:
        target = self._directory / DATA / file.name
        there = await asyncio.to_thread(_size, target)
        if there is None:  # otherwise it was fetched before another file failed
            await self._source.fetch(file, target)
            self._success = self._clock()
        elif there != file.size:
            raise ExchangeDamaged(f"two entries name {file.name}, one with {there} bytes, one with {file.size}")

    async def _report(self, writer: LogWriter) -> None:
        """Tell upstream what the reader has consumed, and delete it here; and what checkpoints cover."""
        told = told_covered = self._first
        while True:
            position = await asyncio.to_thread(consumed, self._directory, self._reader)
            if position is not None and position > told:
                await self._again(lambda at=position: self._source.consumed(self._reader, at))  # type: ignore[misc]
                told = position
                async with self._writing:
                    await asyncio.to_thread(writer.backlog)
            position = await asyncio.to_thread(covered, self._directory, self._reader)
            if position is not None and position > told_covered:
                await self._again(lambda at=position: self._source.covered(self._reader, at))  # type: ignore[misc]
                told_covered = position
            await asyncio.sleep(LOOK)

    async def _again(self, action: Callable[[], Awaitable[T]]) -> T:
        """Repeat `action` until it succeeds, or until no request has succeeded for too long.

        Any success of either loop counts: both ask the same TaskManager.
        """
        pause = FIRST_PAUSE
        while True:
            try:
                answer = await action()
            except ExchangeUnreachable as error:
                if self._clock() - self._success > self._patience:
                    raise
                log.info("an exchange is asked for again", error=str(error), pause=pause)
                await asyncio.sleep(pause * self._random.uniform(0.5, 1.0))
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                self._success = self._clock()
                return answer


def _size(path: Path) -> int | None:
    """Return the bytes of a file, or None if there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _append(writer: LogWriter, entries: list[Entry]) -> None:
    for entry in entries:
        writer.append(entry)
