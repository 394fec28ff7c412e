"""What a micro-batch costs by the sink that it writes to, beside plain PySpark with Spark's own file sink.

Each micro-batch has 100,000 rows of a number, a text of 32 characters, a time and one of 4 days. Spark's source
`rate-micro-batch` gives the next one as soon as it is asked for. Everything is on one local disk, and checkpoints are
taken every 2 s. A figure is the time from the commit of one micro-batch to that of the next, by Spark's commit log, on
both sides. Sinks take turns; the first micro-batches of a turn are left out.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks import commit_log
from benchmarks.figures import Row
from benchmarks.running import quick_asked, run, say
from benchmarks.spark_process import spark_process
from tests.cluster import Cluster, running_cluster, write_job
from tests.waiting import until

ROWS = 100_000
SLOTS = 2
WARM = 10  # micro-batches of a turn
OPTIONS = {"rowsPerBatch": str(ROWS), "numPartitions": str(SLOTS), "startTimestamp": "1700000000000"}
SQL = "SELECT value, md5(CAST(value AS STRING)) AS text, timestamp AS at, value % 4 AS day FROM events"
PLAIN = "plain PySpark, files"
SINKS = ("files", "delta", "iceberg", "files by day", "delta by day", "iceberg by day", "delta by key")


async def measure(base: Path, quick: bool) -> Row:
    row = Row("table_sinks", f"A micro-batch of {ROWS:,} rows, by its sink")
    measured, turns = (15, 1) if quick else (30, 3)
    found: dict[str, list[float]] = {}
    settings = {"taskmanager.numberOfTaskSlots": SLOTS, "resourcemanager.max-taskmanagers": 1}
    async with running_cluster(base / "cluster", **settings) as cluster:
        await cluster.await_ready(1)
        for turn in range(turns):
            for sink in (*SINKS, PLAIN):
                directory = base / f"{turn} {sink}"
                directory.mkdir(parents=True)
                if sink == PLAIN:
                    gaps = await _plain(directory, measured)
                else:
                    gaps = await _ours(cluster, directory, _sink(sink, directory), measured)
                found.setdefault(sink, []).extend(gaps)
                say(f"table_sinks: turn {turn + 1}, {sink}: {sorted(gaps)[len(gaps) // 2]:.3f} s")
    for sink in SINKS:
        row.add(f"{sink}: one micro-batch -> the next", "s", found[sink], (PLAIN, found[PLAIN]))
    return row


def _sink(name: str, directory: Path) -> dict[str, Any]:
    kind, _, by = name.partition(" by ")
    partitions = {"partition-by": ["day"]} if by == "day" else {}
    if kind == "files":
        return {"format": "parquet", "path": str(directory / "out"), **partitions}
    if kind == "delta":
        key = {"options": {"key": "value"}} if by == "key" else {}
        return {"format": "delta", "path": str(directory / "out"), **partitions, **key}
    catalog = {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}"}
    options = {"table": "db.out"} | {f"catalog.{key}": value for key, value in catalog.items()}
    return {"format": "iceberg", "options": options, **partitions}


async def _ours(cluster: Cluster, directory: Path, sink: dict[str, Any], measured: int) -> list[float]:
    document = {
        "name": directory.name,
        "parallelism": SLOTS,
        "checkpointing": {"interval": "2 s"},
        "vertices": {
            "events": {"source": {"format": "rate-micro-batch", "options": OPTIONS}},
            "rows": {"inputs": ["events"], "sql": SQL},
            "out": {"inputs": ["rows"], "sink": sink},
        },
    }
    async with commit_log.watched(cluster) as commits:
        job_id = await cluster.submit(write_job(directory / "job.yaml", document))
        await until(lambda: len(commits) > WARM + measured, "enough micro-batches", timeout=600, pause=0.1)
        await cluster.cancel(job_id)
    return _gaps(commits, measured)


async def _plain(directory: Path, measured: int) -> list[float]:
    query = {"directory": str(directory), "batches": WARM + measured + 1}
    async with spark_process("benchmarks.table_sinks", query, directory / "stderr.log") as process:
        await process.answer()
    return _gaps(commit_log.commits(directory / "checkpoint"), measured)


def _gaps(commits: commit_log.Commits, measured: int) -> list[float]:
    times = [commits[number] for number in sorted(commits)][-measured - 1 :]
    return [after - before for before, after in pairwise(times)]


def _run_plain(*, directory: str, batches: int) -> None:
    import time

    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{SLOTS}]")
    settings = {"spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.driver.memory": "1g"}
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.readStream.format("rate-micro-batch").options(**OPTIONS).load().createOrReplaceTempView("events")
    writer = spark.sql(SQL).writeStream.format("parquet").option("path", f"{directory}/out")
    query = writer.option("checkpointLocation", f"{directory}/checkpoint").start()
    while query.isActive and (query.lastProgress is None or query.lastProgress["batchId"] + 1 < batches):
        time.sleep(0.02)
    query.stop()
    print(json.dumps({"batches": batches}), flush=True)
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].startswith("{"):
        _run_plain(**json.loads(sys.argv[1]))
    else:
        run(measure, quick=quick_asked(__doc__))
