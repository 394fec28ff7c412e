"""A task executor in virtual time. Session child, blobs and processes are played; slots and attempts are real."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from structlog.testing import capture_logs

from minflinkd.blob.errors import BlobNotFound
from minflinkd.blob.keys import Blob, BlobKey
from minflinkd.blob.references import References
from minflinkd.filemerging.compaction import CompactionLimits
from minflinkd.filemerging.policy import FileMerging
from minflinkd.jobgraph.model import Checkpointing, RuntimeMode, Source, Task, Vertex
from minflinkd.rpc import messages as m
from minflinkd.rpc.faulty import FaultyWire
from minflinkd.rpc.network import RESOURCE_MANAGER, Mailbox, RpcTimeout, job_master, task_manager
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.ids import AllocationId, AttemptId, InstanceId, JobId, LeaderId, ResourceId, TaskId, VertexId
from minflinkd.taskmanager.attempts.deployment import Deployer
from minflinkd.taskmanager.attempts.local_snapshots import LocalSnapshots
from minflinkd.taskmanager.child import protocol as sp
from minflinkd.taskmanager.child.keeper import SessionKeeper
from minflinkd.taskmanager.exchange.mirrors import Mirrors
from minflinkd.taskmanager.slots.core import TaskManagerCore, TaskManagerOptions
from minflinkd.taskmanager.task_executor import ExecutorOptions, TaskExecutor
from tests.untimed_storage import untimed_storages

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
    """A session child that answers each request at once, or never."""

    asked: list[str] = field(default_factory=list)
    generation: int = 1
    phase: m.SessionPhase = m.SessionPhase.READY
    stop_takes: float = 0.0
    snapshot: sp.SnapshotTaken | None = None
    phases: dict[str, float] = field(default_factory=dict)
    aged: str = ""
    start_error: str = ""
    slow: str = ""
    steps: int = 0
    refuses: bool = False
    heirs: dict[AttemptId, AttemptId] = field(default_factory=dict)
    unloading: asyncio.Event | None = None  # how long unloading takes
    going: asyncio.Event | None = None  # it is lost, and how long its processes take to go

    def renew(self, reason: str) -> None:
        self.asked.append("renew")

    def session(self) -> Session:
        return self

    def condemn(self, generation: int, reason: str) -> None:
        self.asked.append("condemn")

    async def gone(self, generation: int) -> bool:
        if self.going is not None:
            await self.going.wait()
        return True

    async def ask(self, request: m.Message, timeout: float) -> Any:
        self.asked.append(type(request).__name__)
        if self.going is not None:
            raise sp.SessionLost("killed")
        if self.refuses and isinstance(request, sp.RunTask | sp.AnalyzeTasks):
            raise sp.UnknownAttempt("not now")
        if isinstance(request, sp.RunTask):
            return sp.TaskRunning(phases={})
        if isinstance(request, sp.TellCollected):
            return m.Collected(rows=(m.CollectedRow(batch_id=3, row="{}"),))
        if isinstance(request, sp.TakeSnapshot):
            if self.snapshot is not None:
                return self.snapshot
            raise sp.UnknownAttempt("no snapshot now")
        if isinstance(request, sp.UnloadTask):
            if self.unloading is not None:
                await self.unloading.wait()
            return sp.TaskUnloaded(unloaded=True, heir=self.heirs.get(request.attempt_id))
        if self.stop_takes > timeout:
            await asyncio.sleep(timeout)
            raise RpcTimeout("user code does not come back")
        await asyncio.sleep(self.stop_takes)
        return sp.TaskStopped(ended=True)


@dataclass
class Blobs:
    """Counts references as the cache does. A blob in `missing` cannot be found; one in `slow` never arrives."""

    forgotten: list[JobId] = field(default_factory=list)
    references: References = field(default_factory=References)
    missing: set[BlobKey] = field(default_factory=set)
    slow: set[BlobKey] = field(default_factory=set)

    async def get(self, job_id: JobId, key: BlobKey) -> Path:
        if key in self.slow:
            await asyncio.Event().wait()
        if key in self.missing:
            raise BlobNotFound("nowhere")
        self.references.acquire(Blob(job_id, key))
        return Path("/nowhere")

    async def forget_job(self, job_id: JobId) -> None:
        self.forgotten.append(job_id)

    def release(self, job_id: JobId, key: BlobKey) -> None:
        self.references.release(Blob(job_id, key))


class SlowDeployer(Deployer):
    """A deployer whose fetches take as long as the test wants."""

    async def bring_up(self, attempt: Any, session: Any) -> dict[str, float]:
        await asyncio.sleep(1000.0)
        return await super().bring_up(attempt, session)


@dataclass
class PlayedProcess:
    exits: list[tuple[str, bool]]
    data_url: str = "http://here"

    def metrics(self) -> dict[str, float]:
        return {"figure": 1.0}

    def registered(self, answer: m.Registered) -> None: ...

    def end(self, reason: str, *, failed: bool) -> None:
        self.exits.append((reason, failed))


@dataclass
class World:
    executor: TaskExecutor
    session: Session
    blobs: Blobs
    snapshots: LocalSnapshots
    wire: FaultyWire
    accepts: Callable[[m.OfferSlots], Awaitable[m.OffersAccepted]] | None = None
    statuses: list[m.TaskState] = field(default_factory=list)
    reports: list[m.TaskManagerReport] = field(default_factory=list)
    exits: list[tuple[str, bool]] = field(default_factory=list)
    logs: list[Any] = field(default_factory=list)

    async def ask(self, request: m.Request[Any], *, timeout: float = 5.0) -> Any:
        fence = RM if isinstance(request, m.AllocateSlots | m.RenewSession | m.ExitTaskManager) else JM
        return await self.wire.party("daemon").ask(task_manager(TM), request, timeout=timeout, fence=fence)

    def lose_session(self) -> None:
        """Let the session be lost, and its processes be gone."""
        self.executor.session_lost(1, "killed")
        self.executor.session_gone()

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
    wire, session, blobs, storages = FaultyWire(random.Random(1)), Session(), Blobs(), untimed_storages()
    snapshots = LocalSnapshots(tmp_path / "snapshots")
    hello = m.RegisterTaskManager(
        address=task_manager(TM),
        pid=1,
        hardware=m.Hardware(cpu_cores=1, memory_bytes=1),
        log_directory="",
        report=m.TaskManagerReport(resource_id=TM, slots=(), session=m.SessionPhase.STARTING),
    )
    exits: list[tuple[str, bool]] = []
    mirrors = Mirrors(resource_id=TM, token="", max_backlog=1, patience=1.0, on_lost=lambda attempt_id, error: None)
    executor = TaskExecutor(
        TaskManagerCore(hello, slots=2, options=TaskManagerOptions(), now=SystemClock().monotonic()),
        PlayedProcess(exits),
        network=wire.party("tm"),
        clock=SystemClock(),
        keeper=cast(SessionKeeper, session),
        deployer=deployer(storages, cast(Any, blobs), snapshots, mirrors),
        merging=FileMerging(limits=CompactionLimits(max_file_size=1024)),
        options=ExecutorOptions(state_directory=tmp_path, cancellation_timeout=30.0),
    )
    world = World(executor, session, blobs, snapshots, wire, exits=exits)
    manager, mailbox = Mailbox(RESOURCE_MANAGER), Mailbox(job_master(JOB))

    async def register(request: m.RegisterTaskManager) -> m.Registered:
        world.reports.append(request.report)
        instance = InstanceId("instance")
        return m.Registered(instance_id=instance, leader_id=RM, heartbeat_interval=1.0, heartbeat_timeout=5.0)

    async def heartbeat(request: m.HeartbeatFromTaskManager) -> m.HeartbeatAnswer:
        world.reports.append(request.report)
        return m.HeartbeatAnswer()

    async def offered(request: m.OfferSlots) -> m.OffersAccepted:
        if world.accepts is not None:
            return await world.accepts(request)
        return m.OffersAccepted(accepted=tuple(o.allocation_id for o in request.offers))

    async def changed(request: m.TaskStateChanged) -> m.Done:
        world.statuses.append(request.status.state)
        return m.Done()

    manager.on(m.RegisterTaskManager, register)
    manager.on(m.HeartbeatFromTaskManager, heartbeat)
    wire.party("rm").attach(manager)
    mailbox.on(m.OfferSlots, offered)
    mailbox.on(m.TaskStateChanged, changed)
    wire.party("jm").attach(mailbox)
    with capture_logs() as logs:
        world.logs = logs
        async with executor:
            executor.session_changed(session.phase)
            await asyncio.sleep(0.1)
            yield world
        await wire.aclose()
    await storages.aclose()
