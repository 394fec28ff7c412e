"""Sets how Spark's scheduler treats the Spark jobs of one thread: their pool, and a tag to cancel them by."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkContext

from minflinkd.runtime.ids import JobId


@contextmanager
def pool(context: SparkContext, job_id: JobId) -> Iterator[None]:
    """Use the scheduler pool of a job, so that jobs do not starve each other (J6).

    A query's thread inherits the pool of the thread that starts it.
    """
    context.setLocalProperty("spark.scheduler.pool", job_id)
    try:
        yield
    finally:
        context.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]


@contextmanager
def bad_records(context: SparkContext, directory: Path | None) -> Iterator[None]:
    """Let the Spark jobs of a query put bad records there, as `BadRecords.java` does. Queries inherit it as well."""
    name = "minflinkd.bad-records"
    context.setLocalProperty(name, None if directory is None else str(directory))  # type: ignore[arg-type]
    try:
        yield
    finally:
        context.setLocalProperty(name, None)  # type: ignore[arg-type]


@contextmanager
def tagged(context: SparkContext, tag: str) -> Iterator[None]:
    """Tag the Spark jobs of this thread, so that they can be cancelled."""
    context.addJobTag(tag)
    try:
        yield
    finally:
        context.removeJobTag(tag)
