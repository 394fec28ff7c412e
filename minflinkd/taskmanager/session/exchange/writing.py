"""The writing end of an exchange: writes a micro-batch as Parquet files, one per partition, before its entry (J8).

Spark writes and reads the files without Python. In them, columns are named by position, so that the original names may
be anything, even duplicates.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody names it
from pyspark.sql.types import BooleanType, NullType, StructField, StructType

from minflinkd.taskmanager.exchange.log import DATA, DataFile
from minflinkd.taskmanager.session.spark import local_files
from minflinkd.taskmanager.session.spark.local_parquet import with_rows
from minflinkd.taskmanager.session.spark.session import Session
from minflinkd.taskmanager.session.state.ledger import Ledger


class ExchangeSink:
    """A sink in addition to those of the task's vertices. Publishing the micro-batch puts its files into the log."""

    ledger: Ledger | None = None
    reads_all = True

    def __init__(self, directory: Path) -> None:
        self._data = directory / DATA
        self.files: tuple[DataFile, ...] = ()  # written for the last micro-batch

    def write(self, frame: DataFrame, epoch: int) -> int:
        staged = self._data / f".{epoch}-{uuid4().hex}"
        try:
            as_stored(frame).write.options(**local_files.RAW).mode("error").parquet(f"file://{staged}")
            self.files = tuple(self._place(file, rows) for file, rows in with_rows(sorted(staged.glob("*.parquet"))))
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        return sum(file.rows for file in self.files)

    def _place(self, file: Path, rows: int) -> DataFile:
        name = f"{uuid4().hex}.parquet"
        return DataFile(name, rows, file.rename(self._data / name).stat().st_size)


def as_stored(frame: DataFrame) -> DataFrame:
    """Return the rows as they are stored. Parquet cannot store NullType, so such columns become NULL booleans."""
    frame = frame.toDF(*(_name(position) for position in range(len(frame.columns))))
    untyped = [field.name for field in frame.schema if isinstance(field.dataType, NullType)]
    return frame.withColumns({name: F.lit(None).cast("boolean") for name in untyped}) if untyped else frame


def stored_schema(schema: StructType) -> StructType:
    """Return the schema in which `as_stored` stores rows."""
    types = [BooleanType() if isinstance(field.dataType, NullType) else field.dataType for field in schema]
    return StructType([StructField(_name(position), kind) for position, kind in enumerate(types)])


def as_read(stored: DataFrame, schema: StructType) -> DataFrame:
    """Return stored rows with their original types. Columns keep the names of their positions."""
    untyped = [_name(n) for n, field in enumerate(schema) if isinstance(field.dataType, NullType)]
    return stored.withColumns({name: F.lit(None) for name in untyped}) if untyped else stored


def not_storable(session: Session, frame: DataFrame) -> list[str]:
    """Return the columns that cannot go through an exchange, with their types."""
    parquet = session.jvm.org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat()
    schema = frame._jdf.schema()
    return [
        f"{field.name} ({field.dataType.simpleString()})"
        for position, field in enumerate(frame.schema)
        if not isinstance(field.dataType, NullType) and not parquet.supportDataType(schema.apply(position).dataType())
    ]


def _name(position: int) -> str:
    return f"c{position}"
