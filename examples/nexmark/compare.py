"""Runs Nexmark's queries as Spark batches over the same files, and compares each with its job's output row by row.

    python examples/nexmark/compare.py INPUT OUTPUT [q0 q1 ...]

A query that was rewritten for a stream runs in its original form from `own/`, the others as in their job files. Prints
one JSON object: for each query the rows of both, the rows that only one of them has, and whether they are equal. Exit
code 1 if not.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql.functions import col, max, sum

from minflinkd.jobgraph.document import read_job_file
from minflinkd.jobgraph.model import Vertex
from minflinkd.jobgraph.params import resolve
from minflinkd.jobgraph.topology import topological_order

HERE = Path(__file__).resolve().parent
QUERIES = (*range(6), 7, 8, 9, *range(11, 23))
# Jobs that write every change of a result. Of the rows with the same key, only the latest count.
LATEST = {"q4": (["category"], "auctions"), "q18": (["bidder", "auction"], "dateTime"), "q19": (["auction"], "bids")}


def batch(spark: SparkSession, query: str, source: str) -> DataFrame:
    """Run the query over all of its input at once."""
    graph = read_job_file(HERE / f"{query}.yaml").with_params({"input": source}).job()
    own = HERE / "own" / f"{query}.sql"
    frames: dict[str, DataFrame] = {}
    for vertex in topological_order(graph.vertices):
        if vertex.sink is not None:
            (edge,) = vertex.inputs
            return frames[edge.id]
        if vertex.source is None and own.exists():
            return spark.sql(own.read_text())
        vertex = resolve(vertex, graph.params)
        inputs = {edge.id: frames[edge.id] for edge in vertex.inputs}
        frames[vertex.id] = _frame(spark, vertex, inputs, graph.params)
        frames[vertex.id].createOrReplaceTempView(vertex.id)
    raise ValueError(f"{query} has no sink")


def _frame(spark: SparkSession, vertex: Vertex, inputs: dict[str, DataFrame], params: dict[str, Any]) -> DataFrame:
    if vertex.source is not None:
        return spark.read.format(vertex.source.format).schema(vertex.source.schema or "").load(vertex.source.path)
    if vertex.sql is not None:
        return spark.sql(vertex.sql)
    module, _, name = (vertex.python or "").partition(":")
    found: DataFrame = getattr(importlib.import_module(module), name)(inputs, params)
    return found


def result(spark: SparkSession, query: str, output: str) -> DataFrame:
    """Return what the job wrote."""
    rows = spark.read.parquet(f"{output}/{query}")
    if query == "q12":  # rows fall into other ten-second windows in every run; a bidder's total is the same
        return rows.groupBy("bidder").agg(sum("bid_count").alias("bid_count"))
    if query in LATEST:
        keys, version = LATEST[query]
        latest = max(version).over(Window.partitionBy(*keys))
        return rows.withColumn("_latest", latest).where(col(version) == col("_latest"))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare what Nexmark's jobs wrote with the same queries as batches.")
    parser.add_argument("input", type=Path, help="directory of the event files")
    parser.add_argument("output", help="directory that the jobs wrote")
    parser.add_argument("queries", nargs="*", default=[f"q{number}" for number in QUERIES])
    arguments = parser.parse_args()
    sys.path.append(str(HERE.parent))  # examples/
    from batches import compare, local_session

    spark = local_session("Nexmark as batches")
    spark.sparkContext.addPyFile(str(HERE / "nexmark.py"))  # for the driver and its Python workers
    found = {
        query: compare(batch(spark, query, str(arguments.input.absolute())), result(spark, query, arguments.output))
        for query in arguments.queries
    }
    sys.stdout.write(json.dumps(found) + "\n")
    spark.stop()
    return 0 if all(query["equal"] for query in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
