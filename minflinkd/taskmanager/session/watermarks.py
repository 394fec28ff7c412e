"""Watermarks that come and go through exchanges (J8a).

Arrow data carries none, so entries do. Coming in, the column that was event time upstream is marked with a watermark
whose delay is so long that it never moves by itself, and what the entries said is put in its place: Spark then takes
the least of all inputs, as it does for its own. That place is private, and found by reflection; a test fails if a new
Spark moves it.

Going out, a task promises what its last micro-batch was processed with: what that fired is in front of the entry. How
far stateful operators hold rows back beyond it (a join's do) Spark knows, and is asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.session import bounded
from minflinkd.taskmanager.session.spark import Session

NEVER = "36500 days"
_MARK = "spark.watermarkDelayMs"
_STATEFUL = "org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter"


def without_marks(schema: str) -> tuple[StructType, str | None]:
    """A schema as Spark's JSON, without watermarks, and the first column that had one."""
    fields = json.loads(schema)
    marked = None
    for field in fields["fields"]:
        if field.get("metadata", {}).pop(_MARK, None) is not None:
            marked = marked or field["name"]
    return StructType.fromJson(fields), marked


def is_idle(execution: Any) -> bool:
    """The query has looked for something to do, and found nothing; perhaps it waits for its next trigger now."""
    return finds_input(execution) is False


def finds_input(execution: Any) -> bool | None:
    """True: the query processes rows. False: it has looked for rows and found none. None: not known at this moment.

    "Waiting for data" it says for no more than 10 ms, and then that it waits for the next trigger.
    """
    status = execution.status()
    does = str(status.message())
    if does.startswith("Processing new data"):
        return True
    waits = does.startswith("Waiting for next trigger") and not status.isDataAvailable()
    return False if waits or does.startswith("Waiting for data") else None


def mark(frame: DataFrame, column: str) -> tuple[DataFrame, Any]:
    """The frame with `column` as event time, and the key of its watermark in Spark's tracker."""
    quoted = "`" + column.replace("`", "``") + "`"
    marked = frame.withWatermark(quoted, NEVER)
    return marked, marked._jdf.queryExecution().analyzed().nodeId()


class Watermarks:
    """Of one running query. Called from the query's own thread, between two micro-batches."""

    def __init__(self, session: Session, keys: Mapping[VertexId, Any], *, stateful: bool) -> None:
        self._session = session
        self._keys = keys
        self._stateful = stateful
        self._told: dict[VertexId, int] = {}

    def take_in(self, execution: Any, watermarks: Mapping[VertexId, int]) -> None:
        """From the next micro-batch on the query knows how far its inputs have come."""
        self._put(execution.watermarkTracker(), self._news(watermarks))

    def take_in_idle(self, execution: Any, watermarks: Mapping[VertexId, int]) -> None:
        """The same for a query that waits for data, from another thread: what the watermarks fire, fires now.

        As at the end of input, what the query derived for its next micro-batch is forgotten.
        """
        news, last = self._news(watermarks), execution.lastExecution()
        if not news or last is None:
            return
        with bounded.between_batches(self._session, execution) as forget:
            if not is_idle(execution):
                return
            tracker = execution.watermarkTracker()
            self._put(tracker, news)
            before = int(tracker.currentWatermark())
            tracker.updateWatermark(last.executedPlan())
            if int(tracker.currentWatermark()) != before:
                forget()

    def _news(self, watermarks: Mapping[VertexId, int]) -> dict[VertexId, int]:
        return {v: ms for v, ms in watermarks.items() if v in self._keys and self._told.get(v) != ms}

    def _put(self, tracker: Any, news: Mapping[VertexId, int]) -> None:
        if not news:
            return
        member = tracker.getClass().getDeclaredField("operatorToWatermarkMap")
        member.setAccessible(True)
        table = member.get(tracker)
        for vertex, ms in news.items():
            table.put(self._keys[vertex], self._some(ms))
            self._told[vertex] = ms

    def _some(self, value: int) -> Any:
        """`Some(value)` with a Java Long, which small numbers would not become."""
        array = self._session.gateway.new_array(self._session.jvm.long, 1)
        array[0] = value
        return self._session.jvm.scala.runtime.ScalaRunTime.wrapLongArray(array).headOption()

    def promised(self, execution: Any, processed_ms: int) -> int | None:
        """What the output of a micro-batch may promise that was processed with the watermark `processed_ms`.

        A restored query to which nothing came since has no plan that could be asked. Without state it holds nothing
        back; with state it has not yet fired what its watermark fires, if the checkpoint was cut in front of that.
        """
        if processed_ms <= 0:
            return None
        if (last := execution.lastExecution()) is None:
            return None if self._stateful else processed_ms
        return _output_watermark(self._session, last.executedPlan(), processed_ms)


def _output_watermark(session: Session, plan: Any, processed_ms: int) -> int | None:
    """The least that the last stateful operators on the way to each source let out; without any, what came in."""
    if is_instance_of(session.gateway, plan, _STATEFUL):
        inside = _eviction_watermark(plan)
        if inside is not None:
            out = plan.produceOutputWatermark(inside)
            return int(out.get()) if out.isDefined() else None
    children = plan.children()
    found = [_output_watermark(session, children.apply(i), processed_ms) for i in range(children.size())]
    if any(ms is None for ms in found):
        return None
    return min((ms for ms in found if ms is not None), default=processed_ms)


def _eviction_watermark(plan: Any) -> int | None:
    """None for an operator that no watermark acts on: it holds nothing back."""
    try:
        found = plan.eventTimeWatermarkForEviction()
    except Py4JError:  # it has none
        return None
    return int(found.get()) if found.isDefined() else None
