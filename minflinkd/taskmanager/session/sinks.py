"""Where a micro-batch goes: files by two-phase commit (J12), a Python function, or any batch writer of Spark (J13)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import pyarrow.parquet
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812 - as everybody names it

from minflinkd.jobgraph.model import Sink, Vertex
from minflinkd.runtime.ids import AttemptId, JobId
from minflinkd.storage.publication import StagedFile, final_name, staged_directory
from minflinkd.taskmanager.session.code import JobCode
from minflinkd.taskmanager.session.ledger import Ledger
from minflinkd.taskmanager.session.plan import FILE_FORMATS
from minflinkd.taskmanager.session.spark import Session

# No .crc file beside each output file. Only for this writer's file system, which therefore is not the cached one.
_RAW_FILES = {"fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem", "fs.file.impl.disable.cache": "true"}


class BatchSink(Protocol):
    """Takes the micro-batches of one sink vertex, one at a time."""

    ledger: Ledger | None
    reads_all: bool  # False: the sink may leave rows of the frame unread

    def write(self, frame: DataFrame, epoch: int) -> int:
        """Returns the rows written, 0 where the sink cannot know."""
        ...


class FilesSink:
    """Stages a micro-batch's files below the sink's root, under names that readers of the directory skip."""

    reads_all = True

    def __init__(self, session: Session, vertex: Vertex, job_id: JobId, attempt_id: AttemptId) -> None:
        assert vertex.sink is not None
        assert vertex.sink.path is not None
        self._session = session
        self._sink: Sink = vertex.sink
        self._id = vertex.id
        self._job_id = job_id
        self._attempt_id = attempt_id
        self._root = vertex.sink.path if "://" in vertex.sink.path else f"file://{Path(vertex.sink.path).absolute()}"
        self.ledger: Ledger | None = Ledger(job_id, vertex.id, self._root)

    def write(self, frame: DataFrame, epoch: int) -> int:
        relative = staged_directory(self._job_id, self._id, self._attempt_id, epoch)
        target = f"{self._root.rstrip('/')}/{relative}"
        local = local_path(target)
        if self._sink.format == "parquet" and local is not None:
            self._save(frame, target)
            rows = _keep_files_with_rows(local)
        else:
            observation = Observation()
            self._save(frame.observe(observation, F.count(F.lit(1)).alias("rows")), target)
            rows = int(observation.get["rows"])
        if rows:
            assert self.ledger is not None
            found = _files(self._session, target)
            self.ledger.stage(epoch, tuple(self._staged(relative, epoch, name, size) for name, size in found))
        elif local is not None:
            shutil.rmtree(local, ignore_errors=True)
        return rows

    def _save(self, frame: DataFrame, target: str) -> None:
        writer = frame.write.format(self._sink.format).options(**(_RAW_FILES | self._sink.options)).mode("error")
        if self._sink.partition_by:
            writer = writer.partitionBy(*self._sink.partition_by)
        writer.save(target)

    def _staged(self, directory: str, epoch: int, name: str, size: int) -> StagedFile:
        final = final_name(self._job_id, self._id, self._attempt_id, epoch, name)
        return StagedFile(staged=f"{directory}/{name}", final=final, size=size)


class PythonSink:
    """A user's function(batch, epoch). At least once: a micro-batch may come again after a restore, with other rows."""

    ledger: Ledger | None = None
    reads_all = False

    def __init__(self, function: Callable[[DataFrame, int], Any]) -> None:
        self._function = function

    def write(self, frame: DataFrame, epoch: int) -> int:
        self._function(frame, epoch)
        return 0


class WriterSink:
    """Any format of Spark's batch writer (console, kafka, jdbc). At least once."""

    ledger: Ledger | None = None
    reads_all = True

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, frame: DataFrame, epoch: int) -> int:
        if self._sink.format == "console":
            frame.show(int(self._sink.options.get("numRows", "20")), truncate=False)
            return 0
        writer = frame.write.format(self._sink.format).options(**self._sink.options).mode("append")
        writer.save(self._sink.path) if self._sink.path is not None else writer.save()
        return 0


class TaskSinks:
    """All sinks of a task. A frame that is read twice would be computed twice, so it is persisted for several; and a

    frame that is not read in full fails a stateful query, so it is read here before a sink that may not do so.
    """

    def __init__(self, sinks: list[BatchSink]) -> None:
        self._sinks = sinks
        single = len(sinks) == 1
        self._persist = not (single and sinks[0].reads_all and not isinstance(sinks[0], WriterSink))
        self.ledgers = [sink.ledger for sink in sinks if sink.ledger is not None]

    def write(self, frame: DataFrame, epoch: int) -> int:
        """Returns the rows written by the files sinks."""
        if not self._persist:
            return self._sinks[0].write(frame, epoch)
        frame.persist()
        try:
            frame.count()
            return sum(sink.write(frame, epoch) for sink in self._sinks)
        finally:
            frame.unpersist()


def make_sinks(
    session: Session,
    vertices: tuple[Vertex, ...],
    job_id: JobId,
    attempt_id: AttemptId,
    code: JobCode,
    exchange: BatchSink | None = None,
) -> TaskSinks:
    """Raises what importing a Python sink raises."""
    sinks = [_make(session, vertex, job_id, attempt_id, code) for vertex in vertices]
    return TaskSinks(sinks if exchange is None else [*sinks, exchange])


def _make(session: Session, vertex: Vertex, job_id: JobId, attempt_id: AttemptId, code: JobCode) -> BatchSink:
    assert vertex.sink is not None
    if vertex.sink.python is not None:
        return PythonSink(code.function(vertex.sink.python))
    if vertex.sink.format in FILE_FORMATS:
        return FilesSink(session, vertex, job_id, attempt_id)
    return WriterSink(vertex.sink)


def local_path(uri: str) -> str | None:
    """The path of a local URI or plain path; None for any other storage."""
    parts = urlsplit(uri)
    if parts.scheme == "":
        return uri
    return unquote(parts.path) if parts.scheme == "file" else None


def _keep_files_with_rows(directory: str) -> int:
    """Delete Parquet files that only carry the schema; returns the rows of the others, as their footers say."""
    total = 0
    for name, _ in _local_files(directory):
        path = os.path.join(directory, name)
        if name.endswith(".parquet"):
            rows = int(pyarrow.parquet.read_metadata(path).num_rows)
            total += rows
            if not rows:
                os.unlink(path)
    return total


def _files(session: Session, directory: str) -> list[tuple[str, int]]:
    """Every data file below a staged directory: relative path, size in bytes."""
    local = local_path(directory)
    found = _local_files(local) if local is not None else _remote_files(session, directory)
    return sorted((name, size) for name, size in found if not PurePosixPath(name).name.startswith(("_", ".")))


def _local_files(directory: str) -> list[tuple[str, int]]:
    return [
        (os.path.relpath(path, directory), os.path.getsize(path))
        for parent, _, names in os.walk(directory)
        for name in names
        for path in (os.path.join(parent, name),)
    ]


def _remote_files(session: Session, directory: str) -> list[tuple[str, int]]:
    root = session.jvm.org.apache.hadoop.fs.Path(directory)
    system = root.getFileSystem(session.spark.sparkContext._jsc.hadoopConfiguration())
    if not system.exists(root):
        return []
    prefix = str(system.makeQualified(root).toString()).rstrip("/") + "/"
    listing, found = system.listFiles(root, True), []
    while listing.hasNext():
        status = listing.next()
        found.append((str(status.getPath().toString()).removeprefix(prefix), int(status.getLen())))
    return found
