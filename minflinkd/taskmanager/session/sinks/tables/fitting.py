"""Brings the rows of a sink into the columns of a table that is there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody names it
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    IntegralType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from minflinkd.taskmanager.session.plan.sink_checks import UnfitSink
from minflinkd.taskmanager.session.spark.frames import column, quoted

# The types that take all values of a type.
_WIDER: dict[type[DataType], tuple[type[DataType], ...]] = {
    ByteType: (ShortType, IntegerType, LongType, FloatType, DoubleType),
    ShortType: (IntegerType, LongType, FloatType, DoubleType),
    IntegerType: (LongType, DoubleType),
    FloatType: (DoubleType,),
}
_DIGITS: dict[type[DataType], int] = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 19}


# A key is compared by value, in Spark, in Arrow and by the table's library.
_KEYS = (StringType, BooleanType, DateType, DecimalType, IntegralType, TimestampType, TimestampNTZType)


def check_key(schema: StructType, key: Sequence[str], table: str) -> None:
    """Raise UnfitSink if rows cannot be known by these columns. `table`: its name, for errors."""
    for name in key:
        kind = next((field.dataType for field in schema.fields if field.name == name), None)
        if not isinstance(kind, _KEYS):
            what = "no column of it" if kind is None else kind.simpleString()
            raise UnfitSink(
                f"rows of {table} cannot be known by {name}, which is {what}",
                hint="the key is of texts, dates, times, whole numbers, decimals and booleans, with their names as "
                "the table has them",
            )


def nullable(schema: StructType) -> StructType:
    """Return the schema with NULL allowed everywhere and without metadata, as a table that is made from rows has it."""
    return StructType([StructField(field.name, _nullable(field.dataType)) for field in schema.fields])


def _nullable(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return nullable(kind)
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    return kind


def new_columns(table: StructType, others: Iterable[str], rows: StructType) -> list[StructField]:
    """Return the columns of the rows that the table does not have. `others`: columns of it that Spark cannot write."""
    known = {*(field.name.lower() for field in table.fields), *(name.lower() for name in others)}
    return [field for field in nullable(rows).fields if field.name.lower() not in known]


def only_with(rows: DataFrame, rule: str, condition: str, table: str) -> DataFrame:
    """Return rows that fail where one of them does not fulfil a condition, which is SQL. `rule`, `table`: names.

    Raises UnfitSink if the condition needs a column that the rows do not have.
    """
    problem = F.raise_error(F.lit(f"a row breaks the rule {rule} of {table}"))
    try:
        held = F.coalesce(F.expr(condition), F.lit(False))
        return rows.where(F.when(held, F.lit(True)).otherwise(problem))
    except AnalysisException as error:
        raise UnfitSink(
            f"the rule {rule} of {table} cannot be checked: {condition} ({' '.join(str(error).split())[:200]})",
            hint="the rows need all columns that the rule names, and Spark must know its functions",
        ) from error


def with_key(rows: DataFrame, key: Sequence[str], table: str) -> DataFrame:
    """Return rows that fail where a column of the key is NULL. `table`: its name, for errors."""
    for name in key:
        rows = only_with(rows, f"key {name} NOT NULL", f"{quoted(name)} IS NOT NULL", table)
    return rows


def fitted(rows: DataFrame, schema: StructType, table: str) -> DataFrame:
    """Return the rows with the table's columns: their names, types and order. `table`: its name, for errors.

    A value may get a wider type. A column that the rows do not have is left out, so it is NULL in the table. Raises
    UnfitSink for columns, fields and values that the table does not have or take, and for those that it needs.
    """
    columns = {field.name.lower(): field for field in schema.fields}
    if len(columns) < len(schema.fields):
        raise UnfitSink(
            f"{table} has columns whose names differ only in upper and lower case", hint="write another table"
        )
    unknown = [name for name in rows.columns if name.lower() not in columns]
    if unknown:
        raise UnfitSink(
            f"{table} has no column {', '.join(unknown)}; it has {', '.join(field.name for field in schema.fields)}",
            hint="leave it out of the rows, or add it to the table; the option `schema: add-columns` does",
        )
    there = {name.lower() for name in rows.columns}
    missing = [field.name for field in schema.fields if not field.nullable and field.name.lower() not in there]
    if missing:
        raise UnfitSink(
            f"{table} needs a column {', '.join(missing)}, which may not be NULL, and the rows do not have it",
            hint=f"SELECT ..., <value> AS {missing[0]}",
        )
    for field in rows.schema.fields:
        wanted = columns[field.name.lower()]
        for problem in misfits(field.dataType, wanted.dataType, wanted.name):
            hint = "CAST the column in SQL; where NULL is not possible, coalesce() inside transform() or named_struct()"
            raise UnfitSink(f"the rows do not fit {table}: {problem}", hint=hint)
    # Spark would compare names as the job's settings say, and take a column that it does not find for NULL.
    # An alias keeps a column's metadata, with Iceberg's ids. What `to` adds goes if Spark finds nothing else to do.
    wanted_as = [(name, columns[name.lower()]) for name in rows.columns]
    named = rows.select([column(name).alias(field.name, metadata=field.metadata) for name, field in wanted_as])
    return named.to(StructType([_loosened(field) for field in schema.fields if field.name.lower() in there]))


def check_new(columns: Iterable[StructField], table: str) -> None:
    """Raise UnfitSink if a column cannot be made, since it has no type."""
    for field in columns:
        if "void" in field.dataType.simpleString():
            raise UnfitSink(
                f"{field.name} is only ever NULL, so {table} cannot have a column of its type",
                hint=f"give it a type: CAST(NULL AS STRING) AS {field.name}",
            )


def leaves(kind: DataType, path: str) -> Iterator[tuple[str, str]]:
    """Yield each part of a column that has a plain type: its path and the type."""
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield from leaves(field.dataType, f"{path}.{field.name}")
    elif isinstance(kind, ArrayType):
        yield from leaves(kind.elementType, f"{path}.element")
    elif isinstance(kind, MapType):
        yield from leaves(kind.keyType, f"{path}.key")
        yield from leaves(kind.valueType, f"{path}.value")
    else:
        yield path, kind.simpleString()


def misfits(given: DataType, wanted: DataType, path: str) -> Iterator[str]:
    """Yield why values of one type cannot be written as another. `path`: of the column or field. Pure."""
    if isinstance(given, StructType) and isinstance(wanted, StructType):
        yield from _misfits_of_fields(given, wanted, path)
    elif isinstance(given, ArrayType) and isinstance(wanted, ArrayType):
        yield from misfits(given.elementType, wanted.elementType, f"{path}.element")
        if given.containsNull and not wanted.containsNull:
            yield f"elements of {path} may not be NULL there"
    elif isinstance(given, MapType) and isinstance(wanted, MapType):
        yield from misfits(given.keyType, wanted.keyType, f"{path}.key")
        yield from misfits(given.valueType, wanted.valueType, f"{path}.value")
        if given.valueContainsNull and not wanted.valueContainsNull:
            yield f"values of {path} may not be NULL there"
    elif not _takes(wanted, given):
        yield f"{path} is {given.simpleString()}, and {wanted.simpleString()} there"


def _misfits_of_fields(given: StructType, wanted: StructType, path: str) -> Iterator[str]:
    fields = {field.name: field for field in wanted.fields}
    for field in given.fields:
        there = fields.pop(field.name, None)
        if there is None:
            yield f"{path} has no field {field.name} there"
            continue
        yield from misfits(field.dataType, there.dataType, f"{path}.{field.name}")
        if field.nullable and not there.nullable:
            yield f"{path}.{field.name} may not be NULL there"
    yield from (f"{path}.{field.name} is missing" for field in fields.values() if not field.nullable)


def _takes(wanted: DataType, given: DataType) -> bool:
    """Whether each value of a plain type is one of another type too."""
    if wanted == given or type(wanted) in _WIDER.get(type(given), ()):
        return True
    if not isinstance(wanted, DecimalType):
        return False
    if isinstance(given, DecimalType):
        return wanted.scale >= given.scale and wanted.precision - wanted.scale >= given.precision - given.scale
    return type(given) in _DIGITS and wanted.precision - wanted.scale >= _DIGITS[type(given)]


def _loosened(field: StructField) -> StructField:
    """Return a column of the table as rows get it: whether NULL is allowed is checked in another way."""
    return StructField(field.name, _without_rules(field.dataType), metadata=field.metadata)


def _without_rules(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return StructType([_loosened(field) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(_without_rules(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(_without_rules(kind.keyType), _without_rules(kind.valueType))
    return kind
