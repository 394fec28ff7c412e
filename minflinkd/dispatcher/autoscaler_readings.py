"""What the autoscaler sees of a job: a reading, made of what the job shows of itself (R62). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from minflinkd.autoscaler.readings import Change, JobReading, TaskReading
from minflinkd.jobgraph.model import Source, Task
from minflinkd.rpc.jobs import ExecutionState, HotRestart, JobDetails, JobStatus, RestartState, TaskDetails
from minflinkd.rpc.messages import TaskManagerInfo, TaskMetrics
from minflinkd.runtime.ids import ResourceId, TaskId

# Options by which a source bounds what a micro-batch takes, in lower case: rows if True, files or bytes if not.
_BOUNDS: Mapping[str, bool] = {
    "maxoffsetspertrigger": True,
    "rowsperbatch": True,
    "maxrecordspertrigger": True,
    "maxfilespertrigger": False,
    "maxbytespertrigger": False,
    "streaming-max-files-per-micro-batch": False,
    "streaming-max-rows-per-micro-batch": True,
}
_CAME_TO_NOTHING = (RestartState.FAILED, RestartState.ROLLED_BACK)


def reading_of(
    details: JobDetails, now: float, *, unsettled: str = "", free: Mapping[ResourceId, int] | None = None
) -> JobReading:
    """Return the reading. `now`: seconds since 1970. `free`: free slots by TaskManager; None: not known.

    `unsettled`: why the JobMaster says that nothing should be changed now.
    """
    tasks = tuple(_task(task, details, now) for task in details.tasks)
    since = max((task.entered.get(ExecutionState.RUNNING, 0) for task in details.tasks), default=0)
    return JobReading(
        at=now,
        tasks=tasks,
        interval=float(details.graph.trigger_interval),
        hold=_hold(details) or unsettled,
        since=since / 1000,
        last_change=_last_change(details.hot_restarts),
        room=_room(details, free) if free is not None else {},
    )


def free_slots(managers: Iterable[TaskManagerInfo]) -> dict[ResourceId, int]:
    """Return how many slots are free on each TaskManager that gives any out."""
    return {
        each.resource_id: sum(slot.allocation_id is None for slot in each.report.slots)
        for each in managers
        if not each.drained and not each.report.draining
    }


def _hold(details: JobDetails) -> str:
    """Return why the job cannot be given other slots now, as far as it shows."""
    if details.status is not JobStatus.RUNNING:
        return f"it is {details.status.value}"
    if details.hot_restarts and not (last := details.hot_restarts[0]).state.over:
        return f"hot restart {last.number} is under way ({last.state.value})"
    if details.repeated is not None:
        return "it restarts repeatedly"
    if any(task.state is not ExecutionState.RUNNING for task in details.tasks):
        return "its tasks do not all run"
    if any(task.metrics.real_time is not None for task in details.tasks):
        return "it runs in real-time mode, in which its tasks are busy all the time"
    if details.waiting:
        return f"it lacks slots: {details.waiting[0]}"
    return ""


def _last_change(restarts: tuple[HotRestart, ...]) -> Change | None:
    if not restarts:
        return None
    last = restarts[0]
    error = ""
    if last.state in _CAME_TO_NOTHING:
        error = last.error.message if last.error is not None else last.state.value
    return Change(number=last.number, at=last.requested_ms / 1000, over=last.state.over, error=error)


def _room(details: JobDetails, free: Mapping[ResourceId, int]) -> dict[str, int]:
    """Return how many slots each group could have on the TaskManager where it is."""
    found: dict[str, int] = {}
    for task in details.tasks:
        if task.resource_id is not None:
            group, room = task.task.slot_sharing_group, task.task.parallelism + free.get(task.resource_id, 0)
            found[group] = max(room, found.get(group, 0))
    return found


def _task(details: TaskDetails, job: JobDetails, now: float) -> TaskReading:
    task, metrics = details.task, details.metrics
    seconds = metrics.batch_ms / 1000
    limited, bound = _bound(task)
    began = max(metrics.source_rows_ms.values(), default=None)
    rows = metrics.rows_per_second * seconds
    pending = details.pending
    of_kafka = [v.id for v in task.vertices if v.source is not None and v.source.format == "kafka"]
    sources = [v.id for v in task.vertices if v.source is not None]
    told = bool(sources) and all(source in pending for source in sources) and len(of_kafka) == len(sources)
    return TaskReading(
        task=task.id,
        name=task.name,
        group=task.slot_sharing_group,
        attempt=details.attempt_id or "",
        slots=task.parallelism,
        partitions=details.partitions if metrics.state_rows else 0,
        batches=metrics.batches,
        rows=metrics.rows_in,
        busy=metrics.busy_ms / 1000,
        began=began / 1000 if began is not None and rows > 0 else None,
        batch_seconds=seconds,
        batch_rows=rows,
        outside=max(0.0, metrics.batch_ms - metrics.batch_phases.get("addBatch", metrics.batch_ms)) / 1000,
        parallel=_parallel(metrics, task.parallelism),
        running_for=0.0 if metrics.batch_since_ms is None else max(0.0, now - metrics.batch_since_ms / 1000),
        backlog=sum(one.records for one in pending.values()) if told else None,
        limited=limited,
        bound=bound,
        held_back=metrics.backpressured,
        upstream=_upstream(task, job),
    )


def _bound(task: Task) -> tuple[bool, float | None]:
    """Return whether a source bounds what a micro-batch takes, and how many rows all sources together may take."""
    rows, limited, known = 0.0, False, True
    for source in (vertex.source for vertex in task.vertices if vertex.source is not None):
        bounds = _bounds(source)
        limited = limited or bool(bounds)
        in_rows = [float(value) for name, value in bounds.items() if _BOUNDS[name] and value.isdigit()]
        known = known and bool(in_rows)
        rows += min(in_rows, default=0.0)
    return limited, rows if limited and known else None


def _bounds(source: Source) -> dict[str, str]:
    return {name.lower(): value for name, value in source.options.items() if name.lower() in _BOUNDS}


def _parallel(metrics: TaskMetrics, slots: int) -> float | None:
    """Return which share of its last micro-batch the task's slots worked; None if nobody has looked at this one."""
    work = metrics.work
    if work is None or work.batch_id != metrics.batch_id or work.batch_ms <= 0:
        return None
    return min(1.0, work.task_ms / (slots * work.batch_ms))


def _upstream(task: Task, job: JobDetails) -> tuple[TaskId, ...]:
    inputs = {edge.id for edge in task.inputs}
    return tuple(o.task.id for o in job.tasks if inputs & {v.id for v in o.task.vertices} and o.task.id != task.id)
