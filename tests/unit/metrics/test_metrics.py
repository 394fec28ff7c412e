"""Prometheus metrics, made from samples, in a registry of their own (E30)."""

from __future__ import annotations

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from minflinkd.metrics.loop_lag import LoopLag
from minflinkd.metrics.registry import Metrics
from minflinkd.metrics.rpc import RpcFigures
from minflinkd.metrics.samples import (
    AutoscalerSample,
    CheckpointSample,
    ClusterSample,
    JobSample,
    RepeatedSample,
    TaskSample,
)
from minflinkd.runtime.clock import SystemClock
from minflinkd.storage.recording import RequestStatistics

SAMPLE = ClusterSample(
    jobs_by_status={"RUNNING": 2, "FAILED": 0},
    jobs=(
        JobSample(
            job_id="a" * 32,
            restarts=3,
            running_since=1.5,
            on_trial=True,
            repeated=RepeatedSample(failures=3, task="out", task_manager="tm-0123456789ab"),
            tasks=(
                TaskSample(
                    task_id="out",
                    rows_in=5,
                    rows_out=4,
                    batch_duration=0.2,
                    state_rows=1,
                    state_bytes=9,
                    watermark=None,
                    output_backlog=4096,
                    backpressured=True,
                    backpressured_time=2.5,
                ),
            ),
            checkpoints=CheckpointSample(
                completed=7,
                failed=1,
                failed_by_cause={"expired": 1},
                last_duration=0.3,
                physical_files=3,
                bytes_stored=1300,
                bytes_referenced=1000,
                amplification=1.3,
                files_deleted=9,
                bytes_rewritten=70,
                calls={"delete": (4, 0.5)},
            ),
            autoscaler=AutoscalerSample(
                slots={"default": 2},
                wanted={"default": 4.5},
                utilization={"default": 1.4},
                changes={"up": 2, "down": 1},
                limited=True,
            ),
        ),
    ),
    jobs_left_out=1,
    task_managers=2,
    task_managers_ready=1,
    slots_total=4,
    slots_free=2,
    heartbeat_ages={"tm-0123456789ab": 1.5},
)


def values(metrics: Metrics) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def test_a_sample_becomes_metrics() -> None:
    """Metrics cover jobs by state, restarts, checkpoints by cause, slots, TMs, heartbeat age, rows and state (E30)."""
    metrics = Metrics(version="1")
    metrics.cluster.show(SAMPLE)
    found = values(metrics)
    job = "a" * 32
    assert found["minflinkd_jobs", ("RUNNING",)] == 2
    assert found["minflinkd_jobs_not_shown", ()] == 1
    assert found["minflinkd_job_restarts_total", (job,)] == 3
    assert found["minflinkd_job_on_trial", (job,)] == 1
    assert found["minflinkd_job_autoscaler_wanted_slots", ("default", job)] == 4.5
    assert found["minflinkd_job_autoscaler_changes_total", ("down", job)] == 1
    assert found["minflinkd_job_autoscaler_limited", (job,)] == 1
    assert found["minflinkd_job_running_timestamp_seconds", (job,)] == 1.5
    assert found["minflinkd_job_restarting_repeatedly", (job, "out", "tm-0123456789ab")] == 3
    assert found["minflinkd_checkpoints_total", (job, "completed")] == 7
    assert found["minflinkd_checkpoint_failures_total", ("expired", job)] == 1
    assert found["minflinkd_checkpoint_last_duration_seconds", (job,)] == 0.3
    assert ("minflinkd_checkpoint_last_completed_timestamp_seconds", (job,)) not in found, "there was none"
    assert found["minflinkd_slots_free", ()] == 2
    assert found["minflinkd_taskmanagers", ()] == 2
    assert found["minflinkd_taskmanagers_ready", ()] == 1
    assert found["minflinkd_taskmanager_heartbeat_age_seconds", ("tm-0123456789ab",)] == 1.5
    assert found["minflinkd_task_rows_in", (job, "out")] == 5
    assert ("minflinkd_task_watermark_seconds", (job, "out")) not in found
    assert found["minflinkd_task_output_backlog_bytes", (job, "out")] == 4096
    assert found["minflinkd_task_backpressured", (job, "out")] == 1
    assert found["minflinkd_task_backpressured_seconds", (job, "out")] == 2.5


def test_the_files_of_a_jobs_checkpoints_are_measured() -> None:
    """Metrics cover files, bytes, amplification, compactions, and requests to the storage (F10)."""
    metrics = Metrics(version="1")
    metrics.cluster.show(SAMPLE)
    found, job = values(metrics), ("a" * 32,)
    assert found["minflinkd_checkpoint_physical_files", job] == 3
    assert found["minflinkd_checkpoint_stored_bytes", job] == 1300
    assert found["minflinkd_checkpoint_referenced_bytes", job] == 1000
    assert found["minflinkd_checkpoint_space_amplification", job] == 1.3
    assert found["minflinkd_checkpoint_files_deleted_total", job] == 9
    assert found["minflinkd_checkpoint_rewritten_bytes_total", job] == 70
    assert found["minflinkd_checkpoint_storage_calls_total", (*job, "delete")] == 4
    assert found["minflinkd_checkpoint_storage_seconds_total", (*job, "delete")] == 0.5


def test_what_could_not_be_asked_for_is_left_out() -> None:
    """An absent number is not 0 (E30)."""
    metrics = Metrics(version="1")
    names = {name for name, _ in values(metrics)}
    assert not any(name.startswith(("minflinkd_jobs", "minflinkd_slots", "minflinkd_taskmanagers")) for name in names)


def test_requests_are_counted_by_outcome() -> None:
    """RPCs have type and outcome, storage requests too (E30). Refused tokens (R1) and lost notices are counted."""
    figures = RpcFigures()
    figures.ended("ListJobs", "ok", 0.02)
    figures.ended("ListJobs", "unreachable", 3.0)
    figures.fenced["SlotsFree"] = 2
    figures.unreadable["unknown"] = 7
    metrics = Metrics(
        version="1",
        rpc=figures,
        storage_requests=lambda: {"file": {"create": RequestStatistics(requests=2, errors=1, retries=3, seconds=0.5)}},
    )
    found = values(metrics)
    assert found["minflinkd_rpc_requests_total", ("ListJobs", "unreachable")] == 1
    assert found["minflinkd_rpc_duration_seconds_sum", ("ListJobs",)] == 3.02
    assert found["minflinkd_rpc_duration_seconds_bucket", ("0.025", "ListJobs")] == 1
    assert found["minflinkd_rpc_duration_seconds_bucket", ("+Inf", "ListJobs")] == 2
    assert found["minflinkd_rpc_fenced_total", ("SlotsFree",)] == 2
    assert found["minflinkd_rpc_unreadable_total", ("unknown",)] == 7
    assert found["minflinkd_storage_errors_total", ("create", "file")] == 1
    assert found["minflinkd_storage_retries_total", ("create", "file")] == 3
    assert found["minflinkd_storage_seconds_total", ("create", "file")] == 0.5


def test_two_daemons_in_a_process_do_not_meet() -> None:
    first, second = Metrics(version="1"), Metrics(version="2")
    first.cluster.show(SAMPLE)
    assert ("minflinkd_slots", ()) not in values(second)
    assert second.registry.get_sample_value("minflinkd_info", {"version": "2"}) == 1


async def test_a_blocked_loop_is_seen() -> None:
    """The event loop's lag is a metric (A4)."""
    metrics = Metrics(version="1")
    async with LoopLag(metrics.registry, SystemClock(), interval=0.001):
        while (metrics.registry.get_sample_value("minflinkd_event_loop_lag_seconds_sum") or 0.0) < 0.02:
            stop = asyncio.get_running_loop().time() + 0.03
            while asyncio.get_running_loop().time() < stop:
                pass  # this is what a blocking call does to the loop
            await asyncio.sleep(0)
    count = metrics.registry.get_sample_value("minflinkd_event_loop_lag_seconds_count")
    assert count is not None
    assert count >= 1
