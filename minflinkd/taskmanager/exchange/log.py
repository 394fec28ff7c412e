"""An exchange on disk: an ordered log of entries. Each entry appears whole, and after all of its data (J8).

    schema.json            what the upstream task yields, as Spark's JSON; appears before the first entry
    entries/<sequence>     one entry each, without gaps
    data/<name>            Parquet files that data entries name
    consumed/<reader>      the position up to which that reader has processed everything; empty until it says so
    covered/<reader>       the position from which the reader's next attempt would read, by its latest checkpoint
    begin                  entries below this position are gone

A log belongs to one attempt of the upstream task. What a reader has consumed is kept until a completed checkpoint
covers it, so that the reader can restart alone and read it again (R16). Only so many bytes are kept. If more have come,
or if the log is lost with its TaskManager, the upstream task restarts as well. Its checkpoint contains the position
where the next log begins (J9).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import msgspec

from minflinkd.runtime.errors import MALFORMED, Consequence, Kind, MinflinkError

SCHEMA = "schema.json"
ENTRIES = "entries"
DATA = "data"
CONSUMED = "consumed"
COVERED = "covered"
BEGIN = "begin"
ENTRY_COST = 4096  # bytes of disk that an entry without data takes
END_OF_TIME_MS = 253402300799000  # 9999-12-31T23:59:59Z: the watermark after the end of input


class EntryKind(StrEnum):
    DATA = "data"  # one micro-batch of the upstream task
    BARRIER = "barrier"
    WATERMARK = "watermark"
    END = "end"  # of bounded input: no data follows, but barriers may


class DataFile(msgspec.Struct, frozen=True):
    name: str
    rows: int
    size: int  # bytes


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An entry of any kind may have a `watermark_ms`: later rows with an earlier event time are late.

    `ended`: the end of bounded input came before this barrier. A reader that begins here does not see that entry.
    """

    kind: EntryKind
    files: tuple[DataFile, ...] = ()
    batch_id: int = -1  # upstream's micro-batch
    checkpoint_id: int = 0
    watermark_ms: int | None = None
    ended: bool = False

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


class ExchangeDamaged(MinflinkError):
    """An entry or its data cannot be read. The tasks that it connects restart from a checkpoint."""

    code = "exchange-damaged"
    consequence = Consequence.RETRYABLE
    kind = Kind.EXCHANGE


def entry_path(directory: Path, sequence: int) -> Path:
    return directory / ENTRIES / f"{sequence:012d}"


def read_entry(directory: Path, sequence: int) -> Entry | None:
    """Read an entry. Return None while it is not there. Raises ExchangeDamaged."""
    try:
        return msgspec.json.decode(entry_path(directory, sequence).read_bytes(), type=Entry)
    except FileNotFoundError:
        return None
    except MALFORMED as error:
        raise ExchangeDamaged(f"entry {sequence} of an exchange cannot be read: {error}") from error


def read_schema(directory: Path) -> str | None:
    """Read the schema. Return None while it is not there."""
    with suppress(FileNotFoundError):
        return (directory / SCHEMA).read_text("utf-8")
    return None


def place(path: Path, content: bytes) -> None:
    """Write a file so that it appears whole."""
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(content)
    new.replace(path)


def mark_consumed(directory: Path, reader: str, position: int) -> None:
    """Note that `reader` has processed all entries below `position`. Does nothing if the log is gone."""
    with suppress(FileNotFoundError):
        place(directory / CONSUMED / reader, str(position).encode())


def consumed(directory: Path, reader: str) -> int | None:
    return _position(directory / CONSUMED / reader)


def has_reader(directory: Path, reader: str) -> bool:
    """Whether the log was opened for `reader`. The log of an attempt that is still being built has none."""
    return (directory / CONSUMED / reader).is_file()


def mark_covered(directory: Path, reader: str, position: int) -> None:
    """Note that no attempt of `reader` will read entries below `position`.

    If the log is gone or the disk is full, nothing is noted: then more is kept, until the next checkpoint.
    """
    with suppress(OSError):
        place(directory / COVERED / reader, str(position).encode())


def covered(directory: Path, reader: str) -> int | None:
    return _position(directory / COVERED / reader)


def begin_reading(directory: Path, reader: str, position: int) -> None:
    """Begin to read at `position`, perhaps before what an earlier attempt of `reader` has consumed.

    From then on, these entries are not deleted. Raises ExchangeDamaged if they are gone.
    """
    mark_consumed(directory, reader, position)  # first: `LogWriter` looks at it between `begin` and the deletion
    begin = _position(directory / BEGIN)
    if begin is not None and position < begin:
        raise ExchangeDamaged(f"an exchange is to be read from entry {position} on, and it begins at {begin}")


def _position(path: Path) -> int | None:
    with suppress(FileNotFoundError, ValueError):
        return int(path.read_bytes())
    return None


class LogReader:
    """Follows a log from `position` on; every entry is read once, in order."""

    def __init__(self, directory: Path, position: int) -> None:
        self.directory = directory
        self.position = position  # of the next entry

    def read(self) -> Iterator[tuple[int, Entry]]:
        """Yield the entries that have appeared since the last call. Raises ExchangeDamaged."""
        while (entry := read_entry(self.directory, self.position)) is not None:
            sequence, self.position = self.position, self.position + 1
            yield sequence, entry


class LogWriter:
    """The upstream end of a log. Not thread-safe: whoever appends holds the lock of its task.

    `first` is the position of the first entry. `readers` are all readers. `replay`: bytes that are kept of what all of
    them have consumed, for attempts that read it again.
    """

    def __init__(self, directory: Path, readers: tuple[str, ...], *, first: int = 0, replay: int = 0) -> None:
        self.directory = directory
        self.next = first
        self._readers = readers
        self._replay = replay
        self._first = first
        self._begin = first  # what is below is gone
        self._covered = first
        self._waiting: deque[tuple[int, Entry]] = deque()  # for the slowest reader
        self._waiting_bytes = 0
        self._read: deque[tuple[int, Entry]] = deque()  # consumed by all readers, and kept
        self._read_cost = 0
        for name in (ENTRIES, DATA, CONSUMED, COVERED):
            (directory / name).mkdir(parents=True, exist_ok=True)
        for reader in readers:
            (directory / CONSUMED / reader).touch()  # `has_reader` looks at it

    def describe(self, schema: str) -> None:
        place(self.directory / SCHEMA, schema.encode())

    def append(self, entry: Entry) -> int:
        """Append an entry, and return its position. Its data files are there already."""
        sequence = self.next
        place(entry_path(self.directory, sequence), msgspec.json.encode(entry))
        self._waiting.append((sequence, entry))
        self._waiting_bytes += entry.size
        self.next += 1
        return sequence

    @property
    def replayable(self) -> bool:
        """Whether every reader can restart from its latest checkpoint and find all entries from there on."""
        return self._begin <= self._covered

    @property
    def waiting(self) -> int:
        """The entries that the slowest reader had not consumed at the last `backlog`, and those after them."""
        return len(self._waiting)

    def backlog(self) -> int:
        """Delete what nobody will read. Return the bytes of data that the slowest reader has not consumed."""
        self._sort(self._consumed())
        known = [covered(self.directory, reader) for reader in self._readers]
        self._covered = min((self._first if position is None else position for position in known), default=self._first)
        self._drop(self._replay)
        return self._waiting_bytes

    def drop_consumed(self) -> None:
        """Delete all that the readers have consumed, as the disk is nearly full."""
        self._sort(self._consumed())
        self._drop(0)

    def _consumed(self) -> int:
        """Return the position up to which all readers have consumed everything."""
        known = [consumed(self.directory, reader) for reader in self._readers]
        # A reader that has reported nothing yet may need everything.
        return min((self._first if position is None else position for position in known), default=self._first)

    def _sort(self, needed: int) -> None:
        """Divide the entries at `needed`. It moves back if a reader restarts."""
        while self._waiting and self._waiting[0][0] < needed:
            sequence, entry = self._waiting.popleft()
            self._waiting_bytes -= entry.size
            self._read.append((sequence, entry))
            self._read_cost += entry.size + ENTRY_COST
        while self._read and self._read[-1][0] >= needed:
            sequence, entry = self._read.pop()
            self._read_cost -= entry.size + ENTRY_COST
            self._waiting.appendleft((sequence, entry))
            self._waiting_bytes += entry.size

    def _drop(self, replay: int) -> None:
        """Delete consumed entries, the oldest first: those that are covered, and those beyond `replay` bytes."""
        begin, cost = self._begin, self._read_cost
        for sequence, entry in self._read:
            if sequence >= self._covered and cost <= replay:
                break
            begin, cost = sequence + 1, cost - entry.size - ENTRY_COST
        if begin == self._begin:
            return
        try:
            place(self.directory / BEGIN, str(begin).encode())
        except OSError:  # the disk is full: what is covered goes all the same, since nobody begins to read there
            begin = min(begin, self._covered)
        self._begin = max(begin, self._begin)
        # A reader that restarts has either seen `begin`, and fails, or its position is seen here, and its entries stay.
        self._sort(self._consumed())
        while self._read and self._read[0][0] < begin:
            sequence, entry = self._read.popleft()
            self._read_cost -= entry.size + ENTRY_COST
            for path in (entry_path(self.directory, sequence), *(self.directory / DATA / f.name for f in entry.files)):
                with suppress(FileNotFoundError):
                    os.unlink(path)
