"""The JobMaster in virtual time on a faulty wire; ResourceManager and TaskManager are mailboxes, storage is real."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.jobgraph.model import Input, JobGraph, RestartStrategy, Sink, Source, Vertex
from minflinkd.jobmaster.job_master import JobMaster, JobMasterOptions
from minflinkd.rpc import messages as m
from minflinkd.rpc.faulty import FaultyWire
from minflinkd.rpc.jobs import JobDetails, JobStatus
from minflinkd.rpc.network import RESOURCE_MANAGER, Mailbox, job_master, task_manager
from minflinkd.rpc.snapshot import TaskSnapshot
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.errors import Consequence, ErrorInfo
from minflinkd.runtime.ids import AllocationId, AttemptId, IdSource, JobId, ResourceId, VertexId
from minflinkd.storage.registry import Storages

pytestmark = pytest.mark.looptime
JOB, TM = JobId("1" * 32), ResourceId("tm-1")
GRAPH = JobGraph(
    name="copy",
    vertices=(
        Vertex(id=VertexId("numbers"), source=Source(format="rate")),
        Vertex(id=VertexId("out"), inputs=(Input(id=VertexId("numbers")),), sink=Sink(format="console")),
    ),
)
BOOM = ErrorInfo(code="user-code", message="boom", consequence=Consequence.RETRYABLE)


@dataclass
class World:
    """One TaskManager that serves every need, runs what is deployed, and remembers what it was asked."""

    wire: FaultyWire = field(default_factory=lambda: FaultyWire(random.Random(1)))
    story: list[str] = field(default_factory=list)
    tasks: dict[AttemptId, m.TaskStatus] = field(default_factory=dict)
    deployed: list[m.DeployTask] = field(default_factory=list)
    held: dict[AllocationId, int] = field(default_factory=dict)
    offered: set[AllocationId] = field(default_factory=set)
    with_resource_manager: bool = True
    free_takes: float = 0.0
    ended: list[JobDetails] = field(default_factory=list)
    master: JobMaster = field(init=False)

    def __post_init__(self) -> None:
        rm, tm = Mailbox(RESOURCE_MANAGER), Mailbox(task_manager(TM))
        rm.on(m.DeclareNeeds, self._declare)
        tm.on(m.DeployTask, self._deploy)
        tm.on(m.CancelTask, self._cancel)
        tm.on(m.FreeSlots, self._free)
        tm.on(m.HeartbeatFromJobMaster, self._beat)
        tm.on(m.TriggerCheckpoint, self._trigger)
        tm.on(m.NotifyCheckpointComplete, self._complete)
        self.tm = self.wire.party(str(task_manager(TM)))
        self.tm.attach(tm)
        self.wire.party("rm").attach(rm)

    async def _declare(self, request: m.DeclareNeeds) -> m.NeedsAnswer:
        for need in request.needs:
            if need.allocation_id not in self.offered:
                self.offered.add(need.allocation_id)
                self.wire.tasks.job("offer", self._offer(need))
        return m.NeedsAnswer()

    async def _offer(self, need: m.SlotNeed) -> None:
        self.held[need.allocation_id] = need.slots
        offers = (m.SlotOffer(allocation_id=need.allocation_id, slots=tuple(range(need.slots))),)
        request = m.OfferSlots(resource_id=TM, address=task_manager(TM), offers=offers)
        await self.tm.ask(job_master(JOB), request, timeout=5, fence=self.master.leader_id)

    async def _deploy(self, request: m.DeployTask) -> m.Done:
        if request.attempt_id not in self.tasks:
            self.story.append(f"deploy {request.attempt_number}")
            self.deployed.append(request)
            self.wire.tasks.job("run", self.report(request.attempt_id, m.TaskState.RUNNING))
        return m.Done()

    async def report(self, attempt: AttemptId, state: m.TaskState, error: ErrorInfo | None = None) -> None:
        task = next(d.task for d in self.deployed if d.attempt_id == attempt)
        status = m.TaskStatus(attempt_id=attempt, task_id=task.id, state=state, error=error)
        self.tasks[attempt] = status
        request = m.TaskStateChanged(resource_id=TM, status=status)
        await self.tm.ask(job_master(JOB), request, timeout=5, fence=self.master.leader_id)

    async def _cancel(self, request: m.CancelTask) -> m.Done:
        self.story.append("cancel")
        self.tasks.pop(request.attempt_id, None)
        return m.Done()

    async def _free(self, request: m.FreeSlots) -> m.Done:
        await asyncio.sleep(self.free_takes)
        if any(self.held.pop(a, 0) for a in request.allocations):
            self.story.append("free for good" if request.job_ended else "free")
        return m.Done()

    async def _beat(self, request: m.HeartbeatFromJobMaster) -> m.JobHeartbeatAnswer:
        return m.JobHeartbeatAnswer(allocations=tuple(self.held), tasks=tuple(self.tasks.values()))

    async def _trigger(self, request: m.TriggerCheckpoint) -> m.Done:
        self.story.append(f"trigger {request.checkpoint_id}")
        self.wire.tasks.job("acknowledge", self._acknowledge(request))
        return m.Done()

    async def _acknowledge(self, request: m.TriggerCheckpoint) -> None:
        status = self.tasks[request.attempt_id]
        snapshot = TaskSnapshot(
            task_id=status.task_id,
            attempt_id=request.attempt_id,
            resource_id=TM,
            checkpoint_id=request.checkpoint_id,
            batch_id=0,
            input_ended=status.state is m.TaskState.INPUT_ENDED,
        )
        message = m.AcknowledgeCheckpoint(job_id=JOB, attempt_id=request.attempt_id, snapshot=snapshot)
        await self.tm.ask(job_master(JOB), message, timeout=5, fence=self.master.leader_id)

    async def _complete(self, request: m.NotifyCheckpointComplete) -> m.Done:
        self.story.append(f"publish {request.checkpoint_id}")
        return m.Done()

    async def end(self, details: JobDetails) -> None:
        self.story.append(f"end {details.status.value}")
        self.ended.append(details)

    @property
    def attempt(self) -> AttemptId:
        return self.deployed[-1].attempt_id


@asynccontextmanager
async def running(tmp_path: Path, **checkpoints: float) -> AsyncIterator[World]:
    world, storages, rng = World(), Storages(), random.Random(2)
    context = m.JobContext(
        job_id=JOB,
        name=GRAPH.name,
        params={},
        mode=GRAPH.mode,
        checkpointing=GRAPH.checkpointing,
        checkpoint_root=f"file://{tmp_path}/checkpoints",
    )
    world.master = JobMaster(
        job_id=JOB,
        graph=GRAPH,
        context=context,
        options=JobMasterOptions(
            restart_strategy=RestartStrategy(),
            checkpoints=CheckpointOptions(**checkpoints),  # type: ignore[arg-type]
        ),
        network=world.wire.party("jm"),
        storages=storages,
        clock=SystemClock(),
        ids=IdSource(rng),
        rng=rng,
        submitted_ms=0,
        submission={},
        on_end=world.end,
    )
    with capture_logs():
        async with world.master:
            await until(lambda: world.master.status is JobStatus.RUNNING)
            yield world
        await world.wire.aclose()
    await storages.aclose()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(300):
        while not condition():  # noqa: ASYNC110 - in virtual time this waits for nothing
            await asyncio.sleep(0.01)


async def test_cancel_frees_the_slots_before_the_end_is_reported(tmp_path: Path) -> None:
    """A cancelled job leaves nothing behind: whoever hears of the end finds the slots free."""
    async with running(tmp_path) as world:
        world.free_takes = 1.0
        world.master.cancel()
        await until(lambda: world.ended)
        assert world.story == ["deploy 0", "cancel", "free for good", "end CANCELED"]


async def test_the_end_does_not_wait_for_ever_for_a_taskmanager_that_is_gone(tmp_path: Path) -> None:
    """A5."""
    async with running(tmp_path) as world:
        world.wire.faults.drop_if = lambda _s, _t, message: isinstance(message, m.FreeSlots)
        world.master.cancel()
        began = asyncio.get_running_loop().time()
        await until(lambda: world.ended)
        assert asyncio.get_running_loop().time() - began < 6


@pytest.mark.parametrize("kind", [m.DeployTask, m.CancelTask, m.FreeSlots])
@pytest.mark.parametrize("way", ["there", "back"])
async def test_a_message_lost_once_is_repeated(tmp_path: Path, kind: type[m.Message], way: str) -> None:
    """A5: idempotent by its ids, so that a lost answer costs a second and not the job's attempt."""
    async with running(tmp_path) as world:
        lost: list[m.Message] = []

        def once(source: str, target: str, message: m.Message) -> bool:
            if isinstance(message, kind) and not lost and (source == "jm") == (way == "there"):
                lost.append(message)
                return True
            return False

        world.wire.faults.drop_if = once
        await world.report(world.attempt, m.TaskState.FAILED, BOOM)
        await until(lambda: len(world.deployed) == 2 and world.master.status is JobStatus.RUNNING)
        began = asyncio.get_running_loop().time()
        world.master.cancel()
        await until(lambda: world.ended)
        assert lost
        assert world.master.details().restarts == 1
        assert world.held == {}
        assert asyncio.get_running_loop().time() - began < 5


async def test_a_failed_task_is_deployed_again_on_held_slots_while_no_resource_manager_is_there(
    tmp_path: Path,
) -> None:
    """R12."""
    async with running(tmp_path) as world:
        world.wire.faults.drop_if = lambda _s, target, _m: target == RESOURCE_MANAGER
        await world.report(world.attempt, m.TaskState.FAILED, BOOM)
        await until(lambda: len(world.deployed) == 2 and world.master.status is JobStatus.RUNNING)
        first, second = world.deployed
        assert first.allocation_id == second.allocation_id
        assert (second.attempt_number, len(world.offered)) == (1, 1)


async def test_a_restart_goes_on_from_the_last_completed_checkpoint(tmp_path: Path) -> None:
    """R11, C21: with the real store."""
    async with running(tmp_path, interval=10.0) as world:
        await until(lambda: "publish 1" in world.story)
        await world.report(world.attempt, m.TaskState.FAILED, BOOM)
        await until(lambda: len(world.deployed) == 2)
        restore = world.deployed[-1].restore
        assert restore is not None
        assert restore.checkpoint_id == 1
        assert world.master.details().recoveries[0].checkpoint_id == 1


async def test_a_bounded_job_ends_behind_its_final_checkpoint(tmp_path: Path) -> None:
    """C4."""
    async with running(tmp_path) as world:
        await world.report(world.attempt, m.TaskState.INPUT_ENDED)
        await until(lambda: world.ended)
        assert world.story == ["deploy 0", "trigger 1", "publish 1", "cancel", "free for good", "end FINISHED"]
