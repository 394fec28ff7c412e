"""The Dispatcher, which knows all jobs (resources.md R24 - R27)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial

import structlog

from minflinkd.blob.errors import BlobServerBusy
from minflinkd.blob.keys import BlobKey
from minflinkd.dispatcher.autoscaling import Autoscaling
from minflinkd.dispatcher.blobs import Blobs, artifact_keys, keys_of_versions
from minflinkd.dispatcher.hot_restart import RestartPolicy
from minflinkd.dispatcher.inspection import Inspection, unreadable_details
from minflinkd.dispatcher.job_master_factory import JobMasterFactory
from minflinkd.dispatcher.job_moves import JobMoves
from minflinkd.dispatcher.job_results import JobResults, Retention, until_done
from minflinkd.dispatcher.job_run import JobRun
from minflinkd.dispatcher.job_store import JobStore, StoredJob, Unreadable
from minflinkd.dispatcher.on_stop import before_stop
from minflinkd.dispatcher.options import DispatcherOptions
from minflinkd.dispatcher.orphans import OrphanSweeps
from minflinkd.dispatcher.quotas import Counted, QuotaBook
from minflinkd.dispatcher.savepoints import SavepointRequests
from minflinkd.dispatcher.state_fit import RestoreCheck
from minflinkd.dispatcher.state_reads import StateReads
from minflinkd.dispatcher.submission import ANALYSIS_TIMEOUT, AROUND_ANALYSIS, Analyzer, explained
from minflinkd.dispatcher.verifications import Verifications
from minflinkd.dispatcher.version_check import VersionCheck
from minflinkd.jobgraph.faults import InvalidJobGraph
from minflinkd.jobmaster.job_master import JobMaster
from minflinkd.rpc import jobs as j
from minflinkd.rpc import messages as m
from minflinkd.rpc.network import DISPATCHER, Mailbox, Network, Unreachable
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.component import Component
from minflinkd.runtime.crash_points import CrashPoint, reach
from minflinkd.runtime.errors import Conflict, Consequence, InvalidId, MinflinkError
from minflinkd.runtime.ids import Chance, JobId, parse_job_id
from minflinkd.storage.registry import Storages

log = structlog.get_logger(__name__)

RECOVERY_PATIENCE = 10.0  # seconds that the start waits for stored jobs; slower ones come up after it
AT_A_TIME = 16  # jobs whose recovery begins, before the event loop does something else
WITHDRAWAL_PATIENCE = 0.5  # seconds that the answer to a refused submission waits for its withdrawal


class Dispatcher(Component):
    """A job that is to run has a JobRun here. A job that has ended has a result."""

    def __init__(
        self,
        *,
        network: Network,
        store: JobStore,
        storages: Storages,
        blobs: Blobs,
        clock: Clock,
        chance: Chance,
        options: DispatcherOptions,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        """`leads`: whether it is certain that no other daemon leads now."""
        super().__init__("dispatcher")
        self._network = network
        self._store = store
        self._blobs = blobs
        self._clock = clock
        self.options = options
        self._runs: dict[JobId, JobRun] = {}
        self._unreadable: dict[JobId, j.JobDetails] = {}
        self._submitting: set[JobId] = set()
        self._quotas = QuotaBook(quotas=lambda: self.options.quotas, stored=self._counted, uploads=blobs.uploads)
        self._jobs_known = False
        self._factory = JobMasterFactory(
            network=network,
            storages=storages,
            clock=clock,
            chance=chance,
            options=lambda: self.options,
            leads=leads,
            pointers=store.pointers,
        )
        self._results = JobResults(
            store=store,
            blobs=blobs,
            network=network,
            clock=clock,
            checkpoints_of=self._factory.checkpoints_of,
            new_leader_id=chance.ids.leader,
            retention=lambda: Retention(self.options.result_capacity, self.options.result_expiration),
            leads=leads,
        )
        self._analyzer = Analyzer(
            network=network,
            clock=clock,
            blobs=blobs,
            restoring=RestoreCheck(storages, runs=lambda job_id: job_id in self._runs),
            session_timeout=lambda: self.options.session_timeout,
            archive_limits=lambda: self.options.archives,
        )
        self._savepoints = SavepointRequests(
            storages=storages,
            directory=lambda: self.options.savepoint_dir,
            checkpoints_of=self._factory.checkpoints_of,
            run_of=self._run,
            runs=lambda job_id: job_id in self._runs,
            tasks=self.tasks,
            store=store,
            clock=clock,
        )
        self._moves = JobMoves(run_of=self._runs.get, tasks=self.tasks, clock=clock)
        self._autoscaling = Autoscaling(runs=self._runs, network=network, tasks=self.tasks, clock=clock)
        self._orphans = OrphanSweeps(
            root=lambda: storages.at(self.options.checkpoint_root),
            run_of=self._runs.get,
            unreadable=lambda job_id: job_id in self._unreadable,
            leads=leads,
            grace=lambda: self.options.job_master.checkpoints.orphan_grace,
            clock=clock,
        )
        self._restarts = RestartPolicy(
            check=VersionCheck(self._analyzer, self._factory.context),
            quotas=self._quotas,
            timeout=lambda: self.options.hot_restart_timeout,
            trial=lambda: self.options.hot_restart_trial,
        )
        self._inspection = Inspection(
            runs=self._runs,
            results=self._results,
            unreadable=self._unreadable,
            checkpoint_options=self._factory.checkpoint_options,
            checkpoints_of=self._factory.checkpoints_of,
            quotas=self._quotas,
        )
        self._results.on_change = self._inspection.changed
        self._verifications = Verifications(
            job=self._inspection.details,
            checkpoints_of=self._factory.checkpoints_of,
            pointers_of=self._factory.pointers_of,
            tasks=self.tasks,
        )
        self._state_reads = StateReads(
            network=network,
            clock=clock,
            storages=storages,
            details=self._inspection.details,
            run_of=self._runs.get,
            checkpoints_of=self._factory.checkpoints_of,
        )
        self._mailbox = Mailbox(DISPATCHER)
        self._savepoints.attach(self._mailbox)
        self._moves.attach(self._mailbox)
        self._orphans.attach(self._mailbox)
        self._inspection.attach(self._mailbox)
        self._verifications.attach(self._mailbox)
        self._state_reads.attach(self._mailbox)
        self._mailbox.on(j.SubmitJob, self._submit)
        self._mailbox.on(j.CancelJob, self._cancel)
        self._mailbox.on(j.HotRestartJob, self._hot_restart)
        self._mailbox.on(j.RescaleJob, self._rescale)
        self._mailbox.on(m.ListJobsToRun, self._jobs_to_run)

    def details(self) -> tuple[j.JobDetails, ...]:
        """Return the details of every job, running and ended."""
        return self._inspection.all()

    def job_master(self, job_id: JobId) -> JobMaster | None:
        """Return the job's present JobMaster, for inspection."""
        run = self._runs.get(job_id)
        return None if run is None else run.master

    def admit_upload(self, user: str, size: int) -> None:
        """Raises QuotaExceeded if the user may not upload so many more bytes; BlobServerBusy if nobody knows yet."""
        if not self._jobs_known and self._quotas.limits_uploads(user):
            raise BlobServerBusy("the daemon is starting, and does not know its jobs yet", hint="try again later")
        self._quotas.admit_upload(user, size)

    @property
    def submission_timeout(self) -> float:
        """Seconds to wait for the answer to a submission. The answer says why a job was not accepted."""
        return self.options.session_timeout + ANALYSIS_TIMEOUT + AROUND_ANALYSIS

    @property
    def adopted_tasks(self) -> int:
        """How many tasks of earlier JobMasters were adopted since this Dispatcher started (A14a)."""
        return self._factory.adopted_tasks

    # --- lifecycle -----------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        await self._results.start()
        found = (*self._results.unreadable, *await self._store.jobs())
        await self._savepoints.recover(self._end_of)
        # Take stock of all jobs before the first is recovered, because the cleanup of blobs begins with it.
        await self._blobs.take_stock({stored.job_id: _artifacts(stored) for stored in found})
        recoveries = []
        for number, stored in enumerate(found):
            if number % AT_A_TIME == 0:
                await asyncio.sleep(0)
            if isinstance(stored, Unreadable):
                self._unreadable[stored.job_id] = unreadable_details(stored, self._clock.epoch_ms())
                self._inspection.changed(stored.job_id)
            else:
                run = self._new_run(stored, recovered=True)
                recoveries.append(self.tasks.job(f"recovery of {stored.job_id}", run.start()))
        self._jobs_known = True
        if recoveries:
            _, late = await asyncio.wait(recoveries, timeout=RECOVERY_PATIENCE)
            if late:
                log.warning("some jobs are not recovered yet; the others go on", jobs=len(late))
        self._network.attach(self._mailbox)
        self._autoscaling.start()

    def _end_of(self, job_id: JobId) -> j.JobStatus | None:
        result = self._results.get(job_id)
        return None if result is None else result.details.status

    async def before_stop(self) -> None:
        """Take the `on-stop` action for all jobs, before their tasks end with the daemon (A15). Raises nothing."""
        for run in self._runs.values():
            if (master := run.master) is not None:
                master.tasks_end_with_daemon()
        await before_stop(
            tuple(self._runs.values()),
            self.options.on_stop,
            timeout=self.options.on_stop_timeout,
            take_savepoint=self._savepoints.take,
            tasks=self.tasks,
            clock=self._clock,
        )

    async def _stop(self) -> None:
        self._network.detach(self._mailbox)
        await asyncio.gather(self._results.aclose(), *(run.aclose() for run in self._runs.values()))
        self._runs.clear()

    def _new_run(self, stored: StoredJob, *, recovered: bool) -> JobRun:
        """R27: A job that cannot be recovered does not hold up the others. It is shown, and its files stay."""
        run = self._runs[stored.job_id] = JobRun(
            stored,
            factory=self._factory,
            blobs=self._blobs,
            store=self._store,
            clock=self._clock,
            restarts=self._restarts,
            recovered=recovered,
            on_end=self._ended,
        )
        run.on_change = partial(self._inspection.changed, stored.job_id)
        run.on_change()
        return run

    def _drop_run(self, job_id: JobId) -> JobRun | None:
        run = self._runs.pop(job_id, None)
        self._inspection.changed(job_id)
        return run

    # --- submission ----------------------------------------------------------------------------------------------

    async def _submit(self, request: j.SubmitJob) -> j.SubmissionAnswer:
        """Check the job, store it durably, start it and answer, in this order (R25, J4)."""
        job_id = parse_job_id(request.job_id)
        if job_id in self._submitting:
            raise Conflict(f"job {job_id} is being submitted already", hint="wait for that submission's answer")
        if job_id in self._runs or job_id in self._results or job_id in self._unreadable:
            return j.SubmissionAnswer(job_id=job_id)
        self._submitting.add(job_id)
        try:
            answer = await self._accept(job_id, request)
        except BaseException as error:
            if not request.dry_run:
                again = isinstance(error, MinflinkError) and error.info().consequence is Consequence.RETRYABLE
                await self._withdraw(job_id, keep_blobs=again)
            raise
        finally:
            if request.dry_run:
                self._blobs.let_go(job_id)
                self._submission_over(job_id)
        self._submission_over(job_id)
        return answer

    def _submission_over(self, job_id: JobId) -> None:
        self._submitting.discard(job_id)
        self._quotas.release(job_id)

    async def _withdraw(self, job_id: JobId, *, keep_blobs: bool) -> None:
        """Undo a submission that was not accepted, so that the job is not recovered later without its blobs (R25).

        `keep_blobs`: keep them for `blob.retention.interval`, in which the submission may be repeated (B6). If a
        storage fails, the withdrawal continues after the answer, and the id is taken until then.
        """
        if self.tasks.closed:  # the daemon ends; the next one finds the job, if it was stored, and nothing else of it
            return
        run = self._drop_run(job_id)

        async def withdraw() -> None:
            if run is not None:
                await run.aclose()
            await until_done(self._clock, f"withdrawal of {job_id}", lambda: self._store.delete_job(job_id))
            if run is not None:  # its JobMaster may have got slots already
                await until_done(self._clock, f"slots of {job_id}", lambda: self._results.release_slots(job_id))
            if keep_blobs:
                self._blobs.let_go(job_id)
            else:
                await until_done(self._clock, f"blobs of {job_id}", lambda: self._blobs.delete_job(job_id))
            self._submission_over(job_id)

        await asyncio.wait({self.tasks.job(f"withdrawal of {job_id}", withdraw())}, timeout=WITHDRAWAL_PATIENCE)

    async def _accept(self, job_id: JobId, request: j.SubmitJob) -> j.SubmissionAnswer:
        began, submitted_ms = self._clock.monotonic(), self._clock.epoch_ms()
        claim = partial(self._quotas.claim, job_id, request.owner, keep=not request.dry_run)
        try:
            graph, analysis = await self._analyzer.check(
                job_id,
                request.document,
                self._factory.context,
                admit=claim,
                explain=request.dry_run and request.explain,
            )
            warnings = (*await self._analyzer.restoring.warnings(graph), *analysis.notes)
        except InvalidJobGraph as error:
            if not request.dry_run:
                await self._blobs.delete_job(job_id)
            return j.SubmissionAnswer(job_id=job_id, faults=error.faults)
        if request.dry_run:
            told = explained(analysis) if request.explain else ()
            return j.SubmissionAnswer(job_id=job_id, warnings=warnings, tasks=told)
        for text in warnings:
            log.warning("a job starts, and its user should know", job=job_id, name=graph.name, what=text)
        phases = {"analyzed": round(self._clock.monotonic() - began, 4)}
        stored = StoredJob(
            job_id=job_id, submitted_ms=submitted_ms, graph=graph, owner=request.owner, submission=phases
        )
        reach(CrashPoint.SUBMISSION_CHECKED)
        await self._store.put_job(stored)
        reach(CrashPoint.SUBMISSION_STORED)
        phases["stored"] = round(self._clock.monotonic() - began, 4)
        run = self._new_run(stored, recovered=False)
        await run.start()
        self._blobs.taken_over(job_id, artifact_keys(graph))
        reach(CrashPoint.SUBMISSION_STARTED)
        log.info("job accepted", job=job_id, name=graph.name, tasks=len(graph.vertices), owner=request.owner)
        return j.SubmissionAnswer(job_id=job_id, warnings=warnings)

    def _counted(self) -> Iterator[Counted]:
        """Yield what counts towards quotas. Nobody knows whose a job is that cannot be read."""
        return (counted for run in self._runs.values() if (counted := run.counted) is not None)

    # --- the end of a job ----------------------------------------------------------------------------------------

    def _ended(self, run: JobRun) -> None:
        """Called by a task of the JobMaster. This closes the JobMaster, so nothing here may be one of its tasks."""
        assert run.result is not None
        if self._runs.get(run.job_id) is not run:  # its submission is being withdrawn
            return

        async def close() -> None:
            await run.aclose()
            if self._runs.get(run.job_id) is run:
                self._drop_run(run.job_id)

        self._results.ended(
            run.result,
            store=run.store_result,
            close=close,
            savepoints_ended=run.savepoints_ended,
        )

    async def _jobs_to_run(self, _: m.ListJobsToRun) -> m.JobsToRun:
        """List the jobs that have not ended. TaskManagers end the tasks of all others.

        So a job that cannot be read is among them, and one that is being submitted, perhaps again. Raises Unreachable
        when this closes, because then the jobs are leaving.
        """
        if self.tasks.closed:
            raise Unreachable("the Dispatcher is closing")
        return m.JobsToRun(jobs=tuple(sorted({*self._runs, *self._unreadable, *self._submitting})))

    # --- requests ------------------------------------------------------------------------------------------------

    async def _cancel(self, request: j.CancelJob) -> m.Done:
        """Cancel a job. It answers when no crash can undo that. Raises NotFound, Conflict, StorageError."""
        await self._run(request.job_id).cancel()
        return m.Done()

    async def _hot_restart(self, request: j.HotRestartJob) -> j.RestartAnswer:
        """Raises NotFound, Conflict, and what `HotRestarts.restart` raises."""
        return await self._run(request.job_id).hot_restarts.restart(request)

    async def _rescale(self, request: j.RescaleJob) -> j.RestartAnswer:
        """Raises what `_hot_restart` raises."""
        return await self._run(request.job_id).hot_restarts.rescale(request)

    def _run(self, job_id: JobId) -> JobRun:
        """Raises NotFound, Conflict."""
        details = self._inspection.details(job_id)
        run = self._runs.get(job_id)
        if run is None:
            known = "cannot be read" if job_id in self._unreadable else f"is {details.status.value} already"
            raise Conflict(f"job {job_id} {known}", hint="`minflinkd info JOB` says more")
        return run


def _artifacts(stored: StoredJob | Unreadable) -> frozenset[BlobKey] | None:
    """Return the job's artifacts. None if they are not known: then nothing of the job may be deleted."""
    try:
        return None if isinstance(stored, Unreadable) else keys_of_versions(stored.history())
    except InvalidId:
        return None
