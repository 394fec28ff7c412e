"""Reads Parquet files that Spark has written to this machine's disk, and that this process then moves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow.parquet


def with_rows(files: Iterable[Path]) -> Iterator[tuple[Path, int]]:
    """Yield each file and its number of rows, from its footer. Deletes files without rows."""
    for file in files:
        if rows := int(pyarrow.parquet.read_metadata(file).num_rows):
            yield file, rows
        else:
            file.unlink()
