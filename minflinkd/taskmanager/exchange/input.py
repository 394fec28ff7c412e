"""One exchange that an attempt reads: what has arrived, how far the query may read, and what is no longer needed."""

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
    mark_covered,
    read_entry,
)
from minflinkd.taskmanager.placing import link_or_copy

RESTORED = "restored"


class Input:
    """An input of one attempt. Not thread-safe: the attempt's channels hold their lock.

    `restored` is the log of entries below `first`, if a snapshot brought any. Checkpoints before `oldest` have ended.
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
        oldest: int = 0,
    ) -> None:
        self.vertex = vertex
        self.directory = directory
        self.restored = restored
        self.first = first
        self.watermark_ms: int | None = None
        self.ended = False
        self._reader = reader
        self._idle_timeout = idle_timeout
        self._oldest = oldest
        self._active_at: float | None = None  # when an entry with rows or event time last came or was processed
        self._active_until = 0  # the sequence number after the last such entry
        self._position = position
        self._ahead: dict[int, Entry] = {}  # entries that are not processed yet
        self._released: set[int] = set()
        self._before = LogReader(restored, position) if position < first else None
        self._log = LogReader(directory, first)

    def scan(self, now: float) -> list[Arrived]:
        """Return what was written since the last call. Raises ExchangeDamaged."""
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
        for sequence, written in found:
            entry = self._ahead[sequence] = self._as_begun(sequence, written)
            if entry.size or entry.kind is EntryKind.WATERMARK:
                self._active_at, self._active_until = now, sequence + 1
            barrier = entry.checkpoint_id if entry.kind is EntryKind.BARRIER else None
            arrived.append(Arrived(self.vertex, sequence, entry.size, barrier, self._is_left_over(sequence)))
        return arrived

    def _as_begun(self, sequence: int, entry: Entry) -> Entry:
        """Return the barrier that this attempt begins at as the watermark that it carries, or as the end of input.

        If the upstream task runs on, it repeats neither, as a restarted one does.
        """
        is_start = sequence == self.first and entry.kind is EntryKind.BARRIER and entry.checkpoint_id < self._oldest
        if is_start and entry.ended:
            return Entry(kind=EntryKind.END, watermark_ms=END_OF_TIME_MS)
        if is_start and entry.watermark_ms is not None:
            return Entry(kind=EntryKind.WATERMARK, watermark_ms=entry.watermark_ms)
        return entry

    def _is_left_over(self, sequence: int) -> bool:
        """Whether this entry came with a snapshot.

        If it is a barrier, it is from an earlier attempt, and nobody releases it any more.
        """
        return sequence < self.first

    def readable(self, start: int, *, hold: bool) -> int:
        """Return how far the query may read from `start` on.

        If barriers `hold`, that is up to the first one that is not released. The end moves only past entries with
        content: a barrier alone causes no micro-batch.
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
        """Return the data of entries [start, end), except those already processed. Raises ExchangeDamaged."""
        files = []
        for sequence in range(max(start, self._position), end):
            if (entry := self._ahead.get(sequence)) is None:
                raise ExchangeDamaged(f"entry {sequence} of {self.vertex} was never seen")
            files += [self._place(sequence) / DATA / file.name for file in entry.files]
        return files

    def take_in(self, position: int, now: float) -> None:
        """Note that the task has processed everything below `position`."""
        if self._position < self._active_until:
            self._active_at = now
        for sequence in range(self._position, position):
            if (entry := self._ahead.pop(sequence, None)) is None:
                continue
            if entry.kind is EntryKind.BARRIER and not self._is_left_over(sequence):
                # Barriers come in the order of their numbers: the barrier of an aborted checkpoint may never come.
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
        """Whether the input has been idle for too long to hold back the others. Rows that wait are not idleness."""
        if self._idle_timeout is None or self._active_at is None or self._position < self._active_until:
            return False
        return now - self._active_at > self._idle_timeout

    def consumed(self, position: int) -> None:
        mark_consumed(self.directory, self._reader, position)

    def covered(self, position: int) -> None:
        """Note that a completed checkpoint covers everything below `position`."""
        mark_covered(self.directory, self._reader, position)

    def release(self, checkpoint_id: int) -> None:
        """Let the query pass this checkpoint's barrier, even if it has not come yet."""
        self._released.add(checkpoint_id)

    def link_unread(self, first: int, end: int, target: Path) -> list[tuple[str, int]]:
        """Link or copy entries [first, end) with their data, as a log below `target`. Return relative paths and sizes.

        Raises ExchangeDamaged if one of them is gone.
        """
        made = []
        paths = [(self.directory / SCHEMA, SCHEMA)]  # lets another version check whether it can read the entries
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
