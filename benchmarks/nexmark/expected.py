"""The results that the queries have in the end, by plain PySpark as a batch: `python -m benchmarks.nexmark.expected`.

Takes the directory of the events, and prints one line of JSON for each query: its name, and its rows, sorted.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime

from pyspark.sql import Row, SparkSession

from benchmarks.nexmark.job import expected
from benchmarks.nexmark.queries import QUERIES


def plain(value: object) -> object:
    """Return a value as JSON has it, in a way that does not depend on where it comes from."""
    if isinstance(value, Row):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return [plain(each) for each in value.values()]
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat()  # both are in UTC
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value) if value is not None else None


def main(events: str) -> None:
    settings = {"spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "2"}
    builder = SparkSession.builder.master("local[2]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    for query in QUERIES.values():
        if query.expected:
            rows = sorted(json.dumps(plain(row)) for row in expected(query, spark, events).collect())
            print(json.dumps({"query": query.name, "rows": rows}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
