"""What one attempt reports of its micro-batches: figures from Spark's progress reports, and its own."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import msgspec

from minflinkd.rpc.messages import BatchWork, PendingRecords, RealTimeFigures, SinkCompactions, TaskMetrics
from minflinkd.rpc.snapshot import RowCounts
from minflinkd.taskmanager.session.exchange.backpressure import Backpressure, Output
from minflinkd.taskmanager.session.query import metrics
from minflinkd.taskmanager.session.query.attempt_rows import AttemptRows

LONG = 10.0  # seconds after which it is told that a micro-batch still runs


@dataclass(frozen=True)
class OtherFigures:
    """What is told with the figures of micro-batches, and changes at other times."""

    compactions: Mapping[str, SinkCompactions] = field(default_factory=dict)
    real_time: RealTimeFigures | None = None
    pending: Mapping[str, PendingRecords] = field(default_factory=dict)

    def within(self, told: TaskMetrics) -> TaskMetrics:
        """Return metrics with these figures; the same object if nothing is new."""
        if (told.compactions, told.real_time, told.pending) == (self.compactions, self.real_time, self.pending):
            return told
        return msgspec.structs.replace(
            told, compactions=dict(self.compactions), real_time=self.real_time, pending=dict(self.pending)
        )


class Progress:
    """Collects an attempt's metrics. Thread-safe: micro-batches finish on one thread, another one calls `tell`."""

    def __init__(
        self, tell: Callable[[TaskMetrics], None], backpressure: Backpressure, *, batches_are_work: bool = True
    ) -> None:
        """`batches_are_work`: False if a batch mostly waits for rows, as in real-time mode."""
        self._tell = tell
        self._batches_are_work = batches_are_work
        self._began: float | None = None  # the running micro-batch, in seconds since 1970
        self._backpressure = backpressure
        self._received = time.monotonic()
        self._lock = threading.Lock()
        self._metrics = TaskMetrics()
        self._telling = threading.Lock()
        self._rows = AttemptRows()
        self._finished_epoch = -1

    @property
    def metrics(self) -> TaskMetrics:
        """The metrics that were told last."""
        return self._metrics

    def began(self) -> None:
        """Record that a micro-batch is being processed."""
        with self._lock:
            self._began = time.time()

    def finished(self, epoch: int, rows: RowCounts) -> None:
        """Record the rows that a finished micro-batch has written and rejected."""
        with self._lock:
            self._began = None
            self._rows.wrote(epoch, rows)
            self._finished_epoch = epoch

    def rows_at(self, epoch: int) -> RowCounts:
        """Return the attempt's row counts up to and including this micro-batch."""
        with self._lock:
            return self._rows.at(epoch)

    def has_reported(self, epoch: int) -> bool:
        """Whether Spark has reported the rows read up to this micro-batch; True for one of another attempt."""
        with self._lock:
            return not self._rows.is_awaited(epoch)

    def report(
        self,
        java_query: Any,
        source_names: Mapping[int, str],
        backlog: int,
        *,
        exchanges: Collection[str] = (),
        scans: Mapping[int, int] | None = None,
        replayable: bool = False,
        others: OtherFigures | None = None,
    ) -> None:
        """Tell what is new of finished micro-batches, and of backpressure on the next one.

        Only one thread tells at a time, so that older metrics are never told after newer ones.
        """
        with self._telling:
            output = self._backpressure.output(backlog, replayable=replayable)
            self._report(java_query, source_names, output, exchanges, scans or {}, others or OtherFigures())

    def _report(
        self,
        java_query: Any,
        source_names: Mapping[int, str],
        output: Output,
        exchanges: Collection[str],
        scans: Mapping[int, int],
        others: OtherFigures,
    ) -> None:
        with self._lock:
            known, finished = self._metrics.batch_id, self._finished_epoch
        reports = _reports_since(java_query, known) if known < finished else []
        with self._lock:
            before = self._metrics
            after = before
            for report in reports:
                if report["batchId"] <= self._finished_epoch and metrics.is_executed(report):
                    rows = metrics.rows_by_source(report, source_names, scans)
                    once = sum(rows.values()) if any(times != 1 for times in scans.values()) else None
                    busy_ms = after.busy_ms
                    after = metrics.advance(after, report, once)
                    if not self._batches_are_work:
                        after = msgspec.structs.replace(after, busy_ms=busy_ms)
                    after = metrics.with_offsets(after, report, source_names)
                    self._rows.has_read(report["batchId"], rows)
                    after = metrics.with_advance(after, report, source_names, exchanges)
                    after = metrics.with_times(after, before, report, rows)
            after = self._with_begin(after)
            after = others.within(after)
            if after.batch_id != before.batch_id:
                first = after.first_batch_ms
                if first is None:
                    first = (time.monotonic() - self._received) * 1000
                # Not of a micro-batch that has finished since: its report is not among these.
                rows_so_far = self._rows.at(after.batch_id)
                after = metrics.with_output(after, sum(rows_so_far.written.values()), first)
                after = msgspec.structs.replace(after, rows=rows_so_far)
            elif after is before and not self._backpressure.is_news(output, before):
                return
            after = self._metrics = output.within(after)
        self._tell(after)

    def add(self, work: BatchWork) -> None:
        """Tell what the partitions of a micro-batch did."""
        with self._telling:
            with self._lock:
                told = self._metrics = msgspec.structs.replace(self._metrics, work=work)
            self._tell(told)

    def _with_begin(self, told: TaskMetrics) -> TaskMetrics:
        """Return the metrics with the begin of a micro-batch that has run for long."""
        since = None
        if self._began is not None and time.time() - self._began >= LONG:
            since = round(self._began * 1000)
        return told if since == told.batch_since_ms else msgspec.structs.replace(told, batch_since_ms=since)

    @property
    def is_awaited(self) -> bool:
        """Whether the query has had no input yet, so that its first input is still awaited."""
        return not (self._metrics.rows_in or self._metrics.advanced)

    def waits(self, waits: bool) -> None:
        """Tell whether the query waits for input, if that has changed."""
        with self._telling:
            with self._lock:
                if self._metrics.waited is waits:
                    return
                told = self._metrics = msgspec.structs.replace(self._metrics, waited=waits)
            self._tell(told)


def _reports_since(java_query: Any, batch_id: int) -> list[dict[str, Any]]:
    """Return the progress of later micro-batches in their order. Reads no others, as each costs calls to the JVM."""
    later = takewhile(lambda report: report.batchId() > batch_id, reversed(java_query.recentProgress()))
    return [json.loads(report.json()) for report in later][::-1]
