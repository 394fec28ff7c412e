"""The query of `tests/windows_job.py` in a new, plain PySpark process, with which minflinkd is compared.

Both sides have RocksDB state with changelog checkpointing, the same number of partitions and of threads, and no UI. The
plain process differs in Spark's own file sink and checkpoint directory, and otherwise has Spark's defaults (no tuned
JVM, no warm-up).

The process first prints a line of JSON with the times at which it reached each phase. For each line that it reads, it
then processes the files that exist and answers with the number of micro-batches so far. It ends with its input.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.spark_process import SparkProcess, spark_process
from tests.windows_job import SQL, WindowsJob

_PAUSE = 0.005  # seconds between two checks for the first micro-batch


@dataclass(frozen=True)
class PlainRun:
    """Times in seconds from the start of the process."""

    imported: float
    session: float
    running: float
    first_batch: float
    checkpoint: Path  # its checkpoint directory, if that is local


class PlainStream:
    """A query in its own process."""

    def __init__(self, process: SparkProcess) -> None:
        self._process = process

    async def started(self) -> dict[str, Any]:
        """Return the times of day at which it reached each phase. Call once, before `process`."""
        return await self._process.answer()

    async def process(self) -> int:
        """Process the existing files. Returns the number of micro-batches so far, including those without data."""
        self._process.tell(b"")
        return int((await self._process.answer())["batches"])


@contextlib.asynccontextmanager
async def plain_stream(
    job: WindowsJob,
    work: Path,
    *,
    parallelism: int,
    threads: int,
    checkpoint: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> AsyncIterator[PlainStream]:
    """Run a query. `checkpoint` is a URI, by default a directory in `work`; `settings` are more settings of Spark."""
    work.mkdir(parents=True)
    query = {
        "events": str(job.events),
        "output": str(work / "out"),
        "checkpoint": checkpoint or str(work / "checkpoint"),
        "parallelism": parallelism,
        "threads": threads,
        "settings": dict(settings or {}),
    }
    async with spark_process("benchmarks.plain", query, work / "stderr.log") as process:
        yield PlainStream(process)


async def run_plain(job: WindowsJob, work: Path, *, parallelism: int, threads: int) -> PlainRun:
    """Run until the existing files have been processed. Raises RuntimeError with Spark's output."""
    began = time.time()
    async with plain_stream(job, work, parallelism=parallelism, threads=threads) as stream:
        times = await stream.started()
        await stream.process()
    return PlainRun(**{name: at - began for name, at in times.items()}, checkpoint=work / "checkpoint")


def _process(
    *, events: str, output: str, checkpoint: str, parallelism: int, threads: int, settings: Mapping[str, str]
) -> None:
    from pyspark.sql import SparkSession

    times = {"imported": time.time()}
    common = {
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
    for key, value in {**common, **settings}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    times["session"] = time.time()
    source = spark.readStream.schema("k STRING, time TIMESTAMP, v BIGINT").option("maxFilesPerTrigger", 1).json(events)
    source.withWatermark("time", "1 minute").where("v >= 0").createOrReplaceTempView("clean")
    writer = spark.sql(SQL).writeStream.format("parquet").option("path", output)
    query = writer.option("checkpointLocation", checkpoint).start()
    times["running"] = time.time()
    while query.lastProgress is None and query.isActive:
        time.sleep(_PAUSE)
    times["first_batch"] = time.time()
    print(json.dumps(times), flush=True)
    for _ in sys.stdin:
        query.processAllAvailable()
        progress = query.lastProgress
        print(json.dumps({"batches": 0 if progress is None else progress["batchId"] + 1}), flush=True)
    query.stop()
    spark.stop()


if __name__ == "__main__":
    _process(**json.loads(sys.argv[1]))
