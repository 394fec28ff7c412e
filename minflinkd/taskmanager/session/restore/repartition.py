"""Restores a query with another number of partitions than its snapshot has (R20, H6).

Spark fixes the number of shuffle partitions of a query with its first micro-batch: the offset log records it, and that
wins over the session's settings at every restart. State is partitioned by this number. So Spark's own offline
repartitioning rewrites the state, and adds a micro-batch without input. If a query has no state, only the number in its
offset log is changed. Both happen in a private copy, made of hard links if possible. Files in it are added or replaced,
and never written to.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.taskmanager.placing import link_or_copy
from minflinkd.taskmanager.session.spark.failures import spark_message
from minflinkd.taskmanager.session.state import schema_paths, snapshot

PARTITIONS = "spark.sql.shuffle.partitions"


class StateNotRepartitioned(MinflinkError):
    """Spark cannot rewrite this state (of a `limit`, for example). The query can continue with its old partitions."""

    code = "state-not-repartitioned"
    consequence = Consequence.REFUSED


def recorded_partitions(entry: snapshot.OffsetEntry) -> int:
    """Return the number of partitions that the offset log records for the query; 0 if it records none."""
    return int(entry.metadata.get("conf", {}).get(PARTITIONS, 0))


def repartition(spark: SparkSession, checkpoint: Path, batch: int, partitions: int, target: Path) -> int:
    """Make a copy of `checkpoint` with `partitions` partitions in the new directory `target`.

    `batch`: the last micro-batch in `checkpoint`. Blocks while Spark rewrites the state. Returns the last micro-batch
    in `target`. Raises StateNotRepartitioned, with nothing left in `target`. `checkpoint` is unchanged in any case.
    """
    try:
        shutil.copytree(checkpoint, target, copy_function=link_or_copy)
        if not (target / "state").exists():
            _record(target / "offsets" / str(batch), partitions)
            return batch
        schema_paths.localize(target)  # Spark reads the schemas by these paths
        spark._streamingCheckpointManager.repartition(str(target), partitions)
        return snapshot.read_boundary(target).committed
    except BaseException as error:
        shutil.rmtree(target, ignore_errors=True)
        if isinstance(error, Py4JError | PySparkException):
            raise StateNotRepartitioned(f"the state cannot have {partitions} partitions: {_reason(error)}") from error
        raise


def _record(log_entry: Path, partitions: int) -> None:
    text = log_entry.read_text("utf-8")
    version, metadata, *offsets = text.split("\n")
    values: dict[str, Any] = json.loads(metadata)
    values["conf"] = values.get("conf", {}) | {PARTITIONS: str(partitions)}
    new = log_entry.with_name(f".{log_entry.name}.new")
    new.write_text("\n".join([version, json.dumps(values), *offsets]), "utf-8")
    new.replace(log_entry)  # the old one is a hard link into a snapshot


def _reason(error: Py4JError | PySparkException) -> str:
    if isinstance(error, Py4JJavaError):  # pyspark has not converted it
        return str(error.java_exception.getMessage())
    return spark_message(error)
