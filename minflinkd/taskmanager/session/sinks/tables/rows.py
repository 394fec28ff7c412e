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
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from uuid import uuid4

import msgspec
import structlog
from pyspark.sql import DataFrame

from minflinkd.runtime.crash_points import CrashPoint, reach
from minflinkd.runtime.ids import JobId, VertexId
from minflinkd.taskmanager.session.sinks.batch import StagedRowsGone
from minflinkd.taskmanager.session.sinks.tables.failures import Conflict, TableFailed
from minflinkd.taskmanager.session.sinks.tables.parquet_files import LocalFile, written
from minflinkd.taskmanager.session.sinks.tables.staged import DataFile, Staged, decoded, next_number, unpublished

T = TypeVar("T")
R = TypeVar("R")

log = structlog.get_logger(__name__)

_TRIES: Final = 10  # of a commit beside those of other writers
_PARALLEL: Final = 4  # files that are uploaded, or looked for, at a time
_PAUSE: Final = 0.1  # seconds, before the second try


class Table(Protocol):
    """A table that takes files. Each call may raise TableFailed."""

    name: str  # for errors
    settings: dict[str, str]  # of Spark's writer

    @abstractmethod
    def check(self, rows: DataFrame) -> None:
        """Raise UnfitSink if rows with these columns cannot be written. Changes nothing."""

    @abstractmethod
    def lay_out(self, rows: DataFrame) -> tuple[DataFrame, tuple[str, ...]]:
        """Return the rows as the table's files have them, and the columns by which they are partitioned.

        Creates the table, and adds columns, if the job allows it. Raises UnfitSink if the rows do not fit the table.
        """

    @abstractmethod
    def add(self, file: LocalFile, name: str) -> DataFile:
        """Put a file into the table's directory, durably. `name` is that of no other file."""

    @abstractmethod
    def published(self, owner: str) -> int | None:
        """Return the number in the mark of `owner`; None without a mark. The next commit is based on what was read."""

    @abstractmethod
    def commit(self, owner: str, number: int, checkpoint_id: int, files: Sequence[DataFile]) -> None:
        """Make files visible and set the mark, both or neither. Raises Conflict."""

    @abstractmethod
    def has(self, file: DataFile) -> bool:
        """Whether the file is still there."""

    @abstractmethod
    def delete(self, file: DataFile) -> None:
        """Delete a file, if it is there, that no commit names."""


class TableRows:
    """Two-phase: files of the table wait, unseen, until the checkpoint that covers them is complete."""

    def __init__(self, table: Table, job_id: JobId, vertex_id: VertexId, waiting: Path) -> None:
        """`waiting`: a directory of the attempt's own, for files on their way to the table."""
        self._table = table
        self._job_id, self._sink = job_id, vertex_id
        self._waiting = waiting
        self._number: int | None = None  # the largest one of this job that is known
        self._staged: set[str] = set()  # paths of files that this attempt has staged

    def stage(self, batch: DataFrame, epoch: int) -> Any:
        self._waiting.mkdir(parents=True, exist_ok=True)
        rows, partition_by = self._table.lay_out(batch)
        with written(rows, self._waiting, partition_by=partition_by, options=self._table.settings) as files:
            if not files:
                return None
            if self._number is None:
                self._number = self._table.published(self._owner(self._job_id)) or 0
            self._number = next_number(self._number, time.time())
            names = (f"part-{n:05d}-{uuid4()}.parquet" for n in range(len(files)))
            added = _each(list(zip(files, names, strict=True)), lambda file: self._table.add(*file))
        self._staged.update(file.path for file in added)
        return msgspec.to_builtins(Staged(job=self._job_id, number=self._number, files=tuple(added)))

    def commit(self, checkpoint_id: int, tokens: list[Any]) -> None:
        """Publish what is not published yet. Raises TableFailed, StagedRowsGone."""
        found = [decoded(token) for token in tokens]
        for job_id in dict.fromkeys(token.job for token in found):  # those of a savepoint of another job come first
            self._commit(job_id, checkpoint_id, [token for token in found if token.job == job_id])
        self._staged.difference_update(file.path for token in found for file in token.files)

    def abort(self, tokens: list[Any] | None) -> None:
        """Delete what was staged, but for rows that are published. An attempt that begins does not look for any."""
        for token in (decoded(token) for token in tokens or ()):
            if unpublished(self._table.published(self._owner(token.job)), [token]):
                _each(token.files, self._table.delete)

    def _commit(self, job_id: str, checkpoint_id: int, tokens: Sequence[Staged]) -> None:
        owner = self._owner(job_id)
        number = max(token.number for token in tokens)
        if job_id == self._job_id:
            self._number = max(number, self._number or 0)
        for tried in range(_TRIES):
            left = unpublished(self._table.published(owner), tokens)
            if not left:
                return
            files = [file for token in left for file in token.files]
            self._check_files(files)
            reach(CrashPoint.SINK_SENT)
            try:
                self._table.commit(owner, number, checkpoint_id, files)
            except Conflict as conflict:
                log.info("another commit came first", sink=self._sink, table=self._table.name, why=str(conflict))
                time.sleep(_PAUSE * tried)
                continue
            reach(CrashPoint.SINK_WRITTEN)
            return
        raise TableFailed(
            f"sink {self._sink}: others have changed {self._table.name} during each of {_TRIES} commits",
            hint="the rows stay staged, and it is tried again; do other writers change the table all the time?",
        )

    def _check_files(self, files: Sequence[DataFile]) -> None:
        """Raise StagedRowsGone if a file of an earlier attempt is gone: a table that names it cannot be read."""
        earlier = [file for file in files if file.path not in self._staged]
        for file, is_there in zip(earlier, _each(earlier, self._table.has), strict=True):
            if not is_there:
                raise StagedRowsGone(
                    f"sink {self._sink}: a checkpoint covers the rows in {file.path}, which {self._table.name} does "
                    "not have yet, but the file is gone",
                    hint="did somebody clean the table (VACUUM, remove orphan files) of files that are too new? "
                    "Start the job from an earlier checkpoint, or savepoint, which then writes these rows again",
                )

    def _owner(self, job_id: str) -> str:
        return f"minflinkd.{job_id}.{self._sink}"


def _each(items: Sequence[T], do: Callable[[T], R]) -> list[R]:
    if len(items) <= 1:
        return [do(item) for item in items]
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="table-files") as pool:
        return list(pool.map(do, items))
