"""The task executor in virtual time: attempts that come up while they are ended, slots, and what is left of jobs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from minflinkd.jobgraph.model import Checkpointing, RuntimeMode, Source, Task, Vertex
from minflinkd.rpc import messages as m
from minflinkd.rpc.faulty import FaultyWire
from minflinkd.rpc.network import Address, Mailbox, job_master, task_manager
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.ids import AllocationId, AttemptId, JobId, LeaderId, ResourceId, TaskId, VertexId
from minflinkd.storage.registry import Storages
from minflinkd.taskmanager import session_protocol as sp
from minflinkd.taskmanager.deployment import Deployer
from minflinkd.taskmanager.local_snapshots import LocalSnapshots
from minflinkd.taskmanager.session_keeper import SessionKeeper
from minflinkd.taskmanager.task_executor import TaskExecutor

pytestmark = pytest.mark.looptime
JOB, TM = JobId("1" * 32), ResourceId("tm-1")
RM, JM = LeaderId("rm"), LeaderId("jm")
X, Y = AllocationId("x"), AllocationId("y")
ATTEMPT = AttemptId("2" * 32)
CONTEXT = m.JobContext(
    job_id=JOB,
    name="copy",
    params={},
    mode=RuntimeMode.STREAMING,
    checkpointing=Checkpointing(),
    checkpoint_root="file:///nowhere",
)
TASK = Task(id=TaskId("a"), vertices=(Vertex(id=VertexId("a"), source=Source(format="rate")),), parallelism=1)
DEPLOY = m.DeployTask(job=CONTEXT, task=TASK, allocation_id=X, attempt_id=ATTEMPT, attempt_number=0, job_leader_id=JM)


@dataclass
class Session:
    """A session child that does at once, or never, what it is asked."""

    asked: list[str] = field(default_factory=list)
    generation: int = 1
    phase: m.SessionPhase = m.SessionPhase.READY
    stop_takes: float = 0.0

    def session(self) -> Session:
        return self

    def condemn(self, generation: int, reason: str) -> None:
        self.asked.append("condemn")

    async def gone(self, generation: int) -> None: ...

    async def ask(self, request: m.Message, timeout: float) -> Any:
        self.asked.append(type(request).__name__)
        if isinstance(request, sp.RunTask):
            return sp.TaskRunning(phases={})
        await asyncio.sleep(self.stop_takes)
        return sp.TaskStopped(ended=True, unloaded=True)


@dataclass
class Blobs:
    forgotten: list[JobId] = field(default_factory=list)

    async def forget_job(self, job_id: JobId) -> None:
        self.forgotten.append(job_id)

    def release(self, job_id: JobId, key: object) -> None: ...


class SlowDeployer(Deployer):
    """Fetches for as long as it takes."""

    async def bring_up(self, attempt: Any, session: Any) -> dict[str, float]:
        await asyncio.sleep(1000.0)
        return await super().bring_up(attempt, session)


@dataclass
class World:
    executor: TaskExecutor
    session: Session
    blobs: Blobs
    snapshots: LocalSnapshots
    wire: FaultyWire
    accepts: Callable[[m.OfferSlots], Awaitable[m.OffersAccepted]] | None = None
    statuses: list[m.TaskState] = field(default_factory=list)

    async def ask(self, request: m.Request[Any], *, timeout: float = 5.0) -> Any:
        fence = RM if isinstance(request, m.AllocateSlots) else JM
        return await self.wire.party("daemon").ask(task_manager(TM), request, timeout=timeout, fence=fence)

    async def allocate(self, allocation: AllocationId = X, slot: int = 0) -> None:
        request = m.AllocateSlots(
            job_id=JOB, allocation_id=allocation, slots=(slot,), job_master=job_master(JOB), job_leader_id=JM
        )
        await self.ask(request)
        await asyncio.sleep(1.0)

    async def beat(self, *allocations: AllocationId) -> m.JobHeartbeatAnswer:
        answer = await self.ask(m.HeartbeatFromJobMaster(job_id=JOB, leader_id=JM, allocations=allocations))
        assert isinstance(answer, m.JobHeartbeatAnswer)
        return answer

    async def beat_for(self, seconds: float, *allocations: AllocationId) -> None:
        for _ in range(round(seconds)):
            await self.beat(*allocations)
            await asyncio.sleep(1.0)


@asynccontextmanager
async def running(tmp_path: Path, deployer: type[Deployer] = Deployer) -> AsyncIterator[World]:
    wire, session, blobs, storages = FaultyWire(random.Random(1)), Session(), Blobs(), Storages()
    snapshots = LocalSnapshots(tmp_path / "snapshots")
    executor = TaskExecutor(
        resource_id=TM,
        network=wire.party("tm"),
        clock=SystemClock(),
        slots=2,
        keeper=cast(SessionKeeper, session),
        deployer=deployer(storages, cast(Any, blobs), snapshots),
        state_directory=tmp_path,
        max_file_size=1024,
        cancellation_timeout=30.0,
        heartbeat_timeout=5.0,
        slot_hold_timeout=30.0,
        on_change=lambda: None,
        resource_manager=lambda: RM,
        on_exit=lambda _: None,
        metrics=dict,
    )
    world = World(executor, session, blobs, snapshots, wire)
    mailbox = Mailbox(job_master(JOB))

    async def offered(request: m.OfferSlots) -> m.OffersAccepted:
        if world.accepts is not None:
            return await world.accepts(request)
        return m.OffersAccepted(accepted=tuple(o.allocation_id for o in request.offers))

    async def changed(request: m.TaskStateChanged) -> m.Done:
        world.statuses.append(request.status.state)
        return m.Done()

    mailbox.on(m.OfferSlots, offered)
    mailbox.on(m.TaskStateChanged, changed)
    wire.party("jm").attach(mailbox)
    with capture_logs():
        async with executor:
            yield world
        await wire.aclose()
    await storages.aclose()


async def test_an_attempt_that_is_cancelled_while_it_comes_up_starts_no_query_later(tmp_path: Path) -> None:
    """m12: whoever is told that nothing of the attempt runs can rely on it, however long its fetch would have taken."""
    async with running(tmp_path, SlowDeployer) as world:
        await world.allocate()
        await world.ask(DEPLOY)
        await world.ask(m.CancelTask(job_id=JOB, attempt_id=ATTEMPT))
        await world.beat_for(1100, X)
        assert "RunTask" not in world.session.asked
        assert world.statuses[-1] is m.TaskState.CANCELED
        assert world.executor.attempts == {}


async def test_a_heartbeat_is_answered_while_user_code_is_slow_to_end(tmp_path: Path) -> None:
    """R10: one allocation that the JobMaster does not know must not cost it all its slots here."""
    async with running(tmp_path) as world:
        await world.allocate(X, 0)
        await world.allocate(Y, 1)
        await world.ask(DEPLOY)
        world.session.stop_takes = 40.0
        await world.beat_for(12, X, Y)
        for _ in range(20):
            await world.beat(Y)
            await asyncio.sleep(1.0)
        assert X in world.executor.slots.bindings
        await world.beat_for(30, Y)
        assert list(world.executor.slots.bindings) == [Y]
        assert world.session.asked.count("StopTask") == 1


async def test_an_offer_that_is_not_answered_costs_no_slot_that_was_accepted_before(tmp_path: Path) -> None:
    """m9: the JobMaster may be busy; the task on the accepted slot runs on."""
    async with running(tmp_path) as world:
        await world.allocate(X, 0)
        await world.ask(DEPLOY)

        async def never(_: m.OfferSlots) -> m.OffersAccepted:
            await asyncio.Event().wait()
            raise AssertionError

        world.accepts = never
        await world.allocate(Y, 1)
        await world.beat_for(30, X)
        assert list(world.executor.slots.bindings) == [X]
        assert world.executor.attempts[ATTEMPT].status.state is m.TaskState.RUNNING


async def test_a_job_that_went_elsewhere_leaves_nothing_here(tmp_path: Path) -> None:
    """Its end is told only to TaskManagers that hold its slots then; local copies and blobs must not wait for it."""
    async with running(tmp_path) as world:
        await world.allocate()
        await world.beat_for(12, X)
        left = world.snapshots.directory(JOB, TASK.id, 1) / "offsets"
        left.mkdir(parents=True)
        await world.ask(m.FreeSlots(job_id=JOB, allocations=(X,)))
        await asyncio.sleep(30.0)
        assert left.exists()
        await asyncio.sleep(10.0)
        assert not left.exists()
        assert world.blobs.forgotten == [JOB]


async def test_tasks_of_a_silent_jobmaster_end_and_its_slots_fall_free_later(tmp_path: Path) -> None:
    """R13."""
    async with running(tmp_path) as world:
        await world.allocate()
        await world.ask(DEPLOY)
        world.wire.faults.drop_if = lambda _s, target, _m: target == Address(job_master(JOB))
        await asyncio.sleep(10.0)
        assert world.session.asked[-1] == "StopTask"
        assert X in world.executor.slots.bindings
        await asyncio.sleep(30.0)
        assert not world.executor.slots.bindings
