"""The same query as `tests/windows_job.py` by a new, plain PySpark process: what minflinkd is measured beside.

RocksDB state with changelog checkpointing on both sides, the same number of partitions and of threads, no UI. What
differs: Spark's own file sink and its checkpoint directory, Spark's defaults otherwise (no tuned JVM, no warm-up).
Ends when the files that are there have been processed; the last line printed is a JSON object of times of day.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.windows_job import SQL, WindowsJob

_PAUSE = 0.005  # seconds between two looks at the first micro-batch


@dataclass(frozen=True)
class PlainRun:
    """Seconds from the start of the process."""

    imported: float
    session: float
    running: float
    first_batch: float
    checkpoint: Path  # its checkpoint directory


async def run_plain(job: WindowsJob, work: Path, *, parallelism: int, threads: int) -> PlainRun:
    """Raises RuntimeError with what Spark said."""
    work.mkdir(parents=True)
    command = [sys.executable, "-m", "benchmarks.plain", str(job.events), str(work), str(parallelism), str(threads)]
    began = time.time()
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(300):
            out, error = await process.communicate()
    except BaseException:
        process.kill()
        raise
    if process.returncode:
        raise RuntimeError(error.decode(errors="replace")[-3000:])
    times = {name: at - began for name, at in json.loads(out.splitlines()[-1]).items()}
    return PlainRun(**times, checkpoint=work / "checkpoint")


def _process(events: str, work: Path, parallelism: int, threads: int) -> dict[str, float]:
    from pyspark.sql import SparkSession

    times = {"imported": time.time()}
    settings = {
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": "1g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(parallelism),
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    }
    builder = SparkSession.builder.master(f"local[{threads}]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    times["session"] = time.time()
    source = spark.readStream.schema("k STRING, time TIMESTAMP, v BIGINT").option("maxFilesPerTrigger", 1).json(events)
    source.withWatermark("time", "1 minute").where("v >= 0").createOrReplaceTempView("clean")
    writer = spark.sql(SQL).writeStream.format("parquet").option("path", str(work / "out"))
    query = writer.option("checkpointLocation", str(work / "checkpoint")).start()
    times["running"] = time.time()
    while query.lastProgress is None and query.isActive:
        time.sleep(_PAUSE)
    times["first_batch"] = time.time()
    query.processAllAvailable()
    query.stop()
    spark.stop()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("events")
    parser.add_argument("work", type=Path)
    parser.add_argument("parallelism", type=int)
    parser.add_argument("threads", type=int)
    print(json.dumps(_process(**vars(parser.parse_args()))))


if __name__ == "__main__":
    main()
