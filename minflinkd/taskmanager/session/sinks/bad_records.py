"""Collects the bad records of a task's micro-batches, from the files that `BadRecords` in Java has written (K7)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from pyspark.sql import DataFrame, SparkSession

from minflinkd.jobgraph.model import Sink
from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.session.plan.bad_records import read_rows
from minflinkd.taskmanager.session.sinks.batch import BatchSink
from minflinkd.taskmanager.session.spark.failures import hidden

log = structlog.get_logger(__name__)

_SHOWN = 3  # records of a vertex and a micro-batch that are logged
_LONGEST = 300  # characters of such a record


@dataclass
class Found:
    """The bad records of one micro-batch, by vertex."""

    counts: dict[str, int] = field(default_factory=dict)
    directories: dict[VertexId, str] = field(default_factory=dict)


@dataclass(frozen=True)
class BadRecordSinks:
    """The bad records of one task, and the sinks that some of them go to.

    `root`: where Spark's tasks put them, in the attempt's directory, a directory for each micro-batch. `senders`: the
    vertices whose bad records a sink gets. `specified`: the sinks as the job has them.
    """

    root: Path
    senders: Mapping[VertexId, Sequence[VertexId]]
    sinks: Mapping[VertexId, BatchSink]
    specified: Mapping[VertexId, Sink]

    def find(self, epoch: int) -> Found:
        """Return what a micro-batch has left, and log some of it."""
        found, directory = Found(), self.root / str(epoch)
        for vertex in sorted(directory.iterdir()) if directory.exists() else ():
            files = sorted(file for file in vertex.iterdir() if file.suffix == ".json")
            if count := sum(int(file.stem.partition("-")[2]) for file in files):
                found.counts[vertex.name] = count
                found.directories[VertexId(vertex.name)] = str(vertex)
                log.warning("bad records", vertex=vertex.name, records=count, some=_some(files))
        return found

    def rows(self, spark: SparkSession, sink: VertexId, found: Found, began_ms: int) -> DataFrame | None:
        """Return the rows that a sink gets of a micro-batch that began then; None if there are none."""
        there = [found.directories[vertex] for vertex in self.senders[sink] if vertex in found.directories]
        return read_rows(spark, there, began_ms, self.specified[sink]) if there else None

    def remove(self, epoch: int) -> None:
        """Delete the files of a micro-batch."""
        shutil.rmtree(self.root / str(epoch), ignore_errors=True)


def _some(files: list[Path]) -> list[str]:
    shown: list[str] = []
    for file in files:
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                if len(shown) == _SHOWN:
                    return shown
                row = json.loads(line)
                shown.append(hidden(f"{row['error']}: {row['record']}")[:_LONGEST])  # a cut secret would not be found
    return shown
