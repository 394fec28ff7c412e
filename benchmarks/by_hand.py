"""A query that is stopped and started by hand in a warm PySpark session, which a process of its own holds.

    python -m benchmarks.by_hand WORK STREAM

The session has a TaskManager's own settings, the query what a job has: state in RocksDB, a trigger without pause. It
takes lines of JSON: `start` a version from the checkpoint directory, `change` to a version, `stop`. Where the state has
other `partitions` it is repartitioned before. Each is answered with times of day, once the version has settled.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.commit_log import commits
from benchmarks.constant_stream import SOURCE, ConstantStream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_PAUSE = 0.002  # seconds between two reads of the commit log
PATIENCE = 300.0  # seconds
SETTLED = 10  # micro-batches
THREADS = 4  # of Spark, as in a TaskManager with as many slots
HEAP = 3  # GiB


class ByHand:
    """A client of such a process."""

    def __init__(self, process: asyncio.subprocess.Process, errors: Path) -> None:
        self._process = process
        self._errors = errors

    async def ask(self, **request: Any) -> dict[str, float]:
        """Send a request and return the answer. Raises RuntimeError with Spark's output."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        async with asyncio.timeout(PATIENCE):
            while line := await process.stdout.readline():
                if line.startswith(b"{"):
                    return {name: float(at) for name, at in json.loads(line).items()}
        raise RuntimeError(self._errors.read_text(errors="replace")[-3000:])


@contextlib.asynccontextmanager
async def by_hand(stream: ConstantStream, work: Path) -> AsyncIterator[ByHand]:
    """Start a new process. It may not have a session yet."""
    work.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.by_hand", str(work), stream.to_json()]
    pipe, errors = asyncio.subprocess.PIPE, work / "errors"
    with errors.open("ab") as log:
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=log)
    try:
        yield ByHand(process, errors)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(60):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


class _Hands:
    def __init__(self, spark: SparkSession, stream: ConstantStream, checkpoint: Path) -> None:
        self._spark = spark
        self._stream = stream
        self._checkpoint = checkpoint
        self._query: StreamingQuery | None = None

    def handle(self, request: dict[str, Any]) -> dict[str, float]:
        if request["do"] == "stop":
            return self._stop()
        times = self._stop() if request["do"] == "change" else {}
        return times | self._start(request["version"], request["partitions"])

    def _stop(self) -> dict[str, float]:
        """Stop the query and return times of day; `last` is when the last micro-batch was committed."""
        assert self._query is not None
        times = {"requested": time.time()}
        self._query.stop()
        return times | {"stopped": time.time(), "last": max(commits(self._checkpoint).values())}

    def _start(self, version: str, partitions: int) -> dict[str, float]:
        """Start a version and return times of day; `first` is when its first micro-batch was committed."""
        times: dict[str, float] = {}
        last = max(commits(self._checkpoint), default=-1)
        if last >= 0 and self._recorded(last) != partitions:
            last = self._repartition(last, partitions)
            times["repartitioned"] = time.time()
        query = self._query = self._run(version, partitions)
        times["started"] = time.time()
        log = self._checkpoint / "commits"
        while not (log / str(last + SETTLED)).exists():
            if query.exception() is not None or time.time() > times["started"] + PATIENCE:
                raise RuntimeError(f"the query does not process micro-batches: {query.exception()}")
            time.sleep(_PAUSE)
        return times | {"first": (log / str(last + 1)).stat().st_mtime}

    def _run(self, version: str, partitions: int) -> StreamingQuery:
        from pyspark.sql import DataFrame

        from benchmarks import batch_files

        def write(batch: DataFrame, epoch: int) -> None:
            batch_files.show(output, batch_files.put(batch, epoch, output, version))

        spark, stream, output = self._spark, self._stream, self._stream.output
        spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
        spark.readStream.format(SOURCE).options(**stream.options).load().createOrReplaceTempView("events")
        writer = spark.sql(stream.sql(version)).writeStream.outputMode("update").foreachBatch(write)
        return writer.option("checkpointLocation", str(self._checkpoint)).start()

    def _recorded(self, epoch: int) -> int:
        from minflinkd.taskmanager.session.restore.repartition import recorded_partitions
        from minflinkd.taskmanager.session.state.snapshot import read_offsets

        return recorded_partitions(read_offsets(self._checkpoint, epoch))

    def _repartition(self, last: int, partitions: int) -> int:
        """Repartition, and return the last micro-batch. Spark refuses if another is planned, so its plan is deleted."""
        for planned in (self._checkpoint / "offsets").glob("[0-9]*"):
            if int(planned.name) > last:
                planned.unlink()
        self._spark._streamingCheckpointManager.repartition(str(self._checkpoint), partitions)
        return max(commits(self._checkpoint))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("stream", type=ConstantStream.from_json)
    options = parser.parse_args()
    from minflinkd.taskmanager.child.protocol import SessionConfig
    from minflinkd.taskmanager.session.spark.session import launch

    here = options.work / f"session-{time.time_ns()}"
    config = SessionConfig(
        name="by hand", slots=THREADS, working_directory=str(here), log_directory=str(here), heap_bytes=HEAP << 30
    )
    spark = launch(config).spark
    hands = _Hands(spark, options.stream, options.work / "checkpoint")
    for line in sys.stdin:
        print(json.dumps(hands.handle(json.loads(line))), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
