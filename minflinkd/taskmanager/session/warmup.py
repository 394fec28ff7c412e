"""Warms up a fresh JVM before it takes jobs, so that no job waits for its slow first micro-batch.

The first micro-batch of a first query takes seconds. Here classes are loaded and compiled by running once what every
job runs: files of JSON, a windowed aggregate with RocksDB state, foreachBatch, a Parquet write, a restore, a Python
worker.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from pathlib import Path
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody names it

from minflinkd.runtime.ids import AttemptId
from minflinkd.taskmanager.session.query.building import Engine
from minflinkd.taskmanager.session.spark.callback import ATTEMPT_KEY

_BATCHES = 2  # of each run of the query
_TIMEOUT = 120  # seconds


def warm_up(engine: Engine) -> dict[str, float]:
    """Warm up the session. Blocks. Returns seconds by phase. Raises TimeoutError if the session makes no progress."""
    began = time.monotonic()
    spark = engine.session.spark
    spark.range(10).count()
    counted = time.monotonic()
    worker = threading.Thread(target=_python_worker, args=(engine,), name="warm-up worker", daemon=True)
    worker.start()
    _stateful_query(engine)
    worker.join(_TIMEOUT)
    return {"first_job": counted - began, "warm": time.monotonic() - counted}


def _python_worker(engine: Engine) -> None:
    """Start a Python worker for each core, or for each slot if there are fewer: no more can start at once."""
    workers = min(engine.session.config.slots, os.cpu_count() or 1)
    engine.session.spark.range(0, 2, 1, workers).select(F.udf(str, "string", useArrow=True)("id")).collect()


def _stateful_query(engine: Engine) -> None:
    """Run a query over files, then again from its checkpoint, as a job does that recovers from a failure."""
    directory = Path(engine.session.state_directory) / f"warm-up-{uuid4().hex[:8]}"
    (directory / "in").mkdir(parents=True)
    try:
        for run in range(2):
            for number in range(run * _BATCHES, (run + 1) * _BATCHES):
                _write_file(directory / "in" / f"{number}.json", number)
            _run_once(engine, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _write_file(path: Path, number: int) -> None:
    rows = ({"time": f"2026-01-01 00:{number:02d}:{second:02d}", "key": second % 7} for second in range(60))
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")


def _run_once(engine: Engine, directory: Path) -> None:
    """Run the query until it has read all files, each in a micro-batch. Raises TimeoutError, or why it failed."""
    attempt_id = AttemptId(uuid4().hex)
    spark = engine.session.spark.newSession()
    spark.conf.set(ATTEMPT_KEY, attempt_id)
    spark.conf.set("spark.sql.shuffle.partitions", "1")

    def on_batch(frame: DataFrame, epoch: int) -> None:
        frame.write.parquet(str(directory / "out" / attempt_id / str(epoch)))

    engine.callback.register(attempt_id, on_batch)
    source = spark.readStream.schema("time TIMESTAMP, key LONG").option("maxFilesPerTrigger", 1)
    frame = (
        source.json(str(directory / "in"))
        .withWatermark("time", "1 second")
        .groupBy(F.window("time", "1 second"), "key")
        .agg(F.count("*").alias("n"), F.avg("key").alias("mean"))
    )
    writer = frame.writeStream.option("checkpointLocation", str(directory / "checkpoint"))
    engine.callback.attach(writer)
    query = writer.trigger(availableNow=True).start()
    run_id = str(query.runId)
    try:
        if not query.awaitTermination(_TIMEOUT):
            raise TimeoutError(f"the warm-up query did not end within {_TIMEOUT:g} s")
    finally:
        query.stop()
        engine.stores.close(run_id)
        engine.callback.release(attempt_id)
