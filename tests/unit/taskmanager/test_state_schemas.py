"""How a user is told what differs between two versions' state (C25). Schemas are as Spark prints them."""

from __future__ import annotations

import pytest

from minflinkd.taskmanager.session.state.schemas import columns, difference

COUNT = "StructField(count,LongType,true)"
SKETCH = ",".join(f"StructField(MS[{number}],LongType,true)" for number in range(52))
WINDOW = (
    "StructField(window,StructType(StructField(start,TimestampType,true),StructField(end,TimestampType,true)),true)"
)


def struct(*fields: str) -> str:
    return f"StructType({','.join(fields)})"


@pytest.mark.parametrize(
    ("stored", "new", "told"),
    [
        (struct(COUNT), struct(COUNT, "StructField(min,TimestampType,true)"), "min TIMESTAMP would be new in it"),
        (struct(COUNT, SKETCH), struct(COUNT), "MS[0..51] BIGINT would be gone"),
        (
            struct(SKETCH),
            struct(COUNT),
            "count BIGINT would be new in it, and MS[0..51] BIGINT would be gone",
        ),
        (struct(COUNT, WINDOW), struct(WINDOW, COUNT), "its columns would have another order"),
        (struct(COUNT), struct("StructField(count,DoubleType,true)"), "count DOUBLE would be new"),
    ],
)
def test_only_what_changes_is_told(stored: str, new: str, told: str) -> None:
    """The message is short, whatever else the state holds (H2)."""
    text = difference("value", stored, new)
    assert told in text
    assert len(text) < 300
    assert text.startswith("the schema of its values changes: ")


def test_many_columns_are_counted() -> None:
    """Five are named, and the rest are counted (H2)."""
    many = [f"StructField(c{number},StringType,true)" for number in range(9)]
    assert "c4 STRING and 4 more would be new in it" in difference("key", struct(COUNT), struct(COUNT, *many))


def test_names_and_types_may_hold_commas_and_parentheses() -> None:
    """Users choose the names of columns (C25)."""
    odd = "StructField(max(a, b),DecimalType(10,2),true)"
    assert columns(struct(odd, WINDOW, "StructField(m,MapType(StringType,LongType,true),false)")) == [
        ("max(a, b)", "DecimalType(10,2)"),
        ("window", "StructType(StructField(start,TimestampType,true),StructFi..."),
        ("m", "MapType(StringType,LongType,true)"),
    ]
