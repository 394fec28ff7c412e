"""How rows get into the partitions of an Iceberg table, whose files may hold rows of one partition only.

For each partition field the rows get a column with the value of its transform, and Spark makes a directory for each
combination of values. The directory's text is then read back. It is the same for equal values, and never empty, which
Spark would take for NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody names it
from pyspark.sql import types as spark

from minflinkd.taskmanager.session.plan.sink_checks import UnfitSink
from minflinkd.taskmanager.session.spark.frames import quoted

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema

_DAY, _HOUR = 86_400_000_000, 3_600_000_000  # in microseconds
_MARK: Final = "="  # before each text
_WHOLE: Final = (spark.IntegralType, spark.DateType, spark.TimestampType)


def by_value(kind: spark.DataType) -> bool:
    """Whether a column of this type can be partitioned by its values."""
    return _stored(F.lit(None), kind) is not None


def columns(spec: PartitionSpec, schema: Schema, rows: spark.StructType, table: str) -> dict[str, Column]:
    """Return the columns that rows need, by name, in the order of the partition fields. Raises UnfitSink.

    `rows`: the types of the rows. `table`: its name, for errors.
    """
    return {f"minflinkd_p{n}": _column(field, schema, rows, table) for n, field in enumerate(spec.fields)}


def values(spec: PartitionSpec, schema: Schema, texts: Mapping[str, str | None]) -> list[Any]:
    """Return the values of a partition, as Iceberg stores them, from the texts of its directory."""
    kinds = [str(field.field_type) for field in spec.partition_type(schema).fields]
    return [_value(kind, text) for kind, text in zip(kinds, texts.values(), strict=True)]


def _column(field: PartitionField, schema: Schema, rows: spark.StructType, table: str) -> Column:
    transform = str(field.transform)
    if transform == "void":
        return F.lit(None).cast("string")
    name = schema.find_column_name(field.source_id) or ""
    found = [column for column in rows.fields if column.name == name]
    if not found:
        raise UnfitSink(
            f"{table} is partitioned by {transform} of {name}, a column that the rows do not have",
            hint=f"add {name} to the rows; a field of a struct is not possible here",
        )
    made = _transformed(transform, name, found[0].dataType, lambda: _bucket(field, schema))
    if made is None:
        raise UnfitSink(
            f"{table} is partitioned by {transform} of {name}, a {found[0].dataType.simpleString()}, which is not "
            "written here",
            hint="write another table, or give this one another partition spec",
        )
    return F.concat(F.lit(_MARK), made.cast("string"))


def _transformed(transform: str, name: str, kind: spark.DataType, bucket: Callable[[], Any]) -> Column | None:
    """Return a column with the transform's value; None if that is not possible."""
    column = F.col(quoted(name))
    stored = _stored(column, kind)
    verb, _, rest = transform.partition("[")
    if verb == "identity":
        return stored
    if verb == "bucket":
        plain = stored if isinstance(kind, _WHOLE) else column
        return None if plain is None else bucket()(plain)
    if verb == "truncate":
        return _truncated(column, kind, int(rest.rstrip("]")))
    return _time_part(verb, column, kind)


def _stored(column: Column, kind: spark.DataType) -> Column | None:
    """Return a column whose text says the value as Iceberg stores it; None for types that are not possible."""
    if isinstance(kind, spark.DateType):
        return F.unix_date(column)
    if isinstance(kind, spark.TimestampType):
        return F.unix_micros(column)
    fits = isinstance(kind, spark.StringType | spark.IntegralType | spark.BooleanType | spark.DecimalType)
    return column if fits else None


def _truncated(column: Column, kind: spark.DataType, width: int) -> Column | None:
    if isinstance(kind, spark.StringType):
        return F.substring(column, 1, width)
    if isinstance(kind, spark.IntegralType):
        return column - F.pmod(column, F.lit(width))
    if isinstance(kind, spark.DecimalType):
        step = Decimal(width).scaleb(-kind.scale)
        return (column - F.pmod(column, F.lit(step))).cast(kind)
    return None


def _time_part(unit: str, column: Column, kind: spark.DataType) -> Column | None:
    """Return years, months, days or hours since 1970, in UTC whatever the session's time zone is."""
    if isinstance(kind, spark.TimestampType):
        micros = F.unix_micros(column)
        days = _whole(micros, _DAY)
        date = F.date_from_unix_date(days.cast("int"))
        hours = _whole(micros, _HOUR)
    elif isinstance(kind, spark.TimestampNTZType):
        date = F.to_date(column)
        days = F.unix_date(date)
        hours = days * 24 + F.hour(column)
    elif isinstance(kind, spark.DateType) and unit != "hour":
        date, days, hours = column, F.unix_date(column), column
    else:
        return None
    years = F.year(date) - 1970
    return {"year": years, "month": years * 12 + F.month(date) - 1, "day": days, "hour": hours}.get(unit)


def _whole(micros: Column, unit: int) -> Column:
    return ((micros - F.pmod(micros, F.lit(unit))) / unit).cast("long")


def _bucket(field: PartitionField, schema: Schema) -> Any:
    """Return a function of Spark. Its hash is not Spark's, so Python computes it, with Iceberg's library."""
    transform = field.transform.transform(schema.find_type(field.source_id))
    return F.udf(transform, spark.IntegerType())


def stored(kind: str, text: Any) -> Any:
    """Return a value as Iceberg stores it. `kind`: its type. `text`: what JSON has for it."""
    return Decimal(text) if text is not None and kind.startswith("decimal") else text


def _value(kind: str, text: str | None) -> Any:
    if text is None:
        return None
    text = text.removeprefix(_MARK)
    if kind == "string":
        return text
    if kind == "boolean":
        return text == "true"
    return Decimal(text) if kind.startswith("decimal") else int(text)
