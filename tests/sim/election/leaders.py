"""What a daemon runs as a leader: ResourceManager, Dispatcher, and JobMasters with real checkpoint coordinators."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace as copy

from minflinkd.checkpoint.causes import CheckpointFailed
from minflinkd.checkpoint.coordinator import CheckpointCoordinator
from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.rpc import messages as m
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.network import Address, Fenced, Unreachable
from minflinkd.rpc.party import Answered, Ask, Outcome
from minflinkd.runtime.component import Crashed
from minflinkd.runtime.errors import Consequence, MinflinkError, error_info
from minflinkd.runtime.ids import AttemptId, LeaderId, ResourceId, TaskId
from tests.sim.election.daemon import Leadership
from tests.sim.protocol.dispatcher import DispatcherParty
from tests.sim.protocol.job_master import JobMasterParty
from tests.sim.protocol.resource_manager import ResourceManagerParty

if TYPE_CHECKING:
    from tests.sim.election.world import ElectionWorld
    from tests.sim.protocol.world import Job

TRIGGER_TIMEOUT = 5.0  # seconds
PUBLISH_TIMEOUT = 10.0
AGAIN = 0.3  # seconds between two tries to write a record


class LedResourceManager(ResourceManagerParty):
    def __init__(self, world: ElectionWorld) -> None:
        self.leadership = world.led()
        super().__init__(world)
        self.leadership.add(self)


class LedDispatcher(DispatcherParty):
    def __init__(self, world: ElectionWorld) -> None:
        self.leadership = world.led()
        super().__init__(world.universe, world.to_run)
        self.leadership.add(self)


@dataclass(frozen=True)
class _Reply:
    future: asyncio.Future[Outcome]


class Tasks:
    """The tasks of one job, as its coordinator calls them. It exists before its JobMaster does."""

    def __init__(self) -> None:
        self.master: LedJobMaster | None = None

    async def send_trigger(
        self,
        attempt_id: AttemptId,
        checkpoint_id: int,
        epoch: int,
        *,
        oldest: int = 0,
        stop: bool = False,
        full: bool = False,
    ) -> None:
        master = self._master()
        trigger = m.TriggerCheckpoint(
            job_id=master.job.job_id,
            attempt_id=attempt_id,
            checkpoint_id=checkpoint_id,
            epoch=epoch,
            oldest=oldest,
            stop=stop,
        )
        await master.request(attempt_id, trigger, TRIGGER_TIMEOUT)

    async def notify_complete(self, attempt_id: AttemptId, checkpoint_id: int) -> None:
        master = self._master()
        complete = m.NotifyCheckpointComplete(
            job_id=master.job.job_id, attempt_id=attempt_id, checkpoint_id=checkpoint_id
        )
        await master.request(attempt_id, complete, PUBLISH_TIMEOUT)

    async def notify_aborted(self, attempt_id: AttemptId, checkpoint_id: int) -> None:
        master = self._master()
        aborted = m.NotifyCheckpointAborted(
            job_id=master.job.job_id, attempt_id=attempt_id, checkpoint_id=checkpoint_id
        )
        await master.request(attempt_id, aborted, TRIGGER_TIMEOUT)

    def failed(self, failure: CheckpointFailed) -> None:
        if self.master is not None and self.master.alive:
            error = copy(failure.info(), consequence=Consequence.RETRYABLE)
            self.master.feed(ev.CheckpointsFailed(error))

    def completed(self) -> None:
        if self.master is not None and self.master.alive:
            self.master.feed(ev.CheckpointCompleted())

    def _master(self) -> LedJobMaster:
        if self.master is None:
            raise Unreachable("the JobMaster has not begun")
        return self.master


class LedJobMaster(JobMasterParty):
    world: ElectionWorld

    def __init__(
        self,
        world: ElectionWorld,
        job: Job,
        heralded: tuple[ResourceId, ...],
        coordinator: CheckpointCoordinator,
        tasks: Tasks,
    ) -> None:
        """`coordinator` has read the store."""
        self.leadership = world.led()
        self.process = self.leadership.daemon.process
        self.coordinator = coordinator
        point = coordinator.latest()
        job.checkpoint, job.checkpointed, job.checkpoints = {}, {}, 0
        if point is not None:
            world.rules.restorable(job.job_id, point)
            job.checkpoint = {task.task_id: task.parallelism for task in point.tasks}
            job.checkpointed = {task.task_id: task.attempt_id for task in point.tasks}
            job.checkpoints = point.checkpoint_id
        tasks.master = self
        super().__init__(world, job, heralded)
        self.leadership.add(self)

    def completed(self) -> frozenset[int]:
        return self.coordinator.completed()

    # --- process -----------------------------------------------------------------------------------------------------

    def gate(self, act: Callable[..., None], *args: Any) -> None:
        with self.process.running():
            super().gate(act, *args)

    def die(self) -> None:
        if self.alive and self.process.alive:
            with self.process.running():
                self.process.spawn(self.coordinator.aclose())
        super().die()

    # --- messages ----------------------------------------------------------------------------------------------------

    def receive(self, message: m.Message, fence: LeaderId | None) -> Any:
        if not isinstance(message, m.AcknowledgeCheckpoint):
            return super().receive(message, fence)
        if fence != self.core.leader_id:
            raise Fenced(f"{self.address} refuses an acknowledgement for {fence}")
        try:
            self.coordinator.acknowledge(message.snapshot)
        except Crashed as error:
            raise Unreachable(error.message) from error
        return m.Done()

    async def request(self, attempt_id: AttemptId, request: m.Request[Any], timeout: float) -> None:
        """Ask the attempt's TaskManager. Raises what it answers, Unreachable, RpcTimeout."""
        execution = self.core.state.by_attempt(attempt_id)
        if execution is None or not execution.on_task_manager:
            raise Unreachable(f"attempt {attempt_id} runs nowhere")
        about = _Reply(self.process.create_future())
        ask = Ask(Address(execution.address), request, timeout, fence=self.core.leader_id, about=about)
        self.universe.wire.ask(self, ask)
        outcome = await about.future
        if not isinstance(outcome, Answered):
            raise outcome.error

    def answered(self, ask: Ask, outcome: Outcome) -> None:
        if not isinstance(ask.about, _Reply):
            super().answered(ask, outcome)
        elif not ask.about.future.done():
            ask.about.future.set_result(outcome)

    # --- commands ----------------------------------------------------------------------------------------------------

    def carry_out(self, command: Any) -> None:
        match command:
            case ev.FindRestorePoint(number, tasks):
                self.process.spawn(self._find_restore_point(number, tasks))
            case ev.AdoptTasks(attempts, unsettled):
                self._adopts(attempts)
                self.world.adopted += len(attempts)
                self.coordinator.tasks_adopted(attempts, unsettled)
            case ev.StartCheckpoints(attempts):
                self.coordinator.tasks_running(attempts)
            case ev.HastenCheckpoint():
                self.coordinator.hasten_periodic()
            case ev.StopCheckpoints(survivors):
                self.coordinator.tasks_stopped(survivors)
            case ev.TakeFinalCheckpoint(number):
                self.process.spawn(self._final_checkpoint(number))
            case ev.TakeRescaleCheckpoint(number):
                self.process.spawn(self._rescale_checkpoint(number))
            case ev.SettleSinks():
                self.process.spawn(self._settle_sinks())
            case ev.StoodDown():
                self.process.spawn(self._make_way())
            case ev.End(status):
                self.process.spawn(self._end(status))
            case _:
                super().carry_out(command)

    def checked(self) -> None:
        super().checked()
        if self.core.state.status is JobStatus.RUNNING:
            self.world.rules.ran.add(self.job.job_id)

    def _adopts(self, attempts: frozenset[AttemptId]) -> None:
        if not self.zombie:
            super()._adopts(attempts)

    def began_with_it(self, attempt_id: AttemptId) -> bool:
        found = [tm.progress.get(attempt_id) for tm in self.world.election_task_managers()]
        return any(progress is not None and progress.restored == self.job.checkpoints for progress in found)

    def _settled(self, event: ev.Event) -> None:
        if self.alive:
            self.feed(event)

    async def _find_restore_point(self, number: int, tasks: frozenset[TaskId]) -> None:
        try:
            point = await self.coordinator.restore_point()
        except MinflinkError as error:
            self._settled(ev.RestorePointFailed(number, error_info(error)))
            return
        restores: dict[TaskId, m.TaskRestore] = {}
        if point is not None:
            self.world.rules.restorable(self.job.job_id, point)
            self._publish(point, tasks)
            restores = {
                task.task_id: m.TaskRestore(checkpoint_id=point.checkpoint_id, snapshot=task) for task in point.tasks
            }
        self._settled(ev.RestorePointFound(number, None if point is None else point.checkpoint_id, restores))

    def _publish(self, point: CompletedCheckpoint, tasks: frozenset[TaskId]) -> None:
        """Make appear what is owed by attempts that are gone, as the sinks do at a restart and at the end."""
        for task in point.tasks:
            for owed in task.transactions if task.task_id in tasks else ():
                self.world.published.publish(owed)

    async def _final_checkpoint(self, number: int) -> None:
        try:
            await self.coordinator.final_checkpoint()
        except MinflinkError:
            return
        self._settled(ev.FinalCheckpointDone(number))

    async def _rescale_checkpoint(self, number: int) -> None:
        try:
            await self.coordinator.trigger(stop=True)
        except MinflinkError:
            self._settled(ev.RescaleCheckpointFailed(number))
        else:
            self._settled(ev.RescaleCheckpointDone(number))

    async def _settle_sinks(self) -> None:
        while self.alive:
            try:
                point = await self.coordinator.settled()
            except MinflinkError:
                await asyncio.sleep(AGAIN)
                continue
            if point is not None:
                self._publish(point, frozenset(task.task_id for task in point.tasks))
            break
        self._settled(ev.SinksSettled())

    # --- records -----------------------------------------------------------------------------------------------------

    async def _end(self, status: JobStatus) -> None:
        await self._record(lambda: self.world.store.put_result(self.leadership, self.job, status))
        if self.alive:
            self.world.job_ended(self, status)

    async def _make_way(self) -> None:
        await self._record(lambda: self.world.store.put_next_version(self.leadership, self.job))
        if self.alive:
            self.world.stood_down(self)

    async def _record(self, write: Callable[[], Any]) -> None:
        """Write a record, as long as this JobMaster lives."""
        while self.alive:
            try:
                await write()
                return
            except MinflinkError:
                await asyncio.sleep(AGAIN)


def leadership_of(party: object) -> Leadership | None:
    return getattr(party, "leadership", None)
