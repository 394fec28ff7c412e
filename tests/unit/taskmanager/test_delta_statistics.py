"""The statistics of a file in Delta's log: readers skip files by them, so no bound may be too narrow (K2)."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
from hypothesis import given
from hypothesis import strategies as st

from minflinkd.taskmanager.session.sinks.tables.delta_statistics import LONGEST, lower, statistics, upper

LAST = datetime.max - timedelta(seconds=1)  # noqa: DTZ901 - a time without a zone is meant
NOON = datetime(2026, 11, 28, 12, 0, 0, 123456, UTC)


def told(directory: Path, **columns: pa.Array) -> dict[str, Any]:
    file = directory / "rows.parquet"
    pa.parquet.write_table(pa.table(columns), file, row_group_size=2)
    found: dict[str, Any] = json.loads(statistics(pa.parquet.read_metadata(file)))
    return found


def test_each_type_has_the_bounds_that_the_protocol_has_for_it(tmp_path: Path) -> None:
    found = told(
        tmp_path,
        n=pa.array([3, None, 1, 2], pa.int64()),
        text=pa.array(["b", "a", None, None]),
        day=pa.array([date(2026, 1, 2), date(2026, 1, 1), None, None]),
        at=pa.array([NOON, NOON, NOON, None], pa.timestamp("us", "UTC")),
        local=pa.array([NOON.replace(tzinfo=None)] * 4, pa.timestamp("us")),
        price=pa.array([Decimal("1.50"), Decimal("-2.25"), None, None], pa.decimal128(10, 2)),
    )
    assert found["numRecords"] == 4
    assert found["nullCount"] == {"n": 1, "text": 2, "day": 2, "at": 1, "local": 0, "price": 2}
    assert found["minValues"] == {
        "n": 1,
        "text": "a",
        "day": "2026-01-01",
        "at": "2026-11-28T12:00:00.123Z",
        "local": "2026-11-28T12:00:00.123",
        "price": -2.25,
    }
    assert found["maxValues"] == {
        "n": 3,
        "text": "b",
        "day": "2026-01-02",
        "at": "2026-11-28T12:00:00.124Z",
        "local": "2026-11-28T12:00:00.124",
        "price": 1.5,
    }


def test_bounds_that_could_be_wrong_are_left_out(tmp_path: Path) -> None:
    """NaN is larger than any number and in no footer; a decimal of many digits is no JSON number; bytes are no text."""
    found = told(
        tmp_path,
        share=pa.array([0.5, float("nan")]),
        yes=pa.array([True, False]),
        raw=pa.array([b"a", b"b"]),
        price=pa.array([Decimal("12345678901234567.89")] * 2, pa.decimal128(20, 2)),
        none=pa.array([None, None], pa.int64()),
        many=pa.array([[1], [2]]),
    )
    assert found["minValues"] == found["maxValues"] == {}
    assert found["nullCount"] == {"share": 0, "yes": 0, "raw": 0, "price": 0, "none": 2}


def test_fields_of_a_struct_are_nested_and_a_name_with_a_dot_has_none(tmp_path: Path) -> None:
    found = told(tmp_path, where=pa.array([{"x": 1}, {"x": 4}]), **{"a.b": pa.array([1, 2])})
    assert (found["minValues"], found["maxValues"]) == ({"where": {"x": 1}}, {"where": {"x": 4}})


@given(st.text(max_size=3 * LONGEST))
def test_bounds_of_texts_are_short_and_enclose_them(text: str) -> None:
    low, high = lower(text), upper(text)
    assert low.encode("utf-8", "surrogatepass") <= text.encode("utf-8", "surrogatepass")
    assert high.encode("utf-8", "surrogatepass") >= text.encode("utf-8", "surrogatepass") or chr(0x10FFFF) in text
    assert max(len(low), len(high)) <= LONGEST + 1


@given(st.datetimes(max_value=LAST))
def test_bounds_of_times_enclose_them(time: datetime) -> None:
    low, high = datetime.fromisoformat(lower(time)), datetime.fromisoformat(upper(time))
    assert low <= time <= high
    assert high - low <= timedelta(milliseconds=1)
