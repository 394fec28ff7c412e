"""What Spark's own scheduler is told of the jobs of one thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkContext

from minflinkd.runtime.ids import JobId


@contextmanager
def pool(context: SparkContext, job_id: JobId) -> Iterator[None]:
    """One per job, so that jobs do not starve each other (J6). A query's thread inherits that of its start."""
    context.setLocalProperty("spark.scheduler.pool", job_id)
    try:
        yield
    finally:
        context.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]


@contextmanager
def tagged(context: SparkContext, tag: str) -> Iterator[None]:
    """Spark jobs of this thread can be cancelled by the tag."""
    context.addJobTag(tag)
    try:
        yield
    finally:
        context.removeJobTag(tag)
