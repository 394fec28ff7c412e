"""Scripts that are executed, and whose queries are recorded instead of started."""

from __future__ import annotations

import asyncio
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
        "line 21: the log level is the TaskManager's",
        "checkpointLocation is left out: the job's checkpoints are the daemon's",
        "line 26: foreachBatch is at-least-once: after a restart it gets rows again",
        "settings of the TaskManager stay as they are (taskmanager.spark.conf): spark.executor.memory",
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


HEAD = """\
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.format("rate").load()
"""


@pytest.mark.parametrize(
    "wait",
    [
        "import time\nwhile query.isActive:\n    time.sleep(60)\n    print(query.lastProgress)",
        "while True:\n    query.awaitTermination(10)",
        "import threading\nthreading.Event().wait()",
        "from time import sleep\nwhile True:\n    sleep(3600)",
        "try:\n    query.awaitTermination()\nexcept:\n    raise SystemExit(1)",
        "spark.streams.awaitAnyTermination()\nopen(sys.argv[1], 'w').write('after')",
    ],
)
async def test_a_script_ends_where_it_would_wait(child: Child, tmp_path: Path, wait: str) -> None:
    """Whatever way it waits in. What comes after is not executed: its queries have not run yet."""
    after = tmp_path / "after"
    text = f"import sys\n{HEAD}query = rows.writeStream.format('console').start()\n{wait}\n"
    value, artifacts = written(tmp_path, text, str(after))
    graph = graph_of(value, await queries(child, value, artifacts))
    assert [vertex.id for vertex in graph.vertices] == ["query1", "query1_out"]
    assert not after.exists()


async def test_queries_that_start_one_after_the_other_are_refused(child: Child, tmp_path: Path) -> None:
    """A job would run the second one before the first has written what it reads."""
    text = f"""{HEAD}
def copy(frame, path):
    return frame.writeStream.trigger(availableNow=True).start(path)

copy(rows, "/data/a").awaitTermination()
copy(spark.readStream.format("rate").load(), "/data/b").awaitTermination()
rows.writeStream.trigger(availableNow=True).start("/data/c").awaitTermination()
"""
    (fault,) = (await queries(child, *written(tmp_path, text))).faults
    assert (fault.line, fault.problem) == (
        10,
        "this query starts after a wait in line 8, and a job runs all queries at once",
    )


@pytest.mark.slow  # it takes the time that a script has
async def test_a_query_that_a_script_does_not_come_to_in_its_time_is_refused(child: Child, tmp_path: Path) -> None:
    """The job would run without it, and nobody would know."""
    text = f"""{HEAD}
import time
rows.writeStream.format("console").start()
end = time.monotonic() + 300
while time.monotonic() < end:
    pass
rows.writeStream.format("console").start()
"""
    (fault,) = (await queries(child, *written(tmp_path, text))).faults
    last = text.splitlines().index("    pass") + 2
    assert fault.line == last
    assert fault.problem.startswith("this query starts after a wait in line ")


async def test_a_query_that_a_thread_of_the_script_starts_is_recorded(child: Child, tmp_path: Path) -> None:
    """Otherwise a query that nobody knows would run in the TaskManager."""
    text = f"""{HEAD}
from concurrent.futures import ThreadPoolExecutor

def start(name):
    return rows.writeStream.queryName(name).format("console").start()

with ThreadPoolExecutor(2) as pool:
    started = list(pool.map(start, ["a", "b", "c"]))
for query in started:
    query.awaitTermination()
"""
    value, artifacts = written(tmp_path, text)
    graph = graph_of(value, await queries(child, value, artifacts))
    assert {vertex.id for vertex in graph.vertices if vertex.sink is None} == {"a", "b", "c"}


async def test_a_session_that_a_module_keeps_is_refused(child: Child, tmp_path: Path) -> None:
    """A second task would be built in the session of the first, and its rows go there."""
    common = "from pyspark.sql import SparkSession\nspark = SparkSession.builder.getOrCreate()\n"
    text = """\
from common import spark
for name in ("a", "b"):
    spark.readStream.format("rate").load().writeStream.queryName(name).format("console").start()
"""
    value, artifacts = written(tmp_path, text, common=common)
    graph = graph_of(value, await queries(child, value, artifacts))
    analysis = await child.ask(p.AnalyzeTasks(job=job(), tasks=tuple(chain(graph)), artifacts=artifacts))
    (fault,) = analysis.faults
    assert (fault.path, fault.problem) == (
        "vertices.b.source",
        "the query is of another session than the script's",
    )


async def test_settings_that_a_job_may_not_have_are_left_out(child: Child, tmp_path: Path) -> None:
    """Snapshots depend on them. Others are applied."""
    text = f"""{HEAD}
spark.conf.set("spark.sql.streaming.stateStore.providerClass", "com.example.Mine")
spark.conf.set("spark.sql.ansi.enabled", "true")
assert spark.conf.get("spark.sql.ansi.enabled") == "true"
rows.writeStream.format("console").start()
"""
    analysis = await queries(child, *written(tmp_path, text))
    assert analysis.script is not None, analysis.faults
    (note,) = analysis.script.notes
    assert note.startswith("line 5: spark.sql.streaming.stateStore.providerClass is left out: ")


async def test_a_script_is_compiled_as_it_is(child: Child, tmp_path: Path) -> None:
    """With real annotations, a BOM, and a context of its own."""
    text = """\ufeff\
from dataclasses import dataclass, fields
from pyspark import SparkContext
from pyspark.sql import SparkSession

@dataclass
class Row:
    value: int

assert fields(Row)[0].type is int
spark = SparkSession(SparkContext.getOrCreate())
spark.readStream.format("rate").load().writeStream.format("console").start()
"""
    analysis = await queries(child, *written(tmp_path, text))
    assert analysis.faults == ()


async def test_functions_find_the_modules_of_the_job_in_workers(child: Child, tmp_path: Path) -> None:
    """Also those that they import when they are called (B30)."""
    text = """\
import sys
from pyspark.sql import SparkSession, functions as F

@F.udf("long")
def late(value):
    from helper import doubled
    return doubled(value)

def remember(batch, epoch):
    from helper import doubled
    with open(TARGET, "a") as out:
        out.write(f"{doubled(epoch)} {sorted(row.v for row in batch.collect())}\\n")

TARGET = sys.argv[1]
spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
query = rows.select(late("value").alias("v")).writeStream.foreachBatch(remember).start()
AFTER = "defined after the start"
query.awaitTermination()
"""
    value, artifacts = written(tmp_path, text, str(tmp_path / "out"), helper="def doubled(x):\n    return 2 * x\n")
    graph = graph_of(value, await queries(child, value, artifacts))
    context = job()
    (task,) = chain(graph)
    attempt = await child.run(context, task, artifacts=artifacts)
    await child.batches(attempt, 1)
    await child.stop(attempt)
    assert (tmp_path / "out").read_text().splitlines()[:2] == ["0 [0, 2, 4]", "2 [6, 8, 10]"]


async def test_a_secret_is_not_stored_with_the_job(child: Child, tmp_path: Path) -> None:
    """Options of a sink are part of it."""
    text = f"{HEAD}rows.writeStream.format('kafka').option('kafka.sasl.jaas.config', 'x password=y').start()\n"
    analysis = await queries(child, *written(tmp_path, text))
    assert "the option kafka.sasl.jaas.config would be stored with the job" in analysis.faults[0].problem


async def test_scripts_run_at_the_same_time_with_arguments_of_their_own(child: Child, tmp_path: Path) -> None:
    """In one process, whose own `sys.argv` stays as it is."""
    text = f"""{HEAD}
import sys, time
name, = sys.argv[1:]
assert sys.argv[1] == name and len(sys.argv) == 2 and [*sys.argv[1:]] == [name] and name in sys.argv
for _ in range(50):
    time.sleep(0.01)
    assert list(sys.argv)[1:] == [name] and tuple(sys.argv + ["x"])[1:] == (name, "x"), sys.argv
sys.argv = ["another", "list"]
rows.writeStream.queryName(name).format("console").start()
"""
    given = {}
    for name in "abcd":
        (tmp_path / name).mkdir()
        given[name] = written(tmp_path / name, text, name)
    answers = await asyncio.gather(*(queries(child, *each) for each in given.values()))
    for (name, (value, _)), analysis in zip(given.items(), answers, strict=True):
        assert [vertex.id for vertex in graph_of(value, analysis).vertices] == [name, f"{name}_out"]
    plain = await queries(child, *written(tmp_path, f"{HEAD}import sys\nassert len(sys.argv) == 1, sys.argv\n"))
    assert "the script starts no query" in plain.faults[0].problem


@pytest.mark.parametrize(
    "interval", ["5 seconds", "1 minute 30 seconds", "interval 100 milliseconds", "2 hours", "soon"]
)
async def test_intervals_of_spark_are_understood(child: Child, tmp_path: Path, interval: str) -> None:
    """What is none is refused with its line."""
    text = f"{HEAD}rows.writeStream.format('console').trigger(processingTime={interval!r}).start()\n"
    value, artifacts = written(tmp_path, text)
    analysis = await queries(child, value, artifacts)
    expected = {"5 seconds": 5.0, "1 minute 30 seconds": 90.0, "interval 100 milliseconds": 0.1, "2 hours": 7200.0}
    if interval not in expected:
        assert (analysis.faults[0].problem, analysis.faults[0].line) == ("'soon' is not an interval", 4)
        return
    assert graph_of(value, analysis).trigger_interval == expected[interval]
