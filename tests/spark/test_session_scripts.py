"""Scripts that are executed, and whose queries are recorded instead of started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from minflinkd.cli.scripts import read_script
from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.model import JobGraph
from minflinkd.jobgraph.validation import parse_job
from minflinkd.rpc.messages import Analysis
from minflinkd.taskmanager.child import protocol as p
from tests.spark.session_child import Child, job
from tests.spark.test_session_snapshots import snapshot

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

SCRIPT = '''\
"""Counts by a function of a module beside it, and keeps the rows themselves."""
import sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
import lib

target, per_batch = sys.argv[1], int(sys.argv[2])
FACTOR = 10

@F.udf("long")
def scaled(value):
    return lib.doubled(value) * FACTOR

def remember(batch, epoch):
    with open(target + "/batches", "a") as out:
        out.write(f"{epoch} {sorted(row.v for row in batch.collect())}\\n")

def main():
    spark = SparkSession.builder.appName("numbers").master("local[9]").config("spark.executor.memory", "9g") \\
        .config("spark.sql.session.timeZone", "UTC").getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", per_batch).load()
    rows = numbers.select(scaled("value").alias("v"))
    rows.writeStream.queryName("kept").format("json").option("path", target + "/kept") \\
        .option("checkpointLocation", "/tmp/x").trigger(processingTime="100 milliseconds").start()
    query = rows.writeStream.foreachBatch(remember).option("checkpointLocation", "/tmp/y").start()
    while query.isActive:
        query.awaitTermination(1)
    spark.streams.awaitAnyTermination()
    spark.stop()

if __name__ == "__main__":
    main()
'''


@pytest.fixture
def child(connected: Child) -> Child:
    return connected


def written(directory: Path, text: str, *args: str, **modules: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Write a script and its modules. Return its job's document, and its artifacts by name."""
    for name, content in {"numbers_script": text, **modules}.items():
        (directory / f"{name}.py").write_text(content)
    document = read_script(directory / "numbers_script.py", args)
    for name, content in document.made.items():
        (directory / name).write_text(content)
    return document.value, {name: str(directory / name) for name in document.value["artifacts"]}


async def queries(child: Child, value: dict[str, Any], artifacts: dict[str, str]) -> Analysis:
    return await child.ask(p.AnalyzeTasks(job=job(), tasks=(), artifacts=artifacts, script=value["script"]))


def graph_of(value: dict[str, Any], analysis: Analysis) -> JobGraph:
    assert analysis.script is not None, analysis.faults
    return parse_job({key: entry for key, entry in value.items() if key != "script"} | analysis.script.document)


async def test_each_query_of_a_script_becomes_a_task(child: Child, tmp_path: Path) -> None:
    """With its sink and settings. What is not taken over is told (J2)."""
    value, artifacts = written(tmp_path, SCRIPT, str(tmp_path), "5", lib="def doubled(x):\n    return 2 * x\n")
    analysis = await queries(child, value, artifacts)
    graph = graph_of(value, analysis)
    assert [vertex.id for vertex in graph.vertices] == ["kept", "kept_out", "query2", "query2_out"]
    assert graph.trigger_interval == 0.1
    kept = graph.vertex("kept_out").sink
    assert kept is not None
    assert (kept.format, kept.path, kept.options) == ("json", f"{tmp_path}/kept", {})
    assert analysis.script is not None
    assert analysis.script.notes == (
        "line 20: spark.executor.memory is a setting of the TaskManager: it stays as taskmanager.spark.conf has it",
        "line 21: the log level is the TaskManager's",
        "checkpointLocation is left out: the job's checkpoints are the daemon's",
        "line 26: foreachBatch is at-least-once: after a restart it gets rows again",
    )


async def test_the_tasks_of_a_script_run_its_queries(child: Child, tmp_path: Path) -> None:
    """With functions of the script in Python workers, which use its modules and what it has set (J2, B30)."""
    value, artifacts = written(tmp_path, SCRIPT, str(tmp_path), "5", lib="def doubled(x):\n    return 2 * x\n")
    graph = graph_of(value, await queries(child, value, artifacts))
    context = job()
    attempts = [await child.run(context, task, artifacts=artifacts) for task in chain(graph)]
    for attempt in attempts:
        await child.batches(attempt, 2)
    taken, _ = await snapshot(child, attempts[0], 1)
    await child.ask(p.ConfirmCheckpoint(attempt_id=attempts[0], checkpoint_id=1))
    for attempt in attempts:
        await child.stop(attempt)
    staged = [json.loads(line) for file in (tmp_path / "kept").rglob("*.json") for line in file.open() if "{" in line]
    assert {row["v"] for row in staged if "v" in row} >= {20 * n for n in range(5 * (taken.batch_id + 1))}
    batches = (tmp_path / "batches").read_text().splitlines()
    assert batches[:2] == ["0 [0, 20, 40, 60, 80]", "1 [100, 120, 140, 160, 180]"]


@pytest.mark.parametrize(
    ("body", "problem", "line"),
    [
        ("rows.writeStream.toTable('t')", "toTable('t') needs a catalog of Spark", 4),
        ("rows.writeStream.foreach(print).start()", "foreach writes row by row", 4),
        ("rows.writeStream.format('memory').queryName('m').start()", "a job does not write to memory from a script", 4),
        ("rows.writeStream.format('parquet').start()", "the parquet query has no path", 4),
        ("rows.writeStream.trigger(continuous='1 s').start('/x')", "a job has no trigger continuous", 4),
        ("pass", "the script starts no query", None),
        ("raise ValueError('no such broker')", "no such broker", None),
        ("raise SystemExit('usage: numbers DIR')", "the script exits with 'usage: numbers DIR'", None),
    ],
)
async def test_what_a_job_cannot_do_is_refused_with_its_line(
    child: Child, tmp_path: Path, body: str, problem: str, line: int | None
) -> None:
    text = f"""\
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.format("rate").load()
{body}
"""
    analysis = await queries(child, *written(tmp_path, text))
    assert any(problem in fault.problem and fault.line == line for fault in analysis.faults), analysis.faults


async def test_a_script_that_waits_for_ever_is_ended(child: Child, tmp_path: Path) -> None:
    """Its queries are known by then. One that has started none is refused."""
    text = """\
import time
import minflinkd.taskmanager.session.scripts.script as limits
limits.LONGEST = 3.0
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
query = spark.readStream.format("rate").load().writeStream.format("console").start()
while True:
    time.sleep(0.1)
"""
    first = await queries(child, *written(tmp_path, text))
    assert first.faults == ()  # its own limit may still have been the long one
    again = await queries(child, *written(tmp_path, text.replace("query =", "# query =")))
    assert "has started no query in 3 s, and was in line 8" in again.faults[0].problem
    restored = text.replace("limits.LONGEST = 3.0", "limits.LONGEST = 60.0").replace("while True:", "while False:")
    assert (await queries(child, *written(tmp_path, restored))).faults == ()
