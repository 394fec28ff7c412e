"""The checkpoint coordinator of a job, as a component. It carries out what the machine decides and reports back."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import structlog
from msgspec.structs import replace as copy

from minflinkd.checkpoint import layout, metadata
from minflinkd.checkpoint.causes import (
    CheckpointFailed,
    CheckpointKind,
    CheckpointNotPending,
    CheckpointRefused,
    FailureCause,
    Refusal,
)
from minflinkd.checkpoint.damage import Damage
from minflinkd.checkpoint.deleter import Deleting
from minflinkd.checkpoint.hook_caller import HookCalls
from minflinkd.checkpoint.hooks import MasterHook, MasterHooks
from minflinkd.checkpoint.integrity import Integrity
from minflinkd.checkpoint.machine import events as e
from minflinkd.checkpoint.machine import transitions
from minflinkd.checkpoint.machine.state import (
    State,
    all_published,
    check_invariants,
    has_confirmed,
    holds,
    may_restore,
    next_wakeup,
    published_by,
    retained,
    whole,
)
from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.checkpoint.orphan_sweeper import Sweeping
from minflinkd.checkpoint.statistics import CheckpointCounts, CheckpointStatistics, CheckpointStatus
from minflinkd.checkpoint.statistics_tracker import StatisticsTracker
from minflinkd.checkpoint.store import CheckpointStore
from minflinkd.checkpoint.task_calls import TaskCalls, TaskGateway
from minflinkd.rpc.jobs import CheckpointsInBrief, JobOrphans
from minflinkd.rpc.snapshot import TaskSnapshot
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.component import Component
from minflinkd.runtime.crash_points import CrashPoint, reach
from minflinkd.runtime.errors import ErrorInfo, MinflinkError, error_info
from minflinkd.runtime.ids import AttemptId, TaskId
from minflinkd.runtime.machine import Machine
from minflinkd.runtime.machine_driver import MachineDriver

log = structlog.get_logger(__name__)


class CheckpointCoordinator(Component):
    """Manages the checkpoints of one job. It starts before the job's first deployment.

    A start or restart of the tasks goes: `tasks_stopped`, `await restore_point()`, deploy from it, `tasks_running`.

    `on_failure` is called when more checkpoints in a row have failed than the job tolerates (C23). `on_complete` is
    called after each completed checkpoint.
    """

    def __init__(
        self,
        *,
        options: CheckpointOptions,
        store: CheckpointStore,
        clock: Clock,
        tasks: TaskGateway,
        on_failure: Callable[[CheckpointFailed], None],
        on_complete: Callable[[], None] = lambda: None,
        hooks: Mapping[str, MasterHook] | None = None,
        past: CheckpointStatistics | None = None,
    ) -> None:
        """`hooks`: by name; they replace `options.hooks`. `past`: the statistics of the job's earlier coordinator."""
        super().__init__(f"checkpoint coordinator of {store.job_id}")
        self._hooks = MasterHooks(hooks or {})
        self.options = options = replace(options, hooks=self._hooks.names)
        self._store = store
        self._clock = clock
        self._on_failure = on_failure
        self._on_complete = on_complete
        self._driver = MachineDriver(
            self._machine_of(transitions.initial(store.job_id, options)),
            clock=clock,
            due=next_wakeup,
            tick=e.Tick(),
            carry_out=self._carry_out,
            ended=lambda: self._closed or self.crashed.is_set(),  # a late message about something that was aborted
            crash=self.crash,  # a coordinator that broke its own invariants must not manage checkpoints any longer
        )
        self._feed = self._driver.feed  # raises Crashed
        self._requests = itertools.count(1)
        self._answers: dict[int, asyncio.Future[CompletedCheckpoint]] = {}
        self._deleting = Deleting(
            files=store.delete_files, metadata=store.delete_metadata, name=self.name, clock=clock, tasks=self.tasks
        )
        self._hook_calls = HookCalls(self._hooks, feed=self._feed, tasks=self.tasks, name=self.name)
        self._task_calls = TaskCalls(
            tasks, state=lambda: self._state, feed=self._feed, tasks=self.tasks, name=self.name
        )
        self._tracker = StatisticsTracker(
            store=store, clock=clock, interval=options.interval, name=self.name, past=past
        )
        self._sweeping = Sweeping(
            store=store,
            state=lambda: self._state,
            grace=options.orphan_grace,
            clock=clock,
            name=self.name,
        )
        self.integrity = Integrity(store=store, state=lambda: self._state, clock=clock, name=self.name)
        self._closed = False
        self.watch = self._driver.watch
        self._stops_at = 0  # the last checkpoint after whose cut the tasks process nothing; 0: none

    # --- the job's tasks -----------------------------------------------------------------------------------------

    def tasks_running(self, attempts: Mapping[TaskId, AttemptId], *, periodic: bool = True) -> None:
        """All tasks of the job are RUNNING, as these attempts.

        If `periodic` is False, no periodic checkpoint begins until `begin_periodic`.
        """
        self._stops_at = 0
        self._feed(e.TasksRunning(dict(attempts), periodic))

    def begin_periodic(self) -> None:
        """Start the periodic checkpoints of tasks that run without them."""
        self._feed(e.PeriodicBegins())

    def hasten_periodic(self) -> None:
        """Take the next periodic checkpoint now, or as soon as the least pause between checkpoints allows it."""
        self._feed(e.PeriodicHastened())

    def tasks_stopped(self, survivors: frozenset[AttemptId] = frozenset()) -> None:
        """A failover or cancellation begins: pending checkpoints are aborted, unless they are being finalised.

        `survivors` keep running while the other tasks are restarted. They still publish what they owe.
        """
        self._feed(e.TasksStopped(survivors))

    def tasks_adopted(self, attempts: frozenset[AttemptId], unsettled: frozenset[int]) -> None:
        """These attempts already ran under an earlier coordinator. `unsettled`: checkpoints whose end they do not know.

        `tasks_running` follows when all tasks run.
        """
        self._feed(e.TasksAdopted(attempts, unsettled))

    async def restore_point(self) -> CompletedCheckpoint | None:
        """Return the checkpoint that the next attempts must start from, or None if they start afresh.

        It includes everything that the attempts have to publish before they run. Waits until it is settled which
        checkpoint is the latest, and until the master hooks have been restored to it.

        Raises CheckpointRefused (shut down), CheckpointFailed if the storage does not settle it within `timeout`,
        MasterHookFailed, MasterHookMissing.
        """
        await self._until(may_restore, self.options.timeout)
        await self._hooks.restore(self.latest(), self.options.timeout)
        if (point := self.latest()) is not None:
            self._feed(e.RestorePointTaken(point.checkpoint_id))
            self._tracker.restored(point.checkpoint_id, self._store.path_of(point.checkpoint_id))
        return point

    async def restore_from(self, checkpoint: CompletedCheckpoint, path: str) -> None:
        """The next attempts start from a checkpoint that is not this job's: a savepoint, or another job's checkpoint.

        Returns when the master hooks have been restored to it. Raises what they raise.
        """
        await self._hooks.restore(checkpoint, self.options.timeout)
        self._tracker.restored(checkpoint.checkpoint_id, path)

    async def fall_back(self, to: int, damaged: Mapping[int, tuple[Damage, ...]]) -> None:
        """Give up the `damaged` checkpoints for the earlier one `to`. No task may run. Raises StorageError."""
        await self.integrity.give_up(damaged, to)
        self._feed(e.FellBack(frozenset(damaged)))

    async def first_confirmed(self) -> None:
        """Return when there is a checkpoint that all tasks know to be complete. Raises CheckpointRefused."""
        await self._until(has_confirmed, None)

    async def completed_after(self, checkpoint_id: int) -> CompletedCheckpoint:
        """Wait for a checkpoint with a higher id and return the latest. Raises CheckpointRefused on shutdown."""
        await self._until(lambda s: bool(s.completed) and s.completed[-1].checkpoint_id > checkpoint_id, None)
        return self._state.completed[-1]

    async def settled(self) -> CompletedCheckpoint | None:
        """Return the latest checkpoint once no metadata is being written. The job publishes this one when it ends.

        Raises what `restore_point` raises.
        """
        await self._until(may_restore, self.options.timeout)
        return self.latest()

    def acknowledge(self, snapshot: TaskSnapshot) -> None:
        """A task has uploaded its part. From now on its files belong to the coordinator. May be repeated.

        Raises CheckpointNotPending if it comes too late, InvalidPhysicalFile if a name is not that of a physical file.
        """
        for name in {*snapshot.physical_files, *(file.handle.file for file in snapshot.files)}:
            layout.parse_physical_file(name)
        self._feed(e.Acknowledged(snapshot))
        if not holds(self._state, snapshot):
            raise CheckpointNotPending(
                f"checkpoint {snapshot.checkpoint_id} does not wait for task {snapshot.task_id}",
                hint="delete the files that were written for it",
            )

    def decline(self, attempt_id: AttemptId, checkpoint_id: int, error: ErrorInfo) -> None:
        """A task could not take its snapshot, or could not upload it."""
        self._feed(e.Declined(checkpoint_id, attempt_id, error))

    # --- requests ------------------------------------------------------------------------------------------------

    async def trigger(
        self,
        kind: CheckpointKind = CheckpointKind.MANUAL,
        *,
        forced: bool = False,
        stop: bool = False,
        full: bool = False,
        timeout: float | None = None,
    ) -> CompletedCheckpoint:
        """Take a checkpoint and return it when it is in the store.

        The default `timeout` is twice the checkpoints' timeout.

        A savepoint's checkpoint stays in the store until it is unpinned. With `stop`, the tasks pause after the cut
        until they end or until the checkpoint fails. With `full`, they upload all of their state anew.

        Raises CheckpointRefused, CheckpointFailed.
        """
        number = next(self._requests)
        answer: asyncio.Future[CompletedCheckpoint] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            self._feed(e.TriggerRequested(number, kind, forced, stop, full))
            async with asyncio.timeout(2 * self.options.timeout if timeout is None else timeout):
                return await answer
        except TimeoutError as error:
            raise CheckpointFailed(None, FailureCause.EXPIRED) from error
        finally:
            del self._answers[number]

    async def final_checkpoint(self) -> None:
        """All input is exhausted. Return when a last checkpoint is complete and all tasks have published it (C4).

        It is retried until it succeeds or the tasks stop. If more checkpoints fail than tolerated, `on_failure` stops
        the tasks. Raises CheckpointFailed if the tasks stop first, CheckpointRefused on shutdown.
        """
        self._feed(e.FinalRequested())
        await self._until(lambda state: state.final is None or all_published(state), None)
        if self._state.final is None:
            raise CheckpointFailed(None, FailureCause.TASK_FAILURE)

    async def published(self, checkpoint_id: int) -> None:
        """Return when all tasks have published the checkpoint.

        Raises CheckpointFailed if the tasks stop first or the checkpoints' timeout passes, CheckpointRefused on
        shutdown.
        """
        await self._until(
            lambda state: checkpoint_id not in state.unconfirmed or not state.attempts, self.options.timeout
        )
        if checkpoint_id in self._state.unconfirmed:
            raise CheckpointFailed(checkpoint_id, FailureCause.TASK_FAILURE)

    def unpin(self, checkpoint_id: int) -> None:
        """Nobody copies this checkpoint any more."""
        self._feed(e.Unpinned(checkpoint_id))

    def hold(self, checkpoint_id: int | None) -> CompletedCheckpoint | None:
        """Keep a completed checkpoint, by default the latest, until `let_go`, and return it; None if it is not there.

        Several may hold the same one.
        """
        found = [c for c in self._state.completed if checkpoint_id in (None, c.checkpoint_id)]
        if not found:
            return None
        self._feed(e.ReadBegun(found[-1].checkpoint_id))
        return found[-1]

    def let_go(self, checkpoint_id: int) -> None:
        """End one `hold`. Does nothing once the coordinator has closed."""
        self._feed(e.ReadEnded(checkpoint_id))

    def drain_begins(self) -> None:
        """From now on only the final checkpoint is taken, until the tasks stop."""
        self._feed(e.DrainBegun())

    # --- inspection ----------------------------------------------------------------------------------------------

    def latest(self) -> CompletedCheckpoint | None:
        """Return the latest completed checkpoint, for display. A restart asks `restore_point`."""
        return metadata.restore_point(whole(self._state))

    @property
    def has_stopped_tasks(self) -> bool:
        """Whether tasks that run on process nothing any more: a checkpoint after which they stop is complete."""
        return self._stops_at in self.completed()

    @property
    def oldest(self) -> int:
        """Return the lowest id of a checkpoint that may still be taken. All before it have ended."""
        return min(self._state.pending, default=self._state.last_id + 1)

    def completed(self) -> frozenset[int]:
        """Return the ids of all completed checkpoints that are in the store."""
        return frozenset(checkpoint.checkpoint_id for checkpoint in self._state.completed)

    def latest_published(self) -> CompletedCheckpoint | None:
        """Return the latest checkpoint that all tasks have published."""
        published = [c for c in whole(self._state) if c.checkpoint_id not in self._state.unconfirmed]
        return published[-1] if published else None

    def published_by(self) -> dict[TaskId, tuple[int, int]]:
        """Return, by task, the latest checkpoint that its sinks have published, and how many complete ones wait."""
        return published_by(self._state)

    def retained(self) -> tuple[int, ...]:
        """Return the ids of the checkpoints that stay if the job ends now and its checkpoints are retained."""
        return retained(self._state)

    def statistics(self) -> CheckpointStatistics:
        found = self._tracker.statistics(self._state, files_deleted=self._deleting.files_deleted)
        return copy(found, damaged=self.integrity.damaged(), verified_ms=self.integrity.verified_ms)

    def in_brief(self) -> CheckpointsInBrief:
        """Return what is shown of all jobs at once. It costs little, however many files the job has."""
        return self._tracker.in_brief(self._state)

    def counts(self) -> CheckpointCounts:
        """Return the counts over the whole life of the job."""
        return self._tracker.counts()

    def counted(self, known: CheckpointCounts) -> None:
        """Add the counts of earlier coordinators, as recorded next to the checkpoints."""
        self._tracker.counted(known)

    def copied(self, checkpoint_id: int, savepoint: str) -> None:
        """A savepoint was made of a checkpoint: its copy is at this URI."""
        self._tracker.copied(checkpoint_id, savepoint)

    async def orphans(self, before_ms: int) -> JobOrphans:
        """Return the files last written before `before_ms` that nothing refers to or will refer to (F7).

        Raises StorageError.
        """
        return await self._sweeping.orphans(before_ms)

    # --- lifecycle -----------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        recovered = await self._store.recover()
        self._driver.machine = self._machine_of(
            transitions.initial(
                self._state.job_id,
                self.options,
                recovered.completed,
                last_id=recovered.last_id,
                sizes=recovered.sizes,
                damaged=recovered.damaged,
            )
        )
        self.integrity.begin(recovered)
        self._tracker.begins(recovered.completed)
        self.tasks.loop("timer", self._driver.run)
        self.tasks.loop("deletions", self._deleting.run)
        self._sweeping.begin(recovered, self.tasks)

    async def _before_stop(self) -> None:
        self._feed(e.Stopped())

    async def _stop(self) -> None:
        self._closed = True
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(CheckpointRefused(Refusal.SHUT_DOWN))
        await self._hooks.aclose()

    def _machine_of(self, state: State) -> Machine[State, e.Event, e.Command]:
        return Machine(state, transitions.step, check_invariants, name=self.name)

    # --- the machine and the world -------------------------------------------------------------------------------

    @property
    def _state(self) -> State:
        return self._driver.state

    def _carry_out(self, command: e.Command) -> None:
        match command:
            case e.SetUp(request):
                self.tasks.job(f"set-up {request}", self._set_up(request))
            case e.CallHook(hook, number):
                self._hook_calls.trigger(hook, number)
            case e.CancelHooks(number):
                self._hook_calls.cancel(number)
            case e.SendTrigger(attempt, number, stop, full):
                self._stops_at = number if stop else self._stops_at
                self._task_calls.trigger(attempt, number, stop=stop, full=full)
            case e.WriteMetadata(checkpoint):
                self.tasks.job(f"metadata of {checkpoint.checkpoint_id}", self._write(checkpoint))
            case e.NotifyComplete(attempt, _):
                self._task_calls.complete(attempt)
            case e.NotifyAborted(attempt, number):
                self._task_calls.aborted(attempt, number)
            case e.DiscardMetadata(number):
                self._deleting.enqueue(
                    [layout.metadata_file(number)], must_succeed=True, then=partial(self._discarded, number)
                )
            case e.DeleteFiles(files):
                self._deleting.enqueue(files, then=partial(self._deleted, files))
            case e.FailJob(number, cause, error):
                # Not called from within this step: the callee stops the tasks, and that is the next event.
                failure = CheckpointFailed(number, cause, error)
                asyncio.get_running_loop().call_soon(self._on_failure, failure)
            case e.Refuse(request, reason):
                self._tracker.refused(reason)
                self._answer(request, CheckpointRefused(reason))
            case e.Fail(request, checkpoint_id, cause, error):
                self._answer(request, CheckpointFailed(checkpoint_id, cause, error))
            case e.Complete(request, checkpoint):
                self._answer(request, checkpoint)
            case e.ReportSetUpFailure(cause):
                self._tracker.set_up_failed(cause)
            case e.ReportPublished(number):
                self._tracker.published(number)
            case e.Report(record):
                self._tracker.report(record, self._state)
                if record.status is CheckpointStatus.COMPLETED:
                    asyncio.get_running_loop().call_soon(self._on_complete)

    async def _set_up(self, request: int) -> None:
        try:
            number = await self._store.allocate_id()
        except Exception as error:
            log.warning("a checkpoint could not be set up", component=self.name, error=str(error))
            self._feed(e.SetUpFailed(request, error_info(error)))
        else:
            self._feed(e.SetUpDone(request, number, self._clock.epoch_ms()))
            if outdated := self._store.outdated_blocks():
                self._deleting.enqueue(outdated, must_succeed=True, then=lambda: None)

    async def _write(self, checkpoint: CompletedCheckpoint) -> None:
        reach(CrashPoint.METADATA)
        checkpoint = copy(checkpoint, counts=self._tracker.counts_with_one_more())
        try:
            with self._deleting.held_back():
                await self._store.write(checkpoint)
        except Exception as error:
            self._feed(e.MetadataFailed(checkpoint.checkpoint_id, error_info(error)))
        else:
            reach(CrashPoint.COMPLETE)
            self._feed(e.MetadataWritten(checkpoint.checkpoint_id))

    def _discarded(self, number: int) -> None:
        reach(CrashPoint.SUBSUME)
        self._feed(e.MetadataDiscarded(number))

    def _deleted(self, files: frozenset[str]) -> None:
        reach(CrashPoint.DELETED)
        self._feed(e.FilesDeleted(files))

    async def _until(self, condition: Callable[[State], bool], timeout: float | None) -> None:
        """Wait until `condition` holds.

        Raises CheckpointRefused on shutdown, CheckpointFailed after `timeout` seconds.
        """
        try:
            await self._driver.watch.until(lambda state: condition(state) or state.stopped, timeout)
        except TimeoutError as error:
            raise CheckpointFailed(None, FailureCause.EXPIRED) from error
        if not condition(self._state):
            raise CheckpointRefused(Refusal.SHUT_DOWN)

    def _answer(self, request: int, outcome: CompletedCheckpoint | MinflinkError) -> None:
        answer = self._answers.get(request)
        if answer is None or answer.done():
            return
        if isinstance(outcome, MinflinkError):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)
