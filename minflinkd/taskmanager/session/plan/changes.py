"""Makes one change for each key of the rows of a micro-batch: a row of the table, or the key of one that goes.

The rules of the options are in `jobgraph.changes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody names it

from minflinkd.jobgraph.changes import ChangeColumns, change_columns
from minflinkd.jobgraph.model import Sink
from minflinkd.taskmanager.session.spark.frames import ALL_PARTITIONS, column

_NEWEST: Final = "minflinkd_newest"


@dataclass(frozen=True)
class Split:
    """What a micro-batch does to a table.

    `rows`: those that are written, with the table's columns. `gone`: keys of rows that are deleted; None if the sink
    deletes none.
    """

    rows: DataFrame
    gone: DataFrame | None = None


def of_table(rows: DataFrame, sink: Sink) -> DataFrame:
    """Return the rows with those of their columns that are written."""
    columns = change_columns(sink)
    return rows if columns is None else rows.drop(*columns.unwritten)


@contextmanager
def split(rows: DataFrame, columns: ChangeColumns) -> Iterator[Split]:
    """Yield what a micro-batch does to a table, with one change for each key if `newest-by` orders them.

    Reads the rows once: if there are keys that go, they are kept in memory, or on Spark's disk, meanwhile.
    """
    each = newest(rows, columns)
    if columns.deleted is None:
        yield Split(each.drop(*columns.unwritten))
        return
    each = each.coalesce(ALL_PARTITIONS).persist()
    try:
        is_gone = F.coalesce(column(columns.deleted), F.lit(False))
        gone = each.where(is_gone).select(*_columns(columns.key))
        yield Split(each.where(~is_gone).drop(*columns.unwritten), gone)
    finally:
        each.unpersist()


def newest(rows: DataFrame, columns: ChangeColumns) -> DataFrame:
    """Return the last of the rows with each key; all rows if nothing says which it is. NULL is before everything else.

    Raises AnalysisException if rows cannot be ordered so, or have no such columns.
    """
    if not columns.newest_by:
        return rows
    last = F.max_by(F.struct(*_columns(rows.columns)), F.struct(*_columns(columns.newest_by)))
    found = rows.groupBy(*_columns(columns.key)).agg(last.alias(_NEWEST))
    # Not by a star: it would first look for a vertex of that name, which Spark knows as the name of a frame.
    return found.select(*(column(_NEWEST).getField(name).alias(name) for name in rows.columns))


def _columns(names: Iterable[str]) -> list[Column]:
    return [column(name) for name in names]
