"""One exchange that an attempt reads: what came, how far the query may read, and what nobody needs any more."""

from __future__ import annotations

from pathlib import Path

from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.exchange.gate import Arrived
from minflinkd.taskmanager.exchange.log import (
    DATA,
    END_OF_TIME_MS,
    ENTRIES,
    SCHEMA,
    Entry,
    EntryKind,
    ExchangeDamaged,
    LogReader,
    entry_path,
    mark_consumed,
    read_entry,
)
from minflinkd.taskmanager.placing import link_or_copy

RESTORED = "restored"


class Input:
    """Not thread-safe: the attempt's channels hold their lock.

    `restored`: a log of the entries below `first` that a snapshot brought, where it did.
    """

    def __init__(
        self,
        vertex: VertexId,
        directory: Path,
        restored: Path,
        *,
        reader: str,
        position: int,
        first: int,
        idle_timeout: float | None,
    ) -> None:
        self.vertex = vertex
        self.directory = directory
        self.restored = restored
        self.first = first
        self.watermark_ms: int | None = None
        self.ended = False
        self._reader = reader
        self._idle_timeout = idle_timeout
        self._active_at: float | None = None  # something that tells of rows or of event time came, or was taken in
        self._active_until = 0  # the entry behind the last such
        self._position = position
        self._ahead: dict[int, Entry] = {}  # not taken in yet
        self._released: set[int] = set()
        self._before = LogReader(restored, position) if position < first else None
        self._log = LogReader(directory, first)

    def scan(self, now: float) -> list[Arrived]:
        """What was written since. Raises ExchangeDamaged."""
        found: list[tuple[int, Entry]] = []
        if self._before is not None:
            found += self._before.read()
            if self._before.position < self.first:
                raise ExchangeDamaged(
                    f"the restored entries of {self.vertex} end at {self._before.position}, not at {self.first}"
                )
            self._before = None
        found += self._log.read()
        if self._active_at is None:
            self._active_at = now
        arrived = []
        for sequence, entry in found:
            self._ahead[sequence] = entry
            if entry.size or entry.kind is EntryKind.WATERMARK:
                self._active_at, self._active_until = now, sequence + 1
            barrier = entry.checkpoint_id if entry.kind is EntryKind.BARRIER else None
            arrived.append(Arrived(self.vertex, sequence, entry.size, barrier, self._is_left_over(sequence)))
        return arrived

    def _is_left_over(self, sequence: int) -> bool:
        """Among what a snapshot brought are barriers of earlier attempts, which nobody releases any more."""
        return sequence < self.first

    def readable(self, start: int, *, hold: bool) -> int:
        """How far the query may read from `start` on: where barriers `hold`, up to the first that is not released.

        It moves only for entries that say something: a barrier that was passed costs no micro-batch.
        """
        position = end = start
        while (entry := self._ahead.get(position)) is not None:
            if entry.kind is not EntryKind.BARRIER:
                end = position + 1
            elif hold and not self._is_left_over(position) and entry.checkpoint_id not in self._released:
                break
            position += 1
        return end

    def data_files(self, start: int, end: int) -> list[Path]:
        """Of entries [start, end); of those that were taken in before, none. Raises ExchangeDamaged."""
        files = []
        for sequence in range(max(start, self._position), end):
            if (entry := self._ahead.get(sequence)) is None:
                raise ExchangeDamaged(f"entry {sequence} of {self.vertex} was never seen")
            files += [self._place(sequence) / DATA / file.name for file in entry.files]
        return files

    def take_in(self, position: int, now: float) -> None:
        """The task has everything below `position`."""
        if self._position < self._active_until:
            self._active_at = now
        for sequence in range(self._position, position):
            if (entry := self._ahead.pop(sequence, None)) is None:
                continue
            if entry.kind is EntryKind.BARRIER and not self._is_left_over(sequence):
                # Barriers come in the order of their numbers: that of an aborted checkpoint may never come.
                self._released = {number for number in self._released if number > entry.checkpoint_id}
            if entry.kind is EntryKind.END:
                self.ended = True
                self.watermark_ms = END_OF_TIME_MS
            elif entry.watermark_ms is not None:
                self.watermark_ms = max(entry.watermark_ms, self.watermark_ms or entry.watermark_ms)
        self._position = max(position, self._position)

    @property
    def may_idle(self) -> bool:
        return self._idle_timeout is not None

    def is_idle(self, now: float) -> bool:
        """For longer than it may hold the others back. Rows that wait to be processed are no idleness."""
        if self._idle_timeout is None or self._active_at is None or self._position < self._active_until:
            return False
        return now - self._active_at > self._idle_timeout

    def consumed(self, position: int) -> None:
        mark_consumed(self.directory, self._reader, position)

    def release(self, checkpoint_id: int) -> None:
        """Its barrier, which may not have come yet, holds the query no more."""
        self._released.add(checkpoint_id)

    def link_unread(self, first: int, end: int, target: Path) -> list[tuple[str, int]]:
        """Link (else copy) entries [first, end) with their data, as a log below `target`; relative paths and sizes.

        Raises ExchangeDamaged where one is not there any more.
        """
        made = []
        paths = [(self.directory / SCHEMA, SCHEMA)]  # by which another version knows whether it can read them
        for sequence in range(first, end):
            source = self._place(sequence)
            if (entry := read_entry(source, sequence)) is None:
                raise ExchangeDamaged(f"entry {sequence} of {self.vertex} is gone before it could be saved")
            paths.append((entry_path(source, sequence), f"{ENTRIES}/{sequence:012d}"))
            paths += [(source / DATA / file.name, f"{DATA}/{file.name}") for file in entry.files]
        for path, name in paths:
            place = target / name
            place.parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(path, place)
            made.append((name, place.stat().st_size))
        return made

    def _place(self, sequence: int) -> Path:
        return self.restored if sequence < self.first else self.directory
