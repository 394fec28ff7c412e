"""An exchange on disk: an ordered log of entries, each of which appears whole, and after all of its data (J8).

    schema.json            what the upstream task yields, as Spark's JSON; appears before the first entry
    entries/<sequence>     one entry each, without gaps
    data/<name>            Parquet files that data entries name
    consumed/<reader>      up to where that reader needs nothing any more

A log belongs to one attempt of the upstream task; its readers are attempts of the same deployment. It is lost with the
TaskManager, and then so is the attempt: all of them begin again from a checkpoint, which says with which sequence
number the next log begins (J9).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import msgspec

from minflinkd.runtime.errors import Consequence, MinflinkError

SCHEMA = "schema.json"
ENTRIES = "entries"
DATA = "data"
CONSUMED = "consumed"
END_OF_TIME_MS = 253402300799000  # 9999-12-31T23:59:59Z: the watermark behind the end of input


class EntryKind(StrEnum):
    DATA = "data"  # one micro-batch of the upstream task
    BARRIER = "barrier"
    WATERMARK = "watermark"
    END = "end"  # of bounded input: no data follows, barriers may


class DataFile(msgspec.Struct, frozen=True):
    name: str
    rows: int
    size: int  # bytes


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`watermark_ms` may come with any kind: no row that is not late has an earlier event time from here on."""

    kind: EntryKind
    files: tuple[DataFile, ...] = ()
    batch_id: int = -1  # upstream's micro-batch
    checkpoint_id: int = 0
    watermark_ms: int | None = None

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


class ExchangeDamaged(MinflinkError):
    """An entry or its data cannot be read: the tasks that it connects begin again from a checkpoint."""

    code = "exchange-damaged"
    consequence = Consequence.RETRYABLE


def entry_path(directory: Path, sequence: int) -> Path:
    return directory / ENTRIES / f"{sequence:012d}"


def read_entry(directory: Path, sequence: int) -> Entry | None:
    """None while it is not there. Raises ExchangeDamaged."""
    try:
        return msgspec.json.decode(entry_path(directory, sequence).read_bytes(), type=Entry)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise ExchangeDamaged(f"entry {sequence} of an exchange cannot be read: {error}") from error


def read_schema(directory: Path) -> str | None:
    """None while it is not there."""
    with suppress(FileNotFoundError):
        return (directory / SCHEMA).read_text("utf-8")
    return None


def place(path: Path, content: bytes) -> None:
    """Make a file appear whole."""
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(content)
    new.replace(path)


def mark_consumed(directory: Path, reader: str, position: int) -> None:
    """Entries below `position` are not needed by `reader` any more. Nothing where the log is gone."""
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
        """What has appeared since. Raises ExchangeDamaged."""
        while (entry := read_entry(self.directory, self.position)) is not None:
            sequence, self.position = self.position, self.position + 1
            yield sequence, entry


class LogWriter:
    """The upstream end. Not thread-safe: who appends holds the lock of its task.

    `first`: the sequence number of the first entry. `readers`: all of them; what each has consumed goes.
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
        """The entry's sequence number. Its data files are there already."""
        sequence = self.next
        place(entry_path(self.directory, sequence), msgspec.json.encode(entry))
        self._kept.append((sequence, entry))
        self.next += 1
        return sequence

    def backlog(self) -> int:
        """Bytes of data that the slowest reader has not consumed. Deletes what nobody needs."""
        known = [consumed(self.directory, reader) for reader in self._readers]
        needed = min((position for position in known if position is not None), default=0)
        if None not in known:
            while self._kept and self._kept[0][0] < needed:
                sequence, entry = self._kept.popleft()
                for path in (
                    entry_path(self.directory, sequence),
                    *(self.directory / DATA / f.name for f in entry.files),
                ):
                    with suppress(FileNotFoundError):
                        os.unlink(path)
        return sum(entry.size for _, entry in self._kept)
