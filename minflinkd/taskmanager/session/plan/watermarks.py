"""Watermarks that pass through exchanges (J8a).

Parquet files carry no watermarks, so the exchange's entries do. In an input, the column that was event time upstream
gets a watermark again, but with a delay so long that it never moves by itself. The entries' watermarks are put in its
place. Spark then takes the minimum over all inputs, as it does for its own watermarks. That place is a private field,
found by reflection; a test fails if a new Spark moves it.

To its output, a task promises the watermark that its last micro-batch was processed with: the rows that this watermark
fired come before the entry. Stateful operators (of joins, for example) may hold rows back for longer; Spark is asked
for how long.
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
from minflinkd.taskmanager.session.plan import bounded
from minflinkd.taskmanager.session.spark.frames import quoted
from minflinkd.taskmanager.session.spark.session import Session

NEVER = "36500 days"
_MARK = "spark.watermarkDelayMs"
_STATEFUL = "org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter"


def without_marks(schema: str) -> tuple[StructType, str | None]:
    """Parse a schema from Spark's JSON. Returns it without watermarks, and the first column that had one, or None."""
    fields = json.loads(schema)
    marked = None
    for field in fields["fields"]:
        if field.get("metadata", {}).pop(_MARK, None) is not None:
            marked = marked or field["name"]
    return StructType.fromJson(fields), marked


def is_idle(execution: Any) -> bool:
    """Whether the query has looked for something to do and found nothing. It may wait for its next trigger now."""
    return finds_input(execution) is False


def finds_input(execution: Any) -> bool | None:
    """Return True if the query processes rows, False if it looked for rows and found none, None if neither is known.

    Spark's status is "Waiting for data" for no more than 10 ms, and then "Waiting for next trigger".
    """
    status = execution.status()
    does = str(status.message())
    if does.startswith("Processing new data"):
        return True
    waits = does.startswith("Waiting for next trigger") and not status.isDataAvailable()
    return False if waits or does.startswith("Waiting for data") else None


def mark(frame: DataFrame, column: str) -> tuple[DataFrame, Any]:
    """Return the frame with `column` as event time, and the key of its watermark in Spark's tracker."""
    marked = frame.withWatermark(quoted(column), NEVER)
    return marked, marked._jdf.queryExecution().analyzed().nodeId()


class Watermarks:
    """The watermarks of one running query. Called from the query's own thread, between two micro-batches."""

    def __init__(self, session: Session, keys: Mapping[VertexId, Any], *, stateful: bool) -> None:
        self._session = session
        self._keys = keys
        self._stateful = stateful
        self._told: dict[VertexId, int] = {}

    def take_in(self, execution: Any, watermarks: Mapping[VertexId, int]) -> None:
        """Put in the watermarks of the inputs. They hold from the next micro-batch on."""
        self._put(execution.watermarkTracker(), self._news(watermarks))

    def take_in_idle(self, execution: Any, watermarks: Mapping[VertexId, int]) -> None:
        """Put in the watermarks of a query that waits for data, so that they fire now. Called from another thread.

        As at the end of input, the query forgets the watermarks that it has derived for its next micro-batch.
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
        """Return `Some(value)` with a Java Long: py4j would send a small number as an Integer."""
        array = self._session.gateway.new_array(self._session.jvm.long, 1)
        array[0] = value
        return self._session.jvm.scala.runtime.ScalaRunTime.wrapLongArray(array).headOption()

    def promised(self, execution: Any, processed_ms: int) -> int | None:
        """Return the watermark that the output may promise after a micro-batch processed with `processed_ms`, or None.

        A restored query that has run no micro-batch since has no plan to ask. Without state, it holds nothing back.
        With state, it may not yet have fired what its watermark fires, if the checkpoint was cut before that.
        """
        if processed_ms <= 0:
            return None
        if (last := execution.lastExecution()) is None:
            return None if self._stateful else processed_ms
        return _output_watermark(self._session, last.executedPlan(), processed_ms)


def _output_watermark(session: Session, plan: Any, processed_ms: int) -> int | None:
    """Return the minimum output watermark of the stateful operators nearest the sink, one on the path to each source.

    Without such an operator on a path, the watermark passes unchanged. None if an operator has no output watermark yet.
    """
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
    """Return an operator's eviction watermark; None if no watermark acts on it: then it holds nothing back."""
    try:
        found = plan.eventTimeWatermarkForEviction()
    except Py4JError:  # the operator has no such property
        return None
    return int(found.get()) if found.isDefined() else None
