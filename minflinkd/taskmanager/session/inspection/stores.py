"""The stores in a copy of a query's checkpoint directory, and each as a frame of rows.

Spark's `state-metadata` source lists the operators, its `statestore` source reads one of their stores. Each store has
other columns there; here all have the same: `partition_id`, `key`, `value`, and `bytes`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from msgspec.structs import replace as copy
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import StructField, StructType

from minflinkd.rpc.messages import StateStore, StoreTotals
from minflinkd.rpc.snapshot import PlanNode
from minflinkd.runtime.errors import Consequence, Kind, MinflinkError, in_a_line
from minflinkd.taskmanager.session.inspection.sizes import row_bytes
from minflinkd.taskmanager.session.spark.failures import spark_message

KEY, VALUE, PARTITION, BYTES = "key", "value", "partition_id", "bytes"
TIMERS = "timers"
_JOIN = "symmetricHashJoin"
_USER_STATE = "transformWithState"
_TIMERS = ("$procTimers", "$eventTimers")  # how names of the stores of timers begin
_FORMS = {"ValueState": "value", "ListState": "list", "MapState": "map", "TimerState": TIMERS}


class NoSuchStore(MinflinkError):
    """The task has no store of this name."""

    code = "no-such-store"
    consequence = Consequence.REFUSED
    kind = Kind.NOT_FOUND


class StateNotReadable(MinflinkError):
    """Spark cannot read this state."""

    code = "state-not-readable"
    consequence = Consequence.REFUSED


@dataclass(frozen=True)
class Store:
    """One store. `options`: of Spark's source that reads it. `partitions`: how many the state has."""

    shown: StateStore
    partitions: int
    options: Mapping[str, str]

    @property
    def id(self) -> str:
        return self.shown.id


def stores(spark: SparkSession, directory: str, operators: Iterable[PlanNode]) -> list[Store]:
    """Return the stores in the checkpoint directory, in the order of the operators. Raises StateNotReadable."""
    nodes = {node.number: node for node in operators if node.stateful}
    try:
        rows = spark.read.format("state-metadata").load(directory).collect()
    except PySparkException as error:
        raise StateNotReadable(f"Spark cannot read what is recorded of the state: {_told(error)}") from error
    found: list[Store] = []
    done = set[int]()
    for row in sorted(rows, key=lambda row: int(row.operatorId)):
        number = int(row.operatorId)
        if number in done:  # a join has four stores of its own, which Spark reads as two sides
            continue
        done.add(number)
        node = nodes.get(number)
        shown = StateStore(
            id=str(number),
            operator=number,
            kind=node.kind if node is not None else str(row.operatorName),
            vertex=node.vertex if node is not None else "",
        )
        store = Store(shown, int(row.numPartitions), {"operatorId": str(number)})
        found.extend(_stores_of(store, str(row.operatorName), row.operatorProperties))
    return found


def _stores_of(store: Store, operator: str, properties: str | None) -> Iterator[Store]:
    if operator == _JOIN:
        for side in ("left", "right"):
            yield _named(store, side, "", joinSide=side)
    elif operator.startswith(_USER_STATE):
        variables = json.loads(properties or "{}").get("stateVariables", [])
        for variable in variables:
            name, form = str(variable["stateName"]), _FORMS.get(str(variable["stateVariableType"]), "value")
            if name.startswith(_TIMERS):
                form = TIMERS
            if form != TIMERS:
                yield _named(store, name, form, stateVarName=name)
        if any(str(variable["stateName"]).startswith(_TIMERS) for variable in variables):
            yield _named(store, TIMERS, TIMERS, readRegisteredTimers="true")
    else:
        yield store


def _named(store: Store, name: str, form: str, **options: str) -> Store:
    shown = copy(store.shown, id=f"{store.id}:{name}", name=name, form=form)
    return replace(store, shown=shown, options={**store.options, **options})


def chosen(found: Iterable[Store], wanted: str) -> Store:
    """Return the store with this id, or the only one with this name or of this vertex. Raises NoSuchStore."""
    known = list(found)
    exact = [store for store in known if store.id == wanted]
    alike = exact or [store for store in known if wanted in (store.shown.name, store.shown.vertex)]
    if len(alike) != 1:
        names = ", ".join(store.id for store in known) or "none: the task keeps no state"
        problem = "means several stores" if alike else "is no store of the task"
        raise NoSuchStore(f"{wanted[:100]!r} {problem}", hint=f"there are: {names}")
    return alike[0]


def frame(spark: SparkSession, directory: str, store: Store) -> DataFrame:
    """Return the rows of a store. Raises StateNotReadable.

    One Spark task reads all partitions, one after the other, so that the tasks of jobs in this session keep the other
    cores.
    """
    try:
        found = spark.read.format("statestore").options(**store.options).load(directory).coalesce(1)
        value = _value(found, store.shown.form)
        rows = found.select(fn.col(PARTITION), fn.col(KEY), value.alias(VALUE))
        rows = rows.select(fn.col(PARTITION), *(_unambiguous(rows, name).alias(name) for name in (KEY, VALUE)))
        sizes = " + ".join(row_bytes(_struct(rows, name), name) for name in (KEY, VALUE))
        return rows.withColumn(BYTES, fn.expr(sizes))
    except PySparkException as error:
        raise StateNotReadable(f"Spark cannot read the store {store.id}: {_told(error)}") from error


def described(store: Store, rows: DataFrame) -> Store:
    """Return the store with the types of its rows."""
    types = {name: rows.schema[name].dataType.simpleString() for name in (KEY, VALUE)}
    return replace(store, shown=copy(store.shown, key_type=types[KEY], value_type=types[VALUE]))


def _value(found: DataFrame, form: str) -> Column:
    """Return what is kept of a key in one row. Flattened lists and maps have a row for each element."""
    others = [name for name in found.columns if name not in (KEY, PARTITION)]
    if others == [VALUE]:
        return fn.col(VALUE)
    if form == "list" and len(others) == 1:
        return fn.col(others[0])
    names = {"user_map_key": "map_key", "user_map_value": "map_value"}
    return fn.struct(*(fn.col(name).alias(names.get(name, name)) for name in others))


def _unambiguous(rows: DataFrame, name: str) -> Column:
    """Return a struct with its fields renamed if several have the same name, as count(*) beside avg(x) makes them."""
    kind = _struct(rows, name)
    names = distinct(kind.names)
    if names == kind.names:
        return fn.col(name)
    fields = [StructField(new, old.dataType, old.nullable) for new, old in zip(names, kind.fields, strict=True)]
    return fn.col(name).cast(StructType(fields))


def distinct(names: Iterable[str]) -> list[str]:
    """Number names that come again: count, count_2. To SQL, upper and lower case are the same. Pure."""
    given = list(names)
    first = {name.lower() for name in given}
    taken = set[str]()
    found: list[str] = []
    for name in given:
        new, number = name, 1
        while new.lower() in taken or (number > 1 and new.lower() in first):
            number += 1
            new = f"{name}_{number}"
        taken.add(new.lower())
        found.append(new)
    return found


def _struct(rows: DataFrame, name: str) -> StructType:
    kind = rows.schema[name].dataType
    if not isinstance(kind, StructType):
        raise StateNotReadable(f"the {name} of its rows is {kind.simpleString()}, and no struct")
    return kind


def _told(error: PySparkException) -> str:
    return in_a_line(spark_message(error))


def counted(store: Store, totals: StoreTotals) -> Store:
    return replace(store, shown=copy(store.shown, totals=totals))


def failed(store: Store, error: MinflinkError) -> Store:
    """Return the store with the reason why it cannot be read."""
    return replace(store, shown=copy(store.shown, unreadable=in_a_line(str(error))))
