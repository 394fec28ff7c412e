"""Reads only the rows of some time, as a job's `input-range` says (`jobgraph.input_range`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody names it
from pyspark.sql.types import DateType, StructType, TimestampNTZType, TimestampType

from minflinkd.jobgraph.faults import GraphFault, vertex_path
from minflinkd.jobgraph.input_range import Limit, Limits
from minflinkd.jobgraph.model import Source
from minflinkd.rpc.snapshot import PlanNode
from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.session.plan.watermarks import NEVER
from minflinkd.taskmanager.session.spark.session import Session

_NEVER_MS: Final = int(NEVER.split()[0]) * 86_400_000
_WINDOW: Final = re.compile(
    r"- (\d+)\) % (\d+)\) END\) - \d+\) \+ (\d+)\), LongType, TimestampType"
)  # start, slide, length
_CUT: Final = "such a row would be of a part of its time, and replace the complete one"
_BORDERS: Final = "choose times at which windows begin"
_ALLOW: Final = "--allow-other-times, if that is right; in a job file input-range: {allow-other-times: true}"
_STARTS: Final = frozenset({"startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"})  # of Kafka


def options_within(source: Source, vertex: VertexId, limits: Limits | None) -> dict[str, str]:
    """Return the options of a source with which it reads nothing that is too old, as far as Spark can do it.

    A partition of Kafka without a record of the time, or of a later one, is read from its end on.
    """
    limit = _written(vertex, limits)
    if limit is None or source.format != "kafka":
        return source.options
    others = {name: value for name, value in source.options.items() if name.lower() not in _STARTS}
    since = max(limit.since_ms, 0)
    return others | {"startingTimestamp": str(since), "startingOffsetsByTimestampStrategy": "latest"}


def written_within(frame: DataFrame, source: Source, vertex: VertexId, limits: Limits | None) -> DataFrame:
    """Return the rows of a source that were written in its range, if it has one by this time."""
    limit = _written(vertex, limits)
    if limit is None:
        return frame
    if source.format == "kafka":
        written = frame["timestamp"]
    else:
        written = frame.metadataColumn("_metadata").getField("file_modification_time")
    return frame.where(_between(written, written, limit))


def happened_within(frame: DataFrame, vertex: VertexId, limits: Limits | None) -> DataFrame:
    """Return the rows of a vertex whose event time is in its range, if it has one. Of a window, all must be in it."""
    for limit in _of(vertex, limits):
        if limit.column:
            time = F.col(limit.column)
            kind = frame.select(time).schema[0].dataType
            if isinstance(kind, StructType) and {"start", "end"} <= set(kind.names):
                frame = frame.where(_between(time.getField("start"), time.getField("end"), limit, closed=True))
            else:
                frame = frame.where(_between(time, time, limit))
    return frame


def delay_within(delay: str, limits: Limits | None) -> str:
    """Return the delay of a watermark. In a range, it is one with which no row is late, in whatever order they come."""
    return delay if limits is None else NEVER


def faults_within(operators: tuple[PlanNode, ...], limits: Limits | None) -> Iterator[GraphFault]:
    """Yield the operators that a longer delay of the watermark would make do something else."""
    for node in operators if limits is not None else ():
        if node.kind == "DeduplicateWithinWatermark":
            problem = (
                "dropDuplicatesWithinWatermark looks back over the watermark's delay, and a range has a longer one"
            )
            hint = "use dropDuplicates, with the event time among its columns"
            yield GraphFault(path=vertex_path(node.vertex) if node.vertex else "vertices", problem=problem, hint=hint)


def keys_without_time(
    frame: DataFrame, keys: Mapping[VertexId, tuple[str, ...]], limits: Limits | None
) -> Iterator[GraphFault]:
    """Yield the sinks with a key whose rows may take the place of rows of another time, unless that is allowed.

    `frame`: what they get. `keys`: of each sink, by vertex.
    """
    for sink, key in keys.items() if limits is not None and limits.guarded else ():
        kinds = [field.dataType for field in frame.schema.fields if field.name in key]
        if key and not any(isinstance(kind, DateType | TimestampType | TimestampNTZType) for kind in kinds):
            names = ", ".join(key)
            problem = f"there is no date or time in the key ({names}), so rows of the range may replace later ones"
            yield GraphFault(path=f"{vertex_path(sink)}.sink", problem=problem, hint=_ALLOW)


def windows_cut(frames: Mapping[VertexId, DataFrame], limits: Limits | None) -> Iterator[GraphFault]:
    """Yield the first vertex of a task whose windows the range cuts, unless that is allowed. `frames`: in their order.

    Their rows would be of a part of the window only, and take the place of complete ones. Spark has replaced windows by
    arithmetic, `time - (time - start) % slide`, which its text shows. Should it look different one day, nothing is
    found, and a test fails.
    """
    for vertex, frame in frames.items() if limits is not None and limits.guarded else ():
        assert limits is not None
        text = str(frame._jdf.queryExecution().analyzed().toString())
        for start, slide, length in {tuple(map(int, found)) for found in _WINDOW.findall(text)}:
            if length > slide:
                problem = (
                    f"windows of {_told(length)} that begin every {_told(slide)} lie across the borders of the range"
                )
            elif any((ms * 1000 - start) % slide for ms in (limits.since_ms, limits.until_ms)):
                problem = f"the range begins or ends within a window of {_told(length)}"
            else:
                continue
            yield GraphFault(path=vertex_path(vertex), problem=f"{problem}: {_CUT}", hint=f"{_BORDERS}; or {_ALLOW}")
            return
        if "session_window#" in text:
            problem = f"a session may lie across a border of the range: {_CUT}"
            yield GraphFault(path=vertex_path(vertex), problem=problem, hint=_ALLOW)
            return


def _told(microseconds: int) -> str:
    return str(timedelta(microseconds=microseconds))


def sets_watermark(session: Session, frame: DataFrame, limits: Limits | None) -> bool:
    """Whether the code or SQL of a vertex sets a watermark by itself, in a job with a range.

    Its rows would not be chosen by that event time, and some would be late. Every other watermark never moves.
    """
    if limits is None:
        return False
    logical = getattr(session.jvm.org.apache.spark.sql.catalyst.plans.logical, "EventTimeWatermark$")
    rest = [frame._jdf.queryExecution().analyzed()]
    while rest:
        node = rest.pop()
        is_watermark = str(node.nodeName()) == "EventTimeWatermark"
        if is_watermark and int(getattr(logical, "MODULE$").getDelayMs(node.delay())) != _NEVER_MS:
            return True
        children = node.children()
        rest += [children.apply(i) for i in range(children.size())]
    return False


def _of(vertex: VertexId, limits: Limits | None) -> tuple[Limit, ...]:
    return () if limits is None else limits.vertices.get(vertex, ())


def _written(vertex: VertexId, limits: Limits | None) -> Limit | None:
    return next((limit for limit in _of(vertex, limits) if not limit.column), None)


def _between(begin: Column, end: Column, limit: Limit, *, closed: bool = False) -> Column:
    """`closed`: `end` may be the end of the range. That of a window is not in the window."""
    inside = begin >= _literal(limit.since_ms)
    if limit.until_ms is not None:
        until = _literal(limit.until_ms)
        inside = inside & (end <= until if closed else end < until)
    return inside


def _literal(ms: int) -> Column:
    return F.timestamp_millis(F.lit(ms))
