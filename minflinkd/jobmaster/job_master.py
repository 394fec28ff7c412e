"""The JobMaster: carries out what one job's scheduler decides, and tells it what became of it.

Everything that happens to a job is an event of `jobmaster.scheduler`; this file only speaks to the other parties.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial

import structlog
from msgspec.structs import replace as copy

from minflinkd.checkpoint.causes import CheckpointFailed
from minflinkd.checkpoint.driver import CheckpointCoordinator
from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.checkpoint.store import CheckpointStore
from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.model import JobGraph, RestartStrategy
from minflinkd.jobmaster import events as ev
from minflinkd.jobmaster import scheduler
from minflinkd.jobmaster.details import details
from minflinkd.jobmaster.heartbeats import TaskManagerBeats
from minflinkd.jobmaster.job_state import JobState, check_invariants, new_job
from minflinkd.jobmaster.sinks import JobSinks
from minflinkd.jobmaster.task_gateway import TaskManagerTasks
from minflinkd.rpc import messages as m
from minflinkd.rpc.jobs import JobDetails, JobStatus
from minflinkd.rpc.network import (
    RESOURCE_MANAGER,
    Address,
    Fenced,
    Mailbox,
    Network,
    RpcTimeout,
    Unreachable,
    job_master,
)
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.component import Component
from minflinkd.runtime.errors import Consequence, MinflinkError, RemoteError, error_info
from minflinkd.runtime.ids import AttemptId, IdSource, JobId
from minflinkd.runtime.machine import Machine
from minflinkd.storage.registry import Storages

log = structlog.get_logger(__name__)

RETRY_PAUSE = 0.5  # seconds
LONGEST_PAUSE = 30.0


@dataclass(frozen=True, kw_only=True)
class JobMasterOptions:
    """Times in seconds."""

    heartbeat_interval: float = 1.0
    heartbeat_timeout: float = 5.0
    slot_request_timeout: float = 300.0
    cancellation_timeout: float = 30.0
    restart_strategy: RestartStrategy
    checkpoints: CheckpointOptions


class JobMaster(Component):
    """One job's master. `ended` is set with the job's terminal state."""

    def __init__(
        self,
        *,
        job_id: JobId,
        graph: JobGraph,
        context: m.JobContext,
        options: JobMasterOptions,
        network: Network,
        storages: Storages,
        clock: Clock,
        ids: IdSource,
        rng: random.Random,
        submitted_ms: int,
        submission: dict[str, float],
        on_end: Callable[[JobDetails], Awaitable[None]],
    ) -> None:
        super().__init__(f"jobmaster {job_id}")
        self.job_id = job_id
        self.graph = graph
        self._context = context
        self._options = options
        self._network = network
        self._sinks = JobSinks(storages, job_id=job_id, graph=graph)
        self._clock = clock
        self._submitted_ms = submitted_ms
        self._submission = submission
        self._on_end = on_end
        self.leader_id = ids.leader()
        self._log = log.bind(job=job_id)
        chance = scheduler.Chance(ids, rng)
        self._machine: Machine[JobState, ev.Event, ev.Command] = Machine(
            new_job(chain(graph), graph.restart_strategy or options.restart_strategy, options.slot_request_timeout),
            partial(scheduler.step, chance),
            check_invariants,
            name=self.name,
        )
        self._wake = asyncio.Event()
        self._declare_now = asyncio.Event()
        self._freeing: set[asyncio.Task[None]] = set()
        self._task_phases: dict[str, dict[str, float]] = {}
        self._end_details: JobDetails | None = None
        self.coordinator = CheckpointCoordinator(
            job_id=job_id,
            options=options.checkpoints,
            store=CheckpointStore(storages.at(context.checkpoint_root), job_id=job_id, epoch=options.checkpoints.epoch),
            clock=clock,
            tasks=TaskManagerTasks(network, job_id=job_id, fence=self.leader_id, address_of=self._address_of),
            on_failure=self._checkpoints_failed,
        )
        self._mailbox = Mailbox(job_master(job_id), fence=self.leader_id)
        self._mailbox.on(m.OfferSlots, self._offer_slots)
        self._mailbox.on(m.TaskStateChanged, self._task_state_changed)
        self._mailbox.on(m.AcknowledgeCheckpoint, self._acknowledge_checkpoint)
        self._mailbox.on(m.DeclineCheckpoint, self._decline_checkpoint)
        self._mailbox.on_notice(m.TaskProgress, self._task_progress)
        self._mailbox.on_notice(m.TaskManagerLost, self._task_manager_lost)
        self._beats = TaskManagerBeats(
            network,
            job_id=job_id,
            leader_id=self.leader_id,
            interval=options.heartbeat_interval,
            timeout=options.heartbeat_timeout,
            cancellation_timeout=2 * options.cancellation_timeout,
            clock=clock,
            tasks=self.tasks,
            state=lambda: self._machine.state,
            feed=self._feed,
        )

    # --- inspection ----------------------------------------------------------------------------------------------

    @property
    def status(self) -> JobStatus:
        return self._machine.state.status

    def details(self) -> JobDetails:
        return details(
            self.job_id,
            self.graph,
            self._machine.state,
            submitted_ms=self._submitted_ms,
            wall=self._wall,
            submission=self._submission,
            task_phases=self._task_phases,
        )

    def cancel(self) -> None:
        """Begin to cancel; nothing where the job ends already."""
        self._feed(ev.CancelRequested())

    # --- lifecycle -----------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        await self.coordinator.start()
        self._network.attach(self._mailbox)
        self.tasks.loop("timer", self._timer)
        self.tasks.loop("declaration of needs", self._declare_needs)
        self.tasks.loop("heartbeats", self._beats.run)
        self._feed(ev.Started(recovered=self.coordinator.latest() is not None))

    async def _stop(self) -> None:
        self._network.detach(self._mailbox)
        await self.coordinator.aclose()

    # --- the machine and the world -------------------------------------------------------------------------------

    def _feed(self, event: ev.Event) -> None:
        before = self._machine.state
        commands = self._machine.feed(event, self._clock.monotonic())
        state = self._machine.state
        if len(state.failures) != len(before.failures) or state.failures[-1:] != before.failures[-1:]:
            self._date_failures()
        if state.status is not before.status:
            self._log.info("job status", status=state.status.value, before=before.status.value)
        for command in commands:
            self._carry_out(command)
        self._wake.set()

    def _carry_out(self, command: ev.Command) -> None:
        match command:
            case ev.Declare():
                self._declare_now.set()
            case ev.FindRestorePoint(number):
                self.tasks.job(f"restore point of round {number}", self._find_restore_point(number))
            case ev.Deploy():
                self.tasks.job(f"deploy {command.task_id} attempt {command.number}", self._deploy(command))
            case ev.Cancel(attempt, address):
                self.tasks.job(f"cancel {attempt}", self._cancel_attempt(attempt, Address(address)))
            case ev.StartCheckpoints(attempts):
                self.coordinator.tasks_running(attempts)
            case ev.StopCheckpoints():
                self.coordinator.tasks_stopped()
            case ev.TakeFinalCheckpoint(number):
                self.tasks.job("final checkpoint", self._final_checkpoint(number))
            case ev.FreeAllocations(address, allocations, job_ended):
                free = m.FreeSlots(job_id=self.job_id, allocations=allocations, job_ended=job_ended)
                task = self.tasks.job(f"free slots at {address}", self._free(Address(address), free))
                self._freeing.add(task)
                task.add_done_callback(self._freeing.discard)
            case ev.SettleSinks():
                self.tasks.job("settle sinks", self._settle_sinks())
            case ev.End():
                self.tasks.job("end", self._end())

    async def _timer(self) -> None:
        while True:
            self._wake.clear()
            due = scheduler.next_wakeup(self._machine.state)
            try:
                async with asyncio.timeout(None if due is None else max(0.0, due - self._clock.monotonic())):
                    await self._wake.wait()
            except TimeoutError:
                self._feed(ev.Tick())

    async def _declare_needs(self) -> None:
        """m1: the whole need, at once when it changes and with every heartbeat (R8)."""
        while True:
            self._declare_now.clear()
            pool = self._machine.state.pool
            request = m.DeclareNeeds(
                job_id=self.job_id,
                leader_id=self.leader_id,
                address=self._mailbox.address,
                version=pool.version,
                needs=pool.declaration(),
                held=tuple(pool.held),
            )
            try:
                answer = await self._network.ask(RESOURCE_MANAGER, request, timeout=self._options.heartbeat_timeout)
                if answer.refused:
                    self._feed(ev.NeedsRefused(answer.refused))
            except (RemoteError, Fenced, Unreachable, RpcTimeout) as error:
                self._log.info("the ResourceManager did not take the needs", error=str(error))
            try:
                async with asyncio.timeout(self._options.heartbeat_interval):
                    await self._declare_now.wait()
            except TimeoutError:
                pass

    async def _find_restore_point(self, number: int) -> None:
        try:
            point = await self.coordinator.restore_point()
            await self._sinks.prepare(point)
        except Exception as error:
            self._feed(ev.RestorePointFailed(number, error_info(error)))
            return
        if point is None:
            self._feed(ev.RestorePointFound(number, None, {}))
            return
        tasks = {
            snapshot.task_id: m.TaskRestore(checkpoint_id=point.checkpoint_id, snapshot=snapshot)
            for snapshot in point.tasks
        }
        self._feed(ev.RestorePointFound(number, point.checkpoint_id, tasks))

    async def _deploy(self, command: ev.Deploy) -> None:
        request = m.DeployTask(
            job=self._context,
            task=self._machine.state.tasks[command.task_id],
            allocation_id=command.allocation_id,
            attempt_id=command.attempt_id,
            attempt_number=command.number,
            job_leader_id=self.leader_id,
            restore=command.restore,
        )
        try:
            await self._repeat(Address(command.address), request, self._options.heartbeat_timeout)
        except Exception as error:  # whatever it is, the scheduler must hear of it
            info = error_info(error)
            if info.code != Fenced.code:
                info = copy(info, consequence=Consequence.RETRYABLE)  # another TaskManager may take it
            self._feed(ev.DeployFailed(command.attempt_id, info))

    async def _cancel_attempt(self, attempt_id: AttemptId, address: Address) -> None:
        """Until nothing of the attempt runs: answered, or the TaskManager is lost (which the beats notice)."""
        request = m.CancelTask(job_id=self.job_id, attempt_id=attempt_id)
        try:
            await self._repeat(address, request, 2 * self._options.cancellation_timeout)
        except MinflinkError as error:
            self._log.error("a task could not be cancelled", attempt=attempt_id, error=str(error))
        self._feed(ev.AttemptGone(attempt_id))

    async def _repeat(self, address: Address, request: m.Request[m.Done], timeout: float) -> None:
        """Repeat while the outcome is unknown, for at most `timeout` seconds. Raises what was answered last."""
        deadline = self._clock.monotonic() + timeout
        while True:
            patience = max(0.1, min(self._options.heartbeat_timeout / 2, deadline - self._clock.monotonic()))
            try:
                await self._network.ask(address, request, timeout=patience, fence=self.leader_id)
                return
            except (Unreachable, RpcTimeout):
                if self._clock.monotonic() + RETRY_PAUSE >= deadline:
                    raise
                await self._clock.sleep(RETRY_PAUSE)

    async def _final_checkpoint(self, number: int) -> None:
        try:
            await self.coordinator.final_checkpoint()
        except MinflinkError as error:
            self._log.info("the final checkpoint ended", error=str(error))  # a failover tells the scheduler itself
            return
        self._feed(ev.FinalCheckpointDone(number))

    async def _free(self, address: Address, request: m.FreeSlots) -> None:
        try:
            await self._repeat(address, request, self._options.heartbeat_timeout)
        except MinflinkError as error:
            self._log.info("slots were not freed; reconciliation will", address=address, error=str(error))

    async def _settle_sinks(self) -> None:
        """Publish what the last completed checkpoint promised, discard the rest (J12). Repeated until it is done."""
        pause = RETRY_PAUSE
        while True:
            try:
                await self._sinks.close(await self.coordinator.settled())
                break
            except Exception as error:  # whatever it is, the job must come to its end
                info = error_info(error)
                if info.consequence is not Consequence.RETRYABLE:
                    self._log.error("the sinks cannot be settled; what is staged stays", error=info.message)
                    break
                self._log.warning("the sinks cannot be settled yet", error=info.message, pause=pause)
                await self._clock.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        self._feed(ev.SinksSettled())

    async def _end(self) -> None:
        """Whoever hears of the end finds the slots free, unless their TaskManager does not answer."""
        if self._freeing:
            await asyncio.wait(self._freeing)
        await self._on_end(self.details())

    # --- messages ------------------------------------------------------------------------------------------------

    async def _offer_slots(self, request: m.OfferSlots) -> m.OffersAccepted:
        self._feed(ev.SlotsOffered(request.resource_id, request.address, request.offers))
        held = self._machine.state.pool.held
        accepted = tuple(
            o.allocation_id
            for o in request.offers
            if o.allocation_id in held and held[o.allocation_id].resource_id == request.resource_id
        )
        return m.OffersAccepted(accepted=accepted)

    async def _task_state_changed(self, request: m.TaskStateChanged) -> m.Done:
        if request.status.phases:
            self._task_phases[request.status.attempt_id] = request.status.phases
        self._feed(ev.TaskChanged(request.status))
        return m.Done()

    async def _task_progress(self, notice: m.TaskProgress) -> None:
        self._feed(ev.TaskProgressed(notice.attempt_id, notice.metrics))

    async def _task_manager_lost(self, notice: m.TaskManagerLost) -> None:
        self._feed(ev.TaskManagerGone(notice.resource_id, notice.reason))

    async def _acknowledge_checkpoint(self, request: m.AcknowledgeCheckpoint) -> m.Done:
        self.coordinator.acknowledge(request.snapshot)
        return m.Done()

    async def _decline_checkpoint(self, request: m.DeclineCheckpoint) -> m.Done:
        self.coordinator.decline(request.attempt_id, request.checkpoint_id, request.error)
        return m.Done()

    # --- small things --------------------------------------------------------------------------------------------

    def _checkpoints_failed(self, failure: CheckpointFailed) -> None:
        error = copy(failure.info(), consequence=Consequence.RETRYABLE)
        self._feed(ev.CheckpointsFailed(error))

    def _address_of(self, attempt_id: AttemptId) -> Address | None:
        state = self._machine.state
        execution = state.by_attempt(attempt_id)
        if execution is None or execution.allocation_id is None or not execution.on_task_manager:
            return None
        held = state.pool.held.get(execution.allocation_id)
        return Address(held.address) if held is not None else None

    def _wall(self, at: float) -> int:
        return round(self._clock.epoch_ms() - (self._clock.monotonic() - at) * 1000)

    def _date_failures(self) -> None:
        """The pure machine knows no wall clock; the failures that it has just recorded get their date here."""
        now = self._clock.epoch_ms()
        failures = tuple(f if f.timestamp_ms else copy(f, timestamp_ms=now) for f in self._machine.state.failures)
        self._machine.state = replace(self._machine.state, failures=failures)
        newest = failures[-1]
        self._log.warning("failure", code=newest.error.code, error=newest.error.message, task=newest.task_name)
