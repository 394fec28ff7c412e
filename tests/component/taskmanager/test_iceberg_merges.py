"""Rows that replace others in an Iceberg table, by the table's library and a catalog in SQLite (K4)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyiceberg.io.pyarrow
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform, parse_transform
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from minflinkd.jobgraph.model import Sink
from minflinkd.taskmanager.session.plan.sink_checks import UnfitSink
from minflinkd.taskmanager.session.sinks.tables.commits import Look
from minflinkd.taskmanager.session.sinks.tables.failures import Conflict, TableFailed
from minflinkd.taskmanager.session.sinks.tables.iceberg import IcebergTarget
from minflinkd.taskmanager.session.sinks.tables.iceberg_merges import check_replaceable, completed, matches
from minflinkd.taskmanager.session.sinks.tables.keyed_changes import KeyedChanges
from tests.lakes import Iceberg
from tests.shortened import first

OWNER = "minflinkd.11111111111111111111111111111111.out"
COLUMNS = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "day", DateType(), required=False),
    NestedField(3, "text", StringType(), required=False),
    NestedField(4, "at", TimestamptzType(), required=False),
    NestedField(5, "price", DecimalType(10, 2), required=False),
    NestedField(6, "even", BooleanType(), required=False),
    NestedField(7, "n", IntegerType(), required=False),
)
ARROW = COLUMNS.as_arrow()
NOON = datetime(2026, 11, 28, 12, tzinfo=UTC)
CASES: list[tuple[dict[str, str], tuple[str, ...]]] = [  # partitions, key
    ({}, ("id",)),
    ({"day": "month", "text": "truncate[1]"}, ("text", "day")),
    ({"even": "identity"}, ("even", "at", "price")),
    ({"id": "bucket[3]"}, ("id",)),
    ({"at": "hour"}, ("at",)),
    ({}, ("price", "even", "text")),
]

Row = dict[str, Any]


def drawn(rng: random.Random) -> Row:
    """Return a row from so few that keys come again."""
    number = rng.randrange(12)
    return {
        "id": number,
        "day": date(1969, 12, 20) + timedelta(days=number * 9),
        "text": "aäbcé"[number % 5] + "x" * (number % 3),
        "at": NOON + timedelta(minutes=17 * number, microseconds=number),
        "price": Decimal(number - 6) / 4,
        "even": number % 2 == 0,
        "n": rng.randrange(1000),
    }


def made(
    directory: Path, by: dict[str, str], key: tuple[str, ...], columns: Schema = COLUMNS
) -> tuple[IcebergTarget, Any]:
    """Make a table, sorted by id. Return it as a sink sees it, and as its library does."""
    lake = Iceberg(directory)
    catalog = load_catalog("lake", **lake.settings)
    catalog.create_namespace("db")
    fields = [
        PartitionField(COLUMNS.find_field(name).field_id, 1000 + n, parse_transform(transform), f"p{n}")
        for n, (name, transform) in enumerate(by.items())
    ]
    order = SortOrder(SortField(1, IdentityTransform()), order_id=1)
    catalog.create_table("db.rows", columns, partition_spec=PartitionSpec(*fields), sort_order=order)
    described = lake.described("rows")
    options = described["options"] | {"key": ", ".join(key)}
    return IcebergTarget(Sink(format="iceberg", options=options)), lake


def of(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=ARROW)


def merge(
    target: IcebergTarget, number: int, rows: pa.Table, gone: list[Row] | None = None, *, look: Look | None = None
) -> None:
    """Merge rows, and delete those that have the keys of `gone`."""
    keys = of(gone or []).select(list(target.key))
    target.merge(look or target.look(OWNER), OWNER, number, number, KeyedChanges(rows, keys))


def in_order(rows: list[Row]) -> list[str]:
    return sorted(map(repr, of(rows).to_pylist()))


@pytest.mark.parametrize("case", first(range(len(CASES)), 3))
def test_the_table_has_the_last_row_of_each_key(tmp_path: Path, case: int) -> None:
    """Or no row, if it is gone. Others append rows and change partitions; rows without a whole key stay (K4, K6)."""
    by, key = CASES[case]
    rng = random.Random(case)
    target, lake = made(tmp_path, by, key)
    expected: dict[tuple[Any, ...], Row] = {}
    others: list[Row] = []
    for number in range(1, 9):
        batch = {tuple(row[name] for name in key): row for row in (drawn(rng) for _ in range(rng.randrange(1, 9)))}
        gone = {each: batch.pop(each) for each in list(batch) if number % 2 and rng.random() < 0.5 + number % 3}
        merge(target, number, of(list(batch.values())), list(gone.values()))
        expected = {each: row for each, row in (expected | batch).items() if each not in gone}
        assert target.look(OWNER).number == number
        if number == 3:
            stray = [drawn(rng) | {key[-1]: None} for _ in range(2)]
            lake.table("rows").append(of(stray))
            others += stray
        if number == 5:
            with lake.table("rows").update_spec() as spec:
                spec.add_identity("n")
        assert in_order(lake.rows("rows")) == in_order([*expected.values(), *others]), number
    summary = lake.table("rows").current_snapshot().summary
    assert (summary["minflinkd.vertex"], summary["minflinkd.checkpoint"]) == ("out", "8")


def test_a_commit_that_deletes_nothing_has_its_mark(tmp_path: Path) -> None:
    """Otherwise it would be repeated for ever, and once there was such a row, delete it (K6)."""
    target, lake = made(tmp_path, {}, ("id",))
    for number in (1, 2):
        merge(target, number, of([]).select(["id"]), [drawn(random.Random(7)) | {"id": 7}])
        assert target.look(OWNER).number == number
    merge(target, 3, of([drawn(random.Random(n)) | {"id": n} for n in range(3)]))
    merge(target, 4, of([]).select(["id"]), [drawn(random.Random(7)) | {"id": n} for n in (1, 7)])
    assert sorted(row["id"] for row in lake.rows("rows")) == [0, 2]
    merge(target, 5, of([]).select(["id"]), [drawn(random.Random(7)) | {"id": n} for n in (0, 2)])
    assert (lake.rows("rows"), target.look(OWNER).number) == ([], 5)


def test_a_key_that_goes_has_no_other_values(tmp_path: Path) -> None:
    """Even if the other columns may not be NULL (K6)."""
    strict = Schema(*(NestedField(f.field_id, f.name, f.field_type, required=True) for f in COLUMNS.fields))
    target, lake = made(tmp_path, {"even": "identity"}, ("id",), strict)
    rows = [drawn(random.Random(n)) | {"id": n} for n in range(4)]
    merge(target, 1, of(rows))
    merge(target, 2, of(rows[:1]), rows[1:3])
    assert sorted(row["id"] for row in lake.rows("rows")) == [0, 3]


def test_a_table_that_the_library_cannot_write_anew_is_refused(tmp_path: Path) -> None:
    """It finds no partition for a row, or does not take back its own struct. Without a key, Spark writes (J4, K4)."""
    _, lake = made(tmp_path, {"day": "month"}, ("id",))
    table = lake.table("rows")
    check_replaceable(table, "the table")
    with table.update_spec() as spec:
        spec.add_identity("day")
    with pytest.raises(UnfitSink, match="has several partitions by day"):
        check_replaceable(lake.table("rows"), "the table")
    _, lake = made(tmp_path / "other", {}, ("id",))
    with lake.table("rows").update_schema() as update:
        part = NestedField(9, "x", LongType(), required=True)
        update.add_column("point", ListType(10, StructType(part), element_required=False))
    with pytest.raises(UnfitSink, match="column point of the table has a part that may not be NULL"):
        check_replaceable(lake.table("rows"), "the table")


def test_only_files_with_the_same_keys_are_written_anew(tmp_path: Path) -> None:
    """Those of other partitions, and of other keys, stay (K4)."""
    target, lake = made(tmp_path, {"even": "identity"}, ("id",))
    rows = [drawn(random.Random(n)) | {"id": n, "even": n % 2 == 0} for n in range(10)]
    merge(target, 1, of(rows[:8]))
    merge(target, 2, of(rows[8:]))

    def files() -> dict[str, int]:
        return {task.file.file_path: task.file.record_count for task in lake.table("rows").scan().plan_files()}

    before = files()
    assert sorted(before.values()) == [1, 1, 4, 4]
    merge(target, 3, of([rows[2] | {"n": -1}]))
    after = files()
    assert sorted(after.values()) == [1, 1, 1, 3, 4]
    assert len(before.keys() & after.keys()) == 3
    assert [row["n"] for row in lake.rows("rows") if row["id"] == 2] == [-1]


def test_many_keys_are_found_by_their_bounds(tmp_path: Path) -> None:
    """More than the library compares one by one."""
    target, lake = made(tmp_path, {}, ("id", "text"))
    rows = [drawn(random.Random(n)) | {"id": n} for n in range(1000)]
    for number in (1, 2):
        merge(target, number, of([row | {"n": number} for row in rows]))
        assert [row["n"] for row in lake.rows("rows")] == [number] * 1000


def test_a_commit_that_another_one_overtakes_changes_nothing(tmp_path: Path) -> None:
    """It leaves no file, and is repeated on what is in the table by then (K4)."""
    target, lake = made(tmp_path, {}, ("id",))
    merge(target, 1, of([drawn(random.Random(1)) | {"id": 1}]))
    stale = target.look(OWNER)
    lake.table("rows").append(of([drawn(random.Random(2)) | {"id": 2}]))
    files = lake.data_files("rows")
    with pytest.raises(Conflict):
        merge(target, 2, of([drawn(random.Random(3)) | {"id": 1, "n": 7}]), look=stale)
    assert lake.data_files("rows") == files
    assert target.look(OWNER).number == 1
    merge(target, 2, of([drawn(random.Random(3)) | {"id": 1, "n": 7}]))
    assert sorted(row["id"] for row in lake.rows("rows")) == [1, 2]


def test_a_commit_whose_answer_was_lost_keeps_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog's client repeats such a request, and is told that another commit came first: its own (K4)."""
    target, lake = made(tmp_path, {}, ("id",))
    merge(target, 1, of([drawn(random.Random(1)) | {"id": 1}]))
    commit = SqlCatalog.commit_table

    def twice(self: Any, *given: Any) -> Any:
        commit(self, *given)
        return commit(self, *given)

    monkeypatch.setattr(SqlCatalog, "commit_table", twice)
    with pytest.raises(Conflict):
        merge(target, 2, of([drawn(random.Random(2)) | {"id": 1, "n": 7}]))
    assert target.look(OWNER).number == 2
    assert [row["n"] for row in lake.rows("rows")] == [7]


def test_many_commits_leave_few_manifests(tmp_path: Path) -> None:
    """Each of them is read by the next commit (K4)."""
    target, lake = made(tmp_path, {"even": "identity"}, ("id",))
    with lake.table("rows").transaction() as changed:
        changed.set_properties({"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "4"})
    rows = [drawn(random.Random(n)) | {"id": n, "even": n % 2 == 0} for n in range(4)]
    for number in range(1, 25):
        merge(target, number, of([row | {"n": number} for row in rows]))
        assert [row["n"] for row in lake.rows("rows")] == [number] * 4
    table = lake.table("rows")
    assert len(table.current_snapshot().manifests(table.io)) <= 6


def test_rows_of_a_table_that_has_changed_are_replaced(tmp_path: Path) -> None:
    """Its old files have a narrower type, another name, and no structs, lists and maps (K4)."""
    target, lake = made(tmp_path, {"even": "identity"}, ("id", "n"))
    old = [drawn(random.Random(n)) | {"id": n, "n": n} for n in range(6)]
    lake.table("rows").append(of(old))
    with lake.table("rows").update_schema() as update:
        update.update_column("n", LongType())
        update.rename_column("text", "note")
        update.add_column("tags", ListType(20, StringType(), element_required=False))
        update.add_column("by", MapType(21, StringType(), 22, LongType(), value_required=False))
        update.add_column("point", StructType(NestedField(23, "x", LongType(), required=False)))
    nested = {"tags": ["a", None], "by": [("a", 1), ("b", None)], "point": {"x": 2**40}}
    schema = lake.table("rows").schema().as_arrow()
    plain = {name: value for name, value in drawn(random.Random(9)).items() if name != "text"}
    new = [plain | {"id": n, "n": n, "even": n % 2 == 0, "note": "new"} | nested for n in (2, 3, 7)]
    for number in (1, 2):
        rows = pa.Table.from_pylist(new, schema=schema)
        merge(target, number, rows)
        found = {row["id"]: row for row in lake.rows("rows")}
        assert sorted(row["id"] for row in lake.rows("rows")) == [0, 1, 2, 3, 4, 5, 7]
        assert [found[n]["note"] for n in range(6)] == [old[0]["text"], old[1]["text"], "new", "new"] + [
            old[n]["text"] for n in (4, 5)
        ]
        assert all({name: found[n][name] for name in nested} == nested for n in (2, 3, 7))
        assert found[0]["tags"] is None


def test_columns_that_the_job_does_not_write_stay(tmp_path: Path) -> None:
    """As with Delta's MERGE and in a database. In a row with a new key they are NULL (K4)."""
    target, lake = made(tmp_path, {}, ("id",))
    rows = [drawn(random.Random(n)) | {"id": n, "text": f"note {n}"} for n in range(4)]
    lake.table("rows").append(of(rows[:3]))
    narrow = of([row | {"n": -1} for row in rows]).select(["n", "id", "day", "at", "price", "even"])
    merge(target, 1, narrow)
    found = sorted((row["id"], row["n"], row["text"]) for row in lake.rows("rows"))
    assert found == [(0, -1, "note 0"), (1, -1, "note 1"), (2, -1, "note 2"), (3, -1, None)]


def test_a_table_that_cannot_be_written_gets_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were written before the failure are deleted (K4)."""
    target, lake = made(tmp_path, {"even": "identity"}, ("id",))
    rows = [drawn(random.Random(n)) | {"id": n, "even": n % 2 == 0} for n in range(4)]
    merge(target, 1, of(rows))
    files, write = lake.data_files("rows"), pyiceberg.io.pyarrow.write_file

    def write_one(*given: Any, **named: Any) -> Iterator[Any]:
        yield next(iter(write(*given, **named)))
        raise OSError("no space left")

    monkeypatch.setattr(pyiceberg.io.pyarrow, "write_file", write_one)
    with pytest.raises(TableFailed, match="no space left"):
        merge(target, 2, of([rows[0]]))
    assert lake.data_files("rows") == files


def test_rows_are_known_by_all_columns_of_the_key() -> None:
    """NULL is no key, and values are compared whatever type the file has them in."""
    texts = pa.array(["x", "x", None], pa.large_string())
    there = pa.table({"a": texts, "b": [1, 2, 1], "many": [[1], [2], []]})
    others = pa.table({"b": pa.array([1, 3], pa.int32()), "a": ["x", "x"]})
    assert matches(there, others, ("a", "b")).to_pylist() == [True, False, False]
    assert completed(others, there, ("a", "b")).column("many").to_pylist() == [[1], None]
