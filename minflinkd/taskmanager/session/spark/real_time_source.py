"""Sources whose batches end on request, in real-time mode: the Python side of `java/RealTimeSource.java`."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import structlog
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from minflinkd.taskmanager.session.spark.session import Session

log = structlog.get_logger(__name__)

_SOURCE = "org.minflinkd.RealTimeSource"
_KEY = "minflinkd.key"  # names what the sources of a query share
_FORMAT = "minflinkd.format"


def new_key() -> str:
    return uuid4().hex


def reader(spark: SparkSession, format: str, key: str) -> DataStreamReader:
    """Return a reader of `format` for the query of this key."""
    return spark.readStream.format(_SOURCE).option(_FORMAT, format).option(_KEY, key)


def format_of(relation: Any) -> str:
    """Return the format that Spark's relation of a source reads."""
    name = str(relation.sourceName())
    return str(relation.extraOptions().get(_FORMAT)) if name == _SOURCE else name


def control(session: Session, key: str) -> Any:
    """Return what ends the batches of a query and lets them begin: `RealTimeSource.Control`."""
    return getattr(session.jvm, _SOURCE).control(key)


def release(spark: SparkSession, key: str) -> None:
    """The query of this key runs no more. Idempotent. Raises nothing: it is called while others clean up."""
    jvm: Any = spark._jvm
    try:
        getattr(jvm, _SOURCE).forget(key)
    except (Py4JError, OSError) as error:  # as a rule the JVM is gone
        log.warning("the threads of a query in real-time mode were not given back", error=str(error)[:200])
