"""Turns the parties' answers into samples for the metrics. Labels and time are bounded; a scrape never fails."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

import msgspec

from minflinkd.checkpoint.causes import FailureCause, Refusal
from minflinkd.checkpoint.messages import GetCheckpoints
from minflinkd.checkpoint.offsets import value
from minflinkd.checkpoint.row_counts import bad_records
from minflinkd.checkpoint.statistics import CheckpointStatistics, summary
from minflinkd.metrics.samples import (
    AutoscalerSample,
    CheckpointSample,
    ClusterSample,
    JobSample,
    RepeatedSample,
    TaskSample,
)
from minflinkd.rest.backend import Backend
from minflinkd.rest.blobs import BlobListing
from minflinkd.rest.jvm import jvm_sample, memory
from minflinkd.rpc.autoscaler import LIMITED, AutoscalerStatus
from minflinkd.rpc.jobs import GetJob, JobDetails, JobOverview, JobStatus, RepeatedFailures, TaskDetails
from minflinkd.rpc.messages import LATENCY_BOUNDS, RealTimeFigures, Request, SessionPhase
from minflinkd.runtime.errors import MinflinkError

R = TypeVar("R")

MAX_JOBS = 200  # with their own metrics: running jobs, oldest first, so that series continue
MAX_TASK_MANAGERS = 1000
MAX_OFFSET_PARTS = 64  # per source, e.g. partitions of a topic
TIMEOUT = 2.0  # seconds for a job's part


class Measuring:
    def __init__(self, backend: Backend, blobs: BlobListing | None = None) -> None:
        self._backend = backend
        self._blobs = blobs

    async def sample(self) -> ClusterSample:
        return await self._with_blobs(await self._resources(await self._jobs()))

    async def _with_blobs(self, sample: ClusterSample) -> ClusterSample:
        if self._blobs is None:
            return sample
        try:
            return msgspec.structs.replace(sample, blobs=await self._blobs.sample())
        except MinflinkError:
            return sample

    async def _jobs(self) -> ClusterSample:
        try:
            jobs = await self._backend.jobs.get()
        except MinflinkError:
            return ClusterSample()
        running = sorted((job for job in jobs if not job.status.terminal), key=lambda job: (job.start_ms, job.job_id))
        samples = await asyncio.gather(*(self._job(job) for job in running[:MAX_JOBS]))
        counts = Counter(str(job.status) for job in jobs)
        return ClusterSample(
            jobs_by_status={status: counts[status] for status in JobStatus},
            jobs=tuple(sample for sample in samples if sample is not None),
            jobs_left_out=len(running) - sum(sample is not None for sample in samples),
        )

    async def _job(self, job: JobOverview) -> JobSample | None:
        details = await self._ask(GetJob(job_id=job.job_id))
        if details is None:
            return None
        statistics = await self._ask(GetCheckpoints(job_id=job.job_id))
        return _job_sample(details, None if statistics is None else _checkpoint_sample(statistics))

    async def _resources(self, sample: ClusterSample) -> ClusterSample:
        try:
            overview = await self._backend.resources.get()
            task_managers = await self._backend.task_managers.get()
        except MinflinkError:
            return sample
        now = self._backend.clock.epoch_ms()
        return msgspec.structs.replace(
            sample,
            task_managers=overview.task_managers,
            task_managers_ready=sum(info.report.session is SessionPhase.READY for info in task_managers),
            task_managers_starting=len(overview.starting),
            task_managers_lost=overview.lost,
            slots_total=overview.slots_total,
            slots_free=overview.slots_free,
            pending_needs=overview.pending_needs,
            heartbeat_ages={
                info.resource_id: max(0.0, (now - info.last_heartbeat_ms) / 1000)
                for info in task_managers[:MAX_TASK_MANAGERS]
            },
            disks={
                info.resource_id: (free, whole)
                for info in task_managers[:MAX_TASK_MANAGERS]
                if (free := info.report.metrics.get("disk.free_bytes")) is not None
                if (whole := info.report.metrics.get("disk.total_bytes"))
            },
            jvms={
                info.resource_id: jvm
                for info in task_managers[:MAX_TASK_MANAGERS]
                if (jvm := jvm_sample(info.report.metrics)) is not None
            },
            memory={info.resource_id: memory(info.report.metrics) for info in task_managers[:MAX_TASK_MANAGERS]},
        )

    async def _ask(self, question: Request[R]) -> R | None:
        try:
            return await self._backend.dispatcher(question, TIMEOUT)
        except MinflinkError:
            return None


def _job_sample(details: JobDetails, checkpoints: CheckpointSample | None) -> JobSample:
    return JobSample(
        job_id=details.job_id,
        restarts=details.restarts,
        running_since=details.timestamps.get("RUNNING", 0) / 1000 if details.status is JobStatus.RUNNING else None,
        on_trial=details.on_trial,
        repeated=None if details.repeated is None else _repeated_sample(details.repeated),
        hot_restarts=details.hot_restart_outcomes,
        hot_restart_phases=next((r.phases for r in details.hot_restarts if r.state.over), {}),
        tasks=tuple(map(_task_sample, details.tasks)),
        checkpoints=checkpoints,
        autoscaler=_autoscaler_sample(details.autoscaler),
    )


def _autoscaler_sample(told: AutoscalerStatus | None) -> AutoscalerSample | None:
    if told is None or not told.enabled:
        return None
    return AutoscalerSample(
        slots={each.group: each.slots for each in told.groups},
        wanted={each.group: each.wanted for each in told.groups},
        utilization={each.group: each.utilization for each in told.groups},
        changes={"up": told.ups, "down": told.downs},
        limited=told.verdict == LIMITED,
    )


def _repeated_sample(found: RepeatedFailures) -> RepeatedSample:
    last = found.last
    return RepeatedSample(failures=found.failures, task=last.task_id or "", task_manager=last.resource_id or "")


def _task_sample(details: TaskDetails) -> TaskSample:
    metrics = details.metrics
    return TaskSample(
        task_id=details.task.id,
        rows_in=sum(details.rows.read.values()),
        rows_out=sum(details.rows.written.values()),
        bad_records=bad_records(details.task, details.rows),
        compacted_files={sink: told.files for sink, told in metrics.compactions.items()},
        failed_compactions={sink: told.failed for sink, told in metrics.compactions.items()},
        latencies=_latencies(metrics.real_time),
        latency_buckets=_latency_buckets(metrics.real_time),
        latency_sum=metrics.real_time.latency_sum_ms / 1000 if metrics.real_time is not None else 0.0,
        cut_pause=_cut_pause(metrics.real_time),
        batch_duration=metrics.batch_ms / 1000,
        state_rows=metrics.state_rows,
        state_bytes=metrics.state_bytes,
        watermark=None if metrics.watermark_ms is None else metrics.watermark_ms / 1000,
        offsets=_offsets(metrics.source_offsets),
        pending={
            (source, part): count
            for source, told in details.pending.items()
            if told.partitions <= MAX_OFFSET_PARTS  # of more, those with most records would be others each time
            for part, count in told.parts.items()
        },
        pending_records={source: told.records for source, told in details.pending.items()},
        output_backlog=metrics.output_backlog,
        backpressured=metrics.backpressured,
        backpressured_time=metrics.backpressured_ms / 1000,
    )


def _latencies(told: RealTimeFigures | None) -> dict[str, float]:
    """Return the latencies by quantile; none without rows."""
    if told is None or told.p50_ms is None or told.p99_ms is None or told.longest_ms is None:
        return {}
    return {"0.5": told.p50_ms / 1000, "0.99": told.p99_ms / 1000, "1": told.longest_ms / 1000}


def _latency_buckets(told: RealTimeFigures | None) -> tuple[tuple[str, int], ...]:
    """Return the rows below each bound, as Prometheus writes it."""
    if told is None or not told.latency_counts:
        return ()
    return tuple(zip([*(str(ms / 1000) for ms in LATENCY_BOUNDS), "+Inf"], told.latency_counts, strict=True))


def _cut_pause(told: RealTimeFigures | None) -> float | None:
    return told.cut_pause_ms / 1000 if told is not None and told.cut_pause_ms is not None else None


def _offsets(texts: Mapping[str, str]) -> dict[tuple[str, str], float]:
    """From Kafka's `{"flights": {"0": 17}}`, return 17 for the part `flights.0`. Limited in number, like all labels."""
    found: dict[tuple[str, str], float] = {}
    for source, text in texts.items():
        numbers = islice(_numbers(value(text), ""), MAX_OFFSET_PARTS)
        found |= {(source, part): number for part, number in numbers}
    return found


def _numbers(offset: Any, part: str) -> Iterator[tuple[str, float]]:
    if isinstance(offset, dict):
        for key, inner in sorted(offset.items()):
            yield from _numbers(inner, f"{part}.{key}" if part else str(key))
    elif isinstance(offset, int | float) and not isinstance(offset, bool):
        yield part, float(offset)


def _checkpoint_sample(statistics: CheckpointStatistics) -> CheckpointSample:
    last, files, durations = statistics.latest_completed, statistics.files, summary(statistics.durations_ms)
    quantiles = {"0.5": durations.p50, "0.95": durations.p95, "0.99": durations.p99}
    return CheckpointSample(
        completed=statistics.completed,
        failed=statistics.failed,
        restored=statistics.restored,
        in_progress=len(statistics.in_progress),
        # All of them, also at 0: for Prometheus, a counter that begins with 1 has not increased.
        failed_by_cause={cause.value: statistics.failed_by_cause.get(cause, 0) for cause in FailureCause},
        refused={reason.value: statistics.refused.get(reason, 0) for reason in Refusal},
        consecutive_failures=statistics.consecutive_failures,
        consecutive_trigger_failures=statistics.consecutive_trigger_failures,
        interval=statistics.interval_ms / 1000,
        durations={quantile: ms / 1000 for quantile, ms in quantiles.items()} if last else {},
        last_completed=last.latest_ack_ms / 1000 if last else None,
        last_duration=last.duration_ms / 1000 if last else 0.0,
        last_alignment=last.alignment_ms / 1000 if last else 0.0,
        last_bytes_aligned=last.alignment_bytes if last else 0,
        last_bytes_full=last.bytes_full if last else 0,
        last_bytes_uploaded=last.bytes_uploaded if last else 0,
        physical_files=files.physical,
        logical_files=files.logical,
        bytes_stored=files.bytes_stored,
        bytes_referenced=files.bytes_referenced,
        amplification=files.amplification,
        files_deleting=files.deleting,
        files_created=statistics.files_created,
        files_deleted=statistics.files_deleted,
        compactions=statistics.compactions,
        bytes_rewritten=statistics.bytes_rewritten,
        damaged=len(statistics.damaged),
        verified=statistics.verified_ms / 1000 if statistics.verified_ms >= 0 else None,
        calls={kind: (made.count, made.ms / 1000) for kind, made in sorted(statistics.calls.items())},
    )
