"""The checkpoint coordinator of a job as a component: carries out what the machine decides, and reports back."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, cast

import msgspec
import stamina
import structlog

from minflinkd.checkpoint import coordinator, layout, metadata, statistics
from minflinkd.checkpoint import events as e
from minflinkd.checkpoint.advice import advice
from minflinkd.checkpoint.causes import (
    CheckpointFailed,
    CheckpointKind,
    CheckpointNotPending,
    CheckpointRefused,
    FailureCause,
    Refusal,
)
from minflinkd.checkpoint.deleting import Deleting
from minflinkd.checkpoint.hooks import MasterHook, MasterHooks
from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.checkpoint.orphans import UNREADABLE, NotLeading, chosen, delete_in_batches
from minflinkd.checkpoint.state import (
    State,
    all_published,
    check_invariants,
    file_figures,
    has_confirmed,
    holds,
    may_restore,
    next_wakeup,
    orphans,
    owed_to,
)
from minflinkd.checkpoint.statistics import (
    Calls,
    CheckpointRecord,
    CheckpointStatistics,
    CheckpointStatus,
    RestoreRecord,
)
from minflinkd.checkpoint.store import CheckpointStore, Recovered
from minflinkd.rpc.jobs import JobOrphans
from minflinkd.rpc.snapshot import TaskSnapshot
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.component import Component
from minflinkd.runtime.crash_points import CrashPoint, reach
from minflinkd.runtime.errors import Consequence, ErrorInfo, MinflinkError, error_info
from minflinkd.runtime.ids import AttemptId, JobId, TaskId
from minflinkd.runtime.machine import Machine
from minflinkd.storage.recording import RequestStatistics, StorageStatistics

log = structlog.get_logger(__name__)

FEW = 3  # tries of what may be given up
WAIT_MAX = 10.0  # seconds between tries of what may not


class TaskGateway(Protocol):
    """The running tasks, as the coordinator speaks to them. Every call may be repeated; each has its own timeout."""

    async def send_trigger(
        self, attempt_id: AttemptId, checkpoint_id: int, epoch: int, *, oldest: int = 0, stop: bool = False
    ) -> None:
        """Returns when the task has taken it. Raises what the task or the way to it answers.

        `oldest`: of the checkpoints that are pending; an abort of an older one may have been lost.
        """
        ...

    async def notify_complete(self, attempt_id: AttemptId, checkpoint_id: int) -> None:
        """Returns when the task's sinks have published the checkpoint."""
        ...

    async def notify_aborted(self, attempt_id: AttemptId, checkpoint_id: int) -> None: ...


class CheckpointCoordinator(Component):
    """Everything about the checkpoints of one job. Started before the job's first deployment.

    A (re)start of the tasks goes: `tasks_stopped`, `await restore_point()`, deploy from it, `tasks_running`.
    `on_failure` is called when more checkpoints in a row have failed than the job tolerates (C23).
    """

    def __init__(
        self,
        *,
        job_id: JobId,
        options: CheckpointOptions,
        store: CheckpointStore,
        clock: Clock,
        tasks: TaskGateway,
        on_failure: Callable[[CheckpointFailed], None],
        graph_digest: str = "",
        hooks: Mapping[str, MasterHook] | None = None,
        past: CheckpointStatistics | None = None,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        """`hooks`: by name; they take the place of `options.hooks`. `past`: of the job's earlier coordinator.

        `leads`: whether it is beyond doubt that no other daemon leads now.
        """
        super().__init__(f"checkpoint coordinator of {job_id}")
        self._hooks = MasterHooks(hooks or {})
        self.options = options = replace(options, hooks=self._hooks.names)
        self._store = store
        self._clock = clock
        self._gateway = tasks
        self._on_failure = on_failure
        self._leads = leads
        self._machine = self._machine_of(coordinator.initial(job_id, options, graph_digest=graph_digest))
        self._statistics = past or CheckpointStatistics()
        self._requests = itertools.count(1)
        self._answers: dict[int, asyncio.Future[CompletedCheckpoint]] = {}
        self._changed = asyncio.Event()  # replaced by every step
        self._stepped_at = 0.0  # monotonic seconds
        self._notifying: set[AttemptId] = set()
        self._completed_at: dict[int, float] = {}  # monotonic seconds; until it is published
        self._hook_calls: dict[int, set[asyncio.Task[None]]] = {}  # by checkpoint
        self._deleting = Deleting(
            files=store.delete_files, metadata=store.delete_metadata, name=self.name, clock=clock, tasks=self.tasks
        )
        self._set_aside = False  # whether metadata could not be read
        self._requests_before: StorageStatistics = {}  # when the last checkpoint was complete
        self._closed = False

    # --- the job's tasks -----------------------------------------------------------------------------------------

    def tasks_running(self, attempts: Mapping[TaskId, AttemptId]) -> None:
        """All tasks of the job are RUNNING, as these attempts."""
        self._feed(e.TasksRunning(dict(attempts)))

    def tasks_stopped(self, survivors: frozenset[AttemptId] = frozenset()) -> None:
        """A failover or cancellation begins: what is pending is aborted, what is being finalised is not.

        `survivors` run on while the other tasks are restarted; they still publish what they owe themselves.
        """
        self._feed(e.TasksStopped(survivors))

    async def restore_point(self) -> CompletedCheckpoint | None:
        """From which the next attempts must start, with all that they have to publish before they run; None: afresh.

        Waits until it is settled which checkpoint is the latest, and until the master hooks have gone back to it.
        Raises CheckpointRefused (shut down), CheckpointFailed where the storage leaves it unsettled for `timeout`,
        MasterHookFailed, MasterHookMissing.
        """
        await self._until(may_restore, self.options.timeout)
        await self._hooks.restore(self.latest(), self.options.timeout)
        if (point := self.latest()) is not None:
            self._feed(e.RestorePointTaken(point.checkpoint_id))
            record = RestoreRecord(
                checkpoint_id=point.checkpoint_id,
                restored_ms=self._clock.epoch_ms(),
                path=self._store.path_of(point.checkpoint_id),
            )
            self._statistics = statistics.restored(self._statistics, record)
        return point

    async def restore_from(self, checkpoint: CompletedCheckpoint, path: str) -> None:
        """The next attempts start from what is not this job's: a savepoint, or another job's checkpoint.

        Returns when the master hooks have gone back to it; raises what they raise.
        """
        await self._hooks.restore(checkpoint, self.options.timeout)
        record = RestoreRecord(checkpoint_id=checkpoint.checkpoint_id, restored_ms=self._clock.epoch_ms(), path=path)
        self._statistics = statistics.restored(self._statistics, record)

    async def first_confirmed(self) -> None:
        """Returns when there is a checkpoint that all tasks know to be complete. Raises CheckpointRefused."""
        await self._until(has_confirmed, None)

    async def settled(self) -> CompletedCheckpoint | None:
        """The latest checkpoint once no write of metadata is under way: what the job's end publishes.

        Raises as `restore_point` does.
        """
        await self._until(may_restore, self.options.timeout)
        return self.latest()

    def acknowledge(self, snapshot: TaskSnapshot) -> None:
        """A task's part is uploaded; its files are the coordinator's now. May be repeated.

        Raises CheckpointNotPending where it comes too late, InvalidPhysicalFile for a name that is not one.
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
        timeout: float | None = None,
    ) -> CompletedCheckpoint:
        """Take a checkpoint; returns when it is in the store. Without a `timeout`: twice the checkpoints'.

        A savepoint's stays there until it is unpinned. With `stop` the tasks stand still behind the cut until they end,
        or until the checkpoint fails.

        Raises CheckpointRefused, CheckpointFailed.
        """
        number = next(self._requests)
        answer: asyncio.Future[CompletedCheckpoint] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            self._feed(e.TriggerRequested(number, kind, forced, stop))
            async with asyncio.timeout(2 * self.options.timeout if timeout is None else timeout):
                return await answer
        except TimeoutError as error:
            raise CheckpointFailed(None, FailureCause.EXPIRED) from error
        finally:
            del self._answers[number]

    async def final_checkpoint(self) -> None:
        """All input is exhausted: returns when a last checkpoint is complete and all tasks have published it (C4).

        Tried again until it succeeds or the tasks stop; more failures than tolerated stop them by `on_failure`.
        Raises CheckpointFailed when the tasks stop before, CheckpointRefused on shut-down.
        """
        self._feed(e.FinalRequested())
        await self._until(lambda state: state.final is None or all_published(state), None)
        if self._state.final is None:
            raise CheckpointFailed(None, FailureCause.TASK_FAILURE)

    async def published(self, checkpoint_id: int) -> None:
        """Returns when all tasks have published it. Raises CheckpointFailed where the tasks stop before, or after the

        checkpoints' timeout; CheckpointRefused on shut-down.
        """
        await self._until(
            lambda state: checkpoint_id not in state.unconfirmed or not state.attempts, self.options.timeout
        )
        if checkpoint_id in self._state.unconfirmed:
            raise CheckpointFailed(checkpoint_id, FailureCause.TASK_FAILURE)

    def unpin(self, checkpoint_id: int) -> None:
        """Nobody copies it any more."""
        self._feed(e.Unpinned(checkpoint_id))

    def drain_begins(self) -> None:
        """No checkpoint from here on but the final one, until the tasks stop."""
        self._feed(e.DrainBegun())

    # --- inspection ----------------------------------------------------------------------------------------------

    def latest(self) -> CompletedCheckpoint | None:
        """The latest completed checkpoint, for display; a restart asks `restore_point`."""
        return metadata.restore_point(self._state.completed)

    def latest_published(self) -> CompletedCheckpoint | None:
        """The latest whose output is there in full."""
        published = [c for c in self._state.completed if c.checkpoint_id not in self._state.unconfirmed]
        return published[-1] if published else None

    def statistics(self) -> CheckpointStatistics:
        return msgspec.structs.replace(
            self._statistics,
            consecutive_failures=self._state.failures,
            consecutive_trigger_failures=self._state.trigger_failures,
            interval_ms=round(self.options.interval * 1000),
            files=file_figures(self._state),
            calls=_calls(self._store.requests(), {}),
            files_deleted=self._deleting.files_deleted,
        )

    async def orphans(self, before_ms: int) -> JobOrphans:
        """Files last written before this, to which nothing refers and nothing will (F7). Raises StorageError."""
        job_id = self._state.job_id
        if self._set_aside:
            return JobOrphans(job_id=job_id, skipped=UNREADABLE)
        present = await self._store.listed_files()
        names = {file.name: layout.parse_physical_file(file.name) for file in present}
        return chosen(job_id, present, orphans(self._state, names), before_ms=before_ms)  # as of now, as in the sweep

    # --- lifecycle -----------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        recovered = await self._store.recover()
        self._set_aside = bool(recovered.set_aside)
        self._machine = self._machine_of(
            coordinator.initial(
                self._state.job_id,
                self.options,
                recovered.completed,
                last_id=recovered.last_id,
                graph_digest=self._state.graph_digest,
                sizes=recovered.sizes,
            )
        )
        self.tasks.loop("timer", self._timer)
        self.tasks.loop("deletions", self._deleting.run)
        self.tasks.job("sweep of orphans", self._sweep(recovered))
        if not self._set_aside:  # what cannot be read may refer to anything
            self.tasks.loop("sweeps", self._sweep_again_and_again)

    async def _before_stop(self) -> None:
        self._feed(e.Stopped())

    async def _stop(self) -> None:
        self._closed = True
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(CheckpointRefused(Refusal.SHUT_DOWN))
        await self._hooks.aclose()

    def _machine_of(self, state: State) -> Machine[State, e.Event, e.Command]:
        return Machine(state, coordinator.step, check_invariants, name=self.name)

    # --- the machine and the world -------------------------------------------------------------------------------

    @property
    def _state(self) -> State:
        return self._machine.state

    def _feed(self, event: e.Event, *, not_before: float = 0.0) -> None:
        """Raises Crashed: a job's checkpoints are not left to a state that broke its own rules."""
        if self._closed or self.crashed.is_set():
            return  # a late message; what it was about is aborted
        try:
            self._stepped_at = max(not_before, self._clock.monotonic())
            for command in self._machine.feed(event, self._stepped_at):
                self._carry_out(command)
        except Exception as error:
            raise self.crash(error) from error
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _carry_out(self, command: e.Command) -> None:
        match command:
            case e.SetUp(request):
                self.tasks.job(f"set-up {request}", self._set_up(request))
            case e.CallHook(hook, number):
                call = self.tasks.job(f"master hook {hook} for {number}", self._call_hook(hook, number))
                self._hook_calls.setdefault(number, set()).add(call)
            case e.CancelHooks(number):
                for call in self._hook_calls.pop(number, ()):
                    call.cancel()
            case e.SendTrigger(attempt, number, stop):
                self.tasks.job(f"trigger {number} at {attempt}", self._send_trigger(attempt, number, stop))
            case e.WriteMetadata(checkpoint):
                self.tasks.job(f"metadata of {checkpoint.checkpoint_id}", self._write(checkpoint))
            case e.NotifyComplete(attempt, _):
                if attempt not in self._notifying:
                    self._notifying.add(attempt)
                    self.tasks.job(f"completions for {attempt}", self._notify_complete(attempt))
            case e.NotifyAborted(attempt, number):
                self._try(f"abort of {number} at {attempt}", lambda: self._gateway.notify_aborted(attempt, number))
            case e.DiscardMetadata(number):
                self._deleting.want([layout.metadata_file(number)], insists=True, then=partial(self._discarded, number))
            case e.DeleteFiles(files):
                self._deleting.want(files, then=partial(self._deleted, files))
            case e.FailJob(number, cause, error):
                # Not from within: the callee will stop the tasks, which is the next event.
                failure = CheckpointFailed(number, cause, error)
                asyncio.get_running_loop().call_soon(self._on_failure, failure)
            case e.Refuse(request, reason):
                self._statistics = statistics.refused(self._statistics, reason)
                self._answer(request, CheckpointRefused(reason))
            case e.Fail(request, checkpoint_id, cause, error):
                self._answer(request, CheckpointFailed(checkpoint_id, cause, error))
            case e.Complete(request, checkpoint):
                self._answer(request, checkpoint)
            case e.ReportSetUpFailure(cause):
                self._statistics = statistics.set_up_failed(self._statistics, cause)
            case e.ReportPublished(number):
                if (since := self._completed_at.pop(number, None)) is not None:
                    ms = (self._clock.monotonic() - since) * 1000
                    self._statistics = statistics.published(self._statistics, number, ms)
            case e.Report(record):
                self._report(record)

    async def _set_up(self, request: int) -> None:
        try:
            number = await self._store.allocate_id()
        except Exception as error:
            log.warning("a checkpoint could not be set up", component=self.name, error=str(error))
            self._feed(e.SetUpFailed(request, error_info(error)))
        else:
            self._feed(e.SetUpDone(request, number, self._clock.epoch_ms()))
            if outdated := self._store.outdated_blocks():
                self._deleting.want(outdated, insists=True, then=lambda: None)

    async def _call_hook(self, hook: str, number: int) -> None:
        try:
            state = await self._hooks.trigger(hook, number)
        except Exception as error:
            log.warning("a master hook failed", component=self.name, hook=hook, checkpoint=number, error=str(error))
            self._feed(e.HookFailed(number, error_info(error)))
        else:
            self._feed(e.HookAnswered(number, hook, state))
        finally:
            calls = self._hook_calls.get(number, set())
            calls.discard(cast(Any, asyncio.current_task()))
            if not calls:
                self._hook_calls.pop(number, None)

    async def _send_trigger(self, attempt: AttemptId, number: int, stop: bool) -> None:
        try:
            async for trial in stamina.retry_context(on=_retryable, attempts=FEW, wait_initial=0.1):
                with trial:
                    if number not in self._state.pending:
                        return  # aborted: a task that hears of it now would upload for nobody (C13)
                    oldest = min(self._state.pending)
                    await self._gateway.send_trigger(attempt, number, self.options.epoch, oldest=oldest, stop=stop)
        except Exception as error:
            self._feed(e.TriggerFailed(number, attempt, error_info(error)))
        else:
            self._feed(e.TriggerTaken(number, attempt))

    async def _write(self, checkpoint: CompletedCheckpoint) -> None:
        reach(CrashPoint.METADATA)
        try:
            with self._deleting.held_back():
                await self._store.write(checkpoint)
        except Exception as error:
            self._feed(e.MetadataFailed(checkpoint.checkpoint_id, error_info(error)))
        else:
            reach(CrashPoint.COMPLETE)
            self._feed(e.MetadataWritten(checkpoint.checkpoint_id))

    async def _notify_complete(self, attempt: AttemptId) -> None:
        """One at a time and in order, each until it is confirmed or the attempt is gone."""
        try:
            while (number := owed_to(self._state, attempt)) is not None:
                async for trial in _until_done():
                    with trial:
                        if owed_to(self._state, attempt) != number:
                            return
                        reach(CrashPoint.NOTIFY)
                        await self._gateway.notify_complete(attempt, number)
                reach(CrashPoint.NOTIFIED)
                self._feed(e.TaskNotified(number, attempt))
        finally:
            self._notifying.discard(attempt)

    def _discarded(self, number: int) -> None:
        reach(CrashPoint.SUBSUME)
        self._feed(e.MetadataDiscarded(number))

    def _deleted(self, files: frozenset[str]) -> None:
        reach(CrashPoint.DELETED)
        self._feed(e.FilesDeleted(files))

    def _try(self, what: str, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """What may fail without harm: tried a few times, then logged."""

        async def attempt() -> None:
            async for trial in stamina.retry_context(on=_retryable, attempts=FEW, wait_initial=0.1):
                with trial:
                    await action()

        def given_up(error: Exception) -> None:
            log.warning("given up", component=self.name, what=what, error=str(error))

        self.tasks.job(what, attempt(), on_error=given_up)

    async def _sweep(self, recovered: Recovered) -> None:
        await self._delete_orphans(await self._store.orphans(recovered))

    async def _sweep_again_and_again(self) -> None:
        """What an upload left that could not be tidied up, or a deletion that was given up (F7)."""
        suspects = frozenset[str]()
        while True:
            await self._clock.sleep(self.options.orphan_grace / 2)
            if not self._leads():
                suspects = frozenset()
                continue
            present = await self._store.physical_files()
            found = orphans(self._state, present)  # as of now, not as of before the listing
            gone = found & suspects
            await self._delete_orphans(gone)
            suspects = found - gone

    async def _delete_orphans(self, names: Iterable[str]) -> None:
        """None while leadership is in doubt: another leader may need what nothing here refers to (F7)."""
        if not (orphaned := sorted(names)):
            return
        try:
            await delete_in_batches(orphaned, self._store.delete_files, leads=self._leads)
        except NotLeading:
            log.warning("orphans are not deleted: does this daemon lead?", component=self.name, files=len(orphaned))
        else:
            log.info("orphans deleted", component=self.name, files=len(orphaned))

    async def _timer(self) -> None:
        while True:
            changed = self._changed
            # As of the last step, not as of now: what has become due since then nobody has looked at.
            due = next_wakeup(self._state, self._stepped_at)
            try:
                async with asyncio.timeout(None if due is None else max(0.0, due - self._clock.monotonic())):
                    await changed.wait()
            except TimeoutError:
                # A timer may fire a tick of its clock early: less than `due` would be waited for again, and again.
                self._feed(e.Tick(), not_before=due or 0.0)

    async def _until(self, condition: Callable[[State], bool], timeout: float | None) -> None:
        """Raises CheckpointRefused on shut-down, CheckpointFailed after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while not condition(self._state):
                    if self._state.stopped:
                        raise CheckpointRefused(Refusal.SHUT_DOWN)
                    await self._changed.wait()
        except TimeoutError as error:
            raise CheckpointFailed(None, FailureCause.EXPIRED) from error

    def _answer(self, request: int, outcome: CompletedCheckpoint | MinflinkError) -> None:
        answer = self._answers.get(request)
        if answer is None or answer.done():
            return
        if isinstance(outcome, MinflinkError):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)

    def _report(self, record: CheckpointRecord) -> None:
        number = record.checkpoint_id
        if record.status is CheckpointStatus.COMPLETED:
            warning = advice(record, self.options.interval * 1000)
            requests, before = self._store.requests(), self._requests_before
            self._requests_before = requests
            record = msgspec.structs.replace(
                record,
                path=self._store.path_of(number),
                warning=warning,
                files=file_figures(self._state),
                calls=_calls(requests, before),
            )
            self._completed_at[number] = self._clock.monotonic()
            log.info("checkpoint complete", component=self.name, checkpoint=number, ms=record.duration_ms)
            last = self._statistics.latest_completed
            if warning and not (last is not None and last.warning):  # once, and not with every one that follows
                log.warning(
                    "checkpoints take longer than their interval", component=self.name, checkpoint=number, why=warning
                )
        elif record.status is CheckpointStatus.FAILED:
            log.warning(
                "checkpoint failed",
                component=self.name,
                checkpoint=number,
                cause=record.cause,
                error=str(record.error) if record.error else "",
            )
        self._statistics = statistics.recorded(self._statistics, record)


def _calls(requests: StorageStatistics, before: StorageStatistics) -> dict[str, Calls]:
    """By kind. The writing of metadata is told apart from that of physical files, which TaskManagers do."""
    nothing = RequestStatistics()
    made = {}
    for kind, now in requests.items():
        earlier = before.get(kind, nothing)
        calls = Calls(count=now.requests - earlier.requests, ms=(now.seconds - earlier.seconds) * 1000)
        made["metadata" if kind == "create" else kind] = calls
    return made


def _retryable(error: Exception) -> bool:
    return isinstance(error, MinflinkError) and error.info().consequence is Consequence.RETRYABLE


def _until_done() -> Any:
    return stamina.retry_context(on=Exception, attempts=None, timeout=None, wait_initial=0.1, wait_max=WAIT_MAX)
