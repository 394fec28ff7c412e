"""Counts and summaries."""

from __future__ import annotations

from msgspec import json, structs

from minflinkd.checkpoint import statistics as s
from minflinkd.checkpoint.causes import FailureCause
from tests.unit.checkpoint.builders import NOON
from tests.unit.checkpoint.records import after, record


def test_a_checkpoint_is_counted_once_however_often_it_is_reported() -> None:
    """A checkpoint is counted as in progress first, then as ended (C30)."""
    statistics = after(record(1, s.CheckpointStatus.IN_PROGRESS), record(1, s.CheckpointStatus.IN_PROGRESS))
    assert (len(statistics.in_progress), statistics.completed) == (1, 0)
    statistics = s.recorded(statistics, record(1))
    assert (len(statistics.in_progress), statistics.completed, statistics.failed) == (0, 1, 0)


def test_failures_are_counted_by_cause_and_the_last_one_is_kept() -> None:
    """Causes are counted (C23, C30)."""
    statistics = after(record(1, s.CheckpointStatus.FAILED), record(2, s.CheckpointStatus.FAILED), record(3))
    assert (statistics.failed, statistics.failed_by_cause) == (2, {FailureCause.DECLINED: 2})
    assert statistics.latest_failed is not None
    assert statistics.latest_failed.checkpoint_id == 2


def test_the_history_is_bounded_and_newest_first() -> None:
    """The last ten that ended are kept (C30)."""
    statistics = after(*(record(n) for n in range(1, 21)), record(21, s.CheckpointStatus.IN_PROGRESS))
    assert [kept.checkpoint_id for kept in statistics.history] == list(range(20, 10, -1))
    assert len(statistics.durations_ms) == 20


def test_a_summary_has_flinks_quantiles() -> None:
    """The summary has min, avg, max, p50, p95 and p99 (C30)."""
    statistics = after(*(record(n, ms=n * 10) for n in range(1, 102)))
    duration = s.summary(statistics.durations_ms)
    assert (duration.min, duration.avg, duration.max) == (10, 510, 1010)
    assert (duration.p50, duration.p95, duration.p99) == (510, 960, 1000)
    assert s.summary(statistics.sizes_full).max == 1500
    assert s.summary(statistics.sizes_uploaded).max == 250
    assert set(structs.astuple(s.summary(()))) == {0}


def test_how_long_the_publication_took_is_added_when_it_is_over() -> None:
    """A checkpoint is complete before its sinks have committed (C30)."""
    statistics = after(record(1), record(2))
    assert statistics.latest_completed is not None
    assert statistics.latest_completed.notify_ms == -1
    statistics = s.published(statistics, 2, 12.5)
    assert statistics.latest_completed is not None
    assert statistics.latest_completed.notify_ms == 12.5
    assert [ended.notify_ms for ended in statistics.history] == [12.5, -1]


def test_statistics_that_an_earlier_version_stored_are_read() -> None:
    """The results of ended jobs contain them (F9)."""
    task = {"task_id": "a", "acknowledged_ms": NOON, "sync_ms": 1, "async_ms": 1, "segments": 1, "physical_files": 1}
    sizes = {"bytes_full": 1, "bytes_uploaded": 1}
    ended = {"checkpoint_id": 1, "kind": "final", "status": "COMPLETED", "triggered_ms": NOON, "num_tasks": 1}
    old = {"completed": 1, "history": [{**ended, "tasks": [{**task, **sizes}]}]}
    read = json.decode(json.encode(old), type=s.CheckpointStatistics)
    assert (read.history[0].checkpoint_id, read.history[0].duration_ms) == (1, 0)
