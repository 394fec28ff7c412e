"""A Delta table that somebody else has made: its partitions and its rules are followed (K2)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from deltalake import DeltaTable, Schema

from minflinkd.taskmanager.child import protocol as p
from tests.lakes import Delta
from tests.shortened import first
from tests.spark.session_child import Child, job, rate, sql, task
from tests.spark.test_session_snapshots import snapshot
from tests.spark.test_session_table_sinks import faults, out

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

ROWS = """
SELECT value, DATE_ADD(DATE'1969-12-30', CAST(value % 5 AS INT)) AS day, value % 3 = 0 AS even,
       CASE value % 4 WHEN 0 THEN NULL WHEN 1 THEN 'é=/%20 x' ELSE CONCAT('n', value % 6) END AS text,
       CAST(value % 7 - 3 AS DECIMAL(5, 1)) AS price
FROM numbers
"""


@pytest.fixture
def child(connected: Child) -> Child:
    return connected


def made(lake: Delta, table: str, columns: str, by: tuple[str, ...] = (), **metadata: dict[str, str]) -> DeltaTable:
    """Make a table. `columns`: name and type of each, and NOT NULL if it is required. `metadata`: of columns."""
    fields = [
        {"name": name, "type": kind, "nullable": not more, "metadata": metadata.get(name, {})}
        for name, kind, *more in (column.split() for column in columns.split(", "))
    ]
    schema = Schema.from_json(json.dumps({"type": "struct", "fields": fields}))
    return DeltaTable.create(lake.root(table), schema, partition_by=list(by))


async def written(child: Child, lake: Delta, table: str, select: str, rows: int = 100) -> int:
    """Write some micro-batches, and return the number of rows."""
    attempt = await child.run(job(), task(rate(rows), sql("rows", select, "numbers"), out(lake.sink(table))))
    await child.batches(attempt, 2)
    taken, _ = await snapshot(child, attempt, 1)
    await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=1))
    await child.stop(attempt)
    return rows * (taken.batch_id + 1)


@pytest.mark.parametrize("by", first([("day",), ("text", "even"), ("price",)]), ids="-".join)
async def test_each_file_has_rows_of_one_partition(child: Child, by: tuple[str, ...], tmp_path: Path) -> None:
    """Dates before 1970, NULL, and texts that are no names of directories (K2)."""
    lake = Delta(tmp_path / "lake")
    made(lake, "made", "value long NOT NULL, day date, even boolean, text string, price decimal(5,1)", by)
    count = await written(child, lake, "made", ROWS)
    log = await asyncio.to_thread(lake.log, "made")
    assert all(set(file["partitionValues"]) == set(by) for file in log.files.values())
    table = DeltaTable(lake.root("made"))
    rows = table.to_pyarrow_table().to_pylist()
    assert sorted(row["value"] for row in rows) == list(range(count))
    for row in rows:
        n = row["value"]
        assert row["day"].toordinal() == 719_163 - 2 + n % 5
        assert row["even"] == (n % 3 == 0)
        assert row["text"] == {0: None, 1: "é=/%20 x"}.get(n % 4, f"n{n % 6}")
        assert row["price"] == n % 7 - 3
    for value in {row[by[0]] for row in rows if row[by[0]] is not None}:
        seen = table.to_pyarrow_table(filters=[(by[0], "=", value)]).column("value").to_pylist()
        assert sorted(seen) == sorted(row["value"] for row in rows if row[by[0]] == value)


async def test_a_row_that_breaks_a_rule_of_the_table_fails_its_micro_batch(child: Child, tmp_path: Path) -> None:
    """Other writers rely on NOT NULL and CHECK (K2). Rows that keep them are written."""
    lake = Delta(tmp_path / "lake")
    table = made(lake, "ruled", "value long NOT NULL, price double")
    table.alter.add_constraint({"positive": "price > 0"})
    keeps = "SELECT value, 1.5D AS price FROM numbers"
    count = await written(child, lake, "ruled", keeps, rows=10)
    for select, rule in (
        ("SELECT IF(value = 7, NULL, value) AS value, 1.5D AS price FROM numbers", "value NOT NULL"),
        ("SELECT value, 3.0D - value AS price FROM numbers", "positive"),
        ("SELECT value, CAST(NULL AS DOUBLE) AS price FROM numbers", "positive"),
    ):
        attempt = await child.run(job(), task(rate(10), sql("rows", select, "numbers"), out(lake.sink("ruled"))))
        failed = await child.notice(p.TaskFailed, lambda notice, attempt=attempt: notice.attempt_id == attempt)
        assert f"a row breaks the rule {rule} of the Delta table" in failed.error.message
    assert await asyncio.to_thread(lake.values, "ruled") == list(range(count))


GENERATED = {"day": {"delta.generationExpression": "CAST(at AS DATE)"}}


async def test_a_table_that_asks_more_of_a_writer_is_refused(child: Child, tmp_path: Path) -> None:
    """At submission, with what it is (J4)."""
    lake = Delta(tmp_path / "lake")
    made(lake, "generated", "value long, day date", **GENERATED)
    made(lake, "by_time", "value long, at timestamp", ("at",))
    made(lake, "by_day", "value long, day date", ("day",))
    made(lake, "required", "value long, day date NOT NULL")
    select = "SELECT value, current_date() AS day, current_timestamp() AS at FROM numbers"
    for table, columns, problem in (
        ("generated", "value, day", "computes or restricts day itself, which this sink does not do"),
        ("by_time", "value, at", "cannot be partitioned by at, which is timestamp"),
        ("by_day", "value, day", "is partitioned by day, not by value"),
        ("required", "value", "needs a column day, which may not be NULL"),
    ):
        rows = sql("rows", f"SELECT {columns} FROM ({select})", "numbers")
        by = ["value"] if table == "by_day" else []
        ((path, said),) = await faults(child, task(rate(10), rows, out(lake.sink(table, partition_by=by))))
        assert path == "vertices.out.sink"
        assert problem in said
