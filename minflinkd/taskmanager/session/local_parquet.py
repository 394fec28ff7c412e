"""Parquet files that Spark has written to this machine's disk for this process to look at and to move."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow.parquet


def with_rows(files: Iterable[Path]) -> Iterator[tuple[Path, int]]:
    """Each file and its rows, as its footer says; those that only carry the schema are deleted."""
    for file in files:
        if rows := int(pyarrow.parquet.read_metadata(file).num_rows):
            yield file, rows
        else:
            file.unlink()
