"""What an attempt reports of its input: rows, how far its sources are, and whether there is any yet (H7)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from minflinkd.rpc.messages import TaskMetrics
from minflinkd.rpc.snapshot import RowCounts
from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.session.exchange.backpressure import Backpressure
from minflinkd.taskmanager.session.query.progress import Progress

NAMES = {0: "events", 1: "totals"}
TOTALS = frozenset({VertexId("totals")})


@dataclass
class Report:
    """Spark's report of one micro-batch."""

    value: dict[str, Any]

    def batchId(self) -> int:  # noqa: N802
        return int(self.value["batchId"])

    def json(self) -> str:
        return json.dumps(self.value)


class Query:
    def __init__(self) -> None:
        self.reports: list[Report] = []

    def recentProgress(self) -> list[Report]:  # noqa: N802
        return self.reports


class Attempt:
    def __init__(self) -> None:
        self.told: list[TaskMetrics] = []
        self.progress = Progress(self.told.append, Backpressure())
        self.query = Query()

    def batch(self, rows: int, *offsets: tuple[int | None, int | None]) -> TaskMetrics:
        number = len(self.query.reports)
        sources = [{"startOffset": start, "endOffset": end} for start, end in offsets]
        value = {"batchId": number, "numInputRows": rows, "sources": sources, "durationMs": {"addBatch": 1}}
        self.query.reports.append(Report(value))
        self.progress.finished(number, RowCounts(written={}))
        self.progress.report(self.query, NAMES, 0, exchanges=TOTALS)
        return self.told[-1]


def test_a_source_that_is_further_than_it_was_has_had_input_though_spark_counts_no_rows() -> None:
    """If Spark cannot match the executed plan's leaves with the sources, it counts no rows and only warns."""
    attempt = Attempt()
    assert not attempt.batch(0, (4, 4)).advanced, "a restored query begins with a micro-batch that has none"
    assert attempt.progress.is_awaited
    assert attempt.batch(0, (4, 5)).advanced
    assert not attempt.progress.is_awaited
    assert attempt.batch(0, (5, 5)).advanced, "it is not forgotten"


def test_a_source_that_is_read_for_the_first_time_has_had_input_once_it_has_an_offset() -> None:
    attempt = Attempt()
    assert not attempt.batch(0, (None, None)).advanced
    assert attempt.batch(0, (None, 0)).advanced


def test_an_exchange_is_further_also_with_nothing_but_a_watermark() -> None:
    """The task that writes to it reports whether there was input."""
    attempt = Attempt()
    assert not attempt.batch(0, (4, 4), (7, 8)).advanced
    assert attempt.batch(3, (4, 4), (8, 9)).rows_in == 3
    assert not attempt.progress.is_awaited


def test_rows_out_are_those_of_the_micro_batches_that_spark_has_reported() -> None:
    """A micro-batch may finish while the reports are read. Its rows would come without it."""
    attempt = Attempt()
    attempt.progress.finished(0, RowCounts(written={"out": 3}))
    attempt.progress.finished(1, RowCounts(written={"out": 3}))
    report = {"batchId": 0, "numInputRows": 5, "sources": [], "durationMs": {"addBatch": 1}}
    attempt.query.reports.append(Report(report))
    attempt.progress.report(attempt.query, NAMES, 0)
    (told,) = attempt.told
    assert (told.batches, told.rows_out, told.rows.written) == (1, 3, {"out": 3})
    attempt.query.reports.append(Report(report | {"batchId": 1}))
    attempt.progress.report(attempt.query, NAMES, 0)
    assert (attempt.told[-1].batches, attempt.told[-1].rows_out) == (2, 6)


def test_a_query_that_waits_and_then_finds_input_waits_no_more() -> None:
    """Whether the query processes that input is not known yet. Each of the two states is reported once."""
    attempt = Attempt()
    for waits in (True, True, False, False, True):
        attempt.progress.waits(waits)
    assert [metrics.waited for metrics in attempt.told] == [True, False, True]
