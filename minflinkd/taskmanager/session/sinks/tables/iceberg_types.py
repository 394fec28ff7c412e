"""The columns of an Iceberg table as Spark has them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql import types as spark

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType, NestedField

FIELD_ID = "parquet.field.id"  # in the metadata of a column: Spark writes it into Parquet files
_SAME: dict[str, spark.DataType] = {
    "boolean": spark.BooleanType(),
    "int": spark.IntegerType(),
    "long": spark.LongType(),
    "float": spark.FloatType(),
    "double": spark.DoubleType(),
    "date": spark.DateType(),
    "timestamp": spark.TimestampNTZType(),
    "timestamptz": spark.TimestampType(),
    "string": spark.StringType(),
    "binary": spark.BinaryType(),
}


class NotOfSpark(Exception):
    """Spark has no such type: uuid, time, fixed and others."""


def of_spark(schema: Schema) -> tuple[spark.StructType, dict[str, str]]:
    """Return the columns that Spark can write, and the types of the others by name.

    Spark writes the ids of columns, but not those of elements, nor always those of fields. A table that has some gets
    no ids at all: a reader that finds some ids looks for nothing by name.
    """
    columns, others = [], {}
    with_ids = all(field.field_type.is_primitive for field in schema.fields)
    for field in schema.fields:
        try:
            columns.append(_field(field, with_ids=with_ids))
        except NotOfSpark:
            others[field.name] = str(field.field_type)
    return spark.StructType(columns), others


def has_ids(schema: spark.StructType) -> bool:
    """Whether files with these columns have the ids of the table's."""
    return all(FIELD_ID in field.metadata for field in schema.fields)


def leaves(schema: Schema) -> Iterator[tuple[str, int, str]]:
    """Yield each part of the columns that has a plain type: its path, id and type."""
    for field in schema.fields:
        yield from _leaves(field.name, field.field_id, field.field_type)


def _leaves(path: str, number: int, kind: IcebergType) -> Iterator[tuple[str, int, str]]:
    from pyiceberg import types as iceberg

    if isinstance(kind, iceberg.StructType):
        for field in kind.fields:
            yield from _leaves(f"{path}.{field.name}", field.field_id, field.field_type)
    elif isinstance(kind, iceberg.ListType):
        yield from _leaves(f"{path}.element", kind.element_id, kind.element_type)
    elif isinstance(kind, iceberg.MapType):
        yield from _leaves(f"{path}.key", kind.key_id, kind.key_type)
        yield from _leaves(f"{path}.value", kind.value_id, kind.value_type)
    else:
        yield path, number, str(kind)


def _field(field: NestedField, *, with_ids: bool = False) -> spark.StructField:
    metadata = {FIELD_ID: field.field_id} if with_ids else {}
    return spark.StructField(field.name, _of_spark(field.field_type), not field.required, metadata)


def _of_spark(kind: IcebergType) -> spark.DataType:
    """Raises NotOfSpark."""
    from pyiceberg import types as iceberg

    if (same := _SAME.get(str(kind))) is not None:
        return same
    if isinstance(kind, iceberg.DecimalType):
        return spark.DecimalType(kind.precision, kind.scale)
    if isinstance(kind, iceberg.ListType):
        return spark.ArrayType(_of_spark(kind.element_type), not kind.element_required)
    if isinstance(kind, iceberg.MapType):
        return spark.MapType(
            _of_spark(kind.key_type),
            _of_spark(kind.value_type),
            not kind.value_required,
        )
    if isinstance(kind, iceberg.StructType):
        return spark.StructType([_field(field) for field in kind.fields])
    raise NotOfSpark(str(kind))
