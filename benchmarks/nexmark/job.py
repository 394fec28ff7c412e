"""A query of Nexmark as a job of minflinkd, and as a DataFrame of plain PySpark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.nexmark import closing
from benchmarks.nexmark.events import SCHEMA
from benchmarks.nexmark.queries import VIEWS, WATERMARK, Query

CODE = Path(closing.__file__)


def document(query: Query, events: Path, *, parallelism: int, files: int = 1) -> dict[str, Any]:
    """Return a job file: it reads what is there, `files` files a micro-batch, and drops the result."""
    schema = " ".join(SCHEMA.split())
    source = {"format": "json", "path": str(events), "schema": schema, "options": {"maxFilesPerTrigger": files}}
    transform = {"python": f"{CODE.stem}:{query.python}"} if query.python else {"sql": query.sql}
    return {
        "name": query.name,
        "mode": "batch",
        "parallelism": parallelism,
        "artifacts": [str(CODE)] if query.python else [],
        "vertices": {
            "events": {"source": source, "watermark": {"column": "dateTime", "delay": WATERMARK}},
            **{view: {"inputs": ["events"], "sql": VIEWS[view]} for view in query.views},
            "result": {"inputs": list(query.views), **transform},
            "out": {"inputs": ["result"], "sink": {"format": "noop"}, "output-mode": query.output_mode},
        },
    }


def stream(query: Query, spark: SparkSession, events: str, files: int) -> DataFrame:
    """Return the query as a stream of plain PySpark."""
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files).json(events)
    source.withWatermark("dateTime", WATERMARK).createOrReplaceTempView("events")
    views = _views(query, spark)
    return getattr(closing, query.python)(views, {}) if query.python else spark.sql(query.sql)


def expected(query: Query, spark: SparkSession, events: str) -> DataFrame:
    """Return the result that the query has in the end, as a batch."""
    spark.read.schema(SCHEMA).json(events).createOrReplaceTempView("events")
    _views(query, spark)
    return spark.sql(query.expected)


def _views(query: Query, spark: SparkSession) -> dict[str, DataFrame]:
    found = {view: spark.sql(VIEWS[view]) for view in query.views}
    for view, rows in found.items():
        rows.createOrReplaceTempView(view)
    return found
