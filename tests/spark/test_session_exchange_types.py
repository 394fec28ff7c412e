"""What goes through an exchange comes out of it: every type, whatever columns are called and a job sets for Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.model import Input, JobGraph, OutputMode, Task
from minflinkd.rpc.messages import Analysis, JobContext
from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.child import protocol as p
from tests.spark.deployment import Run
from tests.spark.session_child import Child, call, job, source, sql
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

SINK = """
import json
def write(batch, epoch):
    rows = [row[0] for row in batch.collect()]
    with open(%r, "a") as out:
        out.write("".join(text + "\\n" for text in rows))
"""
VALUES: Mapping[str, str] = {
    "void": "NULL",
    "boolean": "value % 2 = 0",
    "tinyint": "CAST(value % 100 AS TINYINT)",
    "decimal": "CAST(value AS DECIMAL(38, 10)) + 0.0000000001",
    "double": "CAST('NaN' AS DOUBLE)",
    "binary": "X'00FF'",
    "text": "'\u00e4 \u0000'",
    "ancient date": "DATE'0001-01-01'",
    "ancient timestamp": "TIMESTAMP'0001-01-01 00:00:00.000001'",
    "timestamp_ntz": "TIMESTAMP_NTZ'9999-12-31 23:59:59.999999'",
    "day interval": "INTERVAL '3 04:05:06.789' DAY TO SECOND",
    "year interval": "INTERVAL '2-3' YEAR TO MONTH",
    "array": "array(1, NULL, 3)",
    "map": "map('a', array(named_struct('x', 1)), 'b', NULL)",
    "struct": "named_struct('a b', value, 'A', NULL)",
    "variant": "parse_json('{\"a\": [1, 2.5, null]}')",
    "dotted.name": "1",
    "back`tick": "2",
}


def exchanging(text: str, reading: str) -> tuple[Task, ...]:
    graph = JobGraph(
        name="types",
        parallelism=1,
        vertices=(
            source("numbers", "rate-micro-batch", rowsPerBatch="10", numPartitions="1"),
            sql("typed", text, "numbers"),
            msgspec.structs.replace(
                sql("read", reading, "typed"), inputs=(Input(id=VertexId("typed"), exchange=True),)
            ),
            call("types_sink:write", "read", OutputMode.APPEND),
        ),
    )
    return chain(graph)


async def rows(child: Child, tmp_path: Path, tasks: tuple[Task, ...], context: JobContext) -> list[dict[str, Any]]:
    """Return the rows of at least one micro-batch, as they were read."""
    out = tmp_path / "rows.jsonl"
    (tmp_path / "types_sink.py").write_text(SINK % str(out))
    run = Run(child, context, tasks, {"types_sink.py": str(tmp_path / "types_sink.py")})
    await run.start()
    await until(lambda: out.exists() and out.stat().st_size > 0)
    await run.stop()
    return [json.loads(line) for line in out.read_text().splitlines()]


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


async def test_every_type_comes_out_of_an_exchange_as_it_went_in(child: Child, tmp_path: Path) -> None:
    """Both sides of the exchange print the same value and the same type (J8)."""
    columns = ", ".join(f"{text} AS {quoted(name)}" for name, text in VALUES.items())
    told = ", ".join(f"CAST({quoted(n)} AS STRING) AS v{i}, typeof({quoted(n)}) AS t{i}" for i, n in enumerate(VALUES))
    before = f"SELECT *, to_json(struct({told})) AS before FROM (SELECT value, {columns} FROM numbers)"
    after = f"SELECT to_json(struct(before, to_json(struct({told})) AS after)) FROM typed"
    found = await rows(child, tmp_path, exchanging(before, after), job("types", trigger_interval=0.2))
    assert len(found) >= 10
    for row in found:
        assert json.loads(row["after"]) == json.loads(row["before"])
        assert len(json.loads(row["after"])) > len(VALUES)


async def test_columns_of_the_same_name_keep_their_places(child: Child, tmp_path: Path) -> None:
    """The exchange must not match columns by their names (J8)."""
    twice = "SELECT value AS x, value + 1 AS x, value + 2 AS X FROM numbers"
    after = "SELECT to_json(struct(a, b, c)) FROM typed AS t (a, b, c)"
    found = await rows(child, tmp_path, exchanging(twice, after), job("types", trigger_interval=0.2))
    assert {(row["b"] - row["a"], row["c"] - row["a"]) for row in found} == {(1, 2)}


async def test_what_a_job_sets_for_its_files_does_not_touch_exchanges(child: Child, tmp_path: Path) -> None:
    """Nothing is skipped silently (J9)."""
    settings = {
        "sql.files.ignoreMissingFiles": "true",
        "sql.files.ignoreCorruptFiles": "true",
        "sql.parquet.compression.codec": "gzip",
        "sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
        "sql.caseSensitive": "true",
    }
    context = msgspec.structs.replace(job("types", trigger_interval=0.2), spark=settings)
    text = "SELECT value, DATE'0001-01-01' AS day FROM numbers"
    found = await rows(child, tmp_path, exchanging(text, "SELECT to_json(struct(value, day)) FROM typed"), context)
    assert {row["day"] for row in found} == {"0001-01-01"}


async def test_a_type_that_cannot_be_stored_is_named_before_anything_runs(child: Child) -> None:
    """The fault names the column and its type (J4)."""
    tasks = exchanging("SELECT make_interval(1, 2, 3, 4) AS span FROM numbers", "SELECT 1 FROM typed")
    answer: Analysis = await child.ask(p.AnalyzeTasks(job=job("types"), tasks=tasks, artifacts={}))
    (fault,) = [fault for fault in answer.faults if "span" in fault.problem]
    assert (fault.path, fault.hint) == ("vertices.typed", "cast it, or leave it out")
    assert "span (interval)" in fault.problem
