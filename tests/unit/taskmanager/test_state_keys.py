"""How keys are named in a question about state, and how large rows are said to be."""

from __future__ import annotations

import pytest
from pyspark.sql import types as t

from minflinkd.taskmanager.session.inspection.keys import StateKeyRefused, conditions, parse
from minflinkd.taskmanager.session.inspection.sizes import row_bytes
from minflinkd.taskmanager.session.inspection.stores import distinct


def struct(**fields: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in fields.items()])


LONG, TEXT, TIME = t.LongType(), t.StringType(), t.TimestampType()
KEY = struct(window=struct(start=TIME, end=TIME), carrier=TEXT)


def test_a_text_may_be_in_any_field_of_the_key() -> None:
    """Somebody who knows a value need not know what Spark calls its field (E19c)."""
    assert conditions(KEY, parse("AA")) == [
        [(("window", "start"), "AA"), (("window", "end"), "AA"), (("carrier",), "AA")]
    ]


def test_fields_are_named_by_their_paths() -> None:
    """All of them must fit; numbers and truth values are compared as Spark prints them (E19c)."""
    found = conditions(KEY, parse('{"window.start": "2024-01-01 10:00:00", "carrier": null}'))
    assert found == [[(("window", "start"), "2024-01-01 10:00:00")], [(("carrier",), None)]]
    assert parse('{"a": true, "b": 7, "c": 1.5}') == {"a": "true", "b": "7", "c": "1.5"}


@pytest.mark.parametrize("text", ['{"carrier": [1]}', '{"carrier"', "{" * 100])
def test_what_is_no_object_of_values_is_refused(text: str) -> None:
    with pytest.raises(StateKeyRefused):
        parse(text)


def test_a_field_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(StateKeyRefused) as refused:
        conditions(KEY, parse('{"start": "x"}'))
    assert refused.value.hint == "window.start, window.end, carrier"


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        (struct(a=LONG, b=LONG), "if(r IS NULL, 0L, 24L)"),
        (struct(a=TEXT), "if(r IS NULL, 0L, 16L + coalesce((octet_length(r.`a`) + 7) & -8, 0))"),
        (struct(a=struct(b=t.IntegerType())), "if(r IS NULL, 0L, 16L + if(r.`a` IS NULL, 0L, 16L))"),
        (struct(a=t.DecimalType(10, 2), b=t.DecimalType(30, 2)), "if(r IS NULL, 0L, 24L + 16)"),
        (
            struct(a=t.ArrayType(LONG)),
            "if(r IS NULL, 0L, 16L + coalesce(if(r.`a` IS NULL, NULL, 8L + ceil(CAST(size(r.`a`) AS BIGINT) / 64) * 8"
            " + 8L * CAST(size(r.`a`) AS BIGINT) + 0L), 0L))",
        ),
    ],
)
def test_the_size_of_a_row_follows_from_its_types(schema: t.StructType, wanted: str) -> None:
    """Eight bytes for a column, eight for the null bits, and what does not fit in behind them (E19c)."""
    assert row_bytes(schema, "r") == wanted


def test_names_with_marks_in_them_are_quoted() -> None:
    schema = t.StructType([t.StructField("a`b", t.StringType())])
    assert "r.`a``b`" in row_bytes(schema, "r")
    many = t.StructType([t.StructField(f"c{n}", t.LongType()) for n in range(65)])
    assert row_bytes(many, "r") == f"if(r IS NULL, 0L, {65 * 8 + 16}L)"


def test_names_that_come_again_are_numbered() -> None:
    """All of an aggregate's buffers are shown, also if several have the same name (E19c)."""
    assert distinct(["count", "sum", "count", "Count"]) == ["count", "sum", "count_2", "Count_3"]
    assert distinct(["n", "n_2", "n"]) == ["n", "n_2", "n_3"]
    assert distinct(["a", "b"]) == ["a", "b"]
