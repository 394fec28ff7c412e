"""Replaces the rows of a table by key, exactly once (K4): rows wait in the checkpoint, and one commit merges them.

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

from minflinkd.runtime.crash_points import CrashPoint, reach
from minflinkd.runtime.ids import JobId, VertexId
from minflinkd.taskmanager.session.sinks.batch import HeldInSnapshots, ReadsOnce
from minflinkd.taskmanager.session.sinks.held import HeldFiles
from minflinkd.taskmanager.session.sinks.tables.commits import Look, Marked, MarkedCommits, check_facts
from minflinkd.taskmanager.session.sinks.tables.fitting import only_with, quoted
from minflinkd.taskmanager.session.sinks.tables.parquet_files import LocalFile, written
from minflinkd.taskmanager.session.sinks.tables.rows import Layout
from minflinkd.taskmanager.session.sinks.tables.staged import DataFile, Staged, decoded

_NUMBER = "minflinkd_row"


class KeyedTable(Marked, Protocol):
    """A table whose rows are replaced by key. Each call may raise TableFailed."""

    key: tuple[str, ...]

    @abstractmethod
    def lay_out(self, rows: DataFrame) -> Layout:
        """Fit rows to the table. Creates it, and adds columns, if the job allows it. Raises UnfitSink."""

    @abstractmethod
    def merge(self, look: Look, owner: str, number: int, checkpoint_id: int, rows: pa.Table) -> None:
        """Replace or insert rows, one for each key, and set the mark, both or neither. Raises Conflict."""


class TableUpserts(HeldInSnapshots, ReadsOnce):
    """Two-phase: the rows wait in the attempt's directory until the checkpoint that covers them is complete."""

    def __init__(self, table: KeyedTable, job_id: JobId, vertex_id: VertexId, directory: str) -> None:
        """`directory`: of the attempt."""
        self._table = table
        self._job_id, self._sink = job_id, vertex_id
        self._held = HeldFiles(directory, vertex_id)
        self._marked = MarkedCommits(table, job_id, vertex_id)

    def stage(self, batch: DataFrame, epoch: int) -> Any:
        self._held.own.mkdir(parents=True, exist_ok=True)
        layout = self._table.lay_out(batch)
        rows = layout.rows
        for name in self._table.key:
            rows = only_with(rows, f"key {name} NOT NULL", f"{quoted(name)} IS NOT NULL", self._table.name)
        with written(rows, self._held.own, partition_by=(), options={}) as files:
            if not files:
                return None
            held = tuple(self._taken(file) for file in files)
        number, relies_on = self._marked.next_number(), layout.relies_on
        staged = Staged(job=self._job_id, table=self._table.name, number=number, files=held, relies_on=relies_on)
        return msgspec.to_builtins(staged)

    def _taken(self, file: LocalFile) -> DataFile:
        size = file.size  # it is somewhere else afterwards
        return DataFile(self._held.take(file.path), size, int(file.footer.num_rows))

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
        read = [pyarrow.parquet.read_table(self._held.find(file.path)) for token in left for file in token.files]
        rows = last_by_key(pa.concat_tables(read, promote_options="permissive"), self._table.key)
        reach(CrashPoint.SINK_SENT)
        self._table.merge(look, owner, left[-1].number, checkpoint_id, rows)

    def _discard(self, tokens: Sequence[Staged]) -> None:
        self._held.discard(file.path for token in tokens for file in token.files)


def last_by_key(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the last of the rows with each key, in the order of the rows."""
    numbered = rows.select(list(key)).append_column(_NUMBER, pa.array(range(len(rows)), pa.int64()))
    last = numbered.group_by(list(key)).aggregate([(_NUMBER, "max")]).column(f"{_NUMBER}_max")
    return rows.take(pa.array(sorted(last.to_pylist()), pa.int64()))
