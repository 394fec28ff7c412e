"""Rows as tests of jobs write and read them."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from minflinkd.testing import rows
from minflinkd.testing.rows import WrongRow
from minflinkd.testing.types import UnknownType, parse, schema_ddl

UTC = datetime.UTC
EVERYTHING = (
    "struct<s:string,n:int,b:bigint,x:double,d:decimal(5,2),t:timestamp,z:timestamp_ntz,day:date,"
    "raw:binary,yes:boolean,tags:array<string>,by:map<string,struct<n:int>>,inner:struct<a:int,b:string>>"
)
ROW = {
    "s": "text",
    "n": 1,
    "b": 2**40,
    "x": 1,
    "d": "12.5",
    "t": "2026-01-01T02:00+02:00",
    "z": "2026-01-01T02:00",
    "day": "2026-01-01",
    "raw": "bytes",
    "yes": True,
    "tags": ["a", "b"],
    "by": {"k": {"n": 1}},
    "inner": {"a": 1},
}


def test_a_row_of_every_type_comes_back_as_it_is_read() -> None:
    """What is fed and what is expected go through the same conversion, so they compare."""
    schema = parse(EVERYTHING)
    row = rows.converted(ROW, schema, "events")
    assert rows.plain(rows.table([row], schema)) == [row]
    assert row["t"] == datetime.datetime(2026, 1, 1, tzinfo=UTC)
    assert row["z"] == datetime.datetime(2026, 1, 1, 2)  # noqa: DTZ001 - TIMESTAMP_NTZ has no zone
    assert row["d"] == Decimal("12.50")
    assert row["raw"] == b"bytes"
    assert row["inner"] == {"a": 1, "b": None}


def test_a_column_that_is_left_out_is_null() -> None:
    schema = parse(EVERYTHING)
    row = rows.converted({"n": 1}, schema, "events")
    assert row == dict.fromkeys(ROW, None) | {"n": 1}
    assert rows.plain(rows.table([row], schema)) == [row]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"nn": 1}, r'events has no column "nn" \(did you mean n\?\)'),
        ({"n": "1"}, r'events.n: "1" is not of type INT'),
        ({"n": True}, r"events.n: true is not of type INT"),
        ({"n": 2**31}, r"events.n: 2147483648 is not of type INT"),
        ({"t": "yesterday"}, r'events.t: "yesterday" is not a TIMESTAMP \(such as 2026-01-01T00:00\)'),
        ({"d": "1.234"}, r'events.d: "1.234" is not of type DECIMAL\(5, 2\)'),
        ({"d": 12345}, r"events.d: 12345 is not of type DECIMAL\(5, 2\)"),
        ({"tags": "a"}, r'events.tags: "a" is not of type ARRAY<STRING>'),
        ({"tags": [1]}, r"events.tags\[0\]: 1 is not of type STRING"),
        ({"by": {"k": {"m": 1}}}, r'events.by\["k"\] has no column "m"'),
        ([1], r"events: a row is a mapping of columns, not a list"),
    ],
)
def test_a_wrong_row_is_refused_with_its_column(row: Any, said: str) -> None:
    with pytest.raises(WrongRow, match=said):
        rows.converted(row, parse(EVERYTHING), "events")


def test_a_schema_is_written_as_spark_reads_it() -> None:
    schema = parse("struct<a b:string,m:map<string,array<int>>,s:struct<t:timestamp>>")
    assert schema_ddl(schema) == "`a b` STRING, m MAP<STRING, ARRAY<INT>>, s STRUCT<t: TIMESTAMP>"


@pytest.mark.parametrize("text", ["struct<v:variant>", "struct<i:interval day to second>", "struct<a:int", "nonsense"])
def test_a_type_without_rows_is_named(text: str) -> None:
    with pytest.raises(UnknownType):
        parse(text)


def test_missing_and_unexpected_rows_are_shown() -> None:
    """The order does not count, and floats may differ in the last digits."""
    found = [{"a": 1, "x": 0.1 + 0.2}, {"a": 2, "x": 1.0}, {"a": 2, "x": 1.0}]
    assert rows.difference(found[:2], [{"a": 2, "x": 1.0}, {"a": 1, "x": 0.3}], ["a", "x"], ordered=False) == ""
    assert rows.difference(found, [{"a": 2}, {"a": 3}], ["a"], ordered=False).splitlines() == [
        "3 rows, 2 expected (-: missing, +: not expected)",
        "- a=3",
        "+ a=1",
        "+ a=2",
    ]


def test_the_order_counts_if_it_is_asked_for() -> None:
    found = [{"a": 1}, {"a": 2}]
    assert rows.difference(found, [{"a": 1}, {"a": 2}], ["a"], ordered=True) == ""
    assert "expected:" in rows.difference(found, [{"a": 2}, {"a": 1}], ["a"], ordered=True)


def test_zones_of_arrow_make_no_difference() -> None:
    paris = pa.table(
        {"t": pa.array([datetime.datetime(2026, 1, 1, tzinfo=UTC)], pa.timestamp("us", tz="Europe/Paris"))}
    )
    assert rows.plain(paris) == [{"t": datetime.datetime(2026, 1, 1, tzinfo=UTC)}]
