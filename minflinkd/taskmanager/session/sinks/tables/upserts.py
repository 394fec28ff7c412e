"""Replaces the rows of a table by key, exactly once (K4): rows wait in the checkpoint, and one commit merges them.

A row may also say that the one with its key is gone (K6).

Unlike files that are appended, the rows of a micro-batch cannot be in the table's directory before: only the commit
knows which of its files change. So they become part of the snapshots that cover them, as those of a kafka sink do. Of
several rows with one key in a checkpoint the last one counts. The mark is the same as for appended files (`commits`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from minflinkd.jobgraph.changes import ChangeColumns
from minflinkd.runtime.crash_points import CrashPoint, reach
from minflinkd.runtime.ids import JobId, VertexId
from minflinkd.taskmanager.session.plan.changes import split
from minflinkd.taskmanager.session.sinks.batch import HeldInSnapshots, ReadsOnce
from minflinkd.taskmanager.session.sinks.held import HeldFiles
from minflinkd.taskmanager.session.sinks.tables.commits import Look, Marked, MarkedCommits, check_facts
from minflinkd.taskmanager.session.sinks.tables.failures import TableChanged
from minflinkd.taskmanager.session.sinks.tables.fitting import with_key
from minflinkd.taskmanager.session.sinks.tables.keyed_changes import KeyedChanges, last_of, marked_as
from minflinkd.taskmanager.session.sinks.tables.parquet_files import LocalFile, written
from minflinkd.taskmanager.session.sinks.tables.rows import Layout
from minflinkd.taskmanager.session.sinks.tables.staged import DataFile, Staged, decoded
from minflinkd.taskmanager.session.spark.frames import column


class KeyedTable(Marked, Protocol):
    """A table whose rows are replaced by key. Each call may raise TableFailed."""

    @abstractmethod
    def lay_out(self, rows: DataFrame) -> Layout:
        """Fit rows to the table. Creates it, and adds columns, if the job allows it. Raises UnfitSink."""

    @abstractmethod
    def merge(self, look: Look, owner: str, number: int, checkpoint_id: int, changes: KeyedChanges) -> None:
        """Replace, insert and delete rows, and set the mark, all or nothing. Raises Conflict."""


class TableUpserts(HeldInSnapshots, ReadsOnce):
    """Two-phase: the rows wait in the attempt's directory until the checkpoint that covers them is complete."""

    def __init__(
        self, table: KeyedTable, columns: ChangeColumns, job_id: JobId, vertex_id: VertexId, directory: str
    ) -> None:
        """`directory`: of the attempt."""
        self._table = table
        self._columns = columns
        self._job_id, self._sink = job_id, vertex_id
        self._held = HeldFiles(directory, vertex_id)
        self._marked = MarkedCommits(table, job_id, vertex_id)

    def stage(self, batch: DataFrame, epoch: int) -> Any:
        self._held.own.mkdir(parents=True, exist_ok=True)
        with split(with_key(batch, self._columns.key, self._table.name), self._columns) as found:
            layout = self._table.lay_out(found.rows)
            files = self._written(layout.rows)
            if found.gone is not None:
                files += self._written(self._keys(found.gone, layout.rows.schema), gone=True)
        if not files:
            return None
        number, relies_on = self._marked.next_number(), layout.relies_on
        staged = Staged(
            job=self._job_id, table=self._table.name, number=number, files=tuple(files), relies_on=relies_on
        )
        return msgspec.to_builtins(staged)

    def _keys(self, gone: DataFrame, schema: StructType) -> DataFrame:
        """Return keys with the types that they have in the table."""
        columns = [column(name).cast(schema[name].dataType).alias(name) for name in self._columns.key]
        return gone.select(*columns)

    def _written(self, rows: DataFrame, *, gone: bool = False) -> list[DataFile]:
        with written(rows, self._held.own, partition_by=(), options={}) as files:
            return [self._taken(file, gone) for file in files]

    def _taken(self, file: LocalFile, gone: bool) -> DataFile:
        size = file.size  # it is somewhere else afterwards
        return DataFile(self._held.take(file.path), size, int(file.footer.num_rows), gone=gone)

    def count(self, token: Any) -> int:
        return sum(file.rows for file in decoded(token).files)

    def files(self, token: Any) -> tuple[str, ...]:
        """Return the paths, below the attempt's directory and in a snapshot, of the files that hold a token's rows."""
        return tuple(self._held.path(file.path) for file in decoded(token).files)

    def commit(self, checkpoint_id: int, tokens: list[Any]) -> None:
        """Merge the rows that are not merged yet. Raises TableFailed, TableChanged, StagedRowsGone."""
        found = [decoded(token) for token in tokens]
        self._marked.commit(checkpoint_id, found, self._merged)
        self._discard(found)

    def abort(self, tokens: list[Any] | None) -> None:
        """Discard what was staged. Earlier attempts had directories of their own, which go with them."""
        self._discard([decoded(token) for token in tokens or ()])
        if tokens is None:  # everything that was restored is merged
            self._held.discard_restored()

    def interrupt(self) -> None:
        """A commit has time limits of its own."""

    def _merged(self, look: Look, owner: str, left: Sequence[Staged], checkpoint_id: int) -> None:
        check_facts(self._table.name, self._sink, look, left)
        changes = last_of([self._read(file) for token in left for file in token.files], self._columns.key)
        reach(CrashPoint.SINK_SENT)
        self._table.merge(look, owner, left[-1].number, checkpoint_id, changes)

    def _read(self, file: DataFile) -> pa.Table:
        rows = pyarrow.parquet.read_table(self._held.find(file.path))
        if file.gone and set(rows.column_names) != set(self._columns.key):
            raise TableChanged(
                f"sink {self._sink}: rows of {self._table.name} wait to be deleted that are known by "
                f"{', '.join(rows.column_names)}, but the key is {', '.join(self._columns.key)} now",
                hint="start the job once with the former key; its next checkpoint or savepoint can have another one",
            )
        return marked_as(rows, gone=file.gone)

    def _discard(self, tokens: Sequence[Staged]) -> None:
        self._held.discard(file.path for token in tokens for file in token.files)
