"""Runs the plain script's query as a Spark batch over the same files, and compares it with a job's outputs row by row.

    python examples/clicks/compare.py INPUT OUTPUT...

Prints one JSON object: for each OUTPUT and sink the rows of both, the rows that only one has, and whether all are
equal. Exit code 1 if not.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

HERE = Path(__file__).resolve().parent


def batch(spark: SparkSession, source: str) -> dict[str, DataFrame]:
    """Run the functions of clicks_spark.py without streaming."""
    spark.sparkContext.addPyFile(str(HERE / "clicks_spark.py"))  # for the driver and its Python workers
    import clicks_spark as script

    clicks = script.unique(spark.read.schema(script.CLICKS).json(f"{source}/clicks"))
    purchases = spark.read.schema(script.PURCHASES).json(f"{source}/purchases")
    return {"per_minute": script.per_minute(clicks), "attributed": script.attributed(clicks, purchases)}


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare a job's outputs with the plain script's query as a batch.")
    parser.add_argument("input", help="directory with clicks/ and purchases/")
    parser.add_argument("output", nargs="+", help="directory that a job wrote")
    arguments = parser.parse_args()
    sys.path.append(str(HERE.parent))  # examples/
    from batches import compare, local_session

    spark = local_session("clicks as a batch")
    wanted = {name: rows.cache() for name, rows in batch(spark, arguments.input).items()}
    result = {
        output: {name: compare(rows, spark.read.parquet(f"{output}/{name}")) for name, rows in wanted.items()}
        for output in arguments.output
    }
    sys.stdout.write(json.dumps(result) + "\n")
    spark.stop()
    return 0 if all(sink["equal"] for sinks in result.values() for sink in sinks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
