"""A task with exchanges that is deployed to a session child which only remembers it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from minflinkd.jobgraph.model import Checkpointing, Input, RuntimeMode, Source, Task, Vertex
from minflinkd.rpc import messages as m
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import AllocationId, AttemptId, JobId, LeaderId, ResourceId, TaskId, VertexId
from minflinkd.taskmanager.attempts.attempt import Attempt
from minflinkd.taskmanager.attempts.deployment import (
    Deployer,
    attempt_directory,
)
from minflinkd.taskmanager.child import protocol as sp
from minflinkd.taskmanager.exchange.mirrors import Mirrors

HERE, THERE, TOKEN = ResourceId("tm-here"), ResourceId("tm-there"), "token"
NEAR, FAR, READER = AttemptId("1" * 32), AttemptId("2" * 32), AttemptId("3" * 32)
CONTEXT = m.JobContext(
    job_id=JobId("4" * 32),
    name="join",
    params={},
    mode=RuntimeMode.STREAMING,
    checkpointing=Checkpointing(),
    checkpoint_root="file:///nowhere",
)
JOIN = Vertex(
    id=VertexId("join"),
    inputs=(Input(id=VertexId("near"), exchange=True, idle_timeout=3.0), Input(id=VertexId("far"), exchange=True)),
    sql="SELECT 1",
)
TASK = Task(id=TaskId("join"), vertices=(JOIN,), parallelism=1, readers=(TaskId("end"),))
SOURCE = Task(id=TaskId("near"), vertices=(Vertex(id=VertexId("near"), source=Source(format="rate")),), parallelism=1)


class Session:
    """A session child that remembers what it was asked to run."""

    def __init__(self) -> None:
        self.run: list[sp.RunTask] = []

    async def ask(self, request: sp.RunTask, timeout: float) -> sp.TaskRunning:
        self.run.append(request)
        return sp.TaskRunning(phases={})


class Snapshots:
    """Local copies of every snapshot. The snapshots here have no files."""

    def holds(self, *_: object) -> bool:
        return True

    def lay_out(self, *_: object) -> frozenset[str]:
        return frozenset()


def deployment(task: Task, far_url: str = "", restore: m.TaskRestore | None = None) -> m.DeployTask:
    sources = {
        VertexId("near"): m.ExchangeSource(
            vertex_id=VertexId("near"), attempt_id=NEAR, resource_id=HERE, data_url="http://unused"
        ),
        VertexId("far"): m.ExchangeSource(
            vertex_id=VertexId("far"), attempt_id=FAR, resource_id=THERE, data_url=far_url
        ),
    }
    return m.DeployTask(
        job=CONTEXT,
        task=task,
        allocation_id=AllocationId("x"),
        attempt_id=READER,
        attempt_number=0,
        job_leader_id=LeaderId("l"),
        restore=restore,
        inputs=tuple(sources[edge.id] for edge in task.inputs),
    )


async def run(mirrors: Mirrors, root: Path, request: m.DeployTask) -> sp.RunTask:
    session = Session()
    deployer = Deployer(cast(Any, None), cast(Any, None), cast(Any, Snapshots()), mirrors)
    await deployer.bring_up(Attempt.of(request, attempt_directory(root, READER), 1), cast(Any, session))
    return session.run[0]


@asynccontextmanager
async def mirroring() -> AsyncIterator[Mirrors]:
    def lost(attempt_id: AttemptId, error: ErrorInfo) -> None:
        raise AssertionError(f"{attempt_id}: {error}")

    async with Mirrors(resource_id=HERE, token=TOKEN, max_backlog=77, patience=60.0, on_lost=lost) as mirrors:
        yield mirrors
