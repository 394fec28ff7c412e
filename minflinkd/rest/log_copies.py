"""Copies of TaskManagers' logs as TRANSIENT blobs, so that the same log is not sent repeatedly (B3, B18).

If a requested range of a log is larger than `minsize`, the TaskManager uploads it as a blob. Later requests read the
blob, and of a log that has grown only the new part is uploaded. Smaller ranges come by message. There is one copy per
TaskManager. A copy of another log, or of the log after its rotation, replaces it; the old copy's blobs are deleted at
once, or after the last request that reads them. A copy is also deleted if nobody has read it for a while, or if its
TaskManager is gone.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import structlog

from minflinkd.blob.keys import BlobKey
from minflinkd.rpc.messages import LogMark, LogRange, ReadLog
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.component import Component
from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.runtime.ids import JobId, ResourceId
from minflinkd.storage.os_errors import os_errors

log = structlog.get_logger(__name__)

PIECE = 256 * 1024  # bytes requested from a TaskManager in one message
SEGMENT = 4 * 1024 * 1024  # bytes of one blob; a reader waits for all of them before its first byte
UNREAD = 600.0  # seconds until a copy that nobody reads is deleted
LOOK = 60.0  # seconds between two searches for such copies
OPENINGS = 3  # tries to open a log while its copy changes


class LogBlobs(Protocol):
    """The BlobServer. It deletes what a TaskManager has uploaded after a while, unless somebody acquires it."""

    def acquire(self, job_id: JobId | None, key: BlobKey) -> None: ...

    async def path(self, job_id: JobId | None, key: BlobKey) -> Path: ...

    async def release(self, job_id: JobId | None, key: BlobKey, *, at_once: bool = False) -> None: ...


class LogChanged(MinflinkError):
    """The log was rotated or truncated while it was being read."""

    code = "log-changed"
    consequence = Consequence.RETRYABLE


@dataclass(frozen=True, order=True)
class Segment:
    first: int
    end: int
    key: BlobKey


@dataclass(eq=False)
class Copy:
    """The parts of one log that are stored here: disjoint segments, in order."""

    task_manager: ResourceId
    name: str
    mark: LogMark  # the latest known mark of the log
    segments: list[Segment] = field(default_factory=list)
    readers: int = 0
    read_at: float = 0.0  # when the last reader left
    chosen: bool = False  # it is, or was, the copy that is kept for the TaskManager
    filling: asyncio.Lock = field(default_factory=asyncio.Lock)

    def at(self, offset: int) -> Segment | None:
        i = self._after(offset)
        return self.segments[i - 1] if i and offset < self.segments[i - 1].end else None

    def gap(self, offset: int, end: int) -> int:
        """Return where the gap that begins at `offset` ends, at most `end`."""
        i = self._after(offset)
        return min(end, self.segments[i].first) if i < len(self.segments) else end

    def add(self, segment: Segment) -> None:
        """Add a segment that fills a gap or a part of one."""
        bisect.insort(self.segments, segment)

    def _after(self, offset: int) -> int:
        return bisect.bisect_right(self.segments, offset, key=lambda segment: segment.first)


@dataclass(eq=False)
class Reading:
    """One request's view of a log, as it was when opened. Call `close` when done."""

    copies: LogCopies
    copy: Copy
    mark: LogMark
    by_message: bool = False  # blobs did not work

    @property
    def size(self) -> int:
        return self.mark.size

    async def pieces(self, first: int, end: int) -> AsyncIterator[bytes]:
        """Yield the bytes [first, end). Raises LogChanged, and what asking the TaskManager raises."""
        self.copies.choose(self, end - first)
        while first < end:
            data = await self.copies.piece(self, first, end)
            if not data:
                raise LogChanged(f"{self.copy.name} has become shorter", hint="read it again from its beginning")
            yield data
            first += len(data)

    def close(self) -> None:
        self.copies.leave(self.copy)


class LogCopies(Component):
    """`ask` sends a request to a TaskManager and raises MinflinkError. Without `blobs`, all data comes by message."""

    def __init__(
        self,
        ask: Callable[[ResourceId, ReadLog], Awaitable[LogRange]],
        blobs: LogBlobs | None,
        *,
        minsize: int,
        clock: Clock,
    ) -> None:
        super().__init__("copies of logs")
        self._ask = ask
        self._blobs = blobs
        self._minsize = minsize
        self._clock = clock
        self._copies: dict[ResourceId, Copy] = {}

    async def _start(self) -> None:
        self.tasks.loop("forget what nobody reads", self._forget_unread)

    async def _stop(self) -> None:
        copies = list(self._copies.values())
        self._copies.clear()
        for copy in copies:
            for segment in copy.segments:
                await self._release(segment.key)

    async def open(self, task_manager: ResourceId, name: str) -> Reading:
        """Open a log as it is now. Raises NotFound, and what asking raises."""
        for _ in range(OPENINGS):
            copy = self._copy_of(task_manager, name)
            found = await self._ask(
                task_manager, ReadLog(name=name, length=0, known=None if copy is None else copy.mark)
            )
            if copy is not self._copy_of(task_manager, name):
                continue
            if copy is None or not found.continues:
                copy = Copy(task_manager, name, found.mark)
            elif found.mark.size > copy.mark.size:
                copy.mark = found.mark
            copy.readers += 1
            return Reading(self, copy, found.mark)
        raise LogChanged(f"{name} of {task_manager} changes all the time", hint="ask again")

    def _copy_of(self, task_manager: ResourceId, name: str) -> Copy | None:
        copy = self._copies.get(task_manager)
        return copy if copy is not None and copy.name == name else None

    # --- filling -------------------------------------------------------------------------------------------------

    async def piece(self, reading: Reading, first: int, end: int) -> bytes:
        """Return some bytes from `first` on, at most up to `end`."""
        copy = reading.copy
        held = copy.at(first)
        if held is None:
            gap = min(copy.gap(first, end), first + SEGMENT)
            if self._blobs is None or reading.by_message or gap - first <= self._minsize:
                return await self._by_message(reading, first, gap)
            async with copy.filling:
                gap = min(copy.gap(first, end), first + SEGMENT)  # another reader may have filled a part of it
                if copy.at(first) is None and (data := await self._fill(reading, first, gap)):
                    reading.by_message = True
                    return data
            held = copy.at(first)
        if held is None or self._blobs is None:
            return await self._by_message(reading, first, end)
        try:
            path = await self._blobs.path(None, held.key)
            with os_errors(path):
                return await asyncio.to_thread(_part, path, first - held.first, min(end, held.end) - first)
        except MinflinkError as error:
            log.warning("a part of the copy of a log cannot be read", name=copy.name, error=str(error))
            self._remove(copy, held)
            reading.by_message = True
            return await self._by_message(reading, first, end)

    async def _by_message(self, reading: Reading, first: int, end: int) -> bytes:
        return (await self._read(reading, first, min(PIECE, end - first))).data

    async def _fill(self, reading: Reading, first: int, end: int) -> bytes:
        """Have the TaskManager upload a segment. If it cannot, return the bytes that it sends instead, otherwise b"".

        If the key of an uploaded blob does not arrive here, nobody knows the blob, and the BlobServer deletes it after
        a while.
        """
        answer = await self._read(reading, first, end - first, upload=True)
        if answer.blob:
            self._keep(reading.copy, Segment(first, end, BlobKey.parse(answer.blob)))
        return answer.data

    async def _read(self, reading: Reading, first: int, length: int, *, upload: bool = False) -> LogRange:
        copy = reading.copy
        question = ReadLog(name=copy.name, offset=first, length=length, known=reading.mark, upload=upload)
        answer = await self._ask(copy.task_manager, question)
        if not answer.continues:
            raise LogChanged(f"{copy.name} was rotated or truncated", hint="read it again from its beginning")
        return answer

    # --- what is kept --------------------------------------------------------------------------------------------

    def choose(self, reading: Reading, length: int) -> None:
        """B18: keep a copy of the log from which a large part was requested last."""
        copy = reading.copy
        if self._blobs is None or length <= self._minsize or copy.chosen:
            return
        before = self._copies.get(copy.task_manager)
        if before is not None and (before.name, before.mark) == (copy.name, reading.mark):  # opened simultaneously
            before.readers += 1
            reading.copy = before
            self.leave(copy)
            return
        copy.chosen = True
        self._copies[copy.task_manager] = copy
        if before is not None:
            self._drop_unneeded(before)

    def leave(self, copy: Copy) -> None:
        copy.readers -= 1
        copy.read_at = self._clock.monotonic()
        self._drop_unneeded(copy)

    def _needed(self, copy: Copy) -> bool:
        return copy.readers > 0 or self._copies.get(copy.task_manager) is copy

    def _drop_unneeded(self, copy: Copy) -> None:
        if not self._needed(copy):
            for segment in list(copy.segments):
                self._remove(copy, segment)

    def _keep(self, copy: Copy, segment: Segment) -> None:
        assert self._blobs is not None
        try:
            self._blobs.acquire(None, segment.key)
        except MinflinkError as error:
            log.warning("a part of a log has gone before it was read", name=copy.name, error=str(error))
            return
        copy.add(segment)

    def _remove(self, copy: Copy, segment: Segment) -> None:
        if segment in copy.segments:  # otherwise another reader noticed it first
            copy.segments.remove(segment)
            self._give_up(segment.key)

    def _give_up(self, key: BlobKey) -> None:
        with contextlib.suppress(RuntimeError):  # closed: the server deletes TRANSIENT blobs when it ends
            self.tasks.job(f"release {key}", self._release(key))

    async def _release(self, key: BlobKey) -> None:
        assert self._blobs is not None
        try:
            await self._blobs.release(None, key, at_once=True)
        except MinflinkError as error:
            log.warning("a copy of a log is not deleted yet", blob=str(key), error=str(error))

    async def _forget_unread(self) -> None:
        while True:
            await self._clock.sleep(LOOK)
            long_ago = self._clock.monotonic() - UNREAD
            for task_manager, copy in list(self._copies.items()):
                if not copy.readers and copy.read_at < long_ago:
                    del self._copies[task_manager]
                    self._drop_unneeded(copy)


def _part(path: Path, offset: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)
