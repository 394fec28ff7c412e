"""Brings the rows of a sink into the columns of a table that is there."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody names it
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from minflinkd.taskmanager.session.plan.sink_checks import UnfitSink


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


def new_columns(table: StructType, rows: StructType) -> list[StructField]:
    """Return the columns of the rows that the table does not have."""
    known = {field.name.lower() for field in table.fields}
    return [field for field in nullable(rows).fields if field.name.lower() not in known]


def only_with(rows: DataFrame, rule: str, condition: str, table: str) -> DataFrame:
    """Return rows that fail where one of them does not fulfil a condition, which is SQL. `rule`, `table`: names."""
    held = F.coalesce(F.expr(condition), F.lit(False))
    problem = F.raise_error(F.lit(f"a row breaks the rule {rule} of {table}"))
    return rows.where(F.when(held, F.lit(True)).otherwise(problem))


def fitted(rows: DataFrame, schema: StructType, table: str) -> DataFrame:
    """Return the rows with the table's columns: their names, types and order. `table`: its name, for errors.

    A number may get a wider type. A column that the rows do not have is left out, so it is NULL in the table. Raises
    UnfitSink for columns that the table does not have, and lacks; AnalysisException for types that do not fit.
    """
    columns = {field.name.lower(): field for field in schema.fields}
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
    wanted = StructType([field for field in schema.fields if field.name.lower() in there])
    return rows.to(nullable(wanted))
