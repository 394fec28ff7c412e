"""An exchange on disk: an ordered log of entries. Each entry appears whole, and after all of its data (J8).

    schema.json            what the upstream task yields, as Spark's JSON; appears before the first entry
    entries/<sequence>     one entry each, without gaps
    data/<name>            Parquet files that data entries name
    consumed/<reader>      the position below which that reader needs nothing any more

A log belongs to one attempt of the upstream task. Its readers are attempts of the same deployment. If the TaskManager
is lost, so are the log and the attempt: all of them restart from a checkpoint, which contains the sequence number where
the next log begins (J9).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import msgspec

from minflinkd.runtime.errors import MALFORMED, Consequence, MinflinkError

SCHEMA = "schema.json"
ENTRIES = "entries"
DATA = "data"
CONSUMED = "consumed"
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
    """An entry of any kind may have a `watermark_ms`: later rows with an earlier event time are late."""

    kind: EntryKind
    files: tuple[DataFile, ...] = ()
    batch_id: int = -1  # upstream's micro-batch
    checkpoint_id: int = 0
    watermark_ms: int | None = None

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


class ExchangeDamaged(MinflinkError):
    """An entry or its data cannot be read. The tasks that it connects restart from a checkpoint."""

    code = "exchange-damaged"
    consequence = Consequence.RETRYABLE


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
    """Note that `reader` no longer needs entries below `position`. Does nothing if the log is gone."""
    with suppress(FileNotFoundError):
        place(directory / CONSUMED / reader, str(position).encode())


def consumed(directory: Path, reader: str) -> int | None:
    with suppress(FileNotFoundError, ValueError):
        return int((directory / CONSUMED / reader).read_bytes())
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

    `first` is the sequence number of the first entry. `readers` are all readers: what each of them has consumed is
    deleted.
    """

    def __init__(self, directory: Path, readers: tuple[str, ...], *, first: int = 0) -> None:
        self.directory = directory
        self.next = first
        self._readers = readers
        self._kept: deque[tuple[int, Entry]] = deque()
        for name in (ENTRIES, DATA, CONSUMED):
            (directory / name).mkdir(parents=True, exist_ok=True)

    def describe(self, schema: str) -> None:
        place(self.directory / SCHEMA, schema.encode())

    def append(self, entry: Entry) -> int:
        """Append an entry, and return its sequence number. Its data files are there already."""
        sequence = self.next
        place(entry_path(self.directory, sequence), msgspec.json.encode(entry))
        self._kept.append((sequence, entry))
        self.next += 1
        return sequence

    def backlog(self) -> int:
        """Delete what nobody needs. Return the bytes of data that the slowest reader has not consumed."""
        known = [consumed(self.directory, reader) for reader in self._readers]
        needed = min((position for position in known if position is not None), default=0)
        if None not in known:  # a reader that has reported nothing yet may need everything
            while self._kept and self._kept[0][0] < needed:
                sequence, entry = self._kept.popleft()
                for path in (
                    entry_path(self.directory, sequence),
                    *(self.directory / DATA / f.name for f in entry.files),
                ):
                    with suppress(FileNotFoundError):
                        os.unlink(path)
        return sum(entry.size for _, entry in self._kept)
