"""What one attempt tells of its micro-batches: figures from Spark's progress reports, and its own."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Any

import msgspec

from minflinkd.rpc.messages import TaskMetrics
from minflinkd.taskmanager.session import metrics
from minflinkd.taskmanager.session.backpressure import Backpressure


class Progress:
    """Thread-safe: micro-batches finish on one thread, another one reports, and `tell`s."""

    def __init__(self, tell: Callable[[TaskMetrics], None], backpressure: Backpressure) -> None:
        self._tell = tell
        self._backpressure = backpressure
        self._received = time.monotonic()
        self._lock = threading.Lock()
        self._metrics = TaskMetrics()
        self._rows_out = 0
        self._finished_epoch = -1

    @property
    def metrics(self) -> TaskMetrics:
        """As they were told last."""
        return self._metrics

    def finished(self, epoch: int, rows_out: int) -> None:
        with self._lock:
            self._rows_out += rows_out
            self._finished_epoch = epoch

    def report(self, java_query: Any, source_names: Mapping[int, str], backlog: int) -> None:
        """Tell what is new: of micro-batches that are finished, and of what holds the next one back."""
        with self._lock:
            known, finished = self._metrics.batch_id, self._finished_epoch
        reports = _reports_since(java_query, known) if known < finished else []
        output = self._backpressure.output(backlog)
        with self._lock:
            before = self._metrics
            after = before
            for report in reports:
                if report["batchId"] <= self._finished_epoch:
                    after = metrics.with_offsets(metrics.advance(after, report), report, source_names)
            if after is not before:
                first = after.first_batch_ms
                if first is None:
                    first = (time.monotonic() - self._received) * 1000
                after = metrics.with_output(after, self._rows_out, first)
            elif not self._backpressure.is_news(output, before):
                return
            after = self._metrics = output.within(after)
        self._tell(after)

    @property
    def is_awaited(self) -> bool:
        """Nobody knows yet whether there are rows to process."""
        return not self._metrics.rows_in and not self._metrics.waited

    def waited(self) -> None:
        """The query has looked for rows, and found none."""
        with self._lock:
            told = self._metrics = msgspec.structs.replace(self._metrics, waited=True)
        self._tell(told)


def _reports_since(java_query: Any, batch_id: int) -> list[dict[str, Any]]:
    """Progress of later micro-batches, in their order. No other is read: each is a call to the JVM."""
    later = takewhile(lambda report: report.batchId() > batch_id, reversed(java_query.recentProgress()))
    return [json.loads(report.json()) for report in later][::-1]
