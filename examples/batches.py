"""What the compare.py scripts of several examples share: a local Spark session, and the comparison of rows."""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import Any

from pyspark.sql import DataFrame, SparkSession


def local_session(name: str) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return (
        SparkSession.builder.master("local[2]")
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def compare(wanted: DataFrame, found: DataFrame) -> dict[str, Any]:
    """Compare two sets of rows. Duplicate rows count."""
    columns = wanted.columns
    batch_rows, stream_rows = (
        Counter(tuple(row) for row in rows.select(*columns).collect()) for rows in (wanted, found)
    )
    missing, surplus = batch_rows - stream_rows, stream_rows - batch_rows
    return {
        "batch_rows": batch_rows.total(),
        "stream_rows": stream_rows.total(),
        "missing": missing.total(),
        "surplus": surplus.total(),
        "equal": not missing and not surplus,
    }
