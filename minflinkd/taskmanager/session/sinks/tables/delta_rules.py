"""What a Delta table asks of its writer, and what staged files rely on (K2). Pure: it reads what the table says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import (
    BooleanType,
    DateType,
    DecimalType,
    IntegralType,
    StringType,
    StructType,
)

from minflinkd.taskmanager.session.plan.sink_checks import UnfitSink
from minflinkd.taskmanager.session.sinks.tables.fitting import leaves
from minflinkd.taskmanager.session.spark.frames import quoted

if TYPE_CHECKING:
    from deltalake import DeltaTable

_IDENTITY, _PARTITION_COLUMNS = "the table itself", "the partition columns"
# What a writer of appended files need not do anything for, or what is done here.
_FEATURES: Final = frozenset(
    {"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "deletionVectors", "timestampNtz"}
)
_CONSTRAINT: Final = "delta.constraints."
_MAPPED: Final = "delta.columnMapping.mode"
_COMPUTED: Final = ("delta.generationExpression", "delta.identity.start", "delta.identity.step", "delta.invariants")
_PARTITIONS: Final = (StringType, IntegralType, DateType, BooleanType, DecimalType)  # whose text is the same everywhere


def schema_of(table: DeltaTable) -> StructType:
    """Return a table's schema: Delta's form of it is Spark's."""
    return StructType.fromJson(json.loads(table.schema().to_json()))


def facts_of(table: DeltaTable) -> dict[str, str]:
    """Return what files of the table depend on: they have columns by name, and no partition columns."""
    metadata = table.metadata()
    columns = (leaves(field.dataType, f"column {field.name}") for field in schema_of(table).fields)
    partition_columns = ", ".join(metadata.partition_columns)
    return {_IDENTITY: str(metadata.id), _PARTITION_COLUMNS: partition_columns, **dict(chain.from_iterable(columns))}


def relied_on(table: DeltaTable, written: StructType) -> dict[str, str]:
    """Return the facts that must still hold when files with these columns are committed."""
    columns = chain.from_iterable(leaves(field.dataType, f"column {field.name}") for field in written.fields)
    names = {_IDENTITY, _PARTITION_COLUMNS, *(path for path, _ in columns)}
    return {name: fact for name, fact in facts_of(table).items() if name in names}


def check_features(table: DeltaTable, name: str) -> None:
    """Raise UnfitSink if the table asks more of a writer than is done here."""
    unknown = sorted(set(table.protocol().writer_features or ()) - _FEATURES)
    mapped = table.metadata().configuration.get(_MAPPED, "none") != "none"
    computed = [field.name for field in schema_of(table).fields if any(field.metadata.get(key) for key in _COMPUTED)]
    why = (
        f"uses {', '.join(unknown)}"
        if unknown
        else "maps its columns to other names"
        if mapped
        else f"computes or restricts {', '.join(computed)} itself"
        if computed
        else ""
    )
    if why:
        raise UnfitSink(
            f"{name} {why}, which this sink does not do",
            hint="write another table, or drop this feature of it, in Spark: ALTER TABLE ... DROP FEATURE",
        )


def check_partitions(schema: StructType, partition_by: Sequence[str], table: str) -> None:
    for name in partition_by:
        kind = next((field.dataType for field in schema.fields if field.name == name), None)
        if kind is not None and not isinstance(kind, _PARTITIONS):
            raise UnfitSink(
                f"{table} cannot be partitioned by {name}, which is {kind.simpleString()}",
                hint=f"partition by a text, date, whole number or boolean, such as CAST({name} AS DATE)",
            )


def conditions(table: DeltaTable, schema: StructType, partition_by: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each rule that the table has for its rows: a name and a condition in SQL, which must be true."""
    for field in schema.fields:
        if not field.nullable:
            value = quoted(field.name)
            if field.name in partition_by:  # in Delta's log an empty text of a partition is NULL
                value = f"nullif(CAST({value} AS STRING), '')"
            yield f"{field.name} NOT NULL", f"{value} IS NOT NULL"
    configuration: Mapping[str, Any] = table.metadata().configuration
    for name, condition in configuration.items():
        if name.startswith(_CONSTRAINT) and condition:
            yield name.removeprefix(_CONSTRAINT), str(condition)
