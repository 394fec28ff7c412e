"""Prometheus metrics of the cluster and of requests, computed from snapshots at each scrape (E30).

Defines names, help texts and labels. Labels are bounded: jobs and TaskManagers by the creator of the sample, all others
by enumerations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from minflinkd.metrics.autoscalers import of_autoscalers
from minflinkd.metrics.samples import BlobSample, CheckpointSample, ClusterSample, JobSample, TaskSample
from minflinkd.metrics.task_managers import of_processes


class RequestCounts(Protocol):
    """Requests of one kind to one backend, such as `storage.recording.RequestStatistics`."""

    @property
    def requests(self) -> int: ...

    @property
    def errors(self) -> int: ...

    @property
    def retries(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    @property
    def seconds(self) -> float: ...


StorageRequests = Callable[[], Mapping[str, Mapping[str, RequestCounts]]]  # scheme -> kind of request -> counts


class ClusterCollector(Collector):
    """Jobs, checkpoints, tasks, slots and TaskManagers, from the sample last passed to `show`."""

    def __init__(self) -> None:
        self._sample = ClusterSample()

    def show(self, sample: ClusterSample) -> None:
        self._sample = sample

    def describe(self) -> Iterable[Metric]:
        return ()  # names depend on the sample; without this the registry would collect to learn them

    def collect(self) -> Iterator[Metric]:
        sample = self._sample
        if sample.jobs_by_status is not None:
            jobs = GaugeMetricFamily("minflinkd_jobs", "Jobs by state.", labels=["status"])
            for status, count in sorted(sample.jobs_by_status.items()):
                jobs.add_metric([status], count)
            yield jobs
            yield _gauge(
                "minflinkd_jobs_not_shown", "Running jobs that have no metrics of their own.", sample.jobs_left_out
            )
            yield from _of_jobs(sample.jobs)
        if sample.task_managers is not None:
            yield from _of_resources(sample)
        if sample.blobs is not None:
            yield from _of_blobs(sample.blobs)


class StorageCollector(Collector):
    def __init__(self, requests: StorageRequests) -> None:
        self._requests = requests

    def collect(self) -> Iterator[Metric]:
        labels = ["scheme", "request"]
        made = CounterMetricFamily("minflinkd_storage_requests", "Requests to storage.", labels=labels)
        failed = CounterMetricFamily("minflinkd_storage_errors", "Requests to storage that failed.", labels=labels)
        again = CounterMetricFamily("minflinkd_storage_retries", "Retries of requests to storage.", labels=labels)
        moved = CounterMetricFamily("minflinkd_storage_bytes", "Bytes moved to or from storage.", labels=labels)
        spent = CounterMetricFamily("minflinkd_storage_seconds", "Seconds spent in storage requests.", labels=labels)
        for scheme, kinds in sorted(self._requests().items()):
            for kind, counts in sorted(kinds.items()):
                made.add_metric([scheme, kind], counts.requests)
                failed.add_metric([scheme, kind], counts.errors)
                again.add_metric([scheme, kind], counts.retries)
                moved.add_metric([scheme, kind], counts.bytes)
                spent.add_metric([scheme, kind], counts.seconds)
        yield from (made, failed, again, moved, spent)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _of_resources(sample: ClusterSample) -> Iterator[Metric]:
    yield _gauge("minflinkd_taskmanagers", "Registered TaskManagers.", sample.task_managers or 0)
    yield _gauge(
        "minflinkd_taskmanagers_ready", "Registered TaskManagers whose session is ready.", sample.task_managers_ready
    )
    yield _gauge("minflinkd_taskmanagers_starting", "TaskManagers being started.", sample.task_managers_starting)
    yield CounterMetricFamily("minflinkd_taskmanagers_lost", "TaskManagers lost.", value=sample.task_managers_lost)
    yield _gauge("minflinkd_slots", "Slots of registered TaskManagers.", sample.slots_total)
    yield _gauge("minflinkd_slots_free", "Slots that nobody holds.", sample.slots_free)
    yield _gauge("minflinkd_slot_needs_pending", "Allocations that jobs wait for.", sample.pending_needs)
    ages = GaugeMetricFamily(
        "minflinkd_taskmanager_heartbeat_age_seconds",
        "Seconds since a TaskManager's last heartbeat.",
        labels=["taskmanager"],
    )
    for task_manager, age in sample.heartbeat_ages.items():
        ages.add_metric([task_manager], age)
    yield ages
    free = GaugeMetricFamily(
        "minflinkd_taskmanager_disk_free_bytes",
        "Free bytes of the disk with the state of a TaskManager's tasks.",
        labels=["taskmanager"],
    )
    size = GaugeMetricFamily("minflinkd_taskmanager_disk_bytes", "Size of that disk in bytes.", labels=["taskmanager"])
    for task_manager, (left, whole) in sample.disks.items():
        free.add_metric([task_manager], left)
        size.add_metric([task_manager], whole)
    yield from (free, size, *of_processes(sample))


def _of_blobs(sample: BlobSample) -> Iterator[Metric]:
    stored = GaugeMetricFamily("minflinkd_blobs", "Blobs that the BlobServer holds.", labels=["state"])
    sizes = GaugeMetricFamily(
        "minflinkd_blob_stored_bytes", "Bytes of the blobs that the BlobServer holds.", labels=["state"]
    )
    for state, count in sorted(sample.stored.items()):
        stored.add_metric([state], count)
        sizes.add_metric([state], sample.stored_bytes.get(state, 0))
    moved = CounterMetricFamily("minflinkd_blob_bytes", "Bytes of blobs uploaded and downloaded.", labels=["direction"])
    moved.add_metric(["up"], sample.received_bytes)
    moved.add_metric(["down"], sample.sent_bytes)
    transfers = GaugeMetricFamily("minflinkd_blob_transfers", "Blob transfers, running or waiting.", labels=["state"])
    transfers.add_metric(["running"], sample.transfers_running)
    transfers.add_metric(["waiting"], sample.transfers_waiting)
    yield from (stored, sizes, moved, transfers)
    yield CounterMetricFamily("minflinkd_blobs_deleted", "Blobs deleted by the cleanup.", value=sample.deleted)
    yield CounterMetricFamily("minflinkd_blobs_corrupt", "Blobs moved aside as corrupt.", value=sample.corrupt)


def _of_jobs(jobs: Iterable[JobSample]) -> Iterator[Metric]:
    jobs = tuple(jobs)
    restarts = CounterMetricFamily("minflinkd_job_restarts", "Restarts of a job.", labels=["job"])
    for job in jobs:
        restarts.add_metric([job.job_id], job.restarts)
    yield restarts
    repeated = GaugeMetricFamily(
        "minflinkd_job_restarting_repeatedly",
        "Failures in a row of a job that restarts repeatedly, by place of the last failure; other jobs are left out.",
        labels=["job", "task", "taskmanager"],
    )
    for job in jobs:
        if job.repeated is not None:
            repeated.add_metric([job.job_id, job.repeated.task, job.repeated.task_manager], job.repeated.failures)
    yield repeated
    hot = CounterMetricFamily("minflinkd_job_hot_restarts", "Hot restarts of a job.", labels=["job", "outcome"])
    phases = GaugeMetricFamily(
        "minflinkd_job_hot_restart_seconds",
        "Seconds from the request of a job's last hot restart to the end of a phase.",
        labels=["job", "phase"],
    )
    trials = GaugeMetricFamily(
        "minflinkd_job_on_trial", "1 while a job runs a new version that has found no input.", labels=["job"]
    )
    running = GaugeMetricFamily(
        "minflinkd_job_running_timestamp_seconds",
        "When a job began to run, or to run again, in seconds since 1970; a job that does not run is left out.",
        labels=["job"],
    )
    for job in jobs:
        if job.running_since is not None:
            running.add_metric([job.job_id], job.running_since)
        trials.add_metric([job.job_id], job.on_trial)
        for outcome, count in sorted(job.hot_restarts.items()):
            hot.add_metric([job.job_id, outcome], count)
        for phase, seconds in job.hot_restart_phases.items():
            phases.add_metric([job.job_id, phase], seconds)
    yield from (hot, phases, trials, running)
    yield from of_autoscalers([(job.job_id, job.autoscaler) for job in jobs if job.autoscaler is not None])
    yield from _of_checkpoints([(job.job_id, job.checkpoints) for job in jobs if job.checkpoints is not None])
    yield from _of_tasks([(job.job_id, task) for job in jobs for task in job.tasks])


def _of_checkpoints(samples: list[tuple[str, CheckpointSample]]) -> Iterator[Metric]:
    ended = CounterMetricFamily(
        "minflinkd_checkpoints", "Checkpoints that ended, by outcome.", labels=["job", "outcome"]
    )
    causes = CounterMetricFamily(
        "minflinkd_checkpoint_failures", "Failed checkpoints, by cause.", labels=["job", "cause"]
    )
    refused = CounterMetricFamily(
        "minflinkd_checkpoint_refusals", "Refused requests for a checkpoint, by reason.", labels=["job", "reason"]
    )
    restored = CounterMetricFamily("minflinkd_checkpoint_restores", "Restores from a checkpoint.", labels=["job"])
    durations = GaugeMetricFamily(
        "minflinkd_checkpoint_duration_seconds",
        "Duration of the last 1,000 completed checkpoints.",
        labels=["job", "quantile"],
    )
    for job, sample in samples:
        ended.add_metric([job, "completed"], sample.completed)
        ended.add_metric([job, "failed"], sample.failed)
        restored.add_metric([job], sample.restored)
        for cause, count in sorted(sample.failed_by_cause.items()):
            causes.add_metric([job, cause], count)
        for reason, count in sorted(sample.refused.items()):
            refused.add_metric([job, reason], count)
        for quantile, seconds in sorted(sample.durations.items()):
            durations.add_metric([job, quantile], seconds)
    yield from (ended, causes, refused, restored, durations)
    yield from _of_checkpoint_files(samples)
    gauges: list[tuple[str, str, Callable[[CheckpointSample], float | None]]] = [
        ("minflinkd_checkpoints_in_progress", "Checkpoints in progress.", lambda s: s.in_progress),
        (
            "minflinkd_checkpoint_consecutive_failures",
            "Failures since the last completed checkpoint that count towards a restart of the job.",
            lambda s: s.consecutive_failures,
        ),
        (
            "minflinkd_checkpoint_consecutive_trigger_failures",
            "Failed triggers since the last one that all tasks accepted.",
            lambda s: s.consecutive_trigger_failures,
        ),
        (
            "minflinkd_checkpoint_interval_seconds",
            "Seconds between two periodic triggers; 0: no periodic checkpoints.",
            lambda s: s.interval,
        ),
        (
            "minflinkd_checkpoint_last_completed_timestamp_seconds",
            "When the last completed checkpoint was acknowledged, in seconds since 1970.",
            lambda s: s.last_completed,
        ),
        ("minflinkd_checkpoint_damaged", "Retained checkpoints that are known to be damaged.", lambda s: s.damaged),
        (
            "minflinkd_checkpoint_last_verified_timestamp_seconds",
            "When all retained checkpoints were last compared with their checksums, in seconds since 1970.",
            lambda s: s.verified,
        ),
        (
            "minflinkd_checkpoint_last_alignment_seconds",
            "Longest alignment of a task in the last completed checkpoint.",
            lambda s: s.last_alignment,
        ),
        (
            "minflinkd_checkpoint_last_aligned_bytes",
            "Bytes held back by alignment in the last completed checkpoint.",
            lambda s: s.last_bytes_aligned,
        ),
        (
            "minflinkd_checkpoint_last_duration_seconds",
            "Duration of the last completed checkpoint.",
            lambda s: s.last_duration,
        ),
        (
            "minflinkd_checkpoint_last_state_bytes",
            "Bytes of state in the last completed checkpoint.",
            lambda s: s.last_bytes_full,
        ),
        (
            "minflinkd_checkpoint_last_uploaded_bytes",
            "Bytes uploaded for the last completed checkpoint.",
            lambda s: s.last_bytes_uploaded,
        ),
    ]
    for name, text, value in gauges:
        family = GaugeMetricFamily(name, text, labels=["job"])
        for job, sample in samples:
            if (now := value(sample)) is not None:
                family.add_metric([job], now)
        yield family


def _of_checkpoint_files(samples: list[tuple[str, CheckpointSample]]) -> Iterator[Metric]:
    gauges: list[tuple[str, str, Callable[[CheckpointSample], float]]] = [
        ("physical_files", "Physical files that retained checkpoints refer to.", lambda s: s.physical_files),
        ("logical_files", "Live segments in the physical files of retained checkpoints.", lambda s: s.logical_files),
        ("stored_bytes", "Bytes of the physical files of retained checkpoints.", lambda s: s.bytes_stored),
        (
            "referenced_bytes",
            "Bytes of the live segments in the physical files of retained checkpoints.",
            lambda s: s.bytes_referenced,
        ),
        ("space_amplification", "Bytes stored for each byte that checkpoints refer to.", lambda s: s.amplification),
        ("files_deleting", "Files that are still to be deleted.", lambda s: s.files_deleting),
    ]
    for name, text, value in gauges:
        gauge = GaugeMetricFamily(f"minflinkd_checkpoint_{name}", text, labels=["job"])
        for job, sample in samples:
            gauge.add_metric([job], value(sample))
        yield gauge
    counters: list[tuple[str, str, Callable[[CheckpointSample], float]]] = [
        ("files_created", "Physical files that were acknowledged.", lambda s: s.files_created),
        ("files_deleted", "Physical files that were deleted.", lambda s: s.files_deleted),
        ("compactions", "Physical files that were rewritten.", lambda s: s.compactions),
        ("rewritten_bytes", "Bytes rewritten by compactions.", lambda s: s.bytes_rewritten),
    ]
    for name, text, value in counters:
        counter = CounterMetricFamily(f"minflinkd_checkpoint_{name}", text, labels=["job"])
        for job, sample in samples:
            counter.add_metric([job], value(sample))
        yield counter
    labels = ["job", "request"]
    calls = CounterMetricFamily(
        "minflinkd_checkpoint_storage_calls", "Requests of a job's checkpoint coordinator to storage.", labels=labels
    )
    spent = CounterMetricFamily(
        "minflinkd_checkpoint_storage_seconds",
        "Seconds that a job's checkpoint coordinator spent in requests to storage.",
        labels=labels,
    )
    for job, sample in samples:
        for kind, (count, seconds) in sorted(sample.calls.items()):
            calls.add_metric([job, kind], count)
            spent.add_metric([job, kind], seconds)
    yield from (calls, spent)


def _of_tasks(samples: list[tuple[str, TaskSample]]) -> Iterator[Metric]:
    """Yield the tasks' metrics. Rows are gauges: a restore takes them back to the count at its checkpoint."""
    gauges: list[tuple[str, str, Callable[[TaskSample], float | None]]] = [
        (
            "minflinkd_task_rows_in",
            "Rows read from sources and exchanges.",
            lambda t: t.rows_in,
        ),
        ("minflinkd_task_rows_out", "Rows written to sinks and exchanges.", lambda t: t.rows_out),
        ("minflinkd_task_batch_duration_seconds", "Duration of the last micro-batch.", lambda t: t.batch_duration),
        ("minflinkd_task_state_rows", "Rows of state.", lambda t: t.state_rows),
        ("minflinkd_task_state_bytes", "Bytes of memory of Spark's state stores.", lambda t: t.state_bytes),
        ("minflinkd_task_watermark_seconds", "The watermark, in seconds since 1970.", lambda t: t.watermark),
        (
            "minflinkd_task_output_backlog_bytes",
            "Bytes in a task's exchange that its slowest reader still has to read.",
            lambda t: t.output_backlog,
        ),
        (
            "minflinkd_task_backpressured",
            "1 while a task is held back, by its readers or by a disk that is nearly full.",
            lambda t: float(t.backpressured),
        ),
        (
            "minflinkd_task_backpressured_seconds",
            "Seconds that a task's readers have held back its current attempt.",
            lambda t: t.backpressured_time,
        ),
        (
            "minflinkd_task_cut_pause_seconds",
            "Seconds for which the last end of a batch in real-time mode kept rows waiting.",
            lambda t: t.cut_pause,
        ),
    ]
    for name, text, value in gauges:
        family = GaugeMetricFamily(name, text, labels=["job", "task"])
        for job, task in samples:
            if (now := value(task)) is not None:
                family.add_metric([job, task.task_id], now)
        yield family
    histogram = HistogramMetricFamily(
        "minflinkd_task_latency_seconds",
        "In real-time mode, seconds from the time of a record until the stage that read it was done with it.",
        labels=["job", "task"],
    )
    for job, task in samples:
        if task.latency_buckets:
            histogram.add_metric([job, task.task_id], task.latency_buckets, task.latency_sum)
    yield histogram
    latencies = GaugeMetricFamily(
        "minflinkd_task_recent_latency_seconds",
        "The same of the last second or so, by quantile.",
        labels=["job", "task", "quantile"],
    )
    for job, task in samples:
        for share, seconds in task.latencies.items():
            latencies.add_metric([job, task.task_id, share], seconds)
    yield latencies
    by_vertex: list[tuple[str, str, Callable[[TaskSample], dict[str, int]]]] = [
        (
            "minflinkd_task_bad_records",
            "Records that a source could not parse, or that a vertex rejected.",
            lambda t: t.bad_records,
        ),
        (
            "minflinkd_task_compacted_files",
            "Files of a sink's table joined into larger ones, in its task's current attempt.",
            lambda t: t.compacted_files,
        ),
        (
            "minflinkd_task_failed_compactions",
            "Failed compactions of a sink's table, in its task's current attempt.",
            lambda t: t.failed_compactions,
        ),
    ]
    for name, text, counts in by_vertex:
        family = GaugeMetricFamily(name, text, labels=["job", "task", "vertex"])
        for job, task in samples:
            for vertex, count in sorted(counts(task).items()):
                family.add_metric([job, task.task_id, vertex], count)
        yield family
    offsets = GaugeMetricFamily(
        "minflinkd_source_offset",
        "Position of a source after the last micro-batch: the numbers in Spark's offset.",
        labels=["job", "task", "source", "part"],
    )
    pending = GaugeMetricFamily(
        "minflinkd_source_pending_records",
        "Records of Kafka after what a task has processed.",
        labels=["job", "task", "source"],
    )
    parts = GaugeMetricFamily(
        "minflinkd_source_partition_pending_records",
        "Records of Kafka after what a task has processed, by partition, of sources with up to 64.",
        labels=["job", "task", "source", "part"],
    )
    for job, task in samples:
        for (source, part), number in sorted(task.offsets.items()):
            offsets.add_metric([job, task.task_id, source, part], number)
        for source, count in sorted(task.pending_records.items()):
            pending.add_metric([job, task.task_id, source], count)
        for (source, part), count in sorted(task.pending.items()):
            parts.add_metric([job, task.task_id, source, part], count)
    yield from (offsets, pending, parts)
