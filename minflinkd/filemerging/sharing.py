"""The physical files of one checkpoint that several tasks on one TaskManager write together (F1, F3).

The tasks reach the checkpoint at different times. Each goes through three phases. First it has joined. Then its new
state is written, so it is known what it refers to. Then it is done. Between the last two it rewrites what it has in
worn files (F6). The worn files are determined when all tasks have written their state. A file is finished when all are
done, or when one has waited for the others long enough. So no file stays open for a task that aligns for minutes.

A task that leaves without finishing ends the checkpoint, because its part is missing. The others are told so.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from minflinkd.filemerging.compaction import CompactionLimits, FileUse, file_uses, files_to_rewrite
from minflinkd.filemerging.writer import FileCalls, PhysicalFileWriter, WriterClosed
from minflinkd.rpc.snapshot import StateHandle
from minflinkd.runtime.errors import Consequence, MinflinkError

DEFAULT_MAX_FILE_AGE = 10.0  # seconds

T = TypeVar("T")


class PartnerLeft(MinflinkError):
    """Another task's part of the same checkpoint failed or was given up. That alone ends the checkpoint."""

    code = "checkpoint-partner-left"
    consequence = Consequence.RETRYABLE


class Phase(IntEnum):
    JOINED = 0
    WRITTEN = 1  # its new state is written; what it refers to in earlier files is known
    DONE = 2
    LEFT = 3


@dataclass(frozen=True)
class Written:
    """What a part has written. A cost that several parts share is counted with the first of them.

    `files`: those that hold some of its state, with their bytes. `compactions`: older files that were left.
    """

    files: Mapping[str, int]
    calls: FileCalls
    compactions: int


class SharedFiles:
    """One checkpoint's files, and the parts that write them."""

    def __init__(
        self,
        writer: PhysicalFileWriter,
        limits: CompactionLimits | None,
        *,
        max_age: float = DEFAULT_MAX_FILE_AGE,
        alone: bool = False,
    ) -> None:
        """`limits`: None if no file is worn. `max_age`: seconds that a part waits for others after it has written.

        `alone`: there is only one part.
        """
        self._writer = writer
        self._limits = limits
        self._max_age = max_age
        self._alone = alone
        self._parts: list[Part] = []
        self._lost = False  # a part left without finishing
        self._changed = asyncio.Event()  # replaced after each change
        self._worn: frozenset[str] = frozenset()
        self._left: set[str] = set()  # files from which a part has rewritten what it needs
        self._all_seen = False  # `_worn` is up to date with what the parts refer to

    @property
    def joinable(self) -> bool:
        """Whether a part may join: nobody has begun, or somebody is still writing and sharing is allowed."""
        return not self._lost and (not self._parts or not (self._alone or self._all(Phase.DONE)))

    def join(self, known: Iterable[StateHandle], sizes: Mapping[str, int]) -> Part:
        """Add a part. Earlier checkpoints offer its task the segments `known`, in files of these `sizes`."""
        part = Part(self, frozenset(known), sizes)
        self._parts.append(part)
        return part

    def _all(self, phase: Phase) -> bool:
        return all(part.phase >= phase for part in self._parts)

    def _to(self, part: Part, phase: Phase) -> None:
        part.phase = phase
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait_for(self, part: Part, phase: Phase) -> None:
        """Wait until all parts have reached `phase`, or `part` has waited long enough. Raises PartnerLeft."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(part.deadline):
                while not self._lost and not self._all(phase):
                    await self._changed.wait()
        if self._lost:
            raise _partner_left()

    def _refers_to(self, part: Part, live: frozenset[StateHandle]) -> None:
        part.live = live
        self._all_seen = False

    def _worn_files(self) -> frozenset[str]:
        """Return the worn files.

        What was decided for one part holds for all; parts that come late can only add to it.
        """
        if self._limits is not None and not self._all_seen:
            self._all_seen = True
            self._worn |= files_to_rewrite(*self._uses(), self._limits)
        return self._worn

    def _uses(self) -> tuple[dict[str, FileUse], int]:
        """Return the earlier files that stay, by what is decided so far, and the bytes in this checkpoint's own."""
        own = self._writer.sizes
        sizes = {name: size for part in self._parts for name, size in part.sizes.items()}
        uses = file_uses((handle for part in self._parts for handle in part.live if handle.file not in own), sizes)
        moved = sum(use.referenced for name, use in uses.items() if name in self._worn)
        return {name: use for name, use in uses.items() if name not in self._worn}, sum(own.values()) + moved

    async def _hand_over(self, names: Set[str], left: Set[str]) -> Written:
        await self._writing(self._writer.hand_over(names))
        sizes, first = self._writer.sizes, left - self._left
        self._left |= first
        return Written({name: sizes[name] for name in sorted(names)}, self._writer.take_calls(), len(first))

    async def _writing(self, step: Awaitable[T]) -> T:
        try:
            return await step
        except WriterClosed as error:  # closed by another part, which is about to leave
            raise _partner_left() from error

    async def _leave(self, part: Part, *, finished: bool) -> None:
        """A part leaves. The last one deletes what was handed over to nobody. Raises StorageError."""
        self._lost = self._lost or not finished
        self._to(part, Phase.LEFT)
        if self._all(Phase.LEFT):
            await self._writer.abort()


class Part:
    """One task's share, as an async context. Leaving it without `finish` gives up the checkpoint, for all tasks."""

    def __init__(self, shared: SharedFiles, live: frozenset[StateHandle], sizes: Mapping[str, int]) -> None:
        self.phase = Phase.JOINED
        self.live = live  # what the task refers to, as far as known
        self.sizes = sizes
        self.deadline = math.inf  # of its wait for others, by the loop's clock
        self.waited = 0.0  # seconds
        self._shared = shared
        self._mine: set[str] = set()  # files that hold some of its state
        self._finished = False

    async def append(self, source: bytes | Path) -> StateHandle:
        """Like PhysicalFileWriter. Also raises PartnerLeft."""
        handle = await self._shared._writing(self._shared._writer.append(source))
        self._mine.add(handle.file)
        return handle

    async def append_all(self, pieces: Sequence[tuple[bytes, str]]) -> list[StateHandle]:
        """Like PhysicalFileWriter. Also raises PartnerLeft."""
        handles = await self._shared._writing(self._shared._writer.append_all(pieces))
        self._mine.update(handle.file for handle in handles)
        return handles

    async def worn(self, live: Iterable[StateHandle]) -> frozenset[str]:
        """Report that the new state is written. Return the worn files: the task must append its segments in them anew.

        `live`: what the task refers to. Raises PartnerLeft.
        """
        shared = self._shared
        self.deadline = asyncio.get_running_loop().time() + shared._max_age
        shared._refers_to(self, frozenset(live))
        await self._reach(Phase.WRITTEN)
        return shared._worn_files()

    async def finish(self, left: Set[str] = frozenset()) -> Written:
        """Everything is appended. Return what was written once it is durable. It belongs to the caller.

        `left`: worn files from which the task has rewritten something. Raises PartnerLeft, StorageError.
        """
        await self._reach(Phase.DONE)
        written = await self._shared._hand_over(self._mine, left)
        self._finished = True
        return written

    async def _reach(self, phase: Phase) -> None:
        began = time.monotonic()
        self._shared._to(self, phase)
        await self._shared._wait_for(self, phase)
        self.waited += time.monotonic() - began

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._shared._leave(self, finished=self._finished)


def _partner_left() -> PartnerLeft:
    return PartnerLeft("another task on this TaskManager ended its part of the checkpoint")
