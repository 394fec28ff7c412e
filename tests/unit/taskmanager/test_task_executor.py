"""The task executor in virtual time: attempts that end while they start, slots, and what is left of jobs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from minflinkd.blob.errors import BlobNotFound
from minflinkd.blob.keys import Blob, BlobKey, BlobKind
from minflinkd.blob.references import References
from minflinkd.filemerging.compaction import CompactionLimits
from minflinkd.filemerging.policy import FileMerging
from minflinkd.jobgraph.model import Checkpointing, RuntimeMode, Sink, Source, Task, Vertex
from minflinkd.rpc import messages as m
from minflinkd.rpc.faulty import FaultyWire
from minflinkd.rpc.network import RESOURCE_MANAGER, Address, Mailbox, RpcTimeout, job_master, task_manager
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.errors import Consequence, ErrorInfo, RemoteError
from minflinkd.runtime.ids import (
    AllocationId,
    AttemptId,
    InstanceId,
    JobId,
    LeaderId,
    ResourceId,
    TaskId,
    VertexId,
)
from minflinkd.storage.publication import SinkTransaction, StagedToken
from minflinkd.taskmanager.attempts.deployment import Deployer
from minflinkd.taskmanager.attempts.local_snapshots import LocalSnapshots
from minflinkd.taskmanager.child import protocol as sp
from minflinkd.taskmanager.child.keeper import SessionKeeper
from minflinkd.taskmanager.exchange.mirrors import Mirrors
from minflinkd.taskmanager.slots.core import TaskManagerCore, TaskManagerOptions
from minflinkd.taskmanager.task_executor import ExecutorOptions, TaskExecutor
from tests.untimed_storage import untimed_storages

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

    def renew(self, reason: str) -> None:
        self.asked.append("renew")

    def session(self) -> Session:
        return self

    def condemn(self, generation: int, reason: str) -> None:
        self.asked.append("condemn")

    async def gone(self, generation: int) -> bool:
        return True

    async def ask(self, request: m.Message, timeout: float) -> Any:
        self.asked.append(type(request).__name__)
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


async def test_an_attempt_that_is_cancelled_while_it_comes_up_starts_no_query_later(tmp_path: Path) -> None:
    """Whoever was told that nothing of the attempt runs can rely on it, however long its fetch takes (m12)."""
    async with running(tmp_path, SlowDeployer) as world:
        await world.allocate()
        await world.ask(DEPLOY)
        await world.ask(m.CancelTask(job_id=JOB, attempt_id=ATTEMPT))
        await world.beat_for(1100, X)
        assert "RunTask" not in world.session.asked
        assert world.statuses[-1] is m.TaskState.CANCELED
        assert world.executor.attempts == {}


FIRST, SECOND = (BlobKey.new(BlobKind.PERMANENT, digit * 64) for digit in "01")
ARTIFACTS = tuple(m.ArtifactRef(name=f"{key}.py", key=str(key), size=1) for key in (FIRST, SECOND))
WITH_ARTIFACTS = replace(DEPLOY, job=replace(CONTEXT, artifacts=ARTIFACTS))


@pytest.mark.parametrize("how", ["cancelled", "failed", "session lost", "missing", "slow", "not started"])
async def test_a_tasks_end_gives_its_artifacts_back(tmp_path: Path, how: str) -> None:
    """A task may have finished, failed, been cancelled, or never started (B15)."""
    async with running(tmp_path) as world:
        references = world.blobs.references
        world.blobs.missing = {SECOND} if how == "missing" else set()
        world.blobs.slow = {SECOND} if how == "slow" else set()
        world.session.refuses = how == "not started"
        await world.allocate()
        await world.ask(WITH_ARTIFACTS)
        await asyncio.sleep(1.0)
        runs = how in ("cancelled", "failed", "session lost")
        assert references.count_of_job(JOB) == (2 if runs else 1 if how == "slow" else 0)
        if how in ("cancelled", "slow"):
            await world.ask(m.CancelTask(job_id=JOB, attempt_id=ATTEMPT))
        elif how == "failed":
            error = ErrorInfo(code="user-code", message="division by zero")
            world.executor.task_failed(1, sp.TaskFailed(attempt_id=ATTEMPT, error=error))
        elif how == "session lost":
            world.executor.session_lost(1, "killed")
        await asyncio.sleep(1.0)
        assert references.count_of_job(JOB) == 0
        assert world.statuses[-1] is (m.TaskState.CANCELED if how in ("cancelled", "slow") else m.TaskState.FAILED)


UNREACHABLE = ErrorInfo(code="exchange-unreachable", message="gone", consequence=Consequence.RETRYABLE)


async def test_a_task_whose_input_is_lost_fails_and_is_stopped(tmp_path: Path) -> None:
    """The JobMaster restarts it with the task that it reads from. An input that no task reads fails nobody (J11)."""
    async with running(tmp_path) as world:
        await world.allocate()
        await world.ask(DEPLOY)
        await asyncio.sleep(1.0)
        world.executor.input_lost(AttemptId("f" * 32), UNREACHABLE)
        assert world.statuses[-1] is m.TaskState.RUNNING
        world.executor.input_lost(ATTEMPT, UNREACHABLE)
        world.executor.input_lost(ATTEMPT, UNREACHABLE)
        await asyncio.sleep(1.0)
        assert world.statuses[-1] is m.TaskState.FAILED
        assert world.session.asked.count("StopTask") == 1
        assert not world.executor.attempts


async def test_an_offer_says_where_exchanges_are_read(tmp_path: Path) -> None:
    """J11"""
    urls: list[str] = []

    async def accepts(request: m.OfferSlots) -> m.OffersAccepted:
        urls.append(request.data_url)
        return m.OffersAccepted(accepted=tuple(o.allocation_id for o in request.offers))

    async with running(tmp_path) as world:
        world.accepts = accepts
        await world.allocate()
    assert set(urls) == {"http://here"}


async def test_an_analysis_gives_its_artifacts_back(tmp_path: Path) -> None:
    """B15"""
    async with running(tmp_path) as world:
        world.session.refuses = True
        request = m.AnalyzeJob(job=WITH_ARTIFACTS.job, tasks=(TASK,))
        with pytest.raises(RemoteError):
            await world.ask(request)
        world.blobs.missing = {SECOND}
        with pytest.raises(RemoteError):
            await world.ask(request)
        assert world.blobs.references.count_of_job(JOB) == 0


async def test_a_heartbeat_is_answered_while_user_code_is_slow_to_end(tmp_path: Path) -> None:
    """One allocation that the JobMaster does not know must not cost the JobMaster all its slots here (R10)."""
    async with running(tmp_path) as world:
        await world.allocate(X, 0)
        await world.allocate(Y, 1)
        await world.ask(DEPLOY)
        world.session.stop_takes = 40.0
        await world.beat_for(12, X, Y)
        for _ in range(20):
            await world.beat(Y)
            await asyncio.sleep(1.0)
        assert X in world.executor.core.slots.table.bindings
        await world.beat_for(30, Y)
        assert list(world.executor.core.slots.table.bindings) == [Y]
        assert world.session.asked.count("StopTask") == 1


async def test_an_offer_that_is_not_answered_costs_no_slot_that_was_accepted_before(tmp_path: Path) -> None:
    """The JobMaster may be busy. The task on the accepted slot runs on (m9)."""
    async with running(tmp_path) as world:
        await world.allocate(X, 0)
        await world.ask(DEPLOY)

        async def never(_: m.OfferSlots) -> m.OffersAccepted:
            await asyncio.Event().wait()
            raise AssertionError

        world.accepts = never
        await world.allocate(Y, 1)
        await world.beat_for(30, X)
        assert list(world.executor.core.slots.table.bindings) == [X]
        assert world.executor.attempts[ATTEMPT].status.state is m.TaskState.RUNNING


async def test_a_job_that_went_elsewhere_leaves_nothing_here(tmp_path: Path) -> None:
    """A job's end is told only to TaskManagers that hold its slots then.

    Local copies and blobs are removed without it.
    """
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
        assert world.session.asked[-2:] == ["StopTask", "UnloadTask"]
        assert X in world.executor.core.slots.table.bindings
        await asyncio.sleep(30.0)
        assert not world.executor.core.slots.table.bindings


async def test_a_task_that_does_not_stop_has_ended_before_its_jobmaster_gives_up(tmp_path: Path) -> None:
    """The session is killed before the JobMaster stops repeating CancelTask, after twice the timeout (J7, m12)."""
    async with running(tmp_path, SlowDeployer) as world:
        await world.allocate()
        await world.ask(DEPLOY)
        world.session.stop_takes = 1e6
        beats = asyncio.create_task(world.beat_for(60, X))
        began = asyncio.get_running_loop().time()
        await world.ask(m.CancelTask(job_id=JOB, attempt_id=ATTEMPT), timeout=60.0)
        assert 30.0 <= asyncio.get_running_loop().time() - began <= 40.0
        assert world.session.asked[-1] == "condemn"
        await beats


HEIR = AttemptId("3" * 32)


def directories(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "attempts").glob("*")}


async def stop_and_inherit(world: World, tmp_path: Path) -> None:
    """Stop an attempt after another one has continued in its directory."""
    await world.allocate()
    await world.ask(DEPLOY)
    (tmp_path / "attempts" / ATTEMPT).mkdir(parents=True, exist_ok=True)
    world.session.heirs[ATTEMPT] = HEIR
    world.session.unloading = asyncio.Event()
    await world.ask(m.CancelTask(job_id=JOB, attempt_id=ATTEMPT))
    await world.ask(replace(DEPLOY, attempt_id=HEIR, attempt_number=1))
    (tmp_path / "attempts" / HEIR).mkdir(parents=True, exist_ok=True)
    await asyncio.sleep(1.0)


async def test_a_directory_in_which_the_next_attempt_goes_on_is_removed_with_that_one(tmp_path: Path) -> None:
    """H4, C10a."""
    async with running(tmp_path) as world:
        await stop_and_inherit(world, tmp_path)
        world.session.unloading.set()
        await asyncio.sleep(1.0)
        assert directories(tmp_path) == {ATTEMPT, HEIR}
        await world.ask(m.CancelTask(job_id=JOB, attempt_id=HEIR))
        await asyncio.sleep(1.0)
        assert directories(tmp_path) == set()


async def test_a_directory_whose_heir_has_ended_before_that_was_known_is_removed(tmp_path: Path) -> None:
    """Answers may come in any order (H4, C10a)."""
    async with running(tmp_path) as world:
        await stop_and_inherit(world, tmp_path)
        unloading, world.session.unloading = world.session.unloading, None
        await world.ask(m.CancelTask(job_id=JOB, attempt_id=HEIR))
        await asyncio.sleep(1.0)
        assert directories(tmp_path) == {ATTEMPT}
        unloading.set()
        await asyncio.sleep(1.0)
        assert directories(tmp_path) == set()


async def test_an_inherited_directory_goes_with_the_session(tmp_path: Path) -> None:
    """Nobody writes there any more (C10a)."""
    async with running(tmp_path) as world:
        await stop_and_inherit(world, tmp_path)
        world.session.unloading.set()
        await asyncio.sleep(1.0)
        world.executor.session_lost(1, "killed")
        await asyncio.sleep(1.0)
        assert directories(tmp_path) == set()


async def test_an_attempt_ends_in_time_while_a_storage_hangs_in_its_checkpoint(tmp_path: Path) -> None:
    """A writing thread cannot be stopped. It must hold up neither the cancellation nor the slot (J7)."""
    async with running(tmp_path) as world:
        world.session.snapshot = sp.SnapshotTaken(batch_id=0)
        released = hang(world.executor)
        await world.allocate()
        await world.ask(DEPLOY)
        await asyncio.sleep(1.0)
        await world.ask(m.TriggerCheckpoint(job_id=JOB, attempt_id=ATTEMPT, checkpoint_id=1, epoch=1))
        beats = asyncio.create_task(world.beat_for(60, X))
        began = asyncio.get_running_loop().time()
        cancel = asyncio.create_task(world.ask(m.CancelTask(job_id=JOB, attempt_id=ATTEMPT), timeout=60.0))
        await asyncio.sleep(1.0)
        assert "StopTask" in world.session.asked
        await cancel
        assert 29.0 <= asyncio.get_running_loop().time() - began <= 31.0
        assert dict(world.executor.core.slots.attempts) == {}
        released.set()
        await beats


STAGED = SinkTransaction(job_id=JOB, sink="out", checkpoint_id=1, tokens=(StagedToken(ATTEMPT, 0, "{}"),))


@pytest.mark.parametrize(("completed", "commits"), [(1, 1), (0, 0)])
async def test_a_cancelled_attempt_commits_what_a_complete_checkpoint_owes(
    tmp_path: Path, completed: int, commits: int
) -> None:
    """If the sink commits by itself, nobody can commit for it once the attempt is gone (J13)."""
    async with running(tmp_path) as world:
        world.session.snapshot = sp.SnapshotTaken(batch_id=0, transactions=(STAGED,))
        await world.allocate()
        await world.ask(DEPLOY)
        await asyncio.sleep(1.0)
        await world.ask(m.TriggerCheckpoint(job_id=JOB, attempt_id=ATTEMPT, checkpoint_id=1, epoch=1))
        await asyncio.sleep(1.0)
        await world.ask(m.CancelTask(job_id=JOB, attempt_id=ATTEMPT, completed=completed), timeout=60.0)
        asked = world.session.asked
        assert asked.count("ConfirmCheckpoint") == commits
        assert asked[-2:] == ["StopTask", "UnloadTask"]


COLLECTING = replace(TASK, vertices=(*TASK.vertices, Vertex(id=VertexId("seen"), sink=Sink(format="collect"))))


async def test_collected_rows_are_shown_also_when_their_attempt_has_ended(tmp_path: Path) -> None:
    """A bounded job may be over before anybody has looked (J2)."""
    async with running(tmp_path) as world:
        ask = m.ReadCollected(attempt_id=ATTEMPT, vertex_id=VertexId("seen"))
        with pytest.raises(RemoteError, match="does not run"):
            await world.ask(ask)
        await world.allocate()
        await world.ask(replace(DEPLOY, task=COLLECTING))
        await asyncio.sleep(1.0)
        shown = await world.ask(ask)
        await world.ask(m.CancelTask(job_id=JOB, attempt_id=ATTEMPT), timeout=60.0)
        assert await world.ask(ask) == shown
        assert [row.batch_id for row in shown.rows] == [3]


def hang(executor: TaskExecutor) -> asyncio.Event:
    """Let uploads hang until the returned event is set, even if they are cancelled."""
    released = asyncio.Event()

    async def upload(*_: object) -> None:
        try:
            await released.wait()
        finally:
            await released.wait()

    executor._snapshots._upload = upload  # type: ignore[assignment]
    return released


async def test_slots_given_back_are_free_when_that_is_answered(tmp_path: Path) -> None:
    """Whoever hears that a job has ended finds its slots free and nothing left of it (m12)."""
    async with running(tmp_path) as world:
        await world.allocate()
        await world.ask(DEPLOY)
        world.session.stop_takes = 3.0
        await world.ask(m.FreeSlots(job_id=JOB, allocations=(X,), job_ended=True))
        assert world.executor.core.slots.table.bindings == {}
        await asyncio.sleep(5)
        assert world.blobs.forgotten == [JOB]


async def test_a_checkpoint_that_nobody_wants_to_hear_of_is_no_failure_of_the_taskmanager(tmp_path: Path) -> None:
    """The JobMaster is silent, or was replaced, while a snapshot is declined (C12)."""
    async with running(tmp_path) as world:
        await world.allocate()
        await world.ask(DEPLOY)
        await world.ask(m.TriggerCheckpoint(job_id=JOB, attempt_id=ATTEMPT, checkpoint_id=1, epoch=1))
        await world.beat_for(60, X)
        assert any("did not take it" in entry["event"] for entry in world.logs)
        assert [entry for entry in world.logs if entry["log_level"] == "error"] == []


async def test_reports_carry_figures_and_a_session_is_renewed_by_command(tmp_path: Path) -> None:
    """R6a."""
    async with running(tmp_path) as world:
        await asyncio.sleep(2.0)
        assert world.reports[-1].metrics == {"figure": 1.0}
        await world.ask(m.RenewSession(reason="aged"))
        assert world.session.asked == ["renew"]
        await world.ask(m.ExitTaskManager(reason="idle"))
        assert world.exits == [("idle", False)]


async def test_heartbeats_say_that_a_session_starts_slowly_and_how_far_it_is(tmp_path: Path) -> None:
    """By its steps the ResourceManager sees that a start makes progress, and waits for it (R5)."""
    async with running(tmp_path) as world:
        world.session.slow, world.session.steps = "it has been starting for 95 s", 7
        await asyncio.sleep(2.0)
        assert (world.reports[-1].session_slow, world.reports[-1].session_steps) == ("it has been starting for 95 s", 7)
