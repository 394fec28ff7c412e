"""Collects the bad records of a task's micro-batches, from the files that `BadRecords` in Java has written (K7)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from pyspark.sql import SparkSession

from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.session.spark.failures import hidden

log = structlog.get_logger(__name__)

DIRECTORY = "minflinkd.bad-records"  # a property of Spark's jobs, as in BadRecords.java
_SHOWN = 3  # records of a vertex and a micro-batch that are logged
_LONGEST = 300  # characters of such a record


@dataclass
class Found:
    """The bad records of one micro-batch, by vertex."""

    counts: dict[str, int] = field(default_factory=dict)
    directories: dict[VertexId, str] = field(default_factory=dict)


@dataclass(frozen=True)
class BadRecords:
    """Those of one task. `directory`: in the attempt's directory. `sinks`: where the vertices send them."""

    directory: Path
    sinks: Mapping[VertexId, list[VertexId]]

    @contextmanager
    def collecting(self, spark: SparkSession, epoch: int) -> Iterator[Path]:
        """Keep the bad records of the Spark jobs that run in this block. Yields the directory, which goes with it."""
        directory, context = self.directory / str(epoch), spark.sparkContext
        context.setLocalProperty(DIRECTORY, str(directory))
        try:
            yield directory
        finally:
            context.setLocalProperty(DIRECTORY, None)  # type: ignore[arg-type]
            shutil.rmtree(directory, ignore_errors=True)


def find(directory: Path) -> Found:
    """Return what the micro-batch has left in its directory, and log some of it."""
    found = Found()
    for vertex in sorted(directory.iterdir()) if directory.exists() else ():
        files = sorted(file for file in vertex.iterdir() if file.suffix == ".json")
        if count := sum(int(file.stem.partition("-")[2]) for file in files):
            found.counts[vertex.name] = count
            found.directories[VertexId(vertex.name)] = str(vertex)
            log.warning("bad records", vertex=vertex.name, records=count, some=_some(files))
    return found


def _some(files: list[Path]) -> list[str]:
    shown: list[str] = []
    for file in files:
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                if len(shown) == _SHOWN:
                    return shown
                row = json.loads(line)
                shown.append(hidden(f"{row['error']}: {row['record']}")[:_LONGEST])
    return shown
