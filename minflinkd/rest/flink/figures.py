"""The figures of tasks, jobs, TaskManagers and the daemon under Flink's names. Pure.

Figures that are not known here are left out, as Flink leaves out what nobody measures: no value is invented.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from minflinkd.checkpoint.statistics import CheckpointStatistics
from minflinkd.rest.schemas.flink_metrics import AggregatedMetric
from minflinkd.rest.subtasks import SubtaskView
from minflinkd.rpc.jobs import JobDetails, JobStatus, TaskDetails
from minflinkd.rpc.messages import TaskManagerInfo

Value = int | float | str
Figures = Mapping[str, Value]

WATERMARK = "currentInputWatermark"
AGGREGATES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "max": max,
    "avg": lambda values: sum(values) / len(values),
    "sum": sum,
    "skew": lambda values: skew(values),
}

# What a TaskManager reports of its session's JVM, and Flink's name of it.
_OF_JVM: Mapping[str, str] = {
    "jvm.heap.used_bytes": "Status.JVM.Memory.Heap.Used",
    "jvm.heap.committed_bytes": "Status.JVM.Memory.Heap.Committed",
    "jvm.heap.max_bytes": "Status.JVM.Memory.Heap.Max",
    "jvm.non_heap.used_bytes": "Status.JVM.Memory.NonHeap.Used",
    "jvm.non_heap.committed_bytes": "Status.JVM.Memory.NonHeap.Committed",
    "jvm.non_heap.max_bytes": "Status.JVM.Memory.NonHeap.Max",
    "jvm.metaspace.used_bytes": "Status.JVM.Memory.Metaspace.Used",
    "jvm.metaspace.committed_bytes": "Status.JVM.Memory.Metaspace.Committed",
    "jvm.metaspace.max_bytes": "Status.JVM.Memory.Metaspace.Max",
    "jvm.direct.count": "Status.JVM.Memory.Direct.Count",
    "jvm.direct.used_bytes": "Status.JVM.Memory.Direct.MemoryUsed",
    "jvm.direct.capacity_bytes": "Status.JVM.Memory.Direct.TotalCapacity",
    "jvm.mapped.count": "Status.JVM.Memory.Mapped.Count",
    "jvm.mapped.used_bytes": "Status.JVM.Memory.Mapped.MemoryUsed",
    "jvm.mapped.capacity_bytes": "Status.JVM.Memory.Mapped.TotalCapacity",
    "jvm.threads": "Status.JVM.Threads.Count",
    "jvm.cpu.load": "Status.JVM.CPU.Load",
    "jvm.cpu.time_ns": "Status.JVM.CPU.Time",
    "jvm.classes.loaded": "Status.JVM.ClassLoader.ClassesLoaded",
    "jvm.classes.unloaded": "Status.JVM.ClassLoader.ClassesUnloaded",
}
_TOGETHER = frozenset(
    {
        *("numRecordsIn", "numRecordsOut", "numRecordsInPerSecond", "pendingRecords"),
        *("state.rows", "state.bytes", "exchange.backlogBytes"),
    }
)
_COLLECTOR = "jvm.gc."
_COLLECTED: Mapping[str, str] = {"count": "Count", "time_ms": "Time"}


def skew(values: Sequence[float]) -> float:
    """Return how uneven the values are, as Flink does: the mean deviation from their mean, in percent of it."""
    mean = sum(values) / len(values)
    if mean == 0:
        return 0.0
    return sum(abs(value - mean) for value in values) / len(values) / abs(mean) * 100


def of_task(task: TaskDetails, rates: Mapping[str, float]) -> Figures:
    """Return the figures of a task. `rates`: milliseconds per second spent `busy` and `backpressured`, as measured."""
    metrics = task.metrics
    found: dict[str, Value] = {
        "numRecordsIn": sum(task.rows.read.values()),
        "numRecordsOut": sum(task.rows.written.values()),
        "numRecordsInPerSecond": metrics.rows_per_second,
        "accumulateBusyTimeMs": round(metrics.busy_ms),
        "accumulateBackPressuredTimeMs": round(metrics.backpressured_ms),
        "isBackPressured": "true" if metrics.backpressured else "false",
        # The following have no counterpart in Flink.
        "microBatch.id": metrics.batch_id,
        "microBatch.count": metrics.batches,
        "microBatch.durationMs": metrics.batch_ms,
        "state.rows": metrics.state_rows,
        "state.bytes": metrics.state_bytes,
        "exchange.backlogBytes": metrics.output_backlog,
    }
    if metrics.watermark_ms:
        found[WATERMARK] = metrics.watermark_ms
    if task.pending:
        found["pendingRecords"] = sum(source.records for source in task.pending.values())
    if (busy := rates.get("busy")) is not None and (held := rates.get("backpressured")) is not None:
        found["busyTimeMsPerSecond"] = round(busy)
        found["backPressuredTimeMsPerSecond"] = round(held)
        found["idleTimeMsPerSecond"] = max(0, 1000 - round(busy) - round(held))
    return found


def of_subtask(task: TaskDetails, rates: Mapping[str, float], view: SubtaskView) -> Figures:
    """Return the figures of a subtask: of its partition what Spark says of it, otherwise what holds of all of them.

    What the whole task has together, such as its state, is not told of each of several subtasks.
    """
    whole = of_task(task, rates)
    found = dict(whole) if view.alone else {name: whole[name] for name in whole if name not in _TOGETHER}
    one, metrics = view.partition, task.metrics
    if one is None:
        return found
    found |= {
        "numRecordsIn": one.total.rows_in,
        "numRecordsOut": one.total.rows_out,
        "numBytesIn": one.total.bytes_in,
        "numBytesOut": one.total.bytes_out,
        "accumulateBusyTimeMs": round(metrics.busy_ms * view.share),
        # The following have no counterpart in Flink, and are of the last micro-batch.
        "partition.durationMs": one.last.ms,
        "partition.numRecordsIn": one.last.rows_in,
        "partition.numRecordsOut": one.last.rows_out,
        "partition.attempt": one.attempt,
    }
    found.pop("numRecordsInPerSecond", None)
    if view.batch_id == metrics.batch_id and metrics.batch_ms > 0:
        found["numRecordsInPerSecond"] = one.last.rows_in * 1000 / metrics.batch_ms
        found["numRecordsOutPerSecond"] = one.last.rows_out * 1000 / metrics.batch_ms
    if (busy := rates.get("busy")) is not None and (held := rates.get("backpressured")) is not None:
        found["busyTimeMsPerSecond"] = round(busy * view.share)
        found["idleTimeMsPerSecond"] = max(0, 1000 - round(busy * view.share) - round(held))
    return found


def of_job(job: JobDetails, checkpoints: CheckpointStatistics | None, now: int) -> Figures:
    """Return the figures of a job. `checkpoints`: None if they cannot be asked for now."""
    running = job.timestamps.get(JobStatus.RUNNING, 0) if job.status is JobStatus.RUNNING else 0
    found: dict[str, Value] = {
        "numRestarts": job.restarts,
        "fullRestarts": job.restarts,
        "uptime": max(0, now - running) if running else 0,
        "downtime": _downtime(job, now),
    }
    if checkpoints is None:
        return found
    last = checkpoints.latest_completed
    found |= {
        "totalNumberOfCheckpoints": checkpoints.completed + checkpoints.failed + len(checkpoints.in_progress),
        "numberOfCompletedCheckpoints": checkpoints.completed,
        "numberOfFailedCheckpoints": checkpoints.failed,
        "numberOfInProgressCheckpoints": len(checkpoints.in_progress),
    }
    if last is not None:
        found |= {
            "lastCompletedCheckpointId": last.checkpoint_id,
            "lastCheckpointDuration": round(last.duration_ms),
            "lastCheckpointSize": last.bytes_uploaded,
            "lastCheckpointFullSize": last.bytes_full,
            "lastCheckpointExternalPath": last.path,
        }
    return found


def _downtime(job: JobDetails, now: int) -> int:
    """Return the milliseconds since the job has failed, while it recovers; otherwise 0, as in Flink."""
    if job.status in (JobStatus.RESTARTING, JobStatus.FAILING) and job.failures:
        return max(0, now - job.failures[0].timestamp_ms)
    return 0


def of_task_manager(info: TaskManagerInfo) -> Figures:
    """Return the figures that a TaskManager has last reported: under Flink's names where Flink has one."""
    found: dict[str, Value] = {}
    for name, value in info.report.metrics.items():
        if (known := _OF_JVM.get(name) or _of_collector(name)) is not None:
            found[known] = _whole(value)
        else:
            found[f"minflinkd.{name}"] = _whole(value)
    return found


def _of_collector(name: str) -> str | None:
    collector, _, what = name.removeprefix(_COLLECTOR).rpartition(".")
    if not name.startswith(_COLLECTOR) or what not in _COLLECTED:
        return None
    return f"Status.JVM.GarbageCollector.{collector}.{_COLLECTED[what]}"


def _whole(value: float) -> Value:
    return int(value) if value.is_integer() else value


def aggregated(name: str, values: Iterable[Value], wanted: Iterable[str]) -> AggregatedMetric | None:
    """Return the aggregates of the values that are numbers; None if none is."""
    numbers = [float(value) for value in values if not isinstance(value, str)]
    if not numbers:
        return None
    return AggregatedMetric(id=name, **{each: float(AGGREGATES[each](numbers)) for each in wanted})


def text(value: Value) -> str:
    return value if isinstance(value, str) else str(value)
