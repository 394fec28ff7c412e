"""The result of each job's query as a batch over the same input, by plain Spark: what the sinks must hold.

    python -m tests.exactly_once.batch INPUT OUTPUT JOB...

runs in a process of its own, and writes each sink in its own format below `OUTPUT/<job>`. It calls a vertex's function
`f` as the job does, with batch DataFrames. If Spark cannot run `f` on those, its module has a `batch_f`.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from collections.abc import Iterable
from functools import reduce
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from minflinkd.jobgraph.bad_records import CORRUPT, ERROR, bad_record_sink
from minflinkd.jobgraph.document import read_job_file
from minflinkd.jobgraph.formats import TABLE_FORMATS
from minflinkd.jobgraph.model import JobGraph, Sink, Vertex
from minflinkd.jobgraph.params import resolve
from minflinkd.jobgraph.topology import topological_order
from tests import plain_spark

JOBS = Path(__file__).parent / "jobs"
TIMEOUT = 900  # seconds; the jobs under test run at the same time


def job_graph(name: str, base: Path, output: Path) -> JobGraph:
    document = read_job_file(JOBS / f"{name}.yaml")
    return document.with_params({"input": str(base), "output": str(output)}).job()


async def run_batch(base: Path, output: Path, names: Iterable[str]) -> None:
    command = [sys.executable, "-m", "tests.exactly_once.batch", str(base), str(output), *names]
    process = await asyncio.create_subprocess_exec(
        *command, env=plain_spark.environ(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(TIMEOUT):
            told, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, told.decode(errors="replace")[-3000:]


def _run(base: Path, output: Path, names: Iterable[str]) -> None:
    from pyspark.sql import SparkSession

    sys.path.insert(0, str(JOBS))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(JOBS), os.environ.get("PYTHONPATH", "")])  # for Python workers
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "ERROR",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
    }
    builder = SparkSession.builder.master("local[2]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    for name in names:
        _run_job(spark, job_graph(name, base, output / name), output / name)


def of_the_batch(sink: Sink) -> Sink:
    """Return the sink that the batch has instead of this one: it writes no tables, but plain files."""
    return replace(sink, format="parquet") if sink.format in TABLE_FORMATS else sink


def _run_job(spark: Any, graph: JobGraph, output: Path) -> None:
    frames: dict[str, Any] = {}
    letters: dict[str, list[Any]] = {}
    sinks_last = sorted(topological_order(graph.vertices), key=lambda vertex: vertex.sink is not None)
    for vertex in sinks_last:
        vertex = resolve(vertex, graph.params)
        inputs = {edge.id: frames[edge.id] for edge in vertex.inputs}
        if (sink := vertex.sink) is not None:
            (frame,) = inputs.values() or [reduce(lambda one, other: one.unionAll(other), letters[vertex.id])]
            format = of_the_batch(sink).format
            target = sink.path or output / vertex.id
            frame.write.partitionBy(*sink.partition_by).mode("overwrite").format(format).save(str(target))
        else:
            frame = _frame(spark, vertex, inputs, graph.params)
            if (bad := bad_record_sink(vertex)) is not None:
                frame, rejected = _divided(vertex, frame)
                letters.setdefault(bad, []).append(rejected)
            frames[vertex.id] = frame


def _frame(spark: Any, vertex: Vertex, inputs: dict[str, Any], params: dict[str, Any]) -> Any:
    if (source := vertex.source) is not None:
        if source.python is not None:
            return _function(source.python)(spark, params)
        corrupt = f", {CORRUPT} STRING" if vertex.on_bad_record is not None else ""
        return spark.read.format(source.format).schema(source.schema + corrupt).load(source.path)
    if vertex.sql is not None:
        for name, frame in inputs.items():
            frame.createOrReplaceTempView(name)
        return spark.sql(vertex.sql)
    assert vertex.python is not None
    return _function(vertex.python)(inputs, params)


def _divided(vertex: Vertex, frame: Any) -> tuple[Any, Any]:
    """Return the good rows, and what is compared of the bad ones."""
    from pyspark.sql import functions as F  # noqa: N812

    column = ERROR if vertex.source is None else CORRUPT
    others = F.struct(*[name for name in frame.columns if name != column])
    bad = frame.cache().where(F.col(column).isNotNull())  # Spark wants more than that column to be read
    return frame.where(F.col(column).isNull()).drop(column), bad.select(
        F.lit(vertex.id).alias("vertex"),
        F.to_json(others).alias("record") if vertex.source is None else F.col(column).alias("record"),
    )


def _function(reference: str) -> Any:
    module, name = reference.split(":")
    found = importlib.import_module(module)
    return getattr(found, f"batch_{name}", None) or getattr(found, name)


if __name__ == "__main__":
    _run(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
