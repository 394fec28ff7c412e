"""Requests for savepoints and checkpoints: to take one of a job, or to delete one (C20, C24)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from minflinkd.checkpoint.external import discard_external, read_to_discard
from minflinkd.dispatcher.job_run import JobRun
from minflinkd.dispatcher.operations import Operations
from minflinkd.jobmaster.job_master import JobMaster
from minflinkd.jobmaster.savepoints import StopFailed
from minflinkd.rpc import jobs as j
from minflinkd.rpc import messages as m
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.network import Mailbox
from minflinkd.runtime.errors import Conflict, Consequence, MinflinkError
from minflinkd.runtime.ids import JobId
from minflinkd.runtime.supervision import TaskOwner
from minflinkd.storage.location import Location
from minflinkd.storage.proving import refuse_read_only
from minflinkd.storage.registry import Storages

_DISPOSAL = "savepoint-disposal"


class JobNotRunning(MinflinkError):
    """Not all tasks of the job run now."""

    code = "job-not-running"
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
    ) -> None:
        self._storages = storages
        self._directory = directory
        self._checkpoints_of = checkpoints_of
        self._run_of = run_of
        self._runs = runs
        self._operations = Operations(tasks)

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
        self._operations.begin((request.job_id, request.trigger_id), self._work(request))
        return m.Done()

    async def take(self, job_id: JobId) -> str:
        """Take a savepoint in the configured directory and return its URI.

        Raises the errors of a refused request, and those of a failed checkpoint.
        """
        return await self._work(j.TriggerSavepoint(job_id=job_id, trigger_id=""))()

    async def _checkpoint(self, request: j.CheckpointJob) -> m.Done:
        """Begin a checkpoint. Raises NotFound, Conflict, JobNotRunning."""
        master = self._running(request.job_id)
        self._operations.begin((request.job_id, request.trigger_id), master.checkpoint)
        return m.Done()

    def _running(self, job_id: JobId) -> JobMaster:
        """Return the JobMaster of a running job. Raises NotFound, Conflict, JobNotRunning."""
        master = self._run_of(job_id).master
        if master is None or master.status is not JobStatus.RUNNING:
            status = JobStatus.INITIALIZING if master is None else master.status
            raise JobNotRunning(f"job {job_id} is {status.value}", hint="a savepoint is of a job that is RUNNING")
        return master

    def _work(self, request: j.TriggerSavepoint) -> Callable[[], Awaitable[str]]:
        """Return a function that takes the savepoint, and stops the job if the request says so.

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
        take = savepoints.drain if request.drain else savepoints.stop if request.stop else savepoints.take

        async def work() -> str:
            await self._storages.require_writable(directory)  # may take a while
            path = await take(directory)
            if (request.stop or request.drain) and not await run.has_ended(master):
                raise StopFailed(
                    f"the savepoint {path} is complete, but the JobMaster crashed before the job had ended"
                )
            return path

        return work

    async def _status(self, request: j.GetSavepoint) -> j.OperationStatus:
        return self._operations.status((request.job_id, request.trigger_id))

    async def _dispose(self, request: j.DisposeSavepoint) -> m.Done:
        self._storages.at(request.path)
        self._operations.begin((_DISPOSAL, request.trigger_id), partial(self._discard, request.path))
        return m.Done()

    async def _disposal(self, request: j.GetDisposal) -> j.OperationStatus:
        return self._operations.status((_DISPOSAL, request.trigger_id))

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
