"""Which values a table's columns take (K2, K3)."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from minflinkd.taskmanager.session.plan.sink_checks import UnfitSink
from minflinkd.taskmanager.session.sinks.tables.fitting import check_new, leaves, misfits, new_columns, nullable

X = StructType([StructField("x", IntegerType())])
X_REQUIRED = StructType([StructField("x", IntegerType(), nullable=False)])
XY = StructType([StructField("x", LongType()), StructField("y", StringType())])
XY_REQUIRED = StructType([StructField("x", LongType()), StructField("y", StringType(), nullable=False)])


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (IntegerType(), LongType()),
        (ByteType(), FloatType()),
        (FloatType(), DoubleType()),
        (DecimalType(5, 2), DecimalType(7, 3)),
        (IntegerType(), DecimalType(12, 2)),
        (ArrayType(IntegerType()), ArrayType(LongType())),
        (MapType(StringType(), IntegerType()), MapType(StringType(), LongType())),
        (X, XY),
        (X_REQUIRED, X),
    ],
    ids=str,
)
def test_a_type_that_takes_all_values_fits(given: DataType, wanted: DataType) -> None:
    assert list(misfits(given, wanted, "c")) == []


@pytest.mark.parametrize(
    ("given", "wanted", "problem"),
    [
        (LongType(), IntegerType(), "c is bigint, and int there"),
        (DoubleType(), FloatType(), "c is double, and float there"),
        (LongType(), DoubleType(), "c is bigint, and double there"),
        (DoubleType(), LongType(), "c is double, and bigint there"),
        (DecimalType(7, 3), DecimalType(7, 2), "c is decimal(7,3), and decimal(7,2) there"),
        (DecimalType(7, 0), DecimalType(7, 2), "c is decimal(7,0), and decimal(7,2) there"),
        (LongType(), DecimalType(12, 0), "c is bigint, and decimal(12,0) there"),
        (IntegerType(), StringType(), "c is int, and string there"),
        (TimestampType(), DateType(), "c is timestamp, and date there"),
        (TimestampType(), TimestampNTZType(), "c is timestamp, and timestamp_ntz there"),
        (XY, X, "c has no field y there"),
        (X, X_REQUIRED, "c.x may not be NULL there"),
        (X, XY_REQUIRED, "c.y is missing"),
        (ArrayType(LongType()), ArrayType(IntegerType()), "c.element is bigint, and int there"),
        (ArrayType(LongType()), ArrayType(LongType(), containsNull=False), "elements of c may not be NULL there"),
        (X, StructType([StructField("X", IntegerType())]), "c has no field x there"),
        (X, StringType(), "c is struct<x:int>, and string there"),
    ],
    ids=str,
)
def test_what_could_lose_something_does_not_fit(given: DataType, wanted: DataType, problem: str) -> None:
    """Spark's own cast would round it, cut it, or leave fields out."""
    assert problem in list(misfits(given, wanted, "c"))


def test_a_column_of_nothing_but_null_cannot_be_made() -> None:
    with pytest.raises(UnfitSink, match="x is only ever NULL"):
        check_new([StructField("y", LongType()), StructField("x", ArrayType(NullType()))], "the table")


def test_leaves_are_what_has_a_plain_type() -> None:
    kind = StructType([StructField("m", MapType(StringType(), ArrayType(XY))), StructField("n", LongType())])
    assert dict(leaves(kind, "c")) == {
        "c.m.key": "string",
        "c.m.value.element.x": "bigint",
        "c.m.value.element.y": "string",
        "c.n": "bigint",
    }


def test_a_column_is_new_whatever_the_case_of_its_name() -> None:
    rows = StructType([StructField("ID", LongType()), StructField("x", X_REQUIRED, nullable=False)])
    assert new_columns(StructType([]), ["id"], rows) == [StructField("x", X)]
    assert new_columns(StructType([StructField("X", LongType())]), [], rows) == [StructField("ID", LongType())]
    assert nullable(rows).fields[1] == StructField("x", X)
