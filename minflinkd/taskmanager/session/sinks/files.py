"""The files sink: stages files that the supervisor publishes with a checkpoint (J12)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812 - as everybody names it

from minflinkd.jobgraph.model import Sink, Vertex
from minflinkd.runtime.ids import AttemptId, JobId
from minflinkd.storage.publication import StagedFile, final_name, staged_directory
from minflinkd.taskmanager.attempts.staging import spark_writes, waiting_directory
from minflinkd.taskmanager.session.spark import local_files
from minflinkd.taskmanager.session.spark.local_parquet import with_rows
from minflinkd.taskmanager.session.spark.session import Session
from minflinkd.taskmanager.session.state.ledger import Ledger


class FilesSink:
    """Stages the files of a micro-batch below the sink's root, under names that readers of the directory skip."""

    reads_all = True

    def __init__(
        self, session: Session, vertex: Vertex, job_id: JobId, attempt_id: AttemptId, attempt_directory: str
    ) -> None:
        assert vertex.sink is not None
        assert vertex.sink.path is not None
        self._session = session
        self._sink: Sink = vertex.sink
        self._id = vertex.id
        self._job_id = job_id
        self._attempt_id = attempt_id
        root = vertex.sink.path if "://" in vertex.sink.path else f"file://{Path(vertex.sink.path).absolute()}"
        self._written = root if spark_writes(root) else f"file://{waiting_directory(attempt_directory, vertex.id)}"
        self.ledger: Ledger | None = Ledger(job_id, vertex.id, root)

    def write(self, frame: DataFrame, epoch: int) -> int:
        relative = staged_directory(self._job_id, self._id, self._attempt_id, epoch)
        target = f"{self._written.rstrip('/')}/{relative}"
        local = local_path(target)
        if self._sink.format == "parquet" and local is not None:
            self._save(frame, target)
            rows = sum(rows for _, rows in with_rows(sorted(Path(local).rglob("*.parquet"))))
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
        writer = frame.write.format(self._sink.format).options(**(local_files.RAW | self._sink.options)).mode("error")
        if self._sink.partition_by:
            writer = writer.partitionBy(*self._sink.partition_by)
        writer.save(target)

    def _staged(self, directory: str, epoch: int, name: str, size: int) -> StagedFile:
        final = final_name(self._job_id, self._id, self._attempt_id, epoch, name)
        return StagedFile(staged=f"{directory}/{name}", final=final, size=size)


def local_path(uri: str) -> str | None:
    """Return the path of a local URI or plain path; None for any other storage."""
    parts = urlsplit(uri)
    if parts.scheme == "":
        return uri
    return unquote(parts.path) if parts.scheme == "file" else None


def _files(session: Session, directory: str) -> list[tuple[str, int]]:
    """Return every data file below a staged directory: its relative path, and its size in bytes."""
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
