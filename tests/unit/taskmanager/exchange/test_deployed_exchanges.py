"""Where a deployed task reads and writes its exchanges, and which exchange logs are deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from minflinkd.jobgraph.model import Checkpointing, Input, RuntimeMode, Source, Task, Vertex
from minflinkd.rpc import messages as m
from minflinkd.rpc.snapshot import TaskSnapshot
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import AllocationId, AttemptId, JobId, LeaderId, ResourceId, TaskId, VertexId
from minflinkd.taskmanager.attempts.attempt import Attempt
from minflinkd.taskmanager.attempts.deployment import (
    Deployer,
    attempt_directory,
    exchange_directory,
    exchanges,
    remove_exchanges,
)
from minflinkd.taskmanager.child import protocol as sp
from minflinkd.taskmanager.exchange.access import ExchangeUnreachable
from minflinkd.taskmanager.exchange.endpoint import DataEndpoint
from minflinkd.taskmanager.exchange.log import Entry, EntryKind, LogWriter, read_entry
from minflinkd.taskmanager.exchange.mirrors import Mirrors
from tests.waiting import until

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
    def lay_out(self, *_: object) -> bool:
        return True


@pytest.fixture
async def mirrors() -> AsyncIterator[Mirrors]:
    def lost(attempt_id: AttemptId, error: ErrorInfo) -> None:
        raise AssertionError(f"{attempt_id}: {error}")

    async with Mirrors(resource_id=HERE, token=TOKEN, max_backlog=77, patience=60.0, on_lost=lost) as mirrors:
        yield mirrors


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


async def test_a_task_reads_a_log_of_its_own_taskmanager_as_it_is_and_another_ones_in_a_mirror(
    mirrors: Mirrors, tmp_path: Path
) -> None:
    """The mirror lies in the attempt's own directory and begins at the sequence number in the snapshot (J11)."""
    here, there = tmp_path / "here", tmp_path / "there"
    log = LogWriter(exchange_directory(there, FAR), (TaskId("join"),), first=5)
    log.describe("schema")
    log.append(Entry(kind=EntryKind.BARRIER, checkpoint_id=9))
    snapshot = TaskSnapshot(
        task_id=TaskId("join"),
        attempt_id=READER,
        resource_id=HERE,
        checkpoint_id=9,
        batch_id=-1,
        parallelism=1,
        inputs={VertexId("near"): 8, VertexId("far"): 5},
    )
    restore = m.TaskRestore(checkpoint_id=9, snapshot=snapshot)
    async with DataEndpoint(root=exchanges(there), token=TOKEN, host="127.0.0.1", ports=[0]) as endpoint:
        asked = await run(mirrors, here, deployment(TASK, endpoint.url, restore))
        far, near = asked.inputs
        assert (near.directory, near.idle_timeout) == (str(exchange_directory(here, NEAR)), 3.0)
        assert Path(far.directory).is_relative_to(attempt_directory(here, READER))
        await until(lambda: read_entry(Path(far.directory), 5) is not None)
        assert asked.output == sp.OutputChannel(
            directory=str(exchange_directory(here, READER)), readers=(TaskId("end"),), max_backlog=77
        )
        assert len(mirrors) == 1
        await mirrors.close(READER)
        assert len(mirrors) == 0


async def test_a_task_without_exchanges_has_none(mirrors: Mirrors, tmp_path: Path) -> None:
    asked = await run(mirrors, tmp_path, deployment(SOURCE))
    assert (asked.inputs, asked.output, len(mirrors)) == ((), None, 0)


async def test_an_input_elsewhere_needs_an_address(mirrors: Mirrors, tmp_path: Path) -> None:
    with pytest.raises(ExchangeUnreachable, match="tm-there has not said"):
        await run(mirrors, tmp_path, deployment(TASK))


async def test_only_logs_of_the_dead_are_removed_and_none_that_is_begun_meanwhile(tmp_path: Path) -> None:
    """`remove_exchanges` lists the logs first and asks afterwards which attempts live, so no new log is removed."""
    for attempt in (NEAR, FAR):
        LogWriter(exchange_directory(tmp_path, attempt), ())
    alive = {NEAR}

    def live() -> frozenset[AttemptId]:
        alive.add(READER)
        LogWriter(exchange_directory(tmp_path, READER), ())
        return frozenset(alive)

    await remove_exchanges(tmp_path, live)
    await remove_exchanges(tmp_path, live)
    assert {path.name for path in exchanges(tmp_path).iterdir()} == {NEAR, READER}
    await remove_exchanges(tmp_path / "nothing", frozenset)
