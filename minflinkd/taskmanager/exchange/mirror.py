"""A copy of a log that is written elsewhere, for one reader here: always a prefix of it, from where the reader begins.

An entry appears after all of its data, in order. It is fetched under the rule by which its writer wrote it (J10): as
long as no more than `max_backlog` bytes wait for the reader. With the same bound on both sides whatever was written
comes at once, barriers among it, and a slow reader holds back the task upstream rather than this copy.
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
from minflinkd.taskmanager.exchange.log import DATA, DataFile, Entry, LogWriter, consumed

log = structlog.get_logger(__name__)

T = TypeVar("T")
FILES = 4  # fetched at a time
WINDOW = 32  # entries whose data is fetched at a time
WINDOW_BYTES = 32 * 1024**2
LOOK = 0.02  # seconds between two looks at what the reader has consumed
NOT_YET = 0.05  # seconds between two looks for a log that its task has not opened
FIRST_PAUSE = 0.05  # seconds before a failed request is made again
LONGEST_PAUSE = 2.0


class LogSource(Protocol):
    """Where a log is mirrored from; `remote_log.RemoteLog` is one. All raise ExchangeUnreachable."""

    async def schema(self) -> str | None: ...

    async def entries(self, first: int) -> list[Entry]: ...

    async def fetch(self, file: DataFile, target: Path) -> None: ...

    async def consumed(self, reader: str, position: int) -> None: ...


class Mirror:
    """`first`: the entry that `reader` begins with. `patience`: seconds without any success until it fails."""

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
        """For as long as the reader lives; nothing is written once it has ended, also where it was cancelled.

        Raises ExchangeUnreachable, ExchangeDamaged, OSError.
        """
        writer = await finish(asyncio.to_thread(LogWriter, self._directory, (self._reader,), first=self._first))
        while (schema := await self._again(self._source.schema)) is None:  # noqa: ASYNC110 - it is elsewhere
            await asyncio.sleep(NOT_YET)  # its task is being built: the reader knows how long it waits
        await finish(asyncio.to_thread(writer.describe, schema))
        try:
            async with asyncio.TaskGroup() as loops:
                loops.create_task(self._follow(writer))
                loops.create_task(self._report(writer))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _follow(self, writer: LogWriter) -> None:
        while True:
            entries = await self._again(lambda: self._source.entries(writer.next))
            while entries:
                taken = await self._admit(writer, entries)
                files = [file for entry in taken for file in entry.files]
                await self._again(lambda files=files: for_each(files, self._fetch, limit=FILES))  # type: ignore[misc]
                async with self._writing:
                    await finish(asyncio.to_thread(_append, writer, taken))
                entries = entries[len(taken) :]

    async def _admit(self, writer: LogWriter, entries: list[Entry]) -> list[Entry]:
        """Those of the first that may come now; waits for the reader where it is too far behind."""
        while True:
            async with self._writing:
                waiting = await asyncio.to_thread(writer.backlog)
            taken, size = 0, 0
            for entry in entries[:WINDOW]:
                if entry.files and (waiting + size > self._max_backlog or size > WINDOW_BYTES):
                    break
                taken, size = taken + 1, size + entry.size
            if taken:
                return entries[:taken]
            self._success = self._clock()  # nothing is asked meanwhile that could fail
            await asyncio.sleep(LOOK)

    async def _fetch(self, file: DataFile) -> None:
        target = self._directory / DATA / file.name
        if not await asyncio.to_thread(target.exists):  # else it came before another file failed
            await self._source.fetch(file, target)
            self._success = self._clock()

    async def _report(self, writer: LogWriter) -> None:
        """Tell upstream what the reader needs no more, and delete it here."""
        told = self._first
        while True:
            position = await asyncio.to_thread(consumed, self._directory, self._reader)
            if position is not None and position > told:
                await self._again(lambda at=position: self._source.consumed(self._reader, at))  # type: ignore[misc]
                told = position
                async with self._writing:
                    await asyncio.to_thread(writer.backlog)
            await asyncio.sleep(LOOK)

    async def _again(self, action: Callable[[], Awaitable[T]]) -> T:
        """Until it succeeds, or nothing has for too long: both loops ask the same TaskManager."""
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


def _append(writer: LogWriter, entries: list[Entry]) -> None:
    for entry in entries:
        writer.append(entry)
