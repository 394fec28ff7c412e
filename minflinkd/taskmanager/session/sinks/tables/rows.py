"""Appends rows to a table exactly once: files are staged in the table's directory, and a checkpoint commits them.

A micro-batch becomes files of the table at once, but no commit names them, so nobody reads them. The token of the
micro-batch, which is in the checkpoint, names them. When the checkpoint is complete, one commit of the table adds the
files of all its tokens, together with a mark: who has written, and the number of the last token (`staged`).

Two attempts may commit at the same time, if one only seems dead. Each reads the mark before it commits, and the table
refuses a commit beside which another one was made with a mark of the same writer. Then the mark is read again.

What a killed attempt has staged stays in the directory. No reader sees it, and the table's own cleaning (VACUUM, remove
orphan files) deletes it.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from uuid import uuid4

import msgspec
from pyspark.sql import DataFrame

from minflinkd.runtime.crash_points import CrashPoint, reach
from minflinkd.runtime.ids import JobId, VertexId
from minflinkd.taskmanager.session.sinks.batch import ReadsOnce
from minflinkd.taskmanager.session.sinks.tables.commits import Look, Marked, MarkedCommits, check_facts
from minflinkd.taskmanager.session.sinks.tables.failures import TableChanged
from minflinkd.taskmanager.session.sinks.tables.parquet_files import LocalFile, written
from minflinkd.taskmanager.session.sinks.tables.staged import DataFile, Staged, decoded, unpublished

T = TypeVar("T")
R = TypeVar("R")

_PARALLEL: Final = 4  # files that are uploaded, or looked for, at a time
_FRESH: Final = 600.0  # seconds; nobody cleans a table of files that are younger


@dataclass(frozen=True)
class Layout:
    """Rows as the files of a table have them.

    `partition_by`: columns whose values are in the names of directories. `relies_on`: what must hold for the table when
    the files are committed.
    """

    rows: DataFrame
    partition_by: tuple[str, ...]
    table: Any  # the library's, whose columns and partitions these are
    relies_on: dict[str, str]


class Table(Marked, Protocol):
    """A table that takes files. Micro-batches and commits use it from two threads. Each call may raise TableFailed."""

    settings: dict[str, str]  # of Spark's writer

    @abstractmethod
    def load(self) -> None:
        """Import the table's library, which takes seconds for the first time. Raises UnfitSink."""

    @abstractmethod
    def check(self, rows: DataFrame) -> None:
        """Raise UnfitSink if rows with these columns cannot be written. Changes nothing."""

    @abstractmethod
    def lay_out(self, rows: DataFrame) -> Layout:
        """Fit rows to the table. Creates it, and adds columns, if the job allows it. Raises UnfitSink."""

    @abstractmethod
    def add(self, layout: Layout, file: LocalFile, name: str) -> DataFile:
        """Put a file into the table's directory, durably. `name` is that of no other file."""

    @abstractmethod
    def commit(self, look: Look, owner: str, last: Staged, checkpoint_id: int, files: Sequence[DataFile]) -> None:
        """Make files visible and set the mark to the number of `last`, both or neither.

        All files are of its partition spec. Raises Conflict if `look` is too old for that.
        """

    @abstractmethod
    def has(self, look: Look, file: DataFile) -> bool:
        """Whether the file is still there."""

    @abstractmethod
    def delete(self, look: Look, file: DataFile) -> None:
        """Delete a file, if it is there, that no commit names."""


class TableRows(ReadsOnce):
    """Two-phase: files of the table wait, unseen, until the checkpoint that covers them is complete."""

    def __init__(self, table: Table, job_id: JobId, vertex_id: VertexId, waiting: Path) -> None:
        """`waiting`: a directory of the attempt's own, for files on their way to the table."""
        self._table = table
        self._job_id, self._sink = job_id, vertex_id
        self._waiting = waiting
        self._marked = MarkedCommits(table, job_id, vertex_id)

    def stage(self, batch: DataFrame, epoch: int) -> Any:
        self._waiting.mkdir(parents=True, exist_ok=True)
        layout = self._table.lay_out(batch)
        settings = self._table.settings
        with written(layout.rows, self._waiting, partition_by=layout.partition_by, options=settings) as files:
            if not files:
                return None
            number = self._marked.next_number()
            names = (f"part-{n:05d}-{uuid4()}.parquet" for n in range(len(files)))
            added = _each(list(zip(files, names, strict=True)), lambda file: self._table.add(layout, *file))
        staged = Staged(
            job=self._job_id, table=self._table.name, number=number, files=tuple(added), relies_on=layout.relies_on
        )
        return msgspec.to_builtins(staged)

    def count(self, token: Any) -> int:
        return sum(file.rows for file in decoded(token).files)

    def commit(self, checkpoint_id: int, tokens: list[Any]) -> None:
        """Publish what is not published yet. Raises TableFailed, TableChanged."""
        self._marked.commit(checkpoint_id, [decoded(token) for token in tokens], self._committed)

    def abort(self, tokens: list[Any] | None) -> None:
        """Delete what was staged, but for rows that are published. An attempt that begins does not look for any."""
        for token in (decoded(token) for token in tokens or ()):
            look = self._table.look(self._marked.owner(token.job))
            if unpublished(look.number, [token]):
                _each(token.files, lambda file, look=look: self._table.delete(look, file))  # type: ignore[misc]

    def _committed(self, look: Look, owner: str, left: Sequence[Staged], checkpoint_id: int) -> None:
        check_facts(self._table.name, self._sink, look, left)
        self._check_files(look, left)
        files = [file for token in left for file in token.files]
        reach(CrashPoint.SINK_SENT)
        self._table.commit(look, owner, left[-1], checkpoint_id, files)

    def _check_files(self, look: Look, tokens: Sequence[Staged]) -> None:
        """Raise TableChanged if a file is gone: a table that names it cannot be read. Fresh ones are not looked for."""
        since = (time.time() - _FRESH) * 1000
        doubtful = [
            file for token in tokens if not self._marked.is_own(token) or token.number < since for file in token.files
        ]
        there = _each(doubtful, lambda file: self._table.has(look, file))
        for file, is_there in zip(doubtful, there, strict=True):
            if not is_there:
                raise TableChanged(
                    f"sink {self._sink}: a checkpoint covers the rows in {file.path}, which {self._table.name} does "
                    "not have yet, but the file is gone",
                    hint="did somebody clean the table (VACUUM, remove orphan files) of files that are too new? Start "
                    "the job from an earlier checkpoint or savepoint, and check for rows that are then there twice",
                )


def _each(items: Sequence[T], do: Callable[[T], R]) -> list[R]:
    if len(items) <= 1:
        return [do(item) for item in items]
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="table-files") as pool:
        return list(pool.map(do, items))
