"""Figures of a running task, from Spark's progress reports. Pure: it is given the reports, and never asks for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from minflinkd.rpc.messages import TaskMetrics


def advance(metrics: TaskMetrics, progress: dict[str, Any]) -> TaskMetrics:
    """Take in the report of one finished micro-batch. One that was seen already changes nothing."""
    batch_id = int(progress["batchId"])
    if batch_id <= metrics.batch_id:
        return metrics
    operators = progress.get("stateOperators") or []
    return msgspec.structs.replace(
        metrics,
        batch_id=batch_id,
        batches=metrics.batches + 1,
        rows_in=metrics.rows_in + max(int(progress.get("numInputRows") or 0), 0),
        batch_ms=float((progress.get("durationMs") or {}).get("triggerExecution", 0)),
        rows_per_second=float(progress.get("processedRowsPerSecond") or 0.0),
        state_rows=sum(int(operator.get("numRowsTotal") or 0) for operator in operators),
        state_bytes=sum(int(operator.get("memoryUsedBytes") or 0) for operator in operators),
        watermark_ms=_watermark(progress) or metrics.watermark_ms,
    )


def _watermark(progress: dict[str, Any]) -> int | None:
    """None where there is none, or one of a year that Python does not know: time columns may hold anything."""
    try:
        return int(datetime.fromisoformat(progress["eventTime"]["watermark"]).timestamp() * 1000)
    except (KeyError, TypeError, ValueError):
        return None


def with_offsets(metrics: TaskMetrics, progress: dict[str, Any], names: Mapping[int, str]) -> TaskMetrics:
    """Where the sources stand behind this micro-batch; `names` by the sources' numbers."""
    found = {
        names[number]: offset if isinstance(offset, str) else json.dumps(offset, separators=(",", ":"))
        for number, source in enumerate(progress.get("sources") or [])
        if number in names and (offset := source.get("endOffset")) is not None
    }
    return msgspec.structs.replace(metrics, source_offsets=metrics.source_offsets | found)


def with_output(metrics: TaskMetrics, rows_out: int, first_batch_ms: float) -> TaskMetrics:
    return msgspec.structs.replace(metrics, rows_out=rows_out, first_batch_ms=first_batch_ms)
