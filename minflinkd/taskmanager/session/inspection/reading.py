"""Answers a question about state from a copy of a checkpoint directory, in a session of its own, within a time.

Nothing here knows the running query: it has other files, and no code of the job is needed. Spark's descriptions of the
state beside it say what its rows are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import structlog
from msgspec.structs import replace as copy
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from minflinkd.rpc import messages as m
from minflinkd.runtime.errors import MinflinkError, in_a_line
from minflinkd.taskmanager.child.protocol import CompareStates, LaidOut, ReadStates
from minflinkd.taskmanager.session.inspection import answers, keys
from minflinkd.taskmanager.session.inspection import stores as s
from minflinkd.taskmanager.session.inspection.deadline import Deadline
from minflinkd.taskmanager.session.inspection.parsed import parse
from minflinkd.taskmanager.session.inspection.query_check import VIEW, StateQueryRefused, check
from minflinkd.taskmanager.session.spark.failures import spark_message
from minflinkd.taskmanager.session.spark.session import Session, activate
from minflinkd.taskmanager.session.state import schema_paths

log = structlog.get_logger(__name__)

T = TypeVar("T")

_SETTINGS = {
    "spark.sql.variable.substitute": "false",  # ${env:...} in a query would show the session's environment
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.runSQLOnFiles": "false",
}
_TABLE, _STATE_TABLE = "DataSourceV2Relation", "StateTable"
_LEAVES = frozenset({_TABLE, "OneRowRelation", "CTERelationRef"})
_POOL = "state"  # of Spark's scheduler: shared by all readings, so that jobs get their turns


def read(session: Session, request: ReadStates) -> m.StateFound:
    """Answer a question. Blocks. Raises StateNotReadable, StateQueryRefused, StateReadExpired, NoSuchStore."""
    began = time.monotonic()
    question, place = request.question, request.state
    with _reading(session, request.read_id, request.timeout) as (spark, deadline):
        found = _stores(spark, place)
        wanted = s.chosen(found, question.store) if question.store else None
        shown: list[m.StateStore] = []
        answer = m.StateFound()
        for store in found:
            deadline.check()
            selected = wanted is None or store.id == wanted.id
            frame, store = _opened(spark, place.directory, store, required=wanted is not None and selected)
            if frame is None or not selected:
                shown.append(store.shown)
                continue
            chosen = frame.where(keys.condition(_key_of(frame), question.key, s.KEY)) if question.key else frame
            if not answer.store:
                answer = copy(_rows(spark, chosen, question), store=store.id)
            if question.totals:
                figures = answers.totals(chosen, store.partitions, question.largest)
                store = s.counted(store, figures)
            shown.append(store.shown)
    return copy(answer, stores=tuple(shown), milliseconds=round((time.monotonic() - began) * 1000, 1))


def compare(session: Session, request: CompareStates) -> m.StateGrowth:
    """Say what grew between two checkpoints. Blocks. Raises what `read` raises."""
    began = time.monotonic()
    with _reading(session, request.read_id, request.timeout) as (spark, deadline):
        before = {store.id: store for store in _stores(spark, request.before)}
        after = {store.id: store for store in _stores(spark, request.after)}
        known = {**before, **after}
        ids = [s.chosen(known.values(), request.store).id] if request.store else list(known)
        grown = []
        for name in ids:
            deadline.check()
            old, first = _opened_one(spark, request.before.directory, before.get(name))
            new, last = _opened_one(spark, request.after.directory, after.get(name))
            store = last or first
            assert store is not None
            totals = (
                None if old is None or first is None else answers.totals(old, first.partitions, 0),
                None if new is None or last is None else answers.totals(new, last.partitions, 0),
            )
            growth = m.StoreGrowth(store=store.shown, before=totals[0], after=totals[1])
            if old is not None and new is not None:
                added, removed, changed, top = answers.growth(old, new, request.largest)
                growth = copy(growth, keys_added=added, keys_removed=removed, keys_changed=changed, grown=top)
            grown.append(growth)
    return m.StateGrowth(stores=tuple(grown), milliseconds=round((time.monotonic() - began) * 1000, 1))


@contextmanager
def _reading(session: Session, read_id: str, timeout: float) -> Iterator[tuple[SparkSession, Deadline]]:
    """A Spark session of its own, active on this thread. Turns Spark's errors into StateNotReadable."""
    spark = session.spark.newSession()
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    context = spark.sparkContext
    deadline = Deadline(spark, f"state {read_id}", timeout)
    context.setLocalProperty("spark.scheduler.pool", _POOL)
    try:
        with deadline.enforced():
            activate(session, spark)
            yield spark, deadline
    except (PySparkException, Py4JError) as error:
        log.warning("state could not be read", error=in_a_line(spark_message(error)))
        raise s.StateNotReadable(f"Spark cannot read the state: {in_a_line(spark_message(error))}") from error
    finally:
        context.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]
        activate(session, session.spark)


def _stores(spark: SparkSession, place: LaidOut) -> list[s.Store]:
    """Return the stores of a laid-out checkpoint. None if the task had no micro-batch yet, or keeps no state."""
    directory = Path(place.directory)
    if place.batch_id < 0 or not (directory / "state").exists():
        return []
    schema_paths.localize(directory)
    return s.stores(spark, place.directory, place.operators)


def _opened(spark: SparkSession, directory: str, store: s.Store, *, required: bool) -> tuple[DataFrame | None, s.Store]:
    """Return the rows of a store and the store with its types; no rows if Spark cannot read it."""
    try:
        frame = s.frame(spark, directory, store)
    except s.StateNotReadable as error:
        if required:
            raise
        return None, s.failed(store, error)
    return frame, s.described(store, frame)


def _opened_one(spark: SparkSession, directory: str, store: s.Store | None) -> tuple[DataFrame | None, s.Store | None]:
    return (None, None) if store is None else _opened(spark, directory, store, required=False)


def _key_of(frame: DataFrame) -> Any:
    return frame.schema[s.KEY].dataType


def _rows(spark: SparkSession, frame: DataFrame, question: m.StateQuestion) -> m.StateFound:
    if question.sql:
        result, more = answers.result(_selected(spark, frame, question.sql), question.limit)
        return m.StateFound(result=result, truncated=more)
    if not question.limit:
        return m.StateFound()
    rows, more = answers.rows(frame, question.limit)
    return m.StateFound(rows=rows, truncated=more)


def _selected(spark: SparkSession, frame: DataFrame, text: str) -> DataFrame:
    """Return the rows that a SELECT over the view yields. Raises StateQueryRefused."""
    frame.createOrReplaceTempView(VIEW)
    plan, tree = parse(spark, text)
    check(tree)
    try:
        jvm: Any = spark._jvm
        dataset = getattr(jvm, "org.apache.spark.sql.classic.Dataset").ofRows(spark._jsparkSession, plan)
        leaves = dataset.queryExecution().analyzed().collectLeaves().iterator()
        while leaves.hasNext():
            _refuse_other_leaf(leaves.next())
    except PySparkException as error:
        raise StateQueryRefused(f"the query does not fit the state: {_in_short(error)}") from error
    except Py4JError as error:
        raise StateQueryRefused(f"the query does not fit the state: {_in_short(error)}") from error
    return DataFrame(dataset, spark)


def _refuse_other_leaf(leaf: Any) -> None:
    """A name in WITH may hide a table of the same name only in its scope. So what was found is looked at, too."""
    kind = str(leaf.getClass().getSimpleName()).removesuffix("$")
    if kind not in _LEAVES or (kind == _TABLE and str(leaf.table().getClass().getSimpleName()) != _STATE_TABLE):
        raise StateQueryRefused(f"the query reads something else than {VIEW}", hint=f"FROM {VIEW}")


def _in_short(error: Exception) -> str:
    return in_a_line(spark_message(error))


def as_domain_error(work: Callable[[], T]) -> T:
    """Run a reading. An error that nobody foresaw is still told as one of state that cannot be read."""
    try:
        return work()
    except MinflinkError:
        raise
    except Exception as error:
        log.exception("state could not be read")
        raise s.StateNotReadable(f"the state could not be read: {type(error).__name__}: {error}") from error
