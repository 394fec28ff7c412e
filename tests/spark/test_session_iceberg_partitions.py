"""An Iceberg table that somebody else has made: its partition spec and its order are followed (K3)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import EqualTo
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform, parse_transform
from pyiceberg.types import (
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from minflinkd.taskmanager.child import protocol as p
from tests.lakes import Iceberg
from tests.shortened import first
from tests.spark.session_child import Child, job, rate, sql, task
from tests.spark.test_session_snapshots import snapshot
from tests.spark.test_session_table_sinks import faults, out

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

COLUMNS = Schema(
    NestedField(1, "value", LongType(), required=True),
    NestedField(2, "small", IntegerType()),
    NestedField(3, "text", StringType()),
    NestedField(4, "day", DateType()),
    NestedField(5, "at", TimestamptzType()),
    NestedField(6, "local", TimestampType()),
    NestedField(7, "price", DecimalType(9, 2)),
    NestedField(8, "id", UUIDType()),
)
# Times before 1970 and in another zone's day, texts that are empty, NULL and not ASCII.
ROWS = """
SELECT value, CAST(value % 7 - 3 AS INT) AS small,
       CASE value % 4 WHEN 0 THEN NULL WHEN 1 THEN '' ELSE CONCAT('é=/', value % 6) END AS text,
       DATE_ADD(DATE'1969-11-30', CAST(value % 90 AS INT)) AS day,
       TIMESTAMP_MICROS((value % 50 - 25) * 3599999999) AS at,
       TIMESTAMP_NTZ'1970-01-01 00:30:00' + MAKE_DT_INTERVAL(0, CAST(value % 30 - 15 AS INT)) AS local,
       CAST(value % 20 - 10.05 AS DECIMAL(9, 2)) AS price
FROM numbers
"""
SPECS = [
    {"local": "day", "price": "truncate[50]"},
    {"small": "identity", "text": "identity"},
    {"at": "hour", "small": "truncate[3]"},
    {"value": "bucket[3]", "text": "bucket[2]"},
    {"day": "identity"},
    {"at": "identity"},
    {"price": "identity"},
    {"day": "month", "text": "truncate[2]"},
    {"local": "hour"},
    {"at": "year", "day": "day"},
    {"day": "bucket[4]", "at": "bucket[2]"},
    {"price": "bucket[3]"},
    {"text": "void"},
]


def named(by: dict[str, str]) -> str:
    return "-".join(f"{name}-{transform}" for name, transform in by.items())


@pytest.fixture
def child(connected: Child) -> Child:
    return connected


def made(lake: Iceberg, table: str, by: dict[str, str], columns: Schema = COLUMNS) -> Any:
    catalog = load_catalog("lake", **lake.settings)
    catalog.create_namespace_if_not_exists("db")
    spec = PartitionSpec(
        *(
            PartitionField(columns.find_field(name).field_id, 1000 + n, parse_transform(transform), f"p{n}")
            for n, (name, transform) in enumerate(by.items())
        )
    )
    order = SortOrder(SortField(1, IdentityTransform()), order_id=1)
    return catalog.create_table(f"db.{table}", columns, partition_spec=spec, sort_order=order)


@pytest.mark.parametrize("by", first(SPECS), ids=named)
async def test_each_file_has_rows_of_one_partition(child: Child, by: dict[str, str], tmp_path: Path) -> None:
    """The library computes the same partition from the rows, and a scan that skips files by it finds all rows (K3)."""
    lake = Iceberg(tmp_path / "lake")
    made(lake, "made", by)
    attempt = await child.run(job(), task(rate(100), sql("rows", ROWS, "numbers"), out(lake.sink("made"))))
    await child.batches(attempt, 2)
    taken, _ = await snapshot(child, attempt, 1)
    await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=1))
    await child.stop(attempt)
    await asyncio.to_thread(check, lake.table("made"), 100 * (taken.batch_id + 1))


def check(table: Any, count: int) -> None:
    spec, schema = table.spec(), table.schema()
    transforms = [
        (schema.find_column_name(field.source_id), field.transform.transform(schema.find_type(field.source_id)))
        for field in spec.fields
    ]
    rows = []
    for scanned in table.scan().plan_files():
        path = scanned.file.file_path
        found = pyarrow_rows(path)
        assert [row["value"] for row in found] == sorted(row["value"] for row in found), "the table's order"
        assert {tuple(stored(transform(row[name])) for name, transform in transforms) for row in found} == {
            tuple(scanned.file.partition[n] for n in range(len(transforms)))
        }
        rows += found
    assert sorted(row["value"] for row in rows) == list(range(count))
    for name, _ in transforms:
        for value in {row[name] for row in rows if row[name] is not None}:
            wanted = sorted(row["value"] for row in rows if row[name] == value)
            seen = table.scan(row_filter=EqualTo(name, literal(value))).to_arrow().column("value").to_pylist()
            assert sorted(seen) == wanted, (name, value)


def pyarrow_rows(path: str) -> list[dict[str, Any]]:
    import pyarrow.parquet

    found: list[dict[str, Any]] = pyarrow.parquet.ParquetFile(path.removeprefix("file://")).read().to_pylist()
    return found


def stored(value: Any) -> Any:
    from pyiceberg.utils.datetime import date_to_days, datetime_to_micros

    if hasattr(value, "hour"):
        return datetime_to_micros(value)
    return date_to_days(value) if hasattr(value, "year") else value


def literal(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "year") else value


async def test_rows_that_wait_while_the_partitions_change_stay_in_their_own(child: Child, tmp_path: Path) -> None:
    """A manifest has files of one partition spec: readers would look for these in the wrong partitions (K3)."""
    lake = Iceberg(tmp_path / "lake")
    made(lake, "evolving", {"value": "bucket[3]"})
    attempt = await child.run(job(), task(rate(100), sql("rows", ROWS, "numbers"), out(lake.sink("evolving"))))
    await child.batches(attempt, 2)
    first, _ = await snapshot(child, attempt, 1)
    with lake.table("evolving").update_spec() as spec:
        spec.remove_field("p0").add_field("value", BucketTransform(16), "finer").add_field("small", "identity", "small")
    await child.batches(attempt, first.batch_id + 3)
    taken, _ = await snapshot(child, attempt, 2)
    await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=2))
    await child.stop(attempt)
    table = lake.table("evolving")
    assert {file.file.spec_id for file in table.scan().plan_files()} == {0, 1}
    for value in range(0, 100 * (taken.batch_id + 1), 7):
        seen = table.scan(row_filter=EqualTo("value", value)).to_arrow().column("value").to_pylist()
        assert seen == [value]
    assert lake.values("evolving") == list(range(100 * (taken.batch_id + 1)))


async def test_files_have_the_ids_of_their_columns(child: Child, tmp_path: Path) -> None:
    """So a renamed column keeps its values, also in rows that wait meanwhile (K3)."""
    lake = Iceberg(tmp_path / "lake")
    made(lake, "renamed", {})
    attempt = await child.run(job(), task(rate(100), sql("rows", ROWS, "numbers"), out(lake.sink("renamed"))))
    await child.batches(attempt, 2)
    await snapshot(child, attempt, 1)
    with lake.table("renamed").update_schema() as schema:
        schema.rename_column("small", "little")
    await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=1))
    await child.stop(attempt)
    rows = await asyncio.to_thread(lake.rows, "renamed")
    assert rows
    assert all(row["little"] == row["value"] % 7 - 3 for row in rows)


async def test_rows_that_the_table_cannot_have_are_a_fault(child: Child, tmp_path: Path) -> None:
    """A required column, a column of the partitions, a type that Spark does not have (J4)."""
    lake = Iceberg(tmp_path / "lake")
    made(lake, "strict", {"small": "identity"})
    for select, problem in (
        ("small", "needs a column value, which may not be NULL"),
        ("value", "is partitioned by identity of small, a column that the rows do not have"),
        ("value, small, 'x' AS id", "column id of the Iceberg table db.strict of catalog lake is uuid"),
    ):
        query = task(rate(10), sql("all", ROWS, "numbers"), sql("rows", f"SELECT {select} FROM all", "all"))
        query = task(*query.vertices, out(lake.sink("strict")))
        ((path, said),) = await faults(child, query)
        assert path == "vertices.out.sink"
        assert problem in said


async def test_a_row_without_a_required_value_fails_its_micro_batch(child: Child, tmp_path: Path) -> None:
    """Other writers of Iceberg rely on it."""
    lake = Iceberg(tmp_path / "lake")
    made(lake, "strict", {})
    rows = "SELECT IF(value = 7, NULL, value) AS value FROM numbers"
    attempt = await child.run(job(), task(rate(10), sql("rows", rows, "numbers"), out(lake.sink("strict"))))
    failed = await child.notice(p.TaskFailed, lambda notice: notice.attempt_id == attempt)
    assert "a row breaks the rule value NOT NULL of the Iceberg table" in failed.error.message
    assert await asyncio.to_thread(lake.rows, "strict") == []
