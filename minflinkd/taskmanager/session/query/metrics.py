"""Computes the figures of a running task from Spark's progress reports. Pure: the caller passes the reports."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

import msgspec

from minflinkd.rpc.messages import TaskMetrics

_ONE_SCAN: Mapping[int, int] = {}


def advance(metrics: TaskMetrics, progress: dict[str, Any], rows_in: int | None = None) -> TaskMetrics:
    """Add the report of one finished micro-batch. One that was added already changes nothing.

    `rows_in`: the rows that this micro-batch read; None: as Spark counts them.
    """
    batch_id = int(progress["batchId"])
    if batch_id <= metrics.batch_id:
        return metrics
    operators = progress.get("stateOperators") or []
    if rows_in is None:
        rows_in = max(int(progress.get("numInputRows") or 0), 0)
    durations = progress.get("durationMs") or {}
    batch_ms = float(durations.get("triggerExecution", 0))
    return msgspec.structs.replace(
        metrics,
        batch_id=batch_id,
        batches=metrics.batches + 1,
        rows_in=metrics.rows_in + rows_in,
        batch_ms=batch_ms,
        busy_ms=metrics.busy_ms + batch_ms,
        batch_phases={name: float(ms) for name, ms in sorted(durations.items()) if name != "triggerExecution"},
        rows_per_second=float(progress.get("processedRowsPerSecond") or 0.0),
        state_rows=sum(int(operator.get("numRowsTotal") or 0) for operator in operators),
        state_bytes=sum(int(operator.get("memoryUsedBytes") or 0) for operator in operators),
        watermark_ms=_watermark(progress, metrics.watermark_ms),
    )


def is_executed(progress: dict[str, Any]) -> bool:
    """Whether the report belongs to a micro-batch that was executed.

    When Spark has looked for rows and found none it reports that too, under the number of the next micro-batch.
    """
    return "addBatch" in (progress.get("durationMs") or {})


def _watermark(progress: dict[str, Any], before: int | None) -> int | None:
    """Return the watermark in ms; 0 until a row has moved it, None if the query has none.

    It is the one `before` if its year is outside Python's range: time columns may hold any value.
    """
    try:
        return int(datetime.fromisoformat(progress["eventTime"]["watermark"]).timestamp() * 1000) or before or 0
    except (KeyError, TypeError, ValueError):
        return before


def with_offsets(metrics: TaskMetrics, progress: dict[str, Any], names: Mapping[int, str]) -> TaskMetrics:
    """Return the metrics with the offsets of sources after this micro-batch. `names`: by the sources' numbers."""
    found = {
        names[number]: offset if isinstance(offset, str) else json.dumps(offset, separators=(",", ":"))
        for number, source in enumerate(progress.get("sources") or [])
        if number in names and (offset := source.get("endOffset")) is not None
    }
    return msgspec.structs.replace(metrics, source_offsets=metrics.source_offsets | found)


def rows_by_source(
    progress: dict[str, Any], names: Mapping[int, str], scans: Mapping[int, int] = _ONE_SCAN
) -> dict[str, int]:
    """Return the rows of this micro-batch by the vertex of the source. `names`: by the sources' numbers.

    `scans`: by the same numbers, how often Spark counts a row; 0: another source counts it.
    """
    rows: dict[str, int] = {}
    for number, source in enumerate(progress.get("sources") or []):
        vertex = names.get(number, "source").partition("#")[0]
        times = scans.get(number, 1)
        counted = max(int(source.get("numInputRows") or 0), 0) // times if times else 0
        rows[vertex] = rows.get(vertex, 0) + counted
    return rows


def with_advance(
    metrics: TaskMetrics, progress: dict[str, Any], names: Mapping[int, str], exchanges: Collection[str]
) -> TaskMetrics:
    """Return the metrics with whether a source has had input by now.

    Exchanges do not count: their offset also moves when only a watermark came.
    """
    if metrics.advanced:
        return metrics
    moved = any(
        source.get("endOffset") != source.get("startOffset")
        for number, source in enumerate(progress.get("sources") or [])
        if names.get(number, "").partition("#")[0] not in exchanges
    )
    return msgspec.structs.replace(metrics, advanced=moved) if moved else metrics


def with_times(
    metrics: TaskMetrics, before: TaskMetrics, progress: dict[str, Any], rows: Mapping[str, int]
) -> TaskMetrics:
    """Return the metrics with what else the report of a micro-batch tells: where its time went, and when rows came.

    `before`: the metrics without this report. `rows`: those that it read, by vertex.
    """
    operators = progress.get("stateOperators") or []
    at = _time_of_day(progress.get("timestamp"))
    moved = metrics.watermark_moved_ms
    if at is not None and metrics.watermark_ms != before.watermark_ms:
        moved = at
    came = {} if at is None else {vertex: at for vertex, count in rows.items() if count}
    newest = _time_of_day((progress.get("eventTime") or {}).get("max"))
    return msgspec.structs.replace(
        metrics,
        commit_ms=sum(map(_mean_commit, operators)),
        late_rows=metrics.late_rows + sum(int(each.get("numRowsDroppedByWatermark") or 0) for each in operators),
        newest_ms=metrics.newest_ms if newest is None else newest,
        watermark_moved_ms=moved,
        source_rows_ms=metrics.source_rows_ms | came,
    )


def _mean_commit(operator: dict[str, Any]) -> float:
    """Spark adds the times of all partitions, which commit at the same time."""
    return float(operator.get("commitTimeMs") or 0) / max(int(operator.get("numShufflePartitions") or 1), 1)


def _time_of_day(text: Any) -> int | None:
    """Return a time of a report in ms since 1970; None if there is none, or Python's range does not have it."""
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (TypeError, ValueError, OverflowError):
        return None


def with_output(metrics: TaskMetrics, rows_out: int, first_batch_ms: float) -> TaskMetrics:
    return msgspec.structs.replace(metrics, rows_out=rows_out, first_batch_ms=first_batch_ms)
