"""The columns of an Iceberg table as Spark has them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import types as spark

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType

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
    """Return the columns that Spark can write, and the types of the others by name."""
    columns, others = [], {}
    for field in schema.fields:
        try:
            columns.append(spark.StructField(field.name, _of_spark(field.field_type), not field.required))
        except NotOfSpark:
            others[field.name] = str(field.field_type)
    return spark.StructType(columns), others


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
        return spark.MapType(_of_spark(kind.key_type), _of_spark(kind.value_type), not kind.value_required)
    if isinstance(kind, iceberg.StructType):
        fields = [spark.StructField(each.name, _of_spark(each.field_type), not each.required) for each in kind.fields]
        return spark.StructType(fields)
    raise NotOfSpark(str(kind))
