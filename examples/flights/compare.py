"""Runs the flights query as a Spark batch over the same files, and compares it with the stream's output row by row.

    python examples/flights/compare.py EVENTS RESULT

Prints one JSON object: the rows of both, the rows that only one has, and whether they are equal. Exit code 1 if not.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from minflinkd.jobgraph.document import read_job_file
from minflinkd.jobgraph.params import substitute

HERE = Path(__file__).parent


def batch(spark: SparkSession, events: str, job_file: Path = HERE / "flights.yaml") -> DataFrame:
    """Run the job's own source, Python and SQL, without streaming."""
    spark.sparkContext.addPyFile(str(HERE / "flights.py"))  # for the driver and its Python workers
    import flights

    graph = read_job_file(job_file).with_params({"input": events}).job()
    source = graph.vertex("flights").source
    assert source is not None
    rows = spark.read.format(source.format).schema(source.schema or "").load(events)
    flights.clean({"flights": rows}, graph.params).createOrReplaceTempView("clean")
    return spark.sql(substitute(graph.vertex("hourly").sql or "", graph.params))


def compare(spark: SparkSession, events: str, result: str) -> dict[str, Any]:
    """Compare with `exceptAll` in both directions: duplicate rows count."""
    wanted, found = batch(spark, events).cache(), spark.read.parquet(result).cache()
    found = found.select(*wanted.columns)
    missing, surplus = wanted.exceptAll(found).count(), found.exceptAll(wanted).count()
    return {
        "batch_rows": wanted.count(),
        "stream_rows": found.count(),
        "missing": missing,
        "surplus": surplus,
        "equal": missing == 0 and surplus == 0,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the stream's result with the same query as a batch.")
    parser.add_argument("events", help="directory of the event files")
    parser.add_argument("result", help="directory that the job wrote")
    arguments = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("flights as a batch")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    found = compare(spark, arguments.events, arguments.result)
    sys.stdout.write(json.dumps(found) + "\n")
    spark.stop()
    return 0 if found["equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
