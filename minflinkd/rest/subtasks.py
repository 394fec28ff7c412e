"""The subtasks of a vertex: the partitions of its task where Spark has told of them. Pure.

A task has at least as many subtasks as its parallelism. Those to which no partition belongs had nothing to do. If the
TaskManager has told nothing, there are as many as the parallelism, and of most figures it is not known how they divide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from statistics import median

from minflinkd.rest.jobs import io_metrics
from minflinkd.rest.schemas import IOMetrics
from minflinkd.rest.schemas.jobs import PartitionInfo
from minflinkd.rpc.jobs import TaskDetails
from minflinkd.rpc.messages import Partition, TaskPartitions
from minflinkd.runtime.errors import NotFound

UNASSIGNED = "(unassigned)"
DRIVER = "driver"  # Spark's name of the executor in the session itself


@dataclass(frozen=True)
class SubtaskView:
    """`partition`: None if nothing is known of it. `share`: its time as a part of that of the longest partition.

    `alone`: the task has no other, so what is known of the task is about this one.
    """

    index: int
    partition: Partition | None
    share: float
    alone: bool
    batch_id: int


def subtasks_of(task: TaskDetails, found: TaskPartitions | None) -> tuple[SubtaskView, ...]:
    """Return the subtasks by their index. `found`: None if the TaskManager has not answered."""
    told = {} if found is None else {one.index: one for one in found.told}
    # All partitions are told, so what is beyond them is none. Before the first micro-batch there are none at all.
    complete = found is not None and found.partitions <= len(told) and bool(told or not task.metrics.batches)
    many = max(task.task.parallelism, len(told))
    others = islice((index for index in count() if index not in told), many - len(told))
    longest = max((one.total.ms for one in told.values()), default=0)
    views = []
    for index in sorted((*told, *others)):
        one = told.get(index) or (_without_work(index) if complete else None)
        views.append(
            SubtaskView(
                index=index,
                partition=one,
                share=one.total.ms / longest if one is not None and longest else 1.0,
                alone=many == 1,
                batch_id=-1 if found is None else found.batch_id,
            )
        )
    return tuple(views)


def _without_work(index: int) -> Partition:
    return Partition(index=index, host="", executor="", attempt=0, status="", started_ms=-1)


def subtask_at(task: TaskDetails, views: Sequence[SubtaskView], index: int) -> SubtaskView:
    """Raises NotFound."""
    for view in views:
        if view.index == index:
            return view
    many = f"{len(views)} subtasks" if len(views) > 1 else "one subtask"
    raise NotFound(
        f"task {task.task.id} has no subtask {index}", hint=f"it has {many}, from {views[0].index} to {views[-1].index}"
    )


def endpoint(task: TaskDetails, view: SubtaskView) -> str:
    """Return where the subtask runs: the host of its executor on a cluster, otherwise its TaskManager."""
    one = view.partition
    if task.resource_id is not None and one is not None and one.executor not in ("", DRIVER):
        return one.host
    return task.resource_id or UNASSIGNED


def io_of(task: TaskDetails, view: SubtaskView) -> IOMetrics:
    """Return what the subtask has read and written. What is not known is not complete, as Flink says it."""
    if view.partition is not None:
        total = view.partition.total
        return IOMetrics(
            read_bytes=total.bytes_in,
            write_bytes=total.bytes_out,
            read_records=total.rows_in,
            write_records=total.rows_out,
            accumulated_backpressured_time=round(task.metrics.backpressured_ms),
            accumulated_busy_time=round(task.metrics.busy_ms * view.share),
        )
    if view.alone:
        return io_metrics(task)
    return IOMetrics(
        read_bytes_complete=False,
        write_bytes_complete=False,
        read_records=0,
        read_records_complete=False,
        write_records=0,
        write_records_complete=False,
        accumulated_backpressured_time=round(task.metrics.backpressured_ms),
        accumulated_busy_time=task.metrics.busy_ms,
    )


def partition_info(view: SubtaskView) -> PartitionInfo | None:
    """Return what Spark says of the subtask's partition in the last micro-batch; None if it says nothing."""
    one = view.partition
    if one is None or not one.status:
        return None
    return PartitionInfo(
        batch_id=view.batch_id,
        status=one.status,
        attempt=one.attempt,
        host=one.host,
        executor=one.executor,
        start_time=one.started_ms,
        duration=one.last.ms,
        total_duration=one.total.ms,
        read_records=one.last.rows_in,
        write_records=one.last.rows_out,
        read_bytes=one.last.bytes_in,
        write_bytes=one.last.bytes_out,
    )


def aggregated(io: Sequence[IOMetrics], durations: Sequence[Mapping[str, int]]) -> dict[str, dict[str, dict[str, int]]]:
    """Return Flink's statistics over the subtasks of a vertex, of those whose figures are known."""
    named = {
        "read-bytes": [one.read_bytes for one in io if one.read_bytes_complete],
        "write-bytes": [one.write_bytes for one in io if one.write_bytes_complete],
        "read-records": [one.read_records for one in io if one.read_records_complete],
        "write-records": [one.write_records for one in io if one.write_records_complete],
        "accumulated-backpressured-time": [one.accumulated_backpressured_time for one in io],
        "accumulated-idle-time": [one.accumulated_idle_time for one in io],
        "accumulated-busy-time": [round(one.accumulated_busy_time) for one in io],
    }
    states = durations[0] if durations else {}
    return {
        "metrics": {name: statistics_of(values) for name, values in named.items()},
        "status-duration": {state: statistics_of([one[state] for one in durations]) for state in states},
    }


def statistics_of(values: Sequence[int]) -> dict[str, int]:
    ordered = sorted(values) or [0]
    return {
        "min": ordered[0],
        "max": ordered[-1],
        "avg": sum(ordered) // len(ordered),
        "sum": sum(ordered),
        "median": int(median(ordered)),
        "p25": _percentile(ordered, 0.25),
        "p75": _percentile(ordered, 0.75),
        "p95": _percentile(ordered, 0.95),
    }


def _percentile(ordered: Sequence[int], part: float) -> int:
    """Return the value below which this part of all is, between two of them if need be: as Flink does."""
    place = part * (len(ordered) + 1)
    if place < 1:
        return ordered[0]
    if place >= len(ordered):
        return ordered[-1]
    below = int(place)
    return int(ordered[below - 1] + (place - below) * (ordered[below] - ordered[below - 1]))
