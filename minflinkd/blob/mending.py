"""Keeps the copies in the HA store good: a missing or corrupt one is written again from the local file (B20)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Mapping
from io import FileIO
from pathlib import Path

import structlog

from minflinkd.blob.depot import BlobDepot
from minflinkd.blob.keys import Blob
from minflinkd.blob.reading import BlobReader
from minflinkd.blob.transfer import CHUNK
from minflinkd.runtime.errors import MinflinkError
from minflinkd.storage.os_errors import os_errors
from minflinkd.storage.parallel import for_each

log = structlog.get_logger(__name__)

LAST_LOOK = 10.0  # seconds at shutdown, to find out which copies are good
READERS = 8  # copies read at a time
DOUBTS = 1000  # copies waiting to be checked


class CopyMender:
    """`interval`: seconds for which a copy that was checked is not doubted again."""

    def __init__(self, depot: BlobDepot, reader: BlobReader, *, interval: float) -> None:
        self._depot = depot
        self._reader = reader
        self._interval = interval
        self._doubted: asyncio.Queue[Blob] = asyncio.Queue(DOUBTS)
        self._checked: dict[Blob, float] = {}  # when the copy was last looked at

    def doubt(self, blob: Blob) -> None:
        """Check the copy soon.

        Caches ask the HA store first, so a request to this server suggests that the copy there is not good.
        """
        if self._depot.copies_of(blob) is None or self._doubted.full():
            return
        now = self._depot.now()
        if now - self._checked.get(blob, -math.inf) >= self._interval:
            self._checked[blob] = now
            self._doubted.put_nowait(blob)

    async def mend_doubted(self) -> None:
        """Check one copy after the other, for ever."""
        while True:
            blob = await self._doubted.get()
            if not await self._tried(blob):
                self._checked.pop(blob, None)
            limit = self._depot.now() - self._interval
            self._checked = {blob: at for blob, at in self._checked.items() if at > limit}

    async def mend_held(self, sizes: Mapping[Blob, int]) -> None:
        """Check the copies of all artifacts of jobs. What else lies in the HA store is reported to the lifecycle.

        `sizes`: of the local files. A copy of the same size is taken for good, any other one is read and checked.
        """
        depot = self._depot
        if depot.ha_store is None:
            return
        before, seen = frozenset(depot.copied), set[Blob]()
        async for blob, size in depot.ha_store.blobs():
            if sizes.get(blob, size) == size:
                seen.add(blob)
            depot.lifecycle.found([blob], depot.now())
        depot.copied = (depot.copied - before) | seen
        for blob in depot.lifecycle.held():
            # Look again for each blob, because mending one takes long.
            if blob not in depot.copied and depot.lifecycle.survives(blob):
                await self._tried(blob)

    async def mend(self, blob: Blob) -> None:
        """If the copy is missing or corrupt, write it again from the good local file.

        Raises BlobNotFound, StorageError.
        """
        depot = self._depot
        if depot.ha_store is None or not depot.leads():
            return
        if await depot.ha_store.is_good(*blob):
            depot.copied.add(blob)
            return
        log.error("a blob's copy in the HA store is missing or corrupt", blob=str(blob.key), job=blob.job_id)
        file = await self._reader.open(blob)
        try:
            async with await depot.ha_store.create(*blob) as writer:
                while piece := await depot.in_thread(_read_on, file, depot.store.path(*blob)):
                    await writer.append(piece)
                if not depot.lifecycle.can_be_had(blob):
                    return
                await writer.commit()
        finally:
            file.close()
        depot.copied.add(blob)
        log.info("a blob's copy in the HA store was written again", blob=str(blob.key), job=blob.job_id)

    async def good(self, blobs: Collection[Blob]) -> frozenset[Blob]:
        """Return the blobs with a copy that was just read and is right. Incomplete if reading takes too long."""
        ha_store, good = self._depot.ha_store, set[Blob]()
        if ha_store is None:
            return frozenset()

        async def look_at(blob: Blob) -> None:
            try:
                if await ha_store.is_good(*blob):
                    good.add(blob)
            except MinflinkError as error:
                log.warning("the copy of a blob cannot be read", blob=str(blob.key), job=blob.job_id, error=str(error))

        try:
            async with asyncio.timeout(LAST_LOOK):
                await for_each(blobs, look_at, limit=READERS)
        except TimeoutError:
            log.info("local blobs are kept, as their copies were not read in time", blobs=len(blobs) - len(good))
        return frozenset(good)

    async def _tried(self, blob: Blob) -> bool:
        """Mend the copy. If this fails, say so: it is tried again later."""
        try:
            await self.mend(blob)
        except MinflinkError as error:
            log.warning(
                "the copy of a blob is looked at again later", blob=str(blob.key), job=blob.job_id, error=str(error)
            )
            return False
        return True


def _read_on(file: FileIO, path: Path) -> bytes:
    with os_errors(path):
        return file.read(CHUNK)
