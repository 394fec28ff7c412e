"""What a test has given to a job, in order: rows by source, event time, the time of day.

A job that is restored, or a view that is opened late, gets the same moments again. So it sees the rows in the same
micro-batches as before.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from minflinkd.testing import rows as of_rows
from minflinkd.testing.rows import Row
from minflinkd.testing.run import Moment

_OLDEST = 946_684_800  # seconds since 1970; files are read in the order of their times


@dataclass(frozen=True)
class Batch:
    """Rows that one source yields in one micro-batch."""

    source: str
    number: int
    rows: tuple[Row, ...]
    file: Path


@dataclass(frozen=True)
class Given:
    """One moment of the test."""

    batches: tuple[Batch, ...] = ()
    watermark_ms: int | None = None
    clock_ms: int | None = None


@dataclass
class Feed:
    """Files of rows below `directory`. `past`: the moments that the job has got."""

    directory: Path
    past: list[Given] = field(default_factory=list)
    _waiting: dict[str, list[Batch]] = field(default_factory=dict)
    _count: int = 0

    def add(self, source: str, rows: Sequence[Row], schema: Any) -> None:
        """Write a batch for the source, which waits for the next `rounds`."""
        self._count += 1
        file = self.directory / f"{self._count:06d}.parquet"
        self.directory.mkdir(parents=True, exist_ok=True)
        pq.write_table(of_rows.table(rows, schema), file)
        os.utime(file, (_OLDEST + self._count, _OLDEST + self._count))
        self._waiting.setdefault(source, []).append(Batch(source, self._count, tuple(rows), file))

    def rounds(self) -> list[tuple[Batch, ...]]:
        """Take what waits: first the first batches of all sources, then the second ones, and so on."""
        waiting, self._waiting = self._waiting, {}
        longest = max(map(len, waiting.values()), default=0)
        return [tuple(batches[i] for batches in waiting.values() if i < len(batches)) for i in range(longest)]

    def rows(self, source: str) -> list[list[Row]]:
        """Return the rows that the job has read from the source, by micro-batch."""
        return [list(batch.rows) for given in self.past for batch in given.batches if batch.source == source]


def places(directory: Path, sources: Sequence[str]) -> dict[str, Path]:
    """Return where a run reads its sources."""
    return {source: directory / source for source in sources}


def placed(given: Given, homes: dict[str, Path]) -> Moment:
    """Lay the moment's files beside where the sources look for them, under names that Spark does not see."""
    files: dict[str, list[tuple[Path, Path]]] = {}
    for batch in given.batches:
        if batch.source not in homes:
            continue
        home = homes[batch.source]
        hidden, name = home / f"_{batch.file.name}", home / batch.file.name
        hidden.unlink(missing_ok=True)
        os.link(batch.file, hidden)
        files.setdefault(batch.source, []).append((hidden, name))
    return Moment(files, given.watermark_ms, given.clock_ms)


def taken_back(past: Sequence[Given], homes: dict[str, Path]) -> None:
    """Remove the files of these moments from where the sources look for them."""
    for given in past:
        for batch in given.batches:
            if batch.source in homes:
                (homes[batch.source] / batch.file.name).unlink(missing_ok=True)
