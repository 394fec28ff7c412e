"""The TaskManager's doings for jobs: slots, attempts, snapshots, analysis. The supervisor's side of everything.

Takes messages of the ResourceManager and of JobMasters; what happens in the session child comes back as notices.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import structlog

from minflinkd.blob.keys import BlobKey
from minflinkd.rpc import messages as m
from minflinkd.rpc.network import Address, Fenced, Mailbox, Network, task_manager
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.component import Component
from minflinkd.runtime.errors import Consequence, ErrorInfo, MinflinkError, RemoteError, error_info
from minflinkd.runtime.ids import AllocationId, AttemptId, JobId, LeaderId, ResourceId
from minflinkd.taskmanager import session_protocol as sp
from minflinkd.taskmanager import slot_table as st
from minflinkd.taskmanager.attempt import Attempt
from minflinkd.taskmanager.deployment import Deployer, attempt_directory
from minflinkd.taskmanager.job_masters import JobMasters, JobMasterSilent
from minflinkd.taskmanager.session_keeper import SessionKeeper
from minflinkd.taskmanager.session_process import SessionLost
from minflinkd.taskmanager.snapshotting import Snapshots

log = structlog.get_logger(__name__)

ANALYSIS_TIMEOUT = 110.0  # seconds
OFFER_TIMEOUT = 10.0  # seconds after which slots that no JobMaster accepted fall free (R9)
WATCH_INTERVAL = 1.0


class SlotNotBound(MinflinkError):
    """m12: a deployment onto slots that are not bound to that job here."""

    code = "slot-not-bound"
    consequence = Consequence.REFUSED


class TaskExecutor(Component):
    """Holds the slot table and the attempts of one TaskManager. A SessionListener."""

    def __init__(
        self,
        *,
        resource_id: ResourceId,
        network: Network,
        clock: Clock,
        slots: int,
        keeper: SessionKeeper,
        deployer: Deployer,
        state_directory: Path,
        max_file_size: int,
        cancellation_timeout: float,
        heartbeat_timeout: float,
        slot_hold_timeout: float,
        on_change: Callable[[], None],
        resource_manager: Callable[[], LeaderId | None],
        on_exit: Callable[[str], None],
        metrics: Callable[[], dict[str, float]],
    ) -> None:
        super().__init__("task executor")
        self.resource_id = resource_id
        self.slots = st.SlotTable(slots)
        self.attempts: dict[AttemptId, Attempt] = {}
        self._network = network
        self._clock = clock
        self._keeper = keeper
        self._deployer = deployer
        self._state_directory = state_directory
        self._cancellation_timeout = cancellation_timeout
        self._heartbeat_timeout = heartbeat_timeout
        self._slot_hold_timeout = slot_hold_timeout
        self._on_change = on_change
        self._resource_manager = resource_manager
        self._on_exit = on_exit
        self._metrics = metrics
        self._rising: dict[AttemptId, asyncio.Task[None]] = {}
        self._analyzing: Counter[JobId] = Counter()
        self._releases: dict[tuple[JobId, frozenset[AllocationId]], asyncio.Task[None]] = {}
        self._endings: dict[AttemptId, asyncio.Task[None]] = {}
        self._kept: list[Path] = []  # directories of ended attempts that the session child may still write to
        self._masters = JobMasters(network, clock, resource_id=resource_id, address=task_manager(resource_id))
        self._snapshots = Snapshots(
            resource_id=resource_id,
            storages=deployer.storages,
            local=deployer.snapshots,
            session=keeper.session,
            deliver=self._deliver,
            max_file_size=max_file_size,
            tasks=self.tasks,
        )
        self.mailbox = self._make_mailbox()

    def _make_mailbox(self) -> Mailbox:
        mailbox = Mailbox(task_manager(self.resource_id), admits=self._admits)
        mailbox.on(m.AllocateSlots, self._allocate_slots)
        mailbox.on(m.FreeSlots, self._free_slots)
        mailbox.on(m.ExitTaskManager, self._exit)
        mailbox.on(m.HeartbeatFromJobMaster, self._heartbeat)
        mailbox.on(m.AnalyzeJob, self._analyze)
        mailbox.on(m.DeployTask, self._deploy)
        mailbox.on(m.CancelTask, self._cancel)
        mailbox.on(m.TriggerCheckpoint, self._trigger_checkpoint)
        mailbox.on(m.NotifyCheckpointComplete, self._checkpoint_complete)
        mailbox.on(m.NotifyCheckpointAborted, self._checkpoint_aborted)
        return mailbox

    def report(self) -> m.TaskManagerReport:
        return m.TaskManagerReport(
            resource_id=self.resource_id,
            version=self.slots.version,
            slots=self.slots.report(),
            session=self._keeper.phase,
            session_generation=self._keeper.generation,
            metrics=self._metrics(),
        )

    async def _start(self) -> None:
        self._network.attach(self.mailbox)
        self.tasks.loop("watch over JobMasters", self._watch_job_masters)

    async def _before_stop(self) -> None:
        self._network.detach(self.mailbox)

    def _admits(self, message: m.Message, fence: LeaderId | None) -> bool:
        """R1: the ResourceManager's messages carry its leader's token, a JobMaster's that of the job's leader."""
        if isinstance(message, m.AllocateSlots | m.ExitTaskManager):
            return fence == self._resource_manager()
        job_id = getattr(message, "job_id", None)
        leader = self.slots.leader_of(job_id) if job_id is not None else None
        return leader is None or fence == leader

    # --- slots ---------------------------------------------------------------------------------------------------

    def _set_slots(self, slots: st.SlotTable) -> None:
        st.check_invariants(slots)
        if slots != self.slots:
            self.slots = slots
            self._on_change()

    async def _allocate_slots(self, request: m.AllocateSlots) -> m.SlotAnswer:
        slots, allocated = st.allocate(self.slots, request, self._clock.monotonic())
        self._set_slots(slots)
        if allocated:
            self._masters.hear(request.job_id)
            self.tasks.job(f"offer slots to {request.job_id}", self._offer(request.job_id))
        return m.SlotAnswer(allocated=allocated, report=self.report())

    async def _offer(self, job_id: JobId) -> None:
        bindings = self.slots.of_job(job_id)
        if not bindings:
            return
        binding = next(iter(bindings.values()))
        answer = await self._masters.offer(
            Address(binding.job_master), self.slots.offers(job_id), binding.job_leader_id, OFFER_TIMEOUT
        )
        self._masters.hear(job_id)
        self._set_slots(st.accepted(self.slots, job_id, answer.accepted))
        # What the job holds already is not at stake here, least of all where no answer came; heartbeats judge that.
        waiting = st.not_accepted_since(self.slots, 0.0, self._clock.monotonic())
        await self._release(job_id, tuple(a for a in bindings if a in waiting))

    async def _free_slots(self, request: m.FreeSlots) -> m.Done:
        await self._release(request.job_id, request.allocations)
        if request.job_ended:
            await self._forget_job(request.job_id)
        return m.Done()

    async def _release(self, job_id: JobId, allocations: tuple[AllocationId, ...]) -> None:
        """End what runs on these slots, then free them."""
        mine = [a for a in allocations if a in self.slots.of_job(job_id)]
        on_them = [x for x in self.attempts.values() if x.deployment.allocation_id in mine]
        await asyncio.gather(*(self._end(attempt) for attempt in on_them))
        self._set_slots(st.freed(self.slots, mine))

    def _release_behind(self, job_id: JobId, allocations: tuple[AllocationId, ...]) -> None:
        """However often it is called, one release of these slots is under way."""
        key = (job_id, frozenset(allocations))
        if allocations and key not in self._releases:
            task = self._releases[key] = self.tasks.job(f"release of {job_id}", self._release(job_id, allocations))
            task.add_done_callback(lambda _: self._releases.pop(key, None))

    async def _forget_job(self, job_id: JobId) -> None:
        await asyncio.to_thread(self._deployer.snapshots.forget_job, job_id)
        await self._deployer.blobs.forget_job(job_id)
        self._masters.heard.pop(job_id, None)

    async def _heartbeat(self, request: m.HeartbeatFromJobMaster) -> m.JobHeartbeatAnswer:
        self._masters.hear(request.job_id)
        mine = self.slots.of_job(request.job_id)
        now = self._clock.monotonic()
        unknown = tuple(
            a
            for a, b in mine.items()
            # A young one may have been accepted after this beat was sent.
            if b.state is st.SlotState.ACTIVE and a not in request.allocations and now - b.since > OFFER_TIMEOUT
        )
        if unknown:
            log.warning("slots that the JobMaster does not know are freed", job=request.job_id, allocations=unknown)
            self._release_behind(request.job_id, unknown)  # user code may take its time; the answer must not
        tasks = tuple(a.status for a in self.attempts.values() if a.deployment.job.job_id == request.job_id)
        return m.JobHeartbeatAnswer(allocations=tuple(self.slots.of_job(request.job_id)), tasks=tasks)

    async def _watch_job_masters(self) -> None:
        """R13: tasks of a silent JobMaster end; its slots are held for its successor for a while, then fall free."""
        while True:
            await self._clock.sleep(WATCH_INTERVAL)
            now = self._clock.monotonic()
            for job_id in self.slots.jobs():
                silent = now - self._masters.heard.get(job_id, now)
                if silent > self._heartbeat_timeout:
                    for attempt in [a for a in self.attempts.values() if a.deployment.job.job_id == job_id]:
                        if self._begin_end(attempt):
                            log.warning("a task ends, as its JobMaster is silent", job=job_id, silent=silent)
                if silent > self._heartbeat_timeout + self._slot_hold_timeout:
                    self._release_behind(job_id, tuple(self.slots.of_job(job_id)))
            for job_id in self._masters.silent_for(self._heartbeat_timeout + self._slot_hold_timeout):
                if job_id not in self.slots.jobs() and job_id not in self._analyzing:
                    await self._forget_job(job_id)  # it ended or went elsewhere, and nobody said so here
            late = st.not_accepted_since(self.slots, 2 * OFFER_TIMEOUT, now)
            self._set_slots(st.freed(self.slots, late))

    async def _exit(self, request: m.ExitTaskManager) -> m.Done:
        self._on_exit(request.reason)
        return m.Done()

    # --- analysis ------------------------------------------------------------------------------------------------

    async def _analyze(self, request: m.AnalyzeJob) -> m.Analysis:
        session = self._keeper.session()
        job = request.job
        self._analyzing[job.job_id] += 1
        try:
            artifacts = await self._deployer.artifacts(job)
            try:
                analysis = await session.ask(
                    sp.AnalyzeTasks(job=job, tasks=request.tasks, artifacts=artifacts), ANALYSIS_TIMEOUT
                )
            finally:
                self._release_artifacts(job)
        finally:
            self._analyzing -= Counter([job.job_id])
            self._masters.hear(job.job_id)  # unless the job comes here, its artifacts go after a while
        if analysis.faults and not any(a.deployment.job.job_id == job.job_id for a in self.attempts.values()):
            await self._deployer.blobs.forget_job(job.job_id)
        return analysis

    def _release_artifacts(self, job: m.JobContext) -> None:
        for artifact in job.artifacts:
            self._deployer.blobs.release(job.job_id, BlobKey.parse(artifact.key))

    # --- attempts ------------------------------------------------------------------------------------------------

    async def _deploy(self, request: m.DeployTask) -> m.Done:
        if request.attempt_id in self.attempts:
            return m.Done()
        binding = self.slots.bindings.get(request.allocation_id)
        if binding is None or binding.job_id != request.job.job_id or binding.job_leader_id != request.job_leader_id:
            raise SlotNotBound(
                f"allocation {request.allocation_id} is not bound to job {request.job.job_id} on {self.resource_id}"
            )
        session = self._keeper.session()
        directory = attempt_directory(self._state_directory, request.attempt_id)
        attempt = Attempt.of(request, directory, session.generation)
        self.attempts[request.attempt_id] = attempt
        name = f"{request.task.id} attempt {request.attempt_number}"
        self._rising[request.attempt_id] = self.tasks.job(f"bring up {name}", self._bring_up(attempt))
        self.tasks.job(f"statuses of {name}", self._tell_statuses(attempt))
        return m.Done()

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

    async def _cancel(self, request: m.CancelTask) -> m.Done:
        attempt = self.attempts.get(request.attempt_id)
        if attempt is not None:
            await self._end(attempt)
        return m.Done()

    async def _end(self, attempt: Attempt, error: ErrorInfo | None = None) -> None:
        """Stop the attempt; returns when nothing of it runs. However often it is called, it is done once."""
        self._begin_end(attempt, error)
        ending = self._endings.get(attempt.deployment.attempt_id)
        if ending is not None:
            await asyncio.wait({ending})

    def _begin_end(self, attempt: Attempt, error: ErrorInfo | None = None) -> bool:
        """Whether it had not begun to end; with an error, it has failed."""
        attempt_id = attempt.deployment.attempt_id
        if attempt.ended or attempt_id in self._endings:
            return False
        self._endings[attempt_id] = self.tasks.job(f"end {attempt_id}", self._wind_down(attempt, error))
        return True

    async def _wind_down(self, attempt: Attempt, error: ErrorInfo | None) -> None:
        attempt_id = attempt.deployment.attempt_id
        try:
            if error is None:
                attempt.to(m.TaskState.CANCELING)
            await self._snapshots.cancel_all(attempt)
            await self._stop_query(attempt)
        finally:
            self._endings.pop(attempt_id, None)
            self._release_artifacts_of(attempt)
            attempt.to(m.TaskState.CANCELED if error is None else m.TaskState.FAILED, error=error)

    async def _stop_query(self, attempt: Attempt) -> None:
        """A child whose user code does not come back is given up: nothing else ends a thread (J7)."""
        attempt_id = attempt.deployment.attempt_id
        rising = self._rising.pop(attempt_id, None)
        if rising is not None:
            # Else it would start the query behind our back; what it has asked of the child is stopped there.
            rising.cancel()
            await asyncio.wait({rising}, timeout=self._cancellation_timeout)
            self._kept.append(attempt.directory)  # a thread that lays files out ends later than its task
        if attempt.generation != self._keeper.generation:
            return  # its child is gone, and its directory with it
        try:
            stop = sp.StopTask(attempt_id=attempt_id, timeout=self._cancellation_timeout)
            stopped = await self._keeper.session().ask(stop, 2 * self._cancellation_timeout)
        except SessionLost:
            return
        except MinflinkError as error:
            log.warning("a query could not be stopped", attempt=attempt_id, error=str(error))
            stopped = sp.TaskStopped(ended=False, unloaded=False)
        if not stopped.ended:
            self._keeper.condemn(attempt.generation, f"attempt {attempt_id} could not be cancelled")
            await self._keeper.gone(attempt.generation)
        elif stopped.unloaded:
            await asyncio.to_thread(shutil.rmtree, attempt.directory, ignore_errors=True)
        else:
            self._kept.append(attempt.directory)  # until the child goes: a store may still write there (C10a)

    def _release_artifacts_of(self, attempt: Attempt) -> None:
        if attempt.holds_artifacts:
            attempt.holds_artifacts = False
            self._release_artifacts(attempt.deployment.job)

    async def _tell_statuses(self, attempt: Attempt) -> None:
        """Every change of state, until the last one was answered (m12, J7)."""
        while True:
            await attempt.changed.wait()
            attempt.changed.clear()
            status = attempt.status
            changed = m.TaskStateChanged(resource_id=self.resource_id, status=status)
            try:
                await self._deliver(attempt, changed)
            except (RemoteError, Fenced, JobMasterSilent) as error:
                log.info("a status was not taken", attempt=status.attempt_id, state=status.state, error=str(error))
                if isinstance(error, Fenced):
                    await self._end(attempt)
            if status.state is attempt.status.state and attempt.ended:
                del self.attempts[status.attempt_id]
                return

    async def _deliver(self, attempt: Attempt, request: m.Request[m.Done]) -> None:
        binding = self.slots.bindings.get(attempt.deployment.allocation_id)
        if binding is None:
            raise JobMasterSilent("the slots are no longer the job's")
        patience = self._heartbeat_timeout + self._slot_hold_timeout
        await self._masters.deliver(Address(binding.job_master), request, attempt.deployment.job_leader_id, patience)

    # --- checkpoints ---------------------------------------------------------------------------------------------

    def _live(self, attempt_id: AttemptId) -> Attempt:
        """Raises UnknownAttempt."""
        attempt = self.attempts.get(attempt_id)
        if attempt is None or attempt.status.state not in (m.TaskState.RUNNING, m.TaskState.INPUT_ENDED):
            raise sp.UnknownAttempt(f"attempt {attempt_id} does not run on {self.resource_id}")
        return attempt

    async def _trigger_checkpoint(self, request: m.TriggerCheckpoint) -> m.Done:
        self._snapshots.trigger(self._live(request.attempt_id), request)
        return m.Done()

    async def _checkpoint_complete(self, request: m.NotifyCheckpointComplete) -> m.Done:
        await self._snapshots.complete(self._live(request.attempt_id), request)
        return m.Done()

    async def _checkpoint_aborted(self, request: m.NotifyCheckpointAborted) -> m.Done:
        attempt = self.attempts.get(request.attempt_id)
        if attempt is not None:
            await self._snapshots.abort(attempt, request)
        return m.Done()

    # --- what the session child says -----------------------------------------------------------------------------

    def session_changed(self, phase: m.SessionPhase) -> None:
        self._on_change()

    def session_lost(self, generation: int, reason: str) -> None:
        """Its processes are gone, so that its tasks have failed, and their directories can go (C10a)."""
        error = ErrorInfo(
            code=SessionLost.code,
            message=f"the session of TaskManager {self.resource_id} was lost: {reason}",
            consequence=Consequence.RETRYABLE,
        )
        for attempt in [a for a in self.attempts.values() if a.generation == generation]:
            self._begin_end(attempt, error)
        gone = [a.directory for a in self.attempts.values() if a.generation == generation] + self._kept
        self._kept = []
        self.tasks.job("remove directories of the lost session", _remove_all(gone))

    def task_failed(self, generation: int, notice: sp.TaskFailed) -> None:
        attempt = self._of(generation, notice.attempt_id)
        if attempt is not None:
            self._begin_end(attempt, notice.error)

    def batch_finished(self, generation: int, notice: sp.BatchFinished) -> None:
        self._progress(self._of(generation, notice.attempt_id), notice.metrics)

    def input_ended(self, generation: int, notice: sp.InputEnded) -> None:
        attempt = self._of(generation, notice.attempt_id)
        if attempt is None:
            return
        self._progress(attempt, notice.metrics)
        attempt.input_ended = True
        if attempt.status.state is m.TaskState.RUNNING:
            attempt.to(m.TaskState.INPUT_ENDED)

    def _of(self, generation: int, attempt_id: AttemptId) -> Attempt | None:
        attempt = self.attempts.get(attempt_id)
        return attempt if attempt is not None and attempt.generation == generation else None

    def _progress(self, attempt: Attempt | None, metrics: m.TaskMetrics) -> None:
        if attempt is None:
            return
        attempt.progressed(metrics)
        binding = self.slots.bindings.get(attempt.deployment.allocation_id)
        if binding is not None:
            progress = m.TaskProgress(attempt_id=attempt.deployment.attempt_id, metrics=metrics)
            self._network.tell(Address(binding.job_master), progress, fence=attempt.deployment.job_leader_id)


async def _remove_all(directories: list[Path]) -> None:
    for directory in directories:
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
