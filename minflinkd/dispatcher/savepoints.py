"""Requests for savepoints and checkpoints: to take one of a job, or to delete one (C20, C24, A14c)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

from minflinkd.checkpoint.external import NoCheckpointThere, discard_external, read_external, read_to_discard
from minflinkd.checkpoint.savepoints import new_name
from minflinkd.dispatcher.job_operations import JobOperations, Work
from minflinkd.dispatcher.job_run import JobRun
from minflinkd.dispatcher.job_store import Asked, JobStore, StoredTrigger
from minflinkd.dispatcher.operations import Operations
from minflinkd.jobgraph.model import Execution
from minflinkd.jobmaster.job_master import JobMaster
from minflinkd.jobmaster.savepoints import StopFailed, names_of_tries
from minflinkd.rpc import jobs as j
from minflinkd.rpc import messages as m
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.network import Mailbox
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.errors import Conflict, Consequence, MinflinkError
from minflinkd.runtime.ids import JobId
from minflinkd.runtime.supervision import TaskOwner
from minflinkd.storage.location import Location
from minflinkd.storage.proving import refuse_read_only
from minflinkd.storage.registry import Storages

PATIENCE = 60.0  # seconds to ask a storage that does not answer whether a savepoint is complete
FIRST_PAUSE = 0.5  # seconds between two attempts to ask it; doubled with each failure

_DISPOSAL = "savepoint-disposal"
_ENDING = frozenset({JobStatus.CANCELLING, JobStatus.FAILING})


class JobNotRunning(MinflinkError):
    """Not all tasks of the job run now."""

    code = "job-not-running"
    consequence = Consequence.RETRYABLE


class OperationLost(MinflinkError):
    """The daemon was lost before it had finished a request that it had accepted. The next one does not carry it out."""

    code = "operation-lost"
    consequence = Consequence.RETRYABLE


class SavepointRequests:
    """`directory`: used if a request names none. `run_of` raises NotFound, and Conflict for a job that has ended."""

    def __init__(
        self,
        *,
        storages: Storages,
        directory: Callable[[], str],
        checkpoints_of: Callable[[JobId], Location],
        run_of: Callable[[JobId], JobRun],
        runs: Callable[[JobId], bool],
        tasks: TaskOwner,
        store: JobStore,
        clock: Clock,
    ) -> None:
        self._storages = storages
        self._directory = directory
        self._checkpoints_of = checkpoints_of
        self._run_of = run_of
        self._runs = runs
        self._clock = clock
        self._operations = JobOperations(store=store, tasks=tasks, clock=clock)
        self._disposals = Operations(tasks)

    async def recover(self, ended: Callable[[JobId], JobStatus | None]) -> None:
        """Settle requests that earlier daemons accepted. `ended`: how the job ended, if it has. Raises StorageError.

        A complete savepoint counts. An incomplete one is not taken again, because nobody may want it any more. A job
        that goes on is not stopped again. A client that asks for the outcome is told so.
        """

        def settle(trigger: StoredTrigger) -> Work:
            return partial(self._settle, trigger, ended(trigger.job_id))

        await self._operations.recover(settle)

    def attach(self, mailbox: Mailbox) -> None:
        mailbox.on(j.TriggerSavepoint, self._trigger)
        mailbox.on(j.CheckpointJob, self._checkpoint)
        mailbox.on(j.GetSavepoint, self._status)
        mailbox.on(j.DisposeSavepoint, self._dispose)
        mailbox.on(j.GetDisposal, self._disposal)

    async def _trigger(self, request: j.TriggerSavepoint) -> m.Done:
        """Begin a savepoint. Reports a faulty request at once.

        Raises NotFound, Conflict, JobNotRunning, StorageError.
        """
        await self._operations.begin(request.job_id, request.trigger_id, lambda: self._prepared(request))
        return m.Done()

    async def take(self, job_id: JobId) -> str:
        """Take a savepoint in the configured directory and return its URI.

        Raises the errors of a refused request, and those of a failed checkpoint.
        """
        _, work = self._prepared(j.TriggerSavepoint(job_id=job_id, trigger_id=""))
        return await work()

    async def _checkpoint(self, request: j.CheckpointJob) -> m.Done:
        """Begin a checkpoint. Raises NotFound, Conflict, JobNotRunning."""

        def prepared() -> tuple[StoredTrigger, Work]:
            work = partial(self._running(request.job_id).checkpoint, full=request.full)
            return self._trigger_of(request, Asked.CHECKPOINT), work

        await self._operations.begin(request.job_id, request.trigger_id, prepared)
        return m.Done()

    def _trigger_of(self, request: j.TriggerSavepoint | j.CheckpointJob, what: Asked, at: str = "") -> StoredTrigger:
        now = self._clock.epoch_ms()
        return StoredTrigger(
            job_id=request.job_id, trigger_id=request.trigger_id, what=what, requested_ms=now, savepoint=at
        )

    def _running(self, job_id: JobId) -> JobMaster:
        """Return the JobMaster of a running job. Raises NotFound, Conflict, JobNotRunning."""
        master = self._run_of(job_id).master
        status = JobStatus.INITIALIZING if master is None else master.status
        if status.terminal or status in _ENDING:  # it will not run again, so asking again is in vain
            raise Conflict(f"job {job_id} is {status.value}", hint="it ends, and takes no savepoint any more")
        if master is None or status is not JobStatus.RUNNING:
            raise JobNotRunning(f"job {job_id} is {status.value}", hint="a savepoint is of a job that is RUNNING")
        return master

    def _prepared(self, request: j.TriggerSavepoint) -> tuple[StoredTrigger, Work]:
        """Return the request's record, and a function that takes the savepoint and, if requested, stops the job.

        A job counts as stopped only when no crash can restart it, because another job may start from the savepoint.
        Raises NotFound, Conflict, JobNotRunning, StorageError.
        """
        run, master = self._run_of(request.job_id), self._running(request.job_id)
        savepoints = master.savepoints
        directory = self._storages.at(request.directory or self._directory())
        refuse_read_only(directory)
        checkpoints = self._checkpoints_of(request.job_id)
        if f"{directory.uri.rstrip('/')}/".startswith(f"{checkpoints.uri.rstrip('/')}/"):
            raise Conflict(f"{directory.uri} is deleted with the job", hint="a directory that is not its checkpoints'")
        what, take = Asked.SAVEPOINT, savepoints.take
        if request.drain:
            in_real_time = any(task.metrics.real_time is not None for task in master.details().tasks)
            if in_real_time or run.stored.graph.execution is Execution.REAL_TIME:
                problem = f"job {request.job_id} runs in real-time mode, in which a query cannot run to its end"
                raise Conflict(problem, hint="stop it without draining; or restart it in micro-batches first")
            what, take = Asked.DRAIN, savepoints.drain
        elif request.stop:
            what, take = Asked.STOP, savepoints.stop
        elif request.cancel:
            what, take = Asked.CANCEL, partial(savepoints.stop, cancel=run.cancel)
        name = new_name(request.job_id)

        async def work() -> str:
            await self._storages.require_writable(directory)  # may take a while
            path = await take(directory, name)
            if what is not Asked.SAVEPOINT and not await run.has_ended(master):
                raise StopFailed(
                    f"the savepoint {path} is complete, but the JobMaster crashed before the job had ended"
                )
            return path

        return self._trigger_of(request, what, directory.child(name).uri), work

    async def _status(self, request: j.GetSavepoint) -> j.OperationStatus:
        return await self._operations.status(request.job_id, request.trigger_id)

    async def _settle(self, trigger: StoredTrigger, ended: JobStatus | None) -> str:
        """Return the location of the savepoint that a lost daemon made. Raises OperationLost, StopFailed."""
        state = f"the job is {ended.value}" if ended is not None else "the job keeps running; send a new request"
        if trigger.what is Asked.CHECKPOINT:
            raise OperationLost("the daemon was lost before the outcome of the checkpoint was stored", hint=state)
        made = await self._made(trigger)
        if not made:
            raise OperationLost("the daemon was lost before the savepoint was complete", hint=state)
        wanted = JobStatus.CANCELED if trigger.what is Asked.CANCEL else JobStatus.FINISHED
        if trigger.what is not Asked.SAVEPOINT and ended is not wanted:
            raise StopFailed(
                f"the savepoint {made} is complete, but the daemon was lost before the job had ended", hint=state
            )
        return made

    async def _made(self, trigger: StoredTrigger) -> str:
        """Return the URI of the savepoint; empty if there is none. Raises OperationLost if nobody can tell."""
        places = names_of_tries(trigger.savepoint) if trigger.what is Asked.DRAIN else (trigger.savepoint,)
        deadline, pause = self._clock.monotonic() + PATIENCE, FIRST_PAUSE
        while True:
            try:
                for place in places:
                    with contextlib.suppress(NoCheckpointThere):
                        return (await read_external(self._storages, place)).directory.uri
                return ""
            except MinflinkError as error:
                again = error.info().consequence is Consequence.RETRYABLE
                if not again or self._clock.monotonic() + pause >= deadline:
                    raise OperationLost(
                        f"the daemon was lost, and it is not known whether the savepoint is complete: {error}",
                        hint=f"check it with: minflinkd savepoint inspect {trigger.savepoint}",
                    ) from error
            await self._clock.sleep(pause)
            pause *= 2

    async def _dispose(self, request: j.DisposeSavepoint) -> m.Done:
        self._storages.at(request.path)
        self._disposals.begin((_DISPOSAL, request.trigger_id), partial(self._discard, request.path))
        return m.Done()

    async def _disposal(self, request: j.GetDisposal) -> j.OperationStatus:
        return self._disposals.status((_DISPOSAL, request.trigger_id))

    async def _discard(self, path: str) -> str:
        """Delete a savepoint or checkpoint.

        Raises NoCheckpointThere, Conflict for a checkpoint that its own job still needs, StorageError.
        """
        found = await read_to_discard(self._storages, path)
        owner = found.checkpoint.job_id
        if not found.checkpoint.self_contained and self._runs(owner):
            raise Conflict(f"{found.directory.uri} is a checkpoint of job {owner}, which runs", hint="cancel it first")
        await discard_external(found)
        return ""
