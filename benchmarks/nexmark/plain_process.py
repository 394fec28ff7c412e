"""The process of plain PySpark: runs queries of Nexmark, one after another, to the end of the events.

It is made with Spark's defaults, or with the settings of a TaskManager's session (`tuned`). For each line that it
reads, the name of a query and a directory for its checkpoint, it answers with the time when the query ran, and with the
seconds of processor time until it ended.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.nexmark.job import bring_code, document, stream


def processor_time(pid: int) -> float:
    """Return the seconds that a process and all below it have used, those that have ended included."""
    seconds = 0.0
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:  # its parent has its times now
            continue
        seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def _session(base: Path, threads: int, *, tuned: bool) -> Any:
    if tuned:
        from minflinkd.taskmanager.child.protocol import SessionConfig
        from minflinkd.taskmanager.session.spark import session

        config = SessionConfig(
            name="nexmark",
            slots=threads,
            working_directory=str(base / "work"),
            log_directory=str(base / "log"),
            heap_bytes=1 << 30,
            warm_up=False,
        )
        return session.launch(config).spark
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{threads}]")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": "1g",
        "spark.sql.session.timeZone": "UTC",
    }.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _run(spark: Any, query: str, checkpoint: str, job: dict[str, Any]) -> dict[str, Any]:
    own = spark.newSession()
    own.conf.set("spark.sql.shuffle.partitions", spark.conf.get("spark.sql.shuffle.partitions"))
    before = processor_time(os.getpid())
    rows, mode = stream(job, own)
    writer = rows.writeStream.format("noop").outputMode(mode).option("checkpointLocation", checkpoint)
    began = time.time()
    writer.trigger(availableNow=True).start().awaitTermination()
    return {"query": query, "began": began, "processor": processor_time(os.getpid()) - before}


def main(*, base: str, load: str, threads: int, tuned: bool) -> None:
    spark = _session(Path(base), threads, tuned=tuned)
    bring_code(spark)
    for line in sys.stdin:
        query, checkpoint = json.loads(line)
        answer = _run(spark, query, checkpoint, document(query, Path(load), parallelism=threads))
        print(json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
