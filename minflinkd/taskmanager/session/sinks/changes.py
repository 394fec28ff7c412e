"""Makes one change for each key of the rows of a micro-batch: a row of the table, or the key of one that goes.

The rules of the options are in `jobgraph.changes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody names it

from minflinkd.jobgraph.changes import Changes, changes_of
from minflinkd.jobgraph.model import Sink
from minflinkd.taskmanager.session.sinks.batch import ALL_PARTITIONS
from minflinkd.taskmanager.session.spark.columns import column

_CHANGE = "change"


@dataclass(frozen=True)
class Changed:
    """What a micro-batch does to a table.

    `rows`: those that are written, with the table's columns. `gone`: keys of rows that are deleted; None if the sink
    deletes none.
    """

    rows: DataFrame
    gone: DataFrame | None = None


def of_table(rows: DataFrame, sink: Sink) -> DataFrame:
    """Return the rows with those of their columns that are written."""
    changes = changes_of(sink)
    return rows if changes is None else rows.drop(*changes.unwritten)


@contextmanager
def changed(rows: DataFrame, changes: Changes) -> Iterator[Changed]:
    """Yield what a micro-batch does to a table, with one change for each key if the sink orders them.

    Reads the rows once: if there are keys that go, they are kept in memory, or on Spark's disk, meanwhile.
    """
    newest = _newest(rows, changes)
    if changes.deleted is None:
        yield Changed(newest.drop(*changes.unwritten))
        return
    newest = newest.coalesce(ALL_PARTITIONS).persist()
    try:
        is_gone = F.coalesce(column(changes.deleted), F.lit(False))
        gone = newest.where(is_gone).select(*_columns(changes.key))
        yield Changed(newest.where(~is_gone).drop(*changes.unwritten), gone)
    finally:
        newest.unpersist()


def _newest(rows: DataFrame, changes: Changes) -> DataFrame:
    """Return the last of the rows with each key. NULL is before everything else."""
    if not changes.newest_by:
        return rows
    last = F.max_by(F.struct(*_columns(rows.columns)), F.struct(*_columns(changes.newest_by)))
    return rows.groupBy(*_columns(changes.key)).agg(last.alias(_CHANGE)).select(f"{_CHANGE}.*")


def _columns(names: Iterable[str]) -> list[Column]:
    return [column(name) for name in names]
