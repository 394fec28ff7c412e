"""The JobMaster as a component: the driver of its core, which also feeds back what becomes of its own commands.

It talks to the job's checkpoint coordinator and to its sinks. It decides nothing itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import structlog
from msgspec.structs import replace as copy

from minflinkd.checkpoint import hooks
from minflinkd.checkpoint.causes import CheckpointFailed
from minflinkd.checkpoint.coordinator import CheckpointCoordinator
from minflinkd.checkpoint.offsets import Offsets
from minflinkd.checkpoint.row_counts import row_counts
from minflinkd.checkpoint.store import CheckpointStore
from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.model import Isolation, Recovery
from minflinkd.jobgraph.resources import profiles_of
from minflinkd.jobmaster.core import JobMasterCore
from minflinkd.jobmaster.details import details
from minflinkd.jobmaster.falling_back import AllTasksMustStop, FallingBack
from minflinkd.jobmaster.history_record import HistoryRecord
from minflinkd.jobmaster.hot_standby import HotStandby, preparation
from minflinkd.jobmaster.job import AcceptedJob, JobStorage, Succession
from minflinkd.jobmaster.job_history import JobHistory, history_of, past_of
from minflinkd.jobmaster.making_way import MakingWay
from minflinkd.jobmaster.offset_record import OffsetRecord
from minflinkd.jobmaster.options import JobMasterOptions
from minflinkd.jobmaster.origin import Origin
from minflinkd.jobmaster.proving import Proving
from minflinkd.jobmaster.restoring import Restoring, TasksHaveStopped
from minflinkd.jobmaster.savepoints import Savepoints
from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler import resizing
from minflinkd.jobmaster.scheduler.phases import Predecessors
from minflinkd.jobmaster.scheduler.sizing import groups_leaving
from minflinkd.jobmaster.scheduler.state import JobState, only_progress, widths
from minflinkd.jobmaster.scheduling import Scheduling
from minflinkd.jobmaster.scrubbing import Scrubbing
from minflinkd.jobmaster.sinks import JobSinks
from minflinkd.jobmaster.succession import PredecessorLeftovers
from minflinkd.jobmaster.task_gateway import TaskManagerTasks
from minflinkd.rpc import messages as m
from minflinkd.rpc.core_driver import CoreDriver
from minflinkd.rpc.jobs import JobDetails, JobStatus
from minflinkd.rpc.network import Address, Network, job_master
from minflinkd.rpc.party import Answered, Ask, Outcome
from minflinkd.runtime.clock import Clock, WallTime
from minflinkd.runtime.component import Crashed
from minflinkd.runtime.errors import Consequence, ErrorInfo, Kind, MinflinkError, error_info
from minflinkd.runtime.ids import AttemptId, Chance, TaskId
from minflinkd.runtime.machine_driver import StateWatch

__all__ = ["JobMaster", "JobMasterOptions"]

log = structlog.get_logger(__name__)


class JobMaster(CoreDriver[JobMasterCore]):
    """The master of one job. Calls `on_end` once the job is in a terminal state and its slots are free.

    It crashes if the core raises an unexpected exception (A1). The job's next JobMaster then takes over (R13). Both
    write in the job's turn (`JobStorage`).
    """

    def __init__(
        self,
        job: AcceptedJob,
        *,
        options: JobMasterOptions,
        storage: JobStorage,
        network: Network,
        clock: Clock,
        chance: Chance,
        on_end: Callable[[JobDetails], Coroutine[Any, Any, None]],
        succession: Succession | None = None,
    ) -> None:
        succession = succession or Succession()
        inherited, leftovers, trial = succession.inherited, succession.leftovers, succession.trial
        job_id, graph, root, turn = job.job_id, job.graph, storage.root, storage.turn
        self.job_id = job_id
        self.graph = graph
        self.leader_id = chance.ids.leader()
        tasks = chain(graph)
        core = JobMasterCore(
            job_id=job_id,
            leader_id=self.leader_id,
            tasks=tasks,
            context=job.context,
            options=replace(
                options,
                restart_strategy=graph.restart_strategy or options.restart_strategy,
                min_parallelism=graph.min_parallelism,
                max_parallelism=graph.max_parallelism,
                exclusive=graph.isolation is Isolation.JOB,
                hot_standby=graph.recovery is Recovery.HOT_STANDBY,
                libraries=job.context.libraries,
                profiles=profiles_of(graph, widths(tasks)),
                on_trial=trial is not None,
            ),
            heralded=leftovers.task_managers,
            chance=chance,
        )
        super().__init__(
            f"jobmaster {job_id}",
            core,
            address=job_master(job_id),
            network=network,
            clock=clock,
            fence=self.leader_id,
        )
        self._accepted = job
        self._noted = core.state  # what `_decided` has seen
        self._watch = StateWatch(lambda: core.state)
        self._inherited = inherited
        self._preceded = succession.preceded
        self._died_making_way = succession.died_making_way
        self._on_adoption = succession.on_adoption
        self._on_end = on_end
        self._wall = WallTime(clock)
        self.on_change: Callable[[], None] = lambda: None  # called when the job may look different in a list of jobs
        self._log = log.bind(job=job_id)
        gateway = TaskManagerTasks(
            network,
            job_id=job_id,
            fence=self.leader_id,
            address_of=self._address_of,
            timeout=options.checkpoints.timeout,
        )
        self.coordinator = CheckpointCoordinator(
            options=options.checkpoints,
            store=CheckpointStore(
                root,
                job_id=job_id,
                epoch=options.checkpoints.epoch,
                turn=turn,
                leads=storage.leads,
                pointers=storage.pointers,
                submitted_ms=job.submitted_ms,
            ),
            clock=clock,
            tasks=gateway,
            on_failure=self._checkpoints_failed,
            on_complete=self._checkpoint_completed,
            hooks=hooks.load(options.checkpoints.hooks, job_id),
            past=leftovers.statistics,
        )
        self.coordinator.falls_with = self.crash
        self.coordinator.watch.on_change = self._shown_otherwise
        self._scheduling = Scheduling(self._watch, self._feed, self.crashed)
        self.making_way = MakingWay(job_id, self._scheduling, self.coordinator)
        self._proving = Proving(
            job_id,
            trial,
            base=inherited.base,
            scheduling=self._scheduling,
            coordinator=self.coordinator,
            clock=clock,
            trigger_interval=graph.trigger_interval,
            spawn=self._job,
        )
        self.savepoints = Savepoints(
            job_id,
            root=root,
            coordinator=self.coordinator,
            scheduling=self._scheduling,
            drain_task=gateway.drain,
        )
        self._falling_back = FallingBack(
            job_id,
            coordinator=self.coordinator,
            graph=graph,
            storages=storage.storages,
            directory=root.uri,
            clock=clock,
        )
        self._restoring = Restoring(
            job_id,
            coordinator=self.coordinator,
            origin=Origin(storage.storages, graph),
            sinks=JobSinks(storage.storages, job_id=job_id, graph=graph, turn=turn, of_other_versions=inherited.sinks),
            inherited=inherited,
            falling_back=self._falling_back,
            clock=clock,
        )
        self._scrubbing = Scrubbing(
            job_id, coordinator=self.coordinator, turn=storage.scrubs, clock=clock, on_damage=self._damage_found
        )
        self._hot_standby = HotStandby(
            named=lambda: core.hot_standby,
            prepare=lambda: preparation(core.state, job.context, self.leader_id, self.coordinator.latest()),
            network=network,
            clock=clock,
            on_change=self._shown_otherwise,
        )
        self._history_left = leftovers.history
        self._tasks_end = False
        self._history = HistoryRecord(root, job_id=job_id, clock=clock, turn=turn, look=self.history)
        self._offsets = OffsetRecord(root, job_id=job_id, clock=clock, turn=turn)
        self.mailbox.on(m.AcknowledgeCheckpoint, self._acknowledge_checkpoint)
        self.mailbox.on(m.DeclineCheckpoint, self._decline_checkpoint)

    # --- inspection ----------------------------------------------------------------------------------------------

    @property
    def status(self) -> JobStatus:
        return self._core.state.status

    @property
    def on_drained(self) -> bool:
        """Whether the job runs on draining TaskManagers (A15b)."""
        return bool(groups_leaving(self._core.state))

    @property
    def waits_for(self) -> str:
        """Why the job does not yet have the slots that it asks for; empty if nobody said why."""
        state = self._core.state
        return "; ".join(sorted({why for need, why in state.waiting.items() if need in state.pool.needs}))

    @property
    def unsettled(self) -> str:
        """Why nobody but a user should change the job now; empty if somebody may (R62)."""
        if self.on_drained:
            return "it is to leave a draining TaskManager"
        if self.savepoints.under_way:
            return "a savepoint is being made"
        return resizing.unsettled(self._core.state)

    def details(self) -> JobDetails:
        found = details(
            self.job_id,
            self.graph,
            self._core.state,
            submitted_ms=self._accepted.submitted_ms,
            wall=self._wall.epoch_ms,
            submission=self._accepted.submission,
            task_phases=self._core.task_phases,
            published=self.coordinator.published_by(),
        )
        wants = self.graph.recovery is Recovery.HOT_STANDBY and not self.status.terminal
        return copy(found, hot_standby=self._hot_standby.status) if wants else found

    def history(self) -> JobHistory:
        """Return what the job's later JobMasters must know about its failures."""
        version = "" if self._tasks_end else self._accepted.context.version
        return history_of(self._core.state, self.coordinator.counts(), self._wall.epoch_ms, version=version)

    def offsets(self) -> Offsets:
        """Return the current positions of the sources (C26)."""
        self._offsets.update(self._core.state, self.coordinator.latest_published())
        return self._offsets.offsets

    def tasks_end_with_daemon(self) -> None:
        """Note that the daemon stops in order (A15), so that its end is not counted as a restart of the job later."""
        self._tasks_end = True

    def cancel(self) -> None:
        """Start to cancel the job. Does nothing if the job is already ending. Raises Crashed."""
        self._feed(ev.CancelRequested())

    async def checkpoint(self, *, full: bool = False) -> str:
        """Take a checkpoint and return its id once it is complete. A `full` one refers to no file of an earlier one.

        Raises CheckpointRefused, CheckpointFailed.
        """
        return str((await self.coordinator.trigger(full=full)).checkpoint_id)

    async def last_checkpoint(self) -> int:
        """Take a checkpoint after which the tasks process nothing more. Return its id when it is published.

        Use this before the tasks end with the daemon (A15). If the checkpoint fails, they continue. Raises
        CheckpointRefused, CheckpointFailed.
        """
        last = (await self.coordinator.trigger(stop=True)).checkpoint_id
        await self.coordinator.published(last)
        return last

    # --- hot restart (H3, H7) ------------------------------------------------------------------------------------

    def trust(self) -> None:
        """End the version's trial: it was proven under an earlier JobMaster. Raises Crashed."""
        self._feed(ev.Proven())

    def milestones(self) -> dict[str, int]:
        """Return when each phase of bringing the job up ended, in milliseconds since 1970 (H10)."""
        rollouts = self._core.state.rollouts
        return {phase: self._wall.epoch_ms(at) for phase, at in rollouts[-1].marks} if rollouts else {}

    def leftovers(self, *, tasks_run: bool = False) -> PredecessorLeftovers:
        """Return what the next JobMaster can use of this one, which has stood down. Its tasks may run on (H6)."""
        held = {h.resource_id for h in self._core.state.pool.held.values()}
        history = self.history()
        afresh = copy(history.of_another_version(), running=history.running if tasks_run else "")
        return PredecessorLeftovers(self.coordinator.statistics(), tuple(sorted(held)), afresh, tasks_run)

    # --- lifecycle -----------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        await self.coordinator.start()
        await self._offsets.load()
        recorded = await self._history.load()
        history = self._history_left or recorded
        self.coordinator.counted(history.checkpoints)
        self.tasks.loop("record of failures", self._history.keep)
        self.tasks.loop("record of offsets", lambda: self._offsets.keep(self.offsets))
        if self.coordinator.options.scrub_interval > 0:
            self.tasks.loop("scrub of checkpoints", self._scrubbing.run)
        if self.graph.recovery is Recovery.HOT_STANDBY:
            self.tasks.loop("hot standby", self._hot_standby.keep)
        if self._restoring.claims:
            self.tasks.job("claimed checkpoint", self._restoring.drop_claimed(), on_error=lambda _: None)
        point = self.coordinator.latest()
        of_this_version = point is not None and point.checkpoint_id > self._inherited.base
        ran_with = {s.task_id: s.parallelism for s in point.tasks} if point is not None and of_this_version else {}
        await super()._start()  # without a pause before `Started`: the core takes no message before that event
        self._feed(
            ev.Started(
                recovered=point is not None,
                cancelled=self._accepted.cancelled,
                ran_with=ran_with,
                rows=row_counts(point.tasks, self._core.state.tasks) if point is not None else {},
                past=past_of(history, self._wall.monotonic),
                predecessors=self._predecessors(history) if self._preceded else None,
            )
        )

    def _predecessors(self, history: JobHistory) -> Predecessors:
        point, version = self.coordinator.latest(), self._accepted.context.version
        return Predecessors(
            version=version,
            latest=0 if point is None else point.checkpoint_id,
            attempts=frozenset() if point is None else frozenset(task.attempt_id for task in point.tasks),
            completed=self.coordinator.completed(),
            ran=history.running == version and not self._died_making_way,
        )

    def _on_crash(self) -> None:
        super()._on_crash()
        self.making_way.give_up(f"its JobMaster crashed: {self.crash_cause}")
        self._watch.changed()
        self._shown_otherwise()

    async def _before_stop(self) -> None:
        self._shown_otherwise()
        await super()._before_stop()

    async def _stop(self) -> None:
        await super()._stop()
        self.making_way.give_up("its JobMaster was closed")
        self.savepoints.tasks_stopped()
        # Otherwise the job's result has its history, and its checkpoints are deleted.
        if not self.status.terminal:
            await self._history.write_last()
        await self.coordinator.aclose()

    # --- the core and the world ----------------------------------------------------------------------------------

    def _feed(self, event: ev.Event) -> None:
        self.inform(lambda now: self._core.feed(event, now))

    def _decided(self) -> None:
        before, self._noted = self._noted, self._core.state
        if self._core.hot_standby != self._hot_standby.status.resource_id:
            self._hot_standby.news()
        self._note(before, self._noted)
        self._watch.changed()
        if not only_progress(before, self._noted):
            self._shown_otherwise()

    def _shown_otherwise(self) -> None:
        self.on_change()

    def _carry_out_own(self, command: object) -> None:
        match command:
            case ev.FindRestorePoint(number, tasks):
                self._job(f"restore point of round {number}", self._find_restore_point(number, tasks))
            case ev.AdoptTasks(attempts, unsettled):
                self._log.info("tasks are adopted", attempts=len(attempts))
                self._on_adoption(len(attempts))
                self.coordinator.tasks_adopted(attempts, unsettled)
            case ev.StartCheckpoints(attempts):
                self._proving.tasks_running(attempts)
            case ev.HastenCheckpoint():
                self.coordinator.hasten_periodic()
            case ev.StoodDown():
                self._log.info("stood down")  # whoever waits for this looks at the state
            case ev.Disproved(error):
                self._proving.disproved(error)
            case ev.StopCheckpoints(survivors):
                self._proving.tasks_stopped()
                self.coordinator.tasks_stopped(survivors)
                self.savepoints.tasks_stopped()
            case ev.TakeFinalCheckpoint(number):
                self._proving.begin_checkpoints()
                self._job("final checkpoint", self._final_checkpoint(number))
            case ev.TakeRescaleCheckpoint(number):
                self._job("checkpoint to rescale from", self._rescale_checkpoint(number))
            case ev.SettleSinks():
                self._job("settle sinks", self._settle_sinks())
            case ev.End():
                self._job("end", self._on_end(self.details()))
            case _:
                super()._carry_out_own(command)

    def _job(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.job(name, work, on_error=self._job_failed)

    def _complete(self, request: m.Request[Any]) -> m.Request[Any]:
        # A cancelled attempt commits what its own sinks still owe for the latest completed checkpoint.
        if isinstance(request, m.CancelTask) and (latest := self.coordinator.latest()) is not None:
            return copy(request, completed=latest.checkpoint_id)
        return request

    def _answered(self, ask: Ask, outcome: Outcome) -> None:
        if not isinstance(outcome, Answered):
            self._log.info("no answer", request=type(ask.request).__name__, to=ask.target, error=str(outcome.error))
        super()._answered(ask, outcome)

    # --- checkpoints and sinks -----------------------------------------------------------------------------------

    async def _find_restore_point(self, number: int, tasks: frozenset[TaskId]) -> None:
        try:
            point = await self._restoring.prepare(self._core.state.tasks, tasks)
        except TasksHaveStopped as error:
            self._log.info("all tasks restart", why=str(error))
            self._feed(ev.AllTasksNeeded(number))
        except Exception as error:
            self._feed(ev.RestorePointFailed(number, error_info(error), isinstance(error, AllTasksMustStop)))
        else:
            found = ev.RestorePointFound(
                number, point.checkpoint_id, point.tasks, point.rows, point.warning, self.coordinator.oldest
            )
            self._feed(found)

    async def _final_checkpoint(self, number: int) -> None:
        try:
            await self.coordinator.final_checkpoint()
        except MinflinkError as error:
            # If a failover ended it, the scheduler learns that from the failover.
            self._log.info("the final checkpoint ended", error=str(error))
            return
        await self.savepoints.drained()
        self._feed(ev.FinalCheckpointDone(number))

    async def _rescale_checkpoint(self, number: int) -> None:
        try:
            await self.coordinator.trigger(stop=True)
        except MinflinkError as error:
            self._log.info("no checkpoint to rescale from", error=str(error))
            self._feed(ev.RescaleCheckpointFailed(number))
        else:
            self._feed(ev.RescaleCheckpointDone(number))

    async def _settle_sinks(self) -> None:
        try:
            point = await self._restoring.settle()
        except Exception as error:  # whatever the error is, the job must reach its end
            self._feed(ev.SinksSettled(error_info(error)))
        else:
            self._offsets.update(self._core.state, point)
            await self._offsets.write_last()
            await self._offsets.keep_logs(point)
            self._feed(ev.SinksSettled())

    def _checkpoints_failed(self, failure: CheckpointFailed) -> None:
        error = copy(failure.info(), consequence=Consequence.RETRYABLE)
        with contextlib.suppress(Crashed):
            self._feed(ev.CheckpointsFailed(error))

    def _checkpoint_completed(self) -> None:
        self._hot_standby.news()
        with contextlib.suppress(Crashed):
            self._feed(ev.CheckpointCompleted())

    def _damage_found(self, error: ErrorInfo) -> None:
        with contextlib.suppress(Crashed):
            self._feed(ev.DamageFound(error))

    async def _acknowledge_checkpoint(self, request: m.AcknowledgeCheckpoint) -> m.Done:
        snapshot = request.snapshot
        if (execution := self._core.state.by_attempt(snapshot.attempt_id)) is not None:
            snapshot = copy(snapshot, rows=execution.base + snapshot.rows)
        self.coordinator.acknowledge(snapshot)
        return m.Done()

    async def _decline_checkpoint(self, request: m.DeclineCheckpoint) -> m.Done:
        self.coordinator.decline(request.attempt_id, request.checkpoint_id, request.error)
        return m.Done()

    # --- small things --------------------------------------------------------------------------------------------

    def _address_of(self, attempt_id: AttemptId) -> Address | None:
        execution = self._core.state.by_attempt(attempt_id)
        return Address(execution.address) if execution is not None and execution.on_task_manager else None

    def _note(self, before: JobState, state: JobState) -> None:
        """Log what a person wants to know about a step."""
        self.making_way.note()
        if state.status is not before.status:
            self._log.info("job status", status=state.status.value, before=before.status.value)
        if before.status is JobStatus.RECONCILING and state.restarts > before.restarts:
            self._log.warning("the job restarts after a takeover", cause=state.rollouts[-1].cause)
        if before.status is JobStatus.INITIALIZING:
            return  # these failures were reported by earlier JobMasters
        for failure in state.failures:
            if failure not in before.failures:
                error: ErrorInfo = failure.record.error
                if error.kind is Kind.DAMAGED and failure.record.task_id is not None:
                    self._falling_back.suspect()
                self._log.warning("failure", code=error.code, error=error.message, task=failure.record.task_name)
        if state.streak != before.streak or state.failures is not before.failures:
            self._note_streak(before, state)
            self._history.changed()
        elif state.outcome is None and _ran(state) != _ran(before):
            self._history.changed()

    def _note_streak(self, before: JobState, state: JobState) -> None:
        streak = state.streak
        if state.restarts_repeatedly and streak.failures > before.streak.failures and streak.last is not None:
            record, delay = streak.last.record, (state.restart_at or self._clock.monotonic()) - self._clock.monotonic()
            self._log.warning(
                "the job restarts repeatedly",
                failures_in_a_row=streak.failures,
                restarts=state.restarts,
                task=record.task_name,
                task_manager=record.resource_id,
                code=record.error.code,
                next_restart_in_s=round(max(0.0, delay), 1),
            )
        elif before.restarts_repeatedly and not streak.failures:
            self._log.info("the job has proved healthy again", failures_in_a_row=before.streak.failures)


def _ran(state: JobState) -> tuple[int, bool]:
    return state.restarts, state.running is not None
