"""Rows that replace and delete others in a Delta table, by the table's library (K4, K6)."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from minflinkd.jobgraph.model import Sink
from minflinkd.taskmanager.session.sinks.tables.delta import DeltaTarget
from minflinkd.taskmanager.session.sinks.tables.failures import Conflict
from minflinkd.taskmanager.session.sinks.tables.keyed_changes import KeyedChanges
from tests.lakes import Delta

OWNER = "minflinkd.11111111111111111111111111111111.out"
KEY = ("user", "the day")
SCHEMA = pa.schema([("user", pa.string()), ("the day", pa.int32()), ("n", pa.int64()), ("note", pa.string())])

Row = dict[str, Any]


def drawn(rng: random.Random) -> Row:
    """Return a row from so few that keys come again."""
    return {"user": rng.choice('a"b'), "the day": rng.randrange(3), "n": rng.randrange(1000), "note": None}


def of(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def made(directory: Path, *, partition_by: list[str] | None = None) -> tuple[DeltaTarget, Delta]:
    lake = Delta(directory)
    write_deltalake(lake.root("rows"), of([]), partition_by=partition_by)
    return DeltaTarget(Sink(format="delta", path=lake.root("rows"), options={"key": ", ".join(KEY)})), lake


def merge(target: DeltaTarget, number: int, rows: list[Row], gone: list[Row] | None = None) -> None:
    """Write all columns of the rows but `note`, and delete the rows with the keys of `gone`."""
    written = of(rows).drop_columns(["note"]) if rows else of([]).select(list(KEY))
    changes = KeyedChanges(written, of(gone or []).select(list(KEY)))
    target.merge(target.look(OWNER), OWNER, number, number, changes)


def seen(lake: Delta) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.get(name) for name in SCHEMA.names) for row in lake.rows("rows"))


@pytest.mark.parametrize("partition_by", [None, ["user"]], ids=["plain", "partitioned"])
def test_the_table_has_the_last_row_of_each_key_or_none_if_it_is_gone(
    tmp_path: Path, partition_by: list[str] | None
) -> None:
    """Columns that the job does not write stay as they are. Each commit has its mark."""
    rng = random.Random(1)
    target, lake = made(tmp_path, partition_by=partition_by)
    write_deltalake(lake.root("rows"), of([{"user": "a", "the day": 0, "n": 0, "note": "mine"}]), mode="append")
    expected: dict[tuple[Any, ...], Row] = {("a", 0): {"user": "a", "the day": 0, "n": 0, "note": "mine"}}
    for number in range(1, 13):
        batch = {tuple(row[name] for name in KEY): row for row in (drawn(rng) for _ in range(rng.randrange(1, 6)))}
        gone = {each: batch.pop(each) for each in list(batch) if rng.random() < (1.0 if number % 4 == 0 else 0.4)}
        merge(target, number, list(batch.values()), list(gone.values()))
        for each in gone:
            expected.pop(each, None)
        for each, row in batch.items():
            expected[each] = row | {"note": expected.get(each, row)["note"]}
        assert target.look(OWNER).number == number
        assert seen(lake) == sorted(tuple(row.values()) for row in expected.values()), number


def test_a_commit_that_deletes_nothing_has_its_mark(tmp_path: Path) -> None:
    """The library commits nothing then. It would be repeated, and once there was such a row, delete it."""
    target, lake = made(tmp_path)
    row = {"user": "a", "the day": 1, "n": 1, "note": None}
    for number in (1, 2):
        merge(target, number, [], [row])
        assert target.look(OWNER).number == number
    stale = target.look(OWNER)
    merge(target, 3, [row])
    with pytest.raises(Conflict):
        target.merge(stale, OWNER, 3, 3, KeyedChanges(of([]).select(list(KEY)), of([row]).select(list(KEY))))
    assert seen(lake) == [("a", 1, 1, None)]
    assert DeltaTable(lake.root("rows")).history(1)[0]["minflinkd.checkpoint"] == "3"


def test_a_key_that_goes_breaks_no_rule_of_the_table(tmp_path: Path) -> None:
    """There are no values for its other columns, even if they may not be NULL, or must be positive (J12)."""
    strict = pa.schema([SCHEMA.field(0), SCHEMA.field(1), pa.field("n", pa.int64(), nullable=False), SCHEMA.field(3)])
    lake = Delta(tmp_path)
    rows = [{"user": user, "the day": 1, "n": 1, "note": "x"} for user in "abc"]
    write_deltalake(lake.root("rows"), pa.Table.from_pylist(rows, schema=strict))
    DeltaTable(lake.root("rows")).alter.add_constraint({"positive": "n > 0"})
    target = DeltaTarget(Sink(format="delta", path=lake.root("rows"), options={"key": ", ".join(KEY)}))
    merge(target, 1, [rows[0] | {"n": 2}], [rows[1], rows[1] | {"user": "z"}])
    assert seen(lake) == [("a", 1, 2, "x"), ("c", 1, 1, "x")]
    merge(target, 2, [], [rows[2]])
    assert seen(lake) == [("a", 1, 2, "x")]
