"""Checks what a sink needs of the code, the session and the rows, before anything starts (J4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, BooleanType, StringType

from minflinkd.jobgraph.changes import ChangeColumns, change_columns, check_changes
from minflinkd.jobgraph.delivery import DELETED, NEWEST_BY, delivery_of, key_of
from minflinkd.jobgraph.faults import Faults
from minflinkd.jobgraph.model import Delivery, Sink
from minflinkd.runtime.errors import MinflinkError
from minflinkd.taskmanager.session.code.libraries import JobCode
from minflinkd.taskmanager.session.plan.changes import newest
from minflinkd.taskmanager.session.spark.session import Session

HEADERS = "array<struct<key:string,value:binary>>"  # of a record of Kafka
METHODS = ("stage", "commit", "abort")


class UnfitSink(MinflinkError):
    """A sink cannot do what its `delivery` promises, or cannot write the rows that it gets."""

    code = "unfit-sink"


def check_code(sink: Sink, code: JobCode) -> Callable[..., Any]:
    """Return what a python sink names, if it fits the sink's `delivery`.

    Raises UnfitSink, and what importing it raises.
    """
    assert sink.python is not None
    found = code.function(sink.python)
    lacking = [name for name in METHODS if not callable(getattr(found, name, None))]
    if delivery_of(sink) is Delivery.EXACTLY_ONCE:
        if not isinstance(found, type) or lacking:
            why = f"lacks {', '.join(lacking)}" if isinstance(found, type) else "is a function"
            raise UnfitSink(
                f"{sink.python} {why}, and cannot be exactly-once",
                hint="name a class with stage(batch, epoch), commit(checkpoint_id, tokens) and abort(tokens)",
            )
    elif isinstance(found, type):
        hint = "delivery: exactly-once for a class that stages and commits; else name a function(batch, epoch)"
        raise UnfitSink(f"{sink.python} is a class, and the sink is at-least-once", hint=hint)
    return found


def check_rows(session: Session, sink: Sink, frame: DataFrame) -> None:
    """Raise UnfitSink if the sink lacks its connector, a topic, or columns that it needs."""
    columns = list(frame.columns)
    if sink.format == "kafka":
        if not _is_there(session, frame, "kafka"):
            raise UnfitSink(
                "Spark's Kafka connector is not installed",
                hint="add spark-sql-kafka-0-10 and its dependencies as jar artifacts, or to spark.jars of TaskManagers",
            )
        if "value" not in columns:
            hint = "SELECT CAST(carrier AS STRING) AS key, to_json(struct(*)) AS value FROM ..."
            raise UnfitSink(f"a kafka sink writes a column `value`, but gets {', '.join(columns)}", hint=hint)
        _check_types(frame, by_column=not sink.options.get("topic"))
        if "topic" not in columns and not sink.options.get("topic"):
            raise UnfitSink("the kafka sink has no topic", hint="options: {topic: out}, or a column `topic`")
    columns_of_changes = change_columns(sink)
    unwritten = () if columns_of_changes is None else columns_of_changes.unwritten
    missing = [name for name in (*key_of(sink), *sink.partition_by, *unwritten) if name not in columns]
    if missing:
        raise UnfitSink(f"there is no column {', '.join(missing)}", hint=f"the columns are {', '.join(columns)}")
    if columns_of_changes is not None and sink.options.keys() & {NEWEST_BY, DELETED}:
        _check_changes(sink, columns_of_changes, frame)


def _check_changes(sink: Sink, columns: ChangeColumns, frame: DataFrame) -> None:
    """Raise UnfitSink if the columns cannot say what changes, or which change is the newest."""
    faults = Faults()
    check_changes(sink, "", faults)  # again: params are filled in by now
    for fault in faults.found:
        raise UnfitSink(f"{fault.path.rpartition('.')[2]}: {fault.problem}", hint=fault.hint)
    name = columns.deleted
    if name is not None and not isinstance(kind := frame.schema[name].dataType, BooleanType):
        problem = f"{DELETED} names {name}, which is {kind.simpleString()}, not boolean"
        raise UnfitSink(problem, hint=f"SELECT ..., op = 'd' AS {name}")
    try:
        newest(frame, columns)
    except AnalysisException as error:
        kinds = ", ".join(f"{name} ({frame.schema[name].dataType.simpleString()})" for name in columns.newest_by)
        raise UnfitSink(
            f"Spark cannot find the newest row of each key by {kinds}: {' '.join(str(error).split())[:300]}",
            hint=f"{NEWEST_BY} names numbers, texts, dates or times",
        ) from error


def _check_types(frame: DataFrame, *, by_column: bool) -> None:
    """Raise UnfitSink if a column is not of the type that Kafka's records have.

    `by_column`: the topic is a column. Otherwise a column of that name is ignored.
    """
    for name in ("key", "value"):
        if name in frame.columns and not isinstance(kind := frame.schema[name].dataType, StringType | BinaryType):
            hint = f"CAST({name} AS STRING) AS {name}, or to_json(struct(*)) AS {name}"
            raise UnfitSink(f"a kafka sink writes texts or bytes, but `{name}` is {kind.simpleString()}", hint=hint)
    for name, wanted in (("topic", "string"), ("partition", "int"), ("headers", HEADERS)):
        if name == "topic" and not by_column:
            continue
        if name in frame.columns and (found := frame.schema[name].dataType.simpleString()) != wanted:
            hint = f"CAST({name} AS {wanted})"
            raise UnfitSink(f"in a kafka sink `{name}` is {wanted}, but here it is {found}", hint=hint)


def _is_there(session: Session, frame: DataFrame, name: str) -> bool:
    source = session.jvm.org.apache.spark.sql.execution.datasources.DataSource
    try:
        source.lookupDataSource(name, frame.sparkSession._jsparkSession.sessionState().conf())
    except Exception:  # not shown: Spark's own error only refers to its documentation
        return False
    return True
