"""What the TaskManager does for jobs: attempts and their snapshots. This is the supervisor's side.

`core.TaskManagerCore` decides about slots, JobMasters and the registration. This module carries out its decisions about
tasks, and reports the results back to it. Events in the session child arrive as notices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import structlog
from msgspec.structs import replace as copy

from minflinkd.filemerging.policy import FileMerging
from minflinkd.rpc import messages as m
from minflinkd.rpc.network import Network, task_manager
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.component import Component
from minflinkd.runtime.errors import ErrorInfo, error_info
from minflinkd.runtime.ids import AttemptId, JobId, LeaderId, TaskId
from minflinkd.taskmanager.attempts.analysis import Analyses
from minflinkd.taskmanager.attempts.attempt import Attempt
from minflinkd.taskmanager.attempts.collected import CollectedRows
from minflinkd.taskmanager.attempts.deployment import Deployer, attempt_directory, remove_exchanges
from minflinkd.taskmanager.attempts.snapshotting import Snapshots
from minflinkd.taskmanager.attempts.standing_by import Admission, Standbys
from minflinkd.taskmanager.attempts.state_reading import StateReads
from minflinkd.taskmanager.attempts.stopping import Stopping, remove_all
from minflinkd.taskmanager.child import protocol as sp
from minflinkd.taskmanager.child.keeper import SessionKeeper
from minflinkd.taskmanager.child.protocol import SessionLost
from minflinkd.taskmanager.metrics import merging_metrics
from minflinkd.taskmanager.slots.core import Exit, RenewSession, TaskManagerCore
from minflinkd.taskmanager.slots.core_driver import OwnCommand, TaskManagerDriver
from minflinkd.taskmanager.slots.events import Adopted, EndTasks, ForgetJob, StartTask
from minflinkd.taskmanager.slots.job_masters import JobMasters

log = structlog.get_logger(__name__)

DRAIN_TIMEOUT = 15.0  # seconds
RESIZE_TIMEOUT = 15.0
PARTITIONS_TIMEOUT = 2.0  # seconds; it takes milliseconds, and whoever looks goes on without


@dataclass(frozen=True, kw_only=True)
class ExecutorOptions:
    """`num_retained`: how many completed checkpoints of a job are kept."""

    state_directory: Path
    cancellation_timeout: float  # seconds that a task has to end before its session is ended
    num_retained: int = 1


class Process(Protocol):
    """The process that the executor runs in."""

    @property
    def data_url(self) -> str: ...

    def metrics(self) -> dict[str, float]: ...

    def registered(self, answer: m.Registered) -> None: ...

    def end(self, reason: str, *, failed: bool) -> None:
        """End soon. `failed`: because it cannot go on, not because it was told to."""


class TaskExecutor(Component):
    """The attempts of one TaskManager, and the driver of its core. A SessionListener."""

    def __init__(
        self,
        core: TaskManagerCore,
        process: Process,
        *,
        network: Network,
        clock: Clock,
        keeper: SessionKeeper,
        deployer: Deployer,
        merging: FileMerging,
        options: ExecutorOptions,
    ) -> None:
        super().__init__("task executor")
        self.resource_id = core.resource_id
        self.attempts: dict[AttemptId, Attempt] = {}
        self.core = core
        self._process = process
        self._clock = clock
        self._keeper = keeper
        self._deployer = deployer
        self._options = options
        self._job_masters = JobMasters(core, network, clock)
        self._rising: dict[AttemptId, asyncio.Task[None]] = {}
        self._endings: dict[AttemptId, asyncio.Task[None]] = {}
        self._of_lost_session: list[Attempt] = []  # until its processes are gone
        self._collected = CollectedRows(keeper.session)
        self._stopping = Stopping(
            attempts=self.attempts,
            keeper=keeper,
            mirrors=deployer.mirrors,
            collected=self._collected,
            clock=clock,
            tasks=self.tasks,
        )
        self._snapshots = Snapshots(
            resource_id=self.resource_id,
            storages=deployer.storages,
            local=deployer.snapshots,
            session=keeper.session,
            deliver=self._job_masters.deliver,
            merging=merging,
            num_retained=options.num_retained,
            tasks=self.tasks,
        )
        self._analyses = Analyses(
            keeper=keeper,
            deployer=deployer,
            directory=options.state_directory,
            begins=self._begins_analysis,
            ends=lambda job_id: self._driver.inform(lambda now: core.analysed(job_id, now)),
            is_deployed=lambda job_id: any(a.deployment.job.job_id == job_id for a in self.attempts.values()),
        )
        self._state_reads = StateReads(
            keeper=keeper,
            deployer=deployer,
            directory=options.state_directory,
            begins=lambda job_id, exclusive: self._driver.decide(
                lambda now: core.analysing(job_id, now, exclusive=exclusive)
            ),
            ends=lambda job_id: self._driver.inform(lambda now: core.analysed(job_id, now)),
            tasks=self.tasks,
        )
        self._standbys = Standbys(
            keeper=keeper,
            deployer=deployer,
            stopping=self._stopping,
            directory=options.state_directory,
            admission=Admission(
                begins=core.stand_by,
                ends=lambda job_id: self._driver.inform(lambda now: core.stood_by(job_id, now)),
                runs=lambda job_id: any(a.deployment.job.job_id == job_id for a in self.attempts.values()),
                is_free=lambda: not core.slots.table.bindings,
            ),
            clock=clock,
            tasks=self.tasks,
        )
        self._driver = TaskManagerDriver(
            self.core,
            address=task_manager(core.resource_id),
            network=network,
            clock=clock,
            carry_out=self._carry_out,
            complete=self._with_metrics,
            on_registered=process.registered,
            on_crash=lambda why: process.end(why, failed=True),
        )
        self.mailbox = self._driver.mailbox
        self.mailbox.on_accepted(m.FreeSlots, self._free_slots)
        self.mailbox.on_accepted(m.HeartbeatFromJobMaster, self._heartbeat)
        self.mailbox.on_accepted(m.CancelTask, self._cancel)
        self.mailbox.on_accepted(m.TriggerCheckpoint, self._trigger_checkpoint)
        self.mailbox.on_accepted(m.DrainTask, self._drain_task)
        self.mailbox.on_accepted(m.ResizeTask, self._resize_task)
        self.mailbox.on_accepted(m.NotifyCheckpointComplete, self._checkpoint_complete)
        self.mailbox.on_accepted(m.NotifyCheckpointAborted, self._checkpoint_aborted)
        # Whoever sends these, they do no harm.
        self.mailbox.on(m.AnalyzeJob, self._analyses.analyze)
        self.mailbox.on(m.StandBy, self._standbys.stand_by)
        self.mailbox.on(m.ReadState, self._state_reads.read)
        self.mailbox.on(m.CompareState, self._state_reads.compare)
        self.mailbox.on(m.ReadCollected, self._read_collected)
        self.mailbox.on(m.ReadPartitions, self._read_partitions)

    async def _start(self) -> None:
        await self._driver.start()

    async def _before_stop(self) -> None:
        await self._driver.aclose()

    async def _stop(self) -> None:
        await self._driver.aclose()

    # --- the core ------------------------------------------------------------------------------------------------

    def _carry_out(self, command: OwnCommand) -> None:
        match command:
            case StartTask(deployment):
                self._deploy(deployment)
            case Adopted(attempts, leader):
                for attempt_id in attempts:
                    self._adopted(attempt_id, leader)
            case EndTasks(attempts, reason):
                for attempt_id in attempts:
                    attempt = self.attempts.get(attempt_id)
                    if attempt is not None and self._begin_end(attempt):
                        log.info("a task ends", attempt=attempt_id, reason=reason)
            case ForgetJob(job_id):
                self._drop_unreported(job_id)
                if not self.core.keeps(job_id):  # otherwise the end of that emits another ForgetJob
                    self.tasks.job(f"forget {job_id}", self._forget_job(job_id))
            case RenewSession(reason):
                self._keeper.renew(reason)
            case Exit(reason, failed):
                self._process.end(reason, failed=failed)

    def _with_metrics(self, request: m.Request[Any]) -> m.Request[Any]:
        match request:
            case m.RegisterTaskManager(report=report):
                return copy(request, report=self._measured(report), data_url=self._process.data_url)
            case m.OfferSlots(offers=offers):
                return copy(request, data_url=self._process.data_url, tasks=self._offered(offers))
            case m.HeartbeatFromTaskManager(report=report):
                return copy(request, report=self._measured(report), start_phases=self._keeper.phases)
        return request

    def _offered(self, offers: tuple[m.SlotOffer, ...]) -> tuple[m.OfferedTask, ...]:
        """Return the tasks on these slots that run and need not end, or that failed while there was no JobMaster."""
        slots = {offer.allocation_id for offer in offers}
        running = {a for a, r in self.core.slots.attempts.items() if r.allocation_id in slots and not r.ending}
        live = {a for a in running if a in self.attempts and a not in self._endings}
        mine = {a: one for a, one in self.attempts.items() if one.deployment.allocation_id in slots}
        failed = {a for a, one in mine.items() if self._failure_was_missed(one)}
        return tuple(
            one.offered(self._snapshots.taking(one)) for a, one in sorted(self.attempts.items()) if a in live | failed
        )

    def _failure_was_missed(self, attempt: Attempt) -> bool:
        """Whether it has failed, and the present JobMaster can learn this only from an offer (A14a)."""
        job = self.core.slots.jobs.get(attempt.deployment.job.job_id)
        replaced = job is not None and job.leader != attempt.leader
        return attempt.status.state is m.TaskState.FAILED and (attempt.failure_unreported or replaced)

    def _measured(self, report: m.TaskManagerReport) -> m.TaskManagerReport:
        """Return the report with the values that are measured rather than decided."""
        keeper = self._keeper
        return copy(report, metrics=self._process.metrics(), session_slow=keeper.slow, session_steps=keeper.steps)

    async def _heartbeat(self, request: m.HeartbeatFromJobMaster) -> m.JobHeartbeatAnswer:
        tasks = tuple(a.status for a in self.attempts.values() if a.deployment.job.job_id == request.job_id)
        kept = self.core.slots.kept_for(request.job_id)
        return m.JobHeartbeatAnswer(allocations=kept, tasks=tasks, draining=self.core.draining)

    async def _free_slots(self, request: m.FreeSlots) -> m.Done:
        """Answer after everything on the slots has ended, so that they are free."""
        mine = [a for a in self.attempts.values() if a.deployment.job.job_id == request.job_id]
        await self._until_ended(a for a in mine if a.deployment.allocation_id in request.allocations)
        return m.Done()

    async def _forget_job(self, job_id: JobId) -> None:
        if self.core.slots.vacant(job_id):  # the job may have come back meanwhile
            await remove_all([self._deployer.snapshots.forget_job(job_id)])
        await self._deployer.blobs.forget_job(job_id)

    def _begins_analysis(self, request: m.AnalyzeJob) -> None:
        """Raises LibraryConflict, SessionShared."""
        job = request.job
        self._driver.decide(
            lambda now: self.core.analysing(job.job_id, now, job.libraries, exclusive=request.exclusive)
        )
        if request.exclusive:
            self._standbys.give_way(job.job_id, alone=True)

    # --- attempts ------------------------------------------------------------------------------------------------

    def _deploy(self, request: m.DeployTask) -> None:
        directory = attempt_directory(self._options.state_directory, request.attempt_id)
        attempt = Attempt.of(request, directory, self._keeper.generation)
        self._standbys.give_way(request.job.job_id, alone=self.core.slots.table.dedicated_to is not None)
        self._drop_unreported(request.job.job_id, request.task.id)
        self.attempts[request.attempt_id] = attempt
        # Other log lines name only the attempt. This one says which job it belongs to.
        log.info("a task is deployed", job=request.job.job_id, task=request.task.id, attempt=request.attempt_id)
        name = f"{request.task.id} attempt {request.attempt_number}"
        self._rising[request.attempt_id] = self.tasks.job(f"bring up {name}", self._bring_up(attempt))
        self.tasks.job(f"statuses of {name}", self._tell_statuses(attempt))

    def _adopted(self, attempt_id: AttemptId, leader: LeaderId) -> None:
        attempt = self.attempts.get(attempt_id)
        if attempt is not None:
            log.info("a task has a new JobMaster", attempt=attempt_id, leader=leader)
            attempt.leader = leader
            attempt.changed.set()

    async def _bring_up(self, attempt: Attempt) -> None:
        attempt.to(m.TaskState.INITIALIZING)
        try:
            session = self._keeper.session()
            phases = await self._deployer.bring_up(attempt, session)
        except Exception as error:
            log.warning("a task did not come up", attempt=attempt.deployment.attempt_id, error=str(error))
            self._begin_end(attempt, error_info(error))
            return
        finally:
            self._rising.pop(attempt.deployment.attempt_id, None)
        if attempt.status.state is m.TaskState.INITIALIZING:
            attempt.to(m.TaskState.RUNNING, phases=phases)
            if attempt.input_ended:
                attempt.to(m.TaskState.INPUT_ENDED)

    def input_lost(self, attempt_id: AttemptId, error: ErrorInfo) -> None:
        """End the attempt: it can no longer read its input from another TaskManager."""
        attempt = self.attempts.get(attempt_id)
        if attempt is not None:
            self._begin_end(attempt, error)

    async def _cancel(self, request: m.CancelTask) -> m.Done:
        attempt = self.attempts.get(request.attempt_id)
        if attempt is not None:
            await self._snapshots.commit_at_end(attempt, request.completed)
            await self._end(attempt)
            if attempt.status.state is m.TaskState.FAILED:  # whoever cancels it knows this, or need not
                self.attempts.pop(request.attempt_id, None)
        return m.Done()

    async def _read_collected(self, request: m.ReadCollected) -> m.Collected:
        return await self._collected.read(request.attempt_id, request.vertex_id, runs=self.require)

    async def _read_partitions(self, request: m.ReadPartitions) -> m.TaskPartitions:
        self.require(request.attempt_id)
        ask = sp.TellPartitions(attempt_id=request.attempt_id)
        return await self._keeper.session().ask(ask, PARTITIONS_TIMEOUT)

    async def _end(self, attempt: Attempt, error: ErrorInfo | None = None) -> None:
        """Stop the attempt, and return when nothing of it runs. Repeated calls stop it only once."""
        self._begin_end(attempt, error)
        await self._until_ended([attempt])

    async def _until_ended(self, attempts: Iterable[Attempt]) -> None:
        """Wait for those of the attempts that have begun to end."""
        ids = [a.deployment.attempt_id for a in attempts]
        if endings := {self._endings[i] for i in ids if i in self._endings}:
            await asyncio.wait(endings)

    def _begin_end(self, attempt: Attempt, error: ErrorInfo | None = None) -> bool:
        """Begin to end the attempt. Return False if it had begun already. With an error, it has failed."""
        attempt_id = attempt.deployment.attempt_id
        if attempt.ended or attempt_id in self._endings:
            return False
        self._endings[attempt_id] = self.tasks.job(f"end {attempt_id}", self._wind_down(attempt, error))
        return True

    async def _wind_down(self, attempt: Attempt, error: ErrorInfo | None) -> None:
        """End the attempt, and kill what has not ended within the cancellation timeout.

        JobMasters wait longer than that before they give up.
        """
        attempt_id = attempt.deployment.attempt_id
        deadline = self._clock.monotonic() + self._options.cancellation_timeout
        try:
            if error is None:
                attempt.to(m.TaskState.CANCELING)
            snapshots = self._snapshots.cancel_all(attempt)
            await self._stopping.stop(attempt, self._rising.pop(attempt_id, None), deadline)
            if snapshots and not attempt.ended:  # if a storage hangs, they end later on their own
                await asyncio.wait(snapshots, timeout=max(0.0, deadline - self._clock.monotonic()))
        finally:
            self._endings.pop(attempt_id, None)
            self._release_artifacts_of(attempt)
            failed = error is not None
            self._driver.inform(lambda now: self.core.attempt_ended(attempt_id, now, failed=failed))
            attempt.to(m.TaskState.CANCELED if error is None else m.TaskState.FAILED, error=error)
            self.tasks.job("remove exchanges", remove_exchanges(self._options.state_directory, self._exchanges))

    def _exchanges(self) -> frozenset[AttemptId]:
        """Return the attempts whose exchange logs are written or read here."""
        live = [a.deployment for a in self.attempts.values() if not a.ended]
        return frozenset({d.attempt_id for d in live} | {source.attempt_id for d in live for source in d.inputs})

    def _release_artifacts_of(self, attempt: Attempt) -> None:
        if attempt.holds_artifacts:
            attempt.holds_artifacts = False
            self._deployer.release_artifacts(attempt.deployment.job)

    async def _tell_statuses(self, attempt: Attempt) -> None:
        """Report every change of state. If no JobMaster has taken the report of a failure, offer it to the next one."""
        await self._job_masters.tell_statuses(attempt)
        await self._until_ended([attempt])  # a lost session is reported before its processes are gone
        if not attempt.failure_unreported:
            attempt_id = attempt.deployment.attempt_id
            self.attempts.pop(attempt_id, None)
            self._driver.inform(lambda now: self.core.failure_taken(attempt_id, now))

    def _drop_unreported(self, job_id: JobId, task_id: TaskId | None = None) -> None:
        """Forget failures that need not be reported any more: of this task, or of all tasks of the job."""
        for attempt_id, attempt in list(self.attempts.items()):
            deployed = attempt.deployment
            if attempt.failure_unreported and deployed.job.job_id == job_id and task_id in (None, deployed.task.id):
                del self.attempts[attempt_id]

    async def _resize_task(self, request: m.ResizeTask) -> m.Done:
        attempt = self.require(request.attempt_id)
        before, attempt.parallelism = attempt.parallelism, request.parallelism  # a JobMaster may adopt it meanwhile
        try:
            resize = sp.ResizeAttempt(attempt_id=request.attempt_id, slots=request.parallelism)
            return await self._keeper.session().ask(resize, RESIZE_TIMEOUT)
        except sp.NotResizable:
            attempt.parallelism = before
            raise

    # --- checkpoints ---------------------------------------------------------------------------------------------

    def require(self, attempt_id: AttemptId) -> Attempt:
        """Return the running attempt. Raises UnknownAttempt."""
        attempt = self.attempts.get(attempt_id)
        if attempt is None or not attempt.runs:
            raise sp.UnknownAttempt(f"attempt {attempt_id} does not run on {self.resource_id}")
        return attempt

    def merging_metrics(self) -> dict[str, float]:
        return merging_metrics(self.attempts.values(), self._snapshots.bytes_new, self._snapshots.bytes_rewritten)

    async def _trigger_checkpoint(self, request: m.TriggerCheckpoint) -> m.Done:
        self._snapshots.trigger(self.require(request.attempt_id), request)
        return m.Done()

    async def _drain_task(self, request: m.DrainTask) -> m.Done:
        self.require(request.attempt_id).draining = True
        return await self._keeper.session().ask(sp.DrainAttempt(attempt_id=request.attempt_id), DRAIN_TIMEOUT)

    async def _checkpoint_complete(self, request: m.NotifyCheckpointComplete) -> m.Done:
        await self._snapshots.complete(self.require(request.attempt_id), request)
        return m.Done()

    async def _checkpoint_aborted(self, request: m.NotifyCheckpointAborted) -> m.Done:
        attempt = self.attempts.get(request.attempt_id)
        if attempt is not None:
            await self._snapshots.abort(attempt, request)
        return m.Done()

    # --- what the session child says -----------------------------------------------------------------------------

    def session_changed(self, phase: m.SessionPhase) -> None:
        self._tell_session()

    def _tell_session(self) -> None:
        keeper = self._keeper
        self._driver.inform(
            lambda now: self.core.session_changed(
                keeper.phase, keeper.generation, bool(keeper.aged), now, keeper.start_error
            )
        )

    def session_lost(self, generation: int, reason: str) -> None:
        """Fail the tasks of a lost session at once. Their slots stay occupied until its processes are gone."""
        error = SessionLost(f"the session of TaskManager {self.resource_id} was lost: {reason}").info()
        self._of_lost_session = [a for a in self.attempts.values() if a.generation == generation]
        for attempt in self._of_lost_session:
            if self._begin_end(attempt, error):
                attempt.to(m.TaskState.FAILED, error=error)
        self._of_lost_session += self._standbys.lost(generation)
        self._tell_session()

    def session_gone(self) -> None:
        """Delete the directories of the lost session's tasks: nobody can write there any more (C10a)."""
        gone, self._of_lost_session = self._of_lost_session, []
        self._stopping.session_gone(gone)

    def task_failed(self, generation: int, notice: sp.TaskFailed) -> None:
        self._standbys.failed(notice.attempt_id, notice.error)
        attempt = self._of(generation, notice.attempt_id)
        if attempt is not None:
            self._begin_end(attempt, notice.error)

    def batch_finished(self, generation: int, notice: sp.BatchFinished) -> None:
        self._standbys.processed(notice.attempt_id)
        attempt = self._of(generation, notice.attempt_id)
        if attempt is not None:
            self._job_masters.tell_progress(attempt, notice.metrics)

    def input_ended(self, generation: int, notice: sp.InputEnded) -> None:
        attempt = self._of(generation, notice.attempt_id)
        if attempt is None:
            return
        self._job_masters.tell_progress(attempt, notice.metrics)
        attempt.input_ended = True
        if attempt.status.state is m.TaskState.RUNNING:
            attempt.to(m.TaskState.INPUT_ENDED)

    def _of(self, generation: int, attempt_id: AttemptId) -> Attempt | None:
        attempt = self.attempts.get(attempt_id)
        return attempt if attempt is not None and attempt.generation == generation else None
