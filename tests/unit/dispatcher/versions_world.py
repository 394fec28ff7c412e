"""A Dispatcher with one job and its versions. The TaskManager is a mailbox that runs what is deployed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from minflinkd.dispatcher.dispatcher import Dispatcher
from minflinkd.jobmaster.job_master import JobMaster
from minflinkd.rpc import jobs as j
from minflinkd.rpc import messages as m
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.network import DISPATCHER, Mailbox, job_master, task_manager
from minflinkd.rpc.snapshot import PlanNode, TaskSnapshot
from minflinkd.runtime import crash_points
from minflinkd.runtime.crash_points import CrashPoint
from minflinkd.runtime.errors import Consequence, ErrorInfo
from minflinkd.runtime.ids import AllocationId, AttemptId, JobId, LeaderId, ResourceId, TaskId
from minflinkd.taskmanager.child.protocol import NotResizable
from tests.unit.dispatcher.conftest import DOCUMENT, Cluster
from tests.waiting import until

JOB, RUNNER, OTHER = JobId("1" * 32), ResourceId("tm-2"), ResourceId("tm-3")
BOOM = ErrorInfo(code="user-code", message="boom", consequence=Consequence.RETRYABLE)
COUNT = PlanNode(number=0, stateful=True, vertex="numbers", kind="stateStoreSave", fingerprint="long")
NOBODY = LeaderId("")
HAS_ROWS = m.TaskMetrics(batches=1, rows_in=1)
FINDS_NONE = m.TaskMetrics(waited=True)
T = TypeVar("T")


@dataclass
class Runner:
    """A TaskManager with slots for everybody, which outlives the daemon. While it is drained, another one has them."""

    cluster: Cluster
    leader: LeaderId = NOBODY
    held: dict[AllocationId, tuple[int, ...]] = field(default_factory=dict)
    draining: bool = False
    room_elsewhere: bool = True
    elsewhere: set[AllocationId] = field(default_factory=set)  # those of the other one
    running: dict[AttemptId, m.DeployTask] = field(default_factory=dict)
    deployed: list[m.DeployTask] = field(default_factory=list)
    drained: list[AttemptId] = field(default_factory=list)
    fails: str = ""  # tasks of the version with this value in its params fail
    boom: ErrorInfo = BOOM  # the error that they fail with
    finds: m.TaskMetrics = HAS_ROWS  # what tasks report
    keeps: bool = False  # tasks go on when their JobMaster is replaced, and are offered to the next one
    resized: dict[AttemptId, int] = field(default_factory=dict)  # the parallelism that tasks were given as they ran
    rigid: bool = False  # they cannot be given another one
    may_snapshot: asyncio.Event = field(default_factory=asyncio.Event)  # set, unless a test holds checkpoints back
    errands: set[asyncio.Task[Any]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.may_snapshot.set()
        self._attach(RUNNER)
        self._attach(OTHER)
        self.cluster.resource_manager.on(m.DeclareNeeds, self._declare)

    def _attach(self, resource: ResourceId) -> None:
        async def beat(request: m.HeartbeatFromJobMaster) -> m.JobHeartbeatAnswer:
            return msgspec.structs.replace(await self._beat(request), draining=self.draining and resource == RUNNER)

        mailbox = Mailbox(task_manager(resource))
        mailbox.on(m.DeployTask, self._deploy)
        mailbox.on(m.CancelTask, self._cancel)
        mailbox.on(m.ResizeTask, self._resize)
        mailbox.on(m.FreeSlots, self._free)
        mailbox.on(m.HeartbeatFromJobMaster, beat)
        mailbox.on(m.DrainTask, self._drain)
        mailbox.on(m.TriggerCheckpoint, self._trigger)
        mailbox.on(m.NotifyCheckpointComplete, self._done)
        mailbox.on(m.NotifyCheckpointAborted, self._done)
        self.cluster.network.attach(mailbox)

    @property
    def versions(self) -> list[str]:
        """Return the versions whose tasks run."""
        return [str(d.job.params["version"]) for d in self.running.values()]

    def _errand(self, ask: Awaitable[Any]) -> None:
        async def quietly() -> None:
            with contextlib.suppress(Exception):  # its recipient is gone
                await ask

        task = asyncio.create_task(quietly())
        self.errands.add(task)
        task.add_done_callback(self.errands.discard)

    async def _declare(self, request: m.DeclareNeeds) -> m.NeedsAnswer:
        self._follow(request.leader_id)
        for need in request.needs if self.room_elsewhere or not self.draining else ():
            if self.draining and need.allocation_id not in self.held:
                self.elsewhere.add(need.allocation_id)
            first = sum(map(len, self.held.values()))
            self.held.setdefault(need.allocation_id, tuple(range(first, first + need.slots - need.held)))
            self._offer()
        return m.NeedsAnswer()

    def _follow(self, leader: LeaderId) -> None:
        """Follow a later leader, which is offered the slots. The tasks of the earlier one end, or are offered (R13)."""
        if leader > self.leader:
            self.leader = leader
            if not self.keeps:
                self.running.clear()
            if self.held:
                self._offer()

    def _offer(self) -> None:
        for resource in (RUNNER, OTHER):
            here = [a for a in self.held if (a in self.elsewhere) is (resource == OTHER)]
            offers = tuple(m.SlotOffer(allocation_id=a, slots=self.held[a]) for a in here)
            request = m.OfferSlots(
                resource_id=resource,
                address=task_manager(resource),
                offers=offers,
                draining=self.draining and resource == RUNNER,
                tasks=tuple(self._offered(d) for d in self.running.values() if d.allocation_id in here),
            )
            if offers:
                self._errand(self.cluster.network.ask(job_master(JOB), request, timeout=2, fence=self.leader))

    def _offered(self, deployed: m.DeployTask) -> m.OfferedTask:
        attempt_id = deployed.attempt_id
        return m.OfferedTask(
            status=self._status(deployed, m.TaskState.RUNNING),
            allocation_id=deployed.allocation_id,
            attempt_number=deployed.attempt_number,
            parallelism=self.resized.get(attempt_id, deployed.task.parallelism),
            partitions=deployed.partitions,
            version=deployed.job.version,
            restored=0 if deployed.restore is None else deployed.restore.checkpoint_id,
            inputs=deployed.inputs,
            deployed_by=deployed.job_leader_id,
        )

    def _status(self, deployed: m.DeployTask, state: m.TaskState) -> m.TaskStatus:
        error = self.boom if state is m.TaskState.FAILED else None
        return m.TaskStatus(
            attempt_id=deployed.attempt_id, task_id=deployed.task.id, state=state, error=error, metrics=self.finds
        )

    async def _resize(self, request: m.ResizeTask) -> m.Done:
        if self.rigid or request.attempt_id not in self.running:
            raise NotResizable("its plan was made for its slots")
        self.resized[request.attempt_id] = request.parallelism
        return m.Done()

    async def _beat(self, request: m.HeartbeatFromJobMaster) -> m.JobHeartbeatAnswer:
        self._follow(request.leader_id)
        tasks = tuple(
            m.TaskStatus(attempt_id=a, task_id=d.task.id, state=m.TaskState.RUNNING, metrics=self.finds)
            for a, d in self.running.items()
        )
        return m.JobHeartbeatAnswer(allocations=tuple(self.held), tasks=tasks)

    async def _deploy(self, request: m.DeployTask) -> m.Done:
        if request.attempt_id not in self.running:
            self.running[request.attempt_id] = request
            self.deployed.append(request)
            fails = request.job.params["version"] == self.fails
            if fails:
                self.running.pop(request.attempt_id)
            self._errand(self._run(request, fails=fails))
        return m.Done()

    async def _run(self, deployed: m.DeployTask, *, fails: bool) -> None:
        """The first micro-batch ends after the report about its state."""
        fence = self.leader
        await self._tell(deployed, m.TaskState.RUNNING, fence)
        if fails:
            await self._tell(deployed, m.TaskState.FAILED, fence)
        self.progress(self.finds)

    def progress(self, metrics: m.TaskMetrics) -> None:
        self.finds = metrics
        for attempt in self.running:
            notice = m.TaskProgress(attempt_id=attempt, metrics=metrics)
            self.cluster.network.tell(job_master(JOB), notice, fence=self.leader)

    async def fail(self) -> None:
        """Fail the running tasks."""
        for attempt in list(self.running):
            await self._tell(self.running.pop(attempt), m.TaskState.FAILED, self.leader)

    async def _tell(self, deployed: m.DeployTask, state: m.TaskState, fence: LeaderId) -> None:
        error = self.boom if state is m.TaskState.FAILED else None
        status = m.TaskStatus(attempt_id=deployed.attempt_id, task_id=deployed.task.id, state=state, error=error)
        request = m.TaskStateChanged(resource_id=RUNNER, status=status)
        await self.cluster.network.ask(job_master(JOB), request, timeout=2, fence=fence)

    async def _cancel(self, request: m.CancelTask) -> m.Done:
        self.running.pop(request.attempt_id, None)
        return m.Done()

    async def _free(self, request: m.FreeSlots) -> m.Done:
        for allocation in list(self.held) if request.job_ended else request.allocations:
            self.held.pop(allocation, None)
        return m.Done()

    async def _drain(self, request: m.DrainTask) -> m.Done:
        """The task is at its end at once."""
        self.drained.append(request.attempt_id)
        if (deployed := self.running.get(request.attempt_id)) is not None:
            self._errand(self._tell(deployed, m.TaskState.INPUT_ENDED, self.leader))
        return m.Done()

    async def _trigger(self, request: m.TriggerCheckpoint) -> m.Done:
        await self.may_snapshot.wait()
        deployed = self.running.get(request.attempt_id)
        if deployed is not None:
            snapshot = TaskSnapshot(
                task_id=deployed.task.id,
                attempt_id=request.attempt_id,
                resource_id=RUNNER,
                checkpoint_id=request.checkpoint_id,
                batch_id=0,
                operators=(COUNT,),
                parallelism=deployed.task.parallelism,
            )
            acknowledgement = m.AcknowledgeCheckpoint(job_id=JOB, attempt_id=request.attempt_id, snapshot=snapshot)
            self._errand(self.cluster.network.ask(job_master(JOB), acknowledgement, timeout=2, fence=self.leader))
        return m.Done()

    async def _done(self, _: Any) -> m.Done:
        return m.Done()


@asynccontextmanager
async def a_runner(cluster: Cluster) -> AsyncIterator[Runner]:
    one = Runner(cluster)
    cluster.operators = {TaskId("numbers"): (COUNT,)}
    yield one
    for errand in list(one.errands):
        errand.cancel()


@dataclass
class Bug:
    """Crashes the JobMaster at one step of the hot restart."""

    dispatcher: Dispatcher
    point: CrashPoint
    times: int = 1
    struck: list[JobMaster] = field(default_factory=list)

    def __call__(self, here: CrashPoint) -> None:
        master = self.dispatcher.job_master(JOB)
        if here is self.point and master is not None and len(self.struck) < self.times:
            self.struck.append(master)
            master.crash(ValueError("a bug"))


def document(version: str, **changes: Any) -> bytes:
    return msgspec.json.encode({**DOCUMENT, "params": {"version": version}, **changes})


async def restart(cluster: Cluster, version: str, **options: Any) -> j.RestartAnswer:
    request = j.HotRestartJob(job_id=JOB, document=options.pop("document", document(version)), **options)
    return await cluster.network.ask(DISPATCHER, request, timeout=5)


async def seen(cluster: Cluster, condition: Callable[[j.JobDetails], T | None]) -> T:
    async def found() -> T | None:
        return condition(await cluster.job(JOB))

    return await until(found, pause=0.002)


def runs(runner: Runner, version: str) -> Callable[[j.JobDetails], bool]:
    return lambda job: job.status is JobStatus.RUNNING and runner.versions == [version]


def over(number: int) -> Callable[[j.JobDetails], j.HotRestart | None]:
    return lambda job: next((r for r in job.hot_restarts if r.number == number and r.state.over), None)


@asynccontextmanager
async def job_running(cluster: Cluster, runner: Runner, **changes: Any) -> AsyncIterator[Dispatcher]:
    """Run version 1 under a Dispatcher."""
    async with cluster.serving() as dispatcher:
        await cluster.submit(JOB, msgspec.json.decode(document("1", **changes)))
        await seen(cluster, runs(runner, "1"))
        yield dispatcher


async def dies_at(point: CrashPoint, request: Awaitable[j.RestartAnswer]) -> None:
    """Make the request, and let the daemon die when it reaches this point."""
    reached = asyncio.Event()

    def strike(here: CrashPoint) -> None:
        if here is point:
            reached.set()
            raise OSError("the daemon is dead")

    with crash_points.intercepted(strike):
        asking = asyncio.ensure_future(request)
        async with asyncio.timeout(10):
            await reached.wait()
        await asyncio.wait({asking})
        asking.exception()
