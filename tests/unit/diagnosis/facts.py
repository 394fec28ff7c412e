"""A healthy job with two tasks, and ways to make it ail."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from minflinkd.checkpoint.causes import CheckpointKind
from minflinkd.checkpoint.statistics import CheckpointRecord, CheckpointStatistics, CheckpointStatus, TaskRecord
from minflinkd.diagnosis.facts import JobFacts
from minflinkd.jobgraph.model import Input, JobGraph, Sink, Source, Task, Vertex, Watermark
from minflinkd.rpc.jobs import ExecutionState, FailureRecord, JobDetails, JobStatus, TaskDetails
from minflinkd.rpc.messages import (
    Hardware,
    ResourceOverview,
    SessionPhase,
    SlotStatus,
    TaskManagerInfo,
    TaskManagerReport,
    TaskMetrics,
)
from minflinkd.runtime.errors import ErrorInfo, Kind
from minflinkd.runtime.ids import AttemptId, InstanceId, JobId, ResourceId, TaskId, VertexId

NOW = 1_760_000_000_000
START = NOW - 3_600_000
JOB = JobId("a" * 32)
TM = ResourceId("tm-1")
FIRST, SECOND = TaskId("clicks"), TaskId("counts")

GRAPH = JobGraph(
    name="clicks",
    parallelism=2,
    vertices=(
        Vertex(
            id=VertexId("clicks"),
            source=Source(format="json", path="/data/clicks"),
            watermark=Watermark(column="time", delay="1 minute"),
        ),
        Vertex(
            id=VertexId("counts"),
            inputs=(Input(id=VertexId("clicks"), exchange=True),),
            sql="SELECT count(*) FROM clicks",
        ),
        Vertex(id=VertexId("out"), inputs=(Input(id=VertexId("counts")),), sink=Sink(format="parquet", path="/out")),
    ),
)
METRICS = TaskMetrics(
    batch_id=100,
    batches=101,
    rows_in=50_000,
    batch_ms=120.0,
    rows_per_second=900.0,
    watermark_ms=NOW - 61_000,
    watermark_moved_ms=NOW - 500,
    newest_ms=NOW - 1_000,
    source_rows_ms={"clicks": NOW - 500},
    batch_phases={"latestOffset": 10.0, "addBatch": 100.0},
)


def task(
    task_id: TaskId, vertices: tuple[Vertex, ...], readers: tuple[TaskId, ...] = (), **metrics: Any
) -> TaskDetails:
    return TaskDetails(
        task=Task(id=task_id, vertices=vertices, parallelism=2, readers=readers),
        state=ExecutionState.RUNNING,
        attempt_id=AttemptId("c" * 32),
        attempt_number=0,
        resource_id=TM,
        start_ms=START,
        end_ms=-1,
        metrics=replace(METRICS, **metrics),
    )


def first(**metrics: Any) -> TaskDetails:
    return task(FIRST, GRAPH.vertices[:1], (SECOND,), **metrics)


def second(**metrics: Any) -> TaskDetails:
    return task(SECOND, GRAPH.vertices[1:], **metrics)


def details(*tasks: TaskDetails, **changes: Any) -> JobDetails:
    job = JobDetails(
        job_id=JOB,
        graph=GRAPH,
        status=JobStatus.RUNNING,
        start_ms=START,
        end_ms=-1,
        timestamps={JobStatus.RUNNING.value: START},
        tasks=tasks or (first(), second()),
    )
    return replace(job, **changes)


def checkpoint(**changes: Any) -> CheckpointRecord:
    record = CheckpointRecord(
        checkpoint_id=7,
        kind=CheckpointKind.PERIODIC,
        status=CheckpointStatus.COMPLETED,
        triggered_ms=NOW - 5_000,
        num_tasks=1,
        tasks=(
            TaskRecord(
                task_id=FIRST,
                acknowledged_ms=NOW - 4_800,
                sync_ms=10,
                async_ms=100,
                bytes_full=2**20,
                bytes_uploaded=2**10,
                segments=3,
                physical_files=1,
            ),
        ),
    )
    return replace(record, **changes)


def checkpoints(**changes: Any) -> CheckpointStatistics:
    done = checkpoint()
    statistics = CheckpointStatistics(completed=7, history=(done,), latest_completed=done, interval_ms=10_000)
    return replace(statistics, **changes)


def resources(**changes: Any) -> ResourceOverview:
    return replace(ResourceOverview(task_managers=1, slots_total=4, slots_free=2), **changes)


def task_manager(resource_id: ResourceId = TM, *, heard_ms: int = NOW - 1_000, **report: Any) -> TaskManagerInfo:
    said = TaskManagerReport(resource_id=resource_id, slots=(SlotStatus(index=0),), session=SessionPhase.READY)
    return TaskManagerInfo(
        resource_id=resource_id,
        instance_id=InstanceId("i"),
        address="taskmanager/tm-1",
        pid=17,
        hardware=Hardware(cpu_cores=2, memory_bytes=2**33),
        registered_ms=START,
        last_heartbeat_ms=heard_ms,
        log_directory="/log",
        report=replace(said, **report),
    )


def facts(job: JobDetails | None = None, **changes: Any) -> JobFacts:
    known: dict[str, Any] = {
        "now": NOW,
        "details": details() if job is None else job,
        "checkpoints": checkpoints(),
        "resources": resources(),
        "task_managers": (task_manager(),),
    }
    return JobFacts(**(known | changes))


def failure(message: str = "ValueError: seven is poison", *, ago_ms: int = 10_000, **changes: Any) -> FailureRecord:
    error = ErrorInfo(code="user-code", message=message, kind=changes.pop("kind", Kind.JOB))
    record = FailureRecord(
        timestamp_ms=NOW - ago_ms, error=error, task_id=SECOND, task_name="counts -> out", resource_id=TM
    )
    return replace(record, **changes)
