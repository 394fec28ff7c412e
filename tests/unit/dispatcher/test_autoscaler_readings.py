"""What the autoscaler sees of a job (R62)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from minflinkd.autoscaler.readings import Change, JobReading
from minflinkd.dispatcher.autoscaler_readings import free_slots, reading_of
from minflinkd.jobgraph.model import Input, Sink, Source, Task, Vertex
from minflinkd.rpc.jobs import ExecutionState, HotRestart, JobDetails, JobStatus, RestartState, TaskDetails
from minflinkd.rpc.messages import BatchWork, PendingRecords, RealTimeFigures, SlotStatus, TaskMetrics
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import AllocationId, ResourceId, TaskId, VertexId
from tests.unit.diagnosis.facts import task_manager
from tests.unit.rest.parties import RUNNING, TM, details

NOW = 1_000_000.0


STEADY = replace(details(), waiting=())


def seen(job: JobDetails | None = None, **more: Any) -> JobReading:
    return reading_of(details() if job is None else job, NOW, **more)


def of_source(source: Source, **metrics: Any) -> JobDetails:
    """Return a job whose only task reads this source."""
    vertices = (
        Vertex(id=VertexId("s"), source=source),
        Vertex(id=VertexId("o"), inputs=(Input(id=VertexId("s")),), sink=Sink(format="console")),
    )
    job = STEADY
    told = TaskMetrics(batches=5, rows_in=500, batch_ms=2000.0, busy_ms=9000.0, rows_per_second=50.0)
    task = replace(
        job.tasks[0],
        task=Task(id=TaskId("s"), vertices=vertices, parallelism=2),
        metrics=replace(told, **metrics),
    )
    return replace(job, tasks=(task,))


def with_restart(state: RestartState, **more: Any) -> JobDetails:
    return replace(STEADY, hot_restarts=(HotRestart(number=3, state=state, requested_ms=5000, **more),))


def only_task(job: JobDetails) -> Any:
    (task,) = seen(job).tasks
    return task


def test_a_task_shows_its_last_micro_batch_and_its_sums() -> None:
    """Rows of the last one follow from its rate, and what it did outside from Spark's phases."""
    job = of_source(
        Source(format="rate"), batch_phases={"addBatch": 1500.0, "walCommit": 100.0}, source_rows_ms={"s": 990_000}
    )
    task = only_task(job)
    assert (task.batches, task.rows, task.busy) == (5, 500, 9.0)
    assert (task.batch_seconds, task.batch_rows, task.outside, task.began) == (2.0, 100.0, 0.5, 990.0)


def test_records_that_wait_are_known_only_if_all_sources_tell() -> None:
    """A source that does not tell is not one for which nothing waits."""
    kafka = Source(format="kafka")
    assert only_task(of_source(kafka, pending={"s": PendingRecords(records=7)})).backlog == 7
    assert only_task(of_source(kafka)).backlog is None
    assert only_task(of_source(Source(format="rate"))).backlog is None


@pytest.mark.parametrize(
    ("options", "limited", "bound"),
    [
        ({}, False, None),
        ({"maxOffsetsPerTrigger": "500"}, True, 500.0),
        ({"maxFilesPerTrigger": "5"}, True, None),
        ({"maxOffsetsPerTrigger": "${most}"}, True, None),
    ],
)
def test_a_source_that_bounds_a_micro_batch_says_so(
    options: dict[str, str], limited: bool, bound: float | None
) -> None:
    """In rows if that is what its option counts."""
    task = only_task(of_source(Source(format="kafka", options=options)))
    assert (task.limited, task.bound) == (limited, bound)


def test_work_on_slots_counts_for_the_micro_batch_that_was_looked_at() -> None:
    """Not for a later one."""
    work = BatchWork(batch_id=41, batch_ms=2000.0, task_ms=1000.0)
    assert only_task(of_source(Source(format="rate"), batch_id=41, work=work)).parallel == 0.25
    assert only_task(of_source(Source(format="rate"), batch_id=42, work=work)).parallel is None


def test_a_task_that_reads_another_one_names_it() -> None:
    """By the vertex that it reads."""
    assert [task.upstream for task in seen().tasks] == [(), (TaskId("flights"),)]


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (replace(STEADY, status=JobStatus.RESTARTING), "it is RESTARTING"),
        (with_restart(RestartState.ON_TRIAL), "hot restart 3 is under way (on-trial)"),
        (replace(STEADY, waiting=("no TaskManager",)), "it lacks slots: no TaskManager"),
        (
            replace(STEADY, tasks=(replace(STEADY.tasks[0], state=ExecutionState.DEPLOYING),)),
            "its tasks do not all run",
        ),
        (of_source(Source(format="kafka"), real_time=RealTimeFigures()), "it runs in real-time mode"),
    ],
    ids=["restarting", "on trial", "lacks slots", "deploying", "real time"],
)
def test_a_job_that_must_be_left_alone_says_why(job: JobDetails, why: str) -> None:
    """Whatever its JobMaster says."""
    assert why in seen(job).hold
    assert seen(STEADY, unsettled="a savepoint is being made").hold == "a savepoint is being made"
    assert seen(STEADY).hold == ""


def test_the_last_change_is_that_of_the_stored_versions() -> None:
    """So it stands under another leader. One that failed says why."""
    assert seen(with_restart(RestartState.COMPLETED)).last_change == Change(number=3, at=5.0)
    error = ErrorInfo(code="x", message="no slots")
    failed = seen(with_restart(RestartState.FAILED, error=error)).last_change
    assert failed == Change(number=3, at=5.0, error="no slots")
    under_way = seen(with_restart(RestartState.HANDING_OVER)).last_change
    assert under_way is not None
    assert not under_way.over


def test_room_is_what_a_group_has_and_what_is_free_beside_it() -> None:
    """A TaskManager that is not known has nothing free."""
    assert seen(free={TM: 3}).room == {"default": 5}
    assert seen(free={}).room == {"default": 2}
    assert seen().room == {}


def test_free_slots_are_those_of_taskmanagers_that_give_some_out() -> None:
    """A draining one gives out none."""
    slots = (SlotStatus(index=0), SlotStatus(index=1, job_id=RUNNING, allocation_id=AllocationId("a")))
    info = task_manager(slots=slots)
    drained = replace(task_manager(ResourceId("tm-9"), slots=slots), drained=True)
    draining = task_manager(ResourceId("tm-8"), slots=slots, draining=True)
    assert free_slots((info, drained, draining)) == {info.resource_id: 1}


def test_a_job_runs_since_its_last_task_does() -> None:
    """The cool-down begins there."""

    def running_since(task: TaskDetails, ms: int) -> TaskDetails:
        return replace(task, entered={ExecutionState.RUNNING: ms})

    first, second = details().tasks
    job = replace(details(), tasks=(running_since(first, 1000), running_since(second, 3000)))
    assert seen(job).since == 3.0
