"""Keeps the metrics' past in the storage for recovery, so that a restart, or another leader, goes on with it.

Twice a minute the current fine block is written again, as a whole. When an hour is over, its coarse block is written
once, and after that the fine blocks of the hour may go. The directory is small, and nothing else depends on it: what
goes wrong here is logged, and tried again the next time.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from minflinkd.metrics.history import blocks
from minflinkd.metrics.history.blocks import BlockName, UnreadableHistory, block_number
from minflinkd.metrics.history.book import HistoryBook
from minflinkd.metrics.history.track import Resolution
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.component import Component
from minflinkd.runtime.errors import MinflinkError
from minflinkd.storage.location import Location

FLUSH_EVERY: Final = 30.0  # seconds; a restart loses at most what was measured since
LAST_FLUSH: Final = 5.0  # seconds that the last one may take
MOST_BLOCKS: Final = 1000  # that are read; far more than there are unless a clock was wrong
AT_A_TIME: Final = 8  # jobs between which the event loop does something else
PAUSES: Final = (1.0, 5.0, 15.0, 30.0)  # seconds between attempts to read what is stored

log = structlog.get_logger(__name__)


class HistoryKeeper(Component):
    """Reads what earlier daemons have stored in the background: the daemon's start does not wait for it."""

    def __init__(self, book: HistoryBook, directory: Location, *, epoch: int, clock: Clock) -> None:
        super().__init__("keeper of metrics")
        self._book = book
        self._directory = directory
        self._epoch = epoch
        self._clock = clock
        self._names: set[BlockName] = set()  # that are stored
        self._due_hours: set[int] = set()  # that have fine blocks, but no coarse one yet
        self._flushed_ms = clock.epoch_ms()
        self._writing = asyncio.Lock()
        self.loaded = asyncio.Event()

    async def _start(self) -> None:
        self.tasks.job("read what is stored", self._load_patiently())
        self.tasks.loop("store", self._run)

    async def _before_stop(self) -> None:
        try:
            async with asyncio.timeout(LAST_FLUSH):
                await self.flush()
        except (MinflinkError, TimeoutError) as error:
            log.warning("the last metrics were not stored", error=str(error))

    async def _run(self) -> None:
        while True:
            await self._clock.sleep(FLUSH_EVERY)
            try:
                await self.flush()
            except MinflinkError as error:
                log.warning("metrics could not be stored; this is tried again", error=str(error))

    async def flush(self) -> None:
        """Store what is new, and delete what has outlived its time. Raises StorageError."""
        async with self._writing:
            now_ms = self._clock.epoch_ms()
            since, until = (block_number(Resolution.FINE, ms) for ms in (min(self._flushed_ms, now_ms), now_ms))
            for number in range(max(since, until - Resolution.FINE.kept // blocks.ROWS), until + 1):
                name = BlockName(Resolution.FINE, number, self._epoch)
                if await self._write(name):
                    self._due_hours.add(name.hour)
            self._flushed_ms = now_ms
            if not self.loaded.is_set():
                return
            hour = block_number(Resolution.COARSE, now_ms)
            for due in sorted(each for each in self._due_hours if each < hour):
                await self._write(BlockName(Resolution.COARSE, due, self._epoch))
                self._due_hours.discard(due)
            outlived = [name for name in self._names if blocks.outlived(name, now_ms, self._due_hours)]
            if outlived:
                await self._directory.delete_children(map(str, outlived))
                self._names.difference_update(outlived)

    async def _write(self, name: BlockName) -> bool:
        """Write a block. False: there is nothing in it."""
        parts = []
        for number, part in enumerate(blocks.taken_from(self._book, name.resolution, name.number)):
            parts.append(part)
            if number % AT_A_TIME == 0:
                await asyncio.sleep(0)
        if not parts:
            return False
        data = await asyncio.to_thread(blocks.encoded, name.resolution, name.number, parts)
        await self._directory.child(str(name)).write_bytes(data)
        self._names.add(name)
        return True

    async def _load_patiently(self) -> None:
        for pause in (*PAUSES, None):
            try:
                await self._load()
            except MinflinkError as error:
                log.warning("the stored metrics could not be read", error=str(error), tried_again_in=pause)
                if pause is not None:
                    await self._clock.sleep(pause)
            else:
                break
        self.loaded.set()

    async def _load(self) -> None:
        """Raises StorageError."""
        found = [BlockName.parsed(self._directory.relative(entry.path)) async for entry in self._directory.list()]
        names = [name for name in found if name is not None]
        # Coarse ones come first, then fine ones, each in the order of time.
        for name in sorted(names, key=lambda name: (-name.resolution, name.number, name.epoch))[-MOST_BLOCKS:]:
            self._names.add(name)
            try:
                await self._add(name)
            except UnreadableHistory as error:
                log.warning(
                    "a stored part of the metrics cannot be read, and is left out", block=str(name), error=str(error)
                )
                continue
            if name.resolution is Resolution.FINE:
                self._due_hours.add(name.hour)

    async def _add(self, name: BlockName) -> None:
        """Raises UnreadableHistory, StorageError."""
        data = await self._directory.child(str(name)).read_bytes(blocks.LARGEST)
        block = await asyncio.to_thread(blocks.decoded, data)
        for number, _ in enumerate(blocks.add(self._book, block)):
            if number % AT_A_TIME == 0:
                await asyncio.sleep(0)
