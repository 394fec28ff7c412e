"""Finds out whether a checkpoint is whole: all its segments are there, and have the checksums that were written.

Damage is what the storage itself says, twice: a file does not exist, is too short, or has other bytes. A storage that
does not answer, or refuses, says nothing about the checkpoint: its error is raised. Memory: one piece of a file.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

import xxhash

from minflinkd.checkpoint.damage import Damage
from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.filemerging.segments import RangedRead, Segment, plan_reads
from minflinkd.rpc.snapshot import StateHandle
from minflinkd.runtime.clock import Clock
from minflinkd.storage.interface import ObjectNotFound, StorageUnavailable, closable
from minflinkd.storage.location import Location

Pace = Callable[[int], Awaitable[None]]  # called with the number of bytes that were read; returns when to go on


async def at_full_speed(_: int) -> None:
    return


class LimitedPace:
    """Reads `rate` bytes a second, on average over the whole run."""

    def __init__(self, rate: float, clock: Clock) -> None:
        self._rate = rate
        self._clock = clock
        self._due = clock.monotonic()

    async def __call__(self, size: int) -> None:
        now = self._clock.monotonic()
        self._due = max(self._due, now) + size / self._rate
        await self._clock.sleep(self._due - now)


async def find_damage(
    root: Location,
    checkpoint: CompletedCheckpoint,
    *,
    pace: Pace = at_full_speed,
    whole: set[StateHandle] | None = None,
) -> tuple[Damage, ...]:
    """Return the damaged files of a checkpoint. `root`: the directory that its handles are relative to.

    `whole`: segments that need not be read, since they were found whole just now; those found here are added.

    Raises StorageError if the storage does not let this be found out.
    """
    known = set() if whole is None else whole
    wanted = {
        f"{task.task_id}/{file.path}": file.handle
        for task in checkpoint.tasks
        for file in task.files
        if file.handle not in known
    }
    found = []
    for file, reads in itertools.groupby(plan_reads(wanted), key=lambda read: read.file):
        damage = await _examine(root, file, list(reads), pace, known)
        if damage is not None:
            found.append(damage)
    return tuple(found)


async def require_directory(root: Location) -> None:
    """Raise StorageUnavailable if there is nothing at all in the directory of a job that has checkpoints.

    A mount that is away looks like an empty directory. What is missing then is not damaged.
    """
    async with aclosing(closable(root.list())) as entries:
        async for _ in entries:
            return
    raise StorageUnavailable(
        f"{root.uri} is empty, although the job has checkpoints in it",
        hint="is its file system mounted? If it was deleted, cancel the job, and start it from a savepoint",
    )


async def _examine(
    root: Location, file: str, reads: Sequence[RangedRead], pace: Pace, known: set[StateHandle]
) -> Damage | None:
    place, last = root.child(file), reads[-1]
    needed = max(read.offset + read.length for read in reads)
    differing: list[Segment] = []
    try:
        size = (await place.stat()).size
        if size < needed:
            size = (await place.stat()).size
        if size < needed:
            return Damage(file, f"it has {size:,} bytes, but {needed:,} were written")
        for read in reads:
            suspects = await _differing(place, read, pace)
            for segment in suspects:  # read it again, alone: the error may have been one of memory or of the network
                handle = segment.handle
                alone = RangedRead(file, handle.offset, handle.length, (segment,))
                differing += await _differing(place, alone, pace)
            known.update(segment.handle for segment in read.segments if segment not in suspects)
    except ObjectNotFound:
        await require_directory(root)
        if await place.exists():
            raise StorageUnavailable(f"{place.uri} was missing, and is there now") from None
        return Damage(file, "it is missing")
    if not differing:
        return None
    total = sum(len(read.segments) for read in (*reads[:-1], last))
    return Damage(
        file, f"{len(differing)} of {total} segments differ from their checksums (offset {differing[0].handle.offset})"
    )


async def _differing(place: Location, read: RangedRead, pace: Pace) -> list[Segment]:
    checking = _Checking(read)
    async with aclosing(closable(place.open_read(read.offset, read.length))) as pieces:
        async for piece in pieces:
            await asyncio.to_thread(checking.feed, piece)
            await pace(len(piece))
    return checking.end()


class _Checking:
    """Compares the segments of one ranged read with their checksums."""

    def __init__(self, read: RangedRead) -> None:
        self._position = read.offset
        self._left = deque(read.segments)
        self._hasher = xxhash.xxh3_128()
        self._differing: list[Segment] = []

    def feed(self, piece: bytes) -> None:
        rest = memoryview(piece)
        while rest and self._left:
            segment = self._left[0]
            start, end = segment.handle.offset, segment.handle.offset + segment.handle.length
            gap = self._position < start
            taken = min((start if gap else end) - self._position, len(rest))
            if not gap:
                self._hasher.update(rest[:taken])
            self._position += taken
            rest = rest[taken:]
            if self._position == end:
                self._left.popleft()
                if self._hasher.hexdigest() != segment.handle.checksum:
                    self._differing.append(segment)
                self._hasher.reset()

    def end(self) -> list[Segment]:
        """Return the segments that differ. What the read did not reach is among them."""
        return [*self._differing, *self._left]
