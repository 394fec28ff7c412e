"""Has Spark write a micro-batch as Parquet files to this machine's disk, one directory for each partition."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote
from uuid import uuid4

import pyarrow.parquet
from pyspark.sql import DataFrame

from minflinkd.taskmanager.session.spark import local_files

NULL: Final = "__HIVE_DEFAULT_PARTITION__"  # what Spark writes for NULL, and for an empty text
# Spark's default, INT96, has no statistics, and Iceberg does not read it.
_MICROSECONDS: Final = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")


@dataclass(frozen=True)
class LocalFile:
    """`directory` is that of its partition, as Spark names it; empty without partitions."""

    path: Path
    footer: pyarrow.parquet.FileMetaData
    directory: str = ""
    partition: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return os.path.getsize(self.path)


@contextmanager
def written(
    rows: DataFrame, below: Path, *, partition_by: Sequence[str], options: Mapping[str, str]
) -> Iterator[list[LocalFile]]:
    """Write rows below a directory, and delete what is left of them at the end."""
    target = below / f".{uuid4().hex}"
    writer = rows.write.options(**(local_files.RAW | dict(options))).mode("error")
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    try:
        with _microseconds(rows):
            writer.parquet(f"file://{target}")
        yield list(_found(target))
    finally:
        shutil.rmtree(target, ignore_errors=True)


@contextmanager
def _microseconds(rows: DataFrame) -> Iterator[None]:
    name, value = _MICROSECONDS
    settings: Any = rows.sparkSession.conf
    before = settings.get(name)
    settings.set(name, value)
    try:
        yield
    finally:
        settings.set(name, before)


def _found(target: Path) -> Iterator[LocalFile]:
    for path in sorted(target.rglob("*.parquet")):
        footer = pyarrow.parquet.read_metadata(path)
        if footer.num_rows:
            directory = path.parent.relative_to(target)
            texts = dict(part.split("=", 1) for part in directory.parts)
            partition = {unquote(name): None if text == NULL else unquote(text) for name, text in texts.items()}
            yield LocalFile(path, footer, "/".join(directory.parts), partition)
