"""Plans that wait for their deployment: whose they are, how long they are kept, and that none is left over."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

import msgspec
import pytest

from minflinkd.jobgraph.model import Checkpointing, RuntimeMode, Source, Task, Vertex
from minflinkd.rpc.messages import JobContext
from minflinkd.runtime.ids import JobId, TaskId, VertexId
from minflinkd.taskmanager.session.plan.prepared import JOBS, KEPT, Prepared, PreparedTask

A = VertexId("a")
TASK = Task(id=TaskId("a"), vertices=(Vertex(id=A, source=Source(format="rate")),), parallelism=2)


@dataclass
class Held:
    """Stands for a plan and for code. Only one thing counts: it is released once."""

    released: int = 0

    def release(self) -> None:
        self.released += 1


@dataclass
class World:
    now: float = 0.0
    held: list[Held] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.prepared = Prepared(lambda: self.now)

    def task(self, job: JobContext, task: Task = TASK, **inputs: str) -> PreparedTask:
        plan, code = Held(), Held()
        self.held += [plan, code]
        schemas = {VertexId(name): schema for name, schema in inputs.items()}
        return PreparedTask(job, task, schemas, cast(Any, plan), cast(Any, code))

    @property
    def left(self) -> int:
        assert all(each.released <= 1 for each in self.held)
        return sum(not each.released for each in self.held)


@pytest.fixture
def world() -> World:
    return World()


def job(number: int = 1, **params: Any) -> JobContext:
    return JobContext(
        job_id=JobId(f"{number:032x}"),
        name="job",
        params=params,
        mode=RuntimeMode.STREAMING,
        checkpointing=Checkpointing(),
        checkpoint_root="file:///nowhere",
    )


def test_a_plan_is_taken_once_by_the_task_that_it_was_built_for(world: World) -> None:
    """H3."""
    kept = world.task(job(), out="schema")
    world.prepared.keep(job().job_id, [kept])
    inputs = {VertexId("out"): "schema"}
    assert world.prepared.take(job(), TASK, {VertexId("out"): "another"}) is None
    assert world.prepared.take(job(), msgspec.structs.replace(TASK, parallelism=3), inputs) is None
    assert world.prepared.take(job(factor=2), TASK, inputs) is None
    assert world.prepared.take(job(2), TASK, inputs) is None
    assert world.prepared.take(job(), TASK, inputs) is kept
    assert world.prepared.take(job(), TASK, inputs) is None
    assert world.left == 2, "whoever took it gives it back"


def test_what_nobody_takes_goes_after_a_while(world: World) -> None:
    """A refused or cancelled job leaves nothing in the session (R6a)."""
    world.prepared.keep(job().job_id, [world.task(job()), replace(world.task(job()), inputs={})])
    world.now = KEPT - 0.1
    world.prepared.drop_old()
    assert world.left == 4
    world.now = KEPT
    assert world.prepared.take(job(), TASK, {}) is None
    assert world.left == 0


def test_a_later_analysis_takes_the_place_of_the_one_before(world: World) -> None:
    """H9."""
    world.prepared.keep(job().job_id, [world.task(job())])
    world.prepared.keep(job().job_id, [world.task(job(factor=2))])
    assert world.left == 2
    world.prepared.keep(job().job_id, [])
    assert world.left == 0


def test_no_more_jobs_are_kept_than_a_few(world: World) -> None:
    """Many jobs may be submitted in a row (R6a)."""
    for number in range(JOBS + 3):
        world.prepared.keep(job(number).job_id, [world.task(job(number))])
    assert world.left == 2 * JOBS
    assert world.prepared.take(job(2), TASK, {}) is None
    assert world.prepared.take(job(3), TASK, {}) is not None
