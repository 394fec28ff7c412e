"""A JobMaster in virtual time on a faulty network. ResourceManager and TaskManagers are mailboxes; storage is real."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from msgspec.structs import replace as copy
from structlog.testing import capture_logs

from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.jobgraph.model import Input, JobGraph, RestartStrategy, Sink, Source, Vertex
from minflinkd.jobmaster.job import AcceptedJob, JobStorage, Succession
from minflinkd.jobmaster.job_master import JobMaster, JobMasterOptions
from minflinkd.rpc import messages as m
from minflinkd.rpc.faulty import FaultyWire
from minflinkd.rpc.jobs import JobDetails, JobStatus
from minflinkd.rpc.network import RESOURCE_MANAGER, Mailbox, job_master, task_manager
from minflinkd.rpc.snapshot import TaskSnapshot
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.errors import Consequence, ErrorInfo, RemoteError
from minflinkd.runtime.ids import (
    AllocationId,
    AttemptId,
    Chance,
    IdSource,
    JobId,
    LeaderId,
    ResourceId,
    TaskId,
    VertexId,
)
from minflinkd.runtime.units import Duration
from minflinkd.storage.registry import Storages
from minflinkd.taskmanager.child.protocol import NotResizable
from tests.untimed_storage import untimed_storages, untimed_turn
from tests.waiting import until

JOB, TM, TM2 = JobId("1" * 32), ResourceId("tm-1"), ResourceId("tm-2")
BOOM = ErrorInfo(code="user-code", message="boom", consequence=Consequence.RETRYABLE)


def graph(*names: str, parallelism: int = 1) -> JobGraph:
    """Return a graph with one task for each name, with its own source and sink."""
    vertices = []
    for name in names or ("numbers",):
        vertices.append(Vertex(id=VertexId(name), source=Source(format="rate")))
        read = (Input(id=VertexId(name)),)
        vertices.append(Vertex(id=VertexId(f"{name}_out"), inputs=read, sink=Sink(format="console")))
    return JobGraph(name="copy", vertices=tuple(vertices), parallelism=parallelism)


class StandInTaskManager:
    """Runs what is deployed, answers requests, and remembers them."""

    def __init__(self, world: World, resource_id: ResourceId) -> None:
        self.world = world
        self.resource_id = resource_id
        self.network = world.wire.party(str(task_manager(resource_id)))
        self.leader: LeaderId | None = None  # the job's leader, as far as this TaskManager knows
        self.held: dict[AllocationId, tuple[int, ...]] = {}
        self.tasks: dict[AttemptId, m.TaskStatus] = {}
        self.deployed: list[m.DeployTask] = []
        self.beats: list[float] = []
        self.cancelled: list[AttemptId] = []
        self.cancel_takes = 0.0
        self.mute = False  # it accepts triggers and acknowledges nothing
        self.finds = m.TaskMetrics(rows_in=1)  # what its tasks report when they begin to run
        self.free_takes = 0.0
        self.rigid = False  # its tasks cannot have other slots while they run
        self.drained: ErrorInfo | m.TaskState = m.TaskState.INPUT_ENDED  # what a task that is to be drained reports
        mailbox = Mailbox(task_manager(resource_id))
        mailbox.on(m.DeployTask, self._deploy)
        mailbox.on(m.CancelTask, self._cancel)
        mailbox.on(m.ResizeTask, self._resize)
        mailbox.on(m.FreeSlots, self._free)
        mailbox.on(m.HeartbeatFromJobMaster, self._beat)
        mailbox.on(m.TriggerCheckpoint, self._trigger)
        mailbox.on(m.DrainTask, self._drain)
        mailbox.on(m.NotifyCheckpointComplete, self._complete)
        mailbox.on(m.NotifyCheckpointAborted, self._aborted)
        self.network.attach(mailbox)

    async def offer(self, allocation: AllocationId, slots: int) -> bool:
        """Offer slots. Return whether the JobMaster takes them; otherwise they are free again."""
        first = sum(len(held) for held in self.held.values())
        self.held[allocation] = tuple(range(first, first + slots))
        self.leader = self.world.master.leader_id
        offers = tuple(m.SlotOffer(allocation_id=a, slots=s) for a, s in self.held.items())
        request = m.OfferSlots(resource_id=self.resource_id, address=task_manager(self.resource_id), offers=offers)
        answer = await self.network.ask(job_master(JOB), request, timeout=5, fence=self.world.master.leader_id)
        self.held = {a: s for a, s in self.held.items() if a in answer.accepted}
        return allocation in self.held

    async def _offer_held(self) -> None:
        """Offer the slots that this TaskManager holds to the job's next JobMaster (R13)."""
        offers = tuple(m.SlotOffer(allocation_id=a, slots=s) for a, s in self.held.items())
        request = m.OfferSlots(resource_id=self.resource_id, address=task_manager(self.resource_id), offers=offers)
        await self.network.ask(job_master(JOB), request, timeout=5, fence=self.world.master.leader_id)

    async def report(self, attempt: AttemptId, state: m.TaskState, error: ErrorInfo | None = None) -> None:
        task = next(d.task for d in self.deployed if d.attempt_id == attempt)
        status = m.TaskStatus(attempt_id=attempt, task_id=task.id, state=state, metrics=self.finds, error=error)
        self.tasks[attempt] = status
        request = m.TaskStateChanged(resource_id=self.resource_id, status=status)
        await self.network.ask(job_master(JOB), request, timeout=5, fence=self.world.master.leader_id)

    def progress(self, metrics: m.TaskMetrics, task: str | None = None) -> None:
        """Report progress of the running attempt of all tasks, or of one."""
        for attempt, status in self.tasks.items():
            if task in (None, status.task_id):
                self.tasks[attempt] = copy(status, metrics=metrics)
                notice = m.TaskProgress(attempt_id=attempt, metrics=metrics)
                self.network.tell(job_master(JOB), notice, fence=self.world.master.leader_id)

    async def _deploy(self, request: m.DeployTask) -> m.Done:
        if request.attempt_id not in self.tasks:
            self.world.story.append(f"deploy {request.attempt_number}")
            self.deployed.append(request)
            self.world.wire.tasks.job("run", self.report(request.attempt_id, m.TaskState.RUNNING))
        return m.Done()

    async def _cancel(self, request: m.CancelTask) -> m.Done:
        self.world.story.append("cancel")
        self.cancelled.append(request.attempt_id)
        await asyncio.sleep(self.cancel_takes)
        self.tasks.pop(request.attempt_id, None)
        return m.Done()

    async def _resize(self, request: m.ResizeTask) -> m.Done:
        if self.rigid:
            raise NotResizable("its plan was made for its slots")
        self.world.story.append(f"resize to {request.parallelism}")
        return m.Done()

    async def _free(self, request: m.FreeSlots) -> m.Done:
        await asyncio.sleep(self.free_takes)
        for allocation, unused in request.surplus.items():
            self.held[allocation] = tuple(slot for slot in self.held[allocation] if slot not in unused)
        if [self.held.pop(a) for a in request.allocations if a in self.held]:
            self.world.story.append("free for good" if request.job_ended else "free")
        return m.Done()

    async def _beat(self, request: m.HeartbeatFromJobMaster) -> m.JobHeartbeatAnswer:
        self.beats.append(asyncio.get_running_loop().time())
        if self.leader is not None and request.leader_id > self.leader and self.held:
            self.tasks.clear()
            self.world.wire.tasks.job("offer to the next leader", self._offer_held())
        self.leader = request.leader_id
        return m.JobHeartbeatAnswer(allocations=tuple(self.held), tasks=tuple(self.tasks.values()))

    async def _trigger(self, request: m.TriggerCheckpoint) -> m.Done:
        self.world.story.append(f"trigger {request.checkpoint_id}" + (" and stop" if request.stop else ""))
        if not self.mute:
            self.world.wire.tasks.job("ack", self._acknowledge(request))
        return m.Done()

    async def _acknowledge(self, request: m.TriggerCheckpoint) -> None:
        status = self.tasks[request.attempt_id]
        task = next(d.task for d in self.deployed if d.attempt_id == request.attempt_id)
        snapshot = TaskSnapshot(
            task_id=status.task_id,
            attempt_id=request.attempt_id,
            resource_id=self.resource_id,
            checkpoint_id=request.checkpoint_id,
            batch_id=0,
            parallelism=task.parallelism,
            input_ended=status.state is m.TaskState.INPUT_ENDED,
        )
        message = m.AcknowledgeCheckpoint(job_id=JOB, attempt_id=request.attempt_id, snapshot=snapshot)
        await self.network.ask(job_master(JOB), message, timeout=5, fence=self.world.master.leader_id)

    async def _drain(self, request: m.DrainTask) -> m.Done:
        self.world.story.append("drain")
        if isinstance(self.drained, ErrorInfo):
            raise RemoteError(self.drained)
        error = BOOM if self.drained is m.TaskState.FAILED else None
        self.world.wire.tasks.job("drained", self.report(request.attempt_id, self.drained, error))
        return m.Done()

    async def _complete(self, request: m.NotifyCheckpointComplete) -> m.Done:
        self.world.story.append(f"publish {request.checkpoint_id}")
        return m.Done()

    async def _aborted(self, _: m.NotifyCheckpointAborted) -> m.Done:
        return m.Done()


@dataclass
class World:
    """A job's world. `slots` says how many slots of each TaskManager the ResourceManager may give away."""

    slots: dict[ResourceId, int] = field(default_factory=lambda: {TM: 8, TM2: 0})
    wire: FaultyWire = field(default_factory=lambda: FaultyWire(random.Random(1)))
    story: list[str] = field(default_factory=list)
    needs: tuple[m.SlotNeed, ...] = ()  # as last declared
    declared: list[float] = field(default_factory=list)
    given: set[AllocationId] = field(default_factory=set)
    largest: int = 0  # `largest` of NeedsAnswer
    ended: list[JobDetails] = field(default_factory=list)
    master: JobMaster = field(init=False)

    def __post_init__(self) -> None:
        self.task_managers = {r: StandInTaskManager(self, r) for r in self.slots}
        self.tm = self.task_managers[TM]
        mailbox = Mailbox(RESOURCE_MANAGER)
        mailbox.on(m.DeclareNeeds, self._declare)
        self.wire.party("rm").attach(mailbox)

    async def _declare(self, request: m.DeclareNeeds) -> m.NeedsAnswer:
        self.needs = request.needs
        self.declared.append(asyncio.get_running_loop().time())
        for need in request.needs:
            for resource, free in self.slots.items():
                more = need.held if resource == need.beside else 0
                least = (need.least or need.slots) - more
                if free >= least and need.allocation_id not in self.given:
                    slots = min(free, need.slots - more)
                    self.slots[resource] -= slots
                    self.given.add(need.allocation_id)
                    tm = self.task_managers[resource]
                    self.wire.tasks.job("offer", self._offer(tm, need.allocation_id, slots))
        waiting = {n.allocation_id: "no more TaskManagers may run" for n in request.needs}
        return m.NeedsAnswer(waiting=waiting, largest=self.largest)

    async def _offer(self, tm: StandInTaskManager, allocation: AllocationId, slots: int) -> None:
        await tm.offer(allocation, slots)

    async def end(self, details: JobDetails) -> None:
        self.story.append(f"end {details.status.value}")
        self.ended.append(details)

    def deployments(self) -> list[tuple[TaskId, int, int]]:
        """Return task, attempt number and parallelism of every deployment."""
        all_of_them = [d for tm in self.task_managers.values() for d in tm.deployed]
        return [(d.task.id, d.attempt_number, d.task.parallelism) for d in all_of_them]


OPTIONS = JobMasterOptions(
    restart_strategy=RestartStrategy(initial_backoff=Duration(0.1)),
    resource_wait_timeout=30,
    cooldown_after_rescaling=5,
    resource_stabilization_timeout=5,
)


def new_master(
    world: World,
    job: JobGraph,
    storages: Storages,
    directory: Path,
    succession: Succession | None = None,
    **checkpoints: float,
) -> JobMaster:
    ids = IdSource(random.Random(2 + len(world.declared)), epoch=len(world.declared))
    context = m.JobContext(
        job_id=JOB,
        name=job.name,
        params={},
        mode=job.mode,
        checkpointing=job.checkpointing,
        checkpoint_root=f"file://{directory}/checkpoints",
    )
    return JobMaster(
        AcceptedJob(graph=job, context=context, submitted_ms=0, submission={}),
        options=replace(OPTIONS, checkpoints=CheckpointOptions(**checkpoints)),  # type: ignore[arg-type]
        storage=JobStorage(
            storages=storages, root=storages.at(context.checkpoint_root), turn=untimed_turn(f"job {JOB}")
        ),
        network=world.wire.party("jm"),
        clock=SystemClock(),
        chance=Chance(ids, random.Random(2)),
        on_end=world.end,
        succession=succession,
    )


@asynccontextmanager
async def running(
    tmp_path: Path, job: JobGraph | None = None, slots: dict[ResourceId, int] | None = None, **checkpoints: float
) -> AsyncIterator[World]:
    world, storages = World(slots or {TM: 8, TM2: 0}), untimed_storages()
    world.master = new_master(world, job or graph(), storages, tmp_path, **checkpoints)
    with capture_logs():
        async with world.master:
            await until(lambda: world.master.status is JobStatus.RUNNING)
            yield world
        await world.wire.aclose()
    await storages.aclose()
