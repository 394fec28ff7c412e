"""A restored query with another number of partitions than its snapshot has (R20, H6).

Spark fixes the number of shuffle partitions of a query with its first micro-batch: the offset log records it, and wins
over the session's settings at every restart. State is split by it. So the state is rewritten by Spark's own offline
repartitioning, which adds a micro-batch without input; a query without state only has its record changed. Both on a
private copy made of hard links (else of copies), in which files are added and replaced, and never written to.
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
from minflinkd.taskmanager.session import schema_paths, snapshot
from minflinkd.taskmanager.session.failures import spark_message

PARTITIONS = "spark.sql.shuffle.partitions"


class StateNotRepartitioned(MinflinkError):
    """Spark cannot rewrite this state (that of a `limit`, for example). The query can go on with its old partitions."""

    code = "state-not-repartitioned"
    consequence = Consequence.REFUSED


def recorded_partitions(entry: snapshot.OffsetEntry) -> int:
    """With how many partitions the query runs, by its offset log; 0 where it does not say."""
    return int(entry.metadata.get("conf", {}).get(PARTITIONS, 0))


def repartition(spark: SparkSession, checkpoint: Path, batch: int, partitions: int, target: Path) -> int:
    """Make of `checkpoint`, which ends with `batch`, one of so many partitions in the new directory `target`.

    Blocks while Spark rewrites the state. Returns the micro-batch that the new one ends with. Raises
    StateNotRepartitioned, with nothing left in `target`; `checkpoint` is unchanged in any case.
    """
    try:
        shutil.copytree(checkpoint, target, copy_function=link_or_copy)
        if not (target / "state").exists():
            _record(target / "offsets" / str(batch), partitions)
            return batch
        schema_paths.localize(target)  # Spark reads them
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
    if isinstance(error, Py4JJavaError):  # pyspark converts only what it expects
        return str(error.java_exception.getMessage())
    return spark_message(error)
