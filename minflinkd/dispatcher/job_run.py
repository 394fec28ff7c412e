"""One job that is to run: its stored record, and its JobMaster, which is kept up until the job has ended.

Knows nothing of other jobs, nor of the cleanup after the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable

import structlog
from msgspec.structs import replace

from minflinkd.checkpoint.statistics import CheckpointStatistics
from minflinkd.checkpoint.store import latest_stored
from minflinkd.checkpoint.turn import StorageTurn
from minflinkd.dispatcher.blobs import Blobs, keys_of_versions
from minflinkd.dispatcher.hot_restart import HotRestarts, RestartPolicy
from minflinkd.dispatcher.job_master_factory import JobMasterFactory
from minflinkd.dispatcher.job_store import JobStore, StoredJob, StoredResult
from minflinkd.dispatcher.quotas import Counted, share_of_versions
from minflinkd.dispatcher.versions import Versions
from minflinkd.dispatcher.versions import shown as restarts_of
from minflinkd.jobmaster.job import Succession
from minflinkd.jobmaster.job_master import JobMaster
from minflinkd.jobmaster.savepoints import Savepoints
from minflinkd.rpc.autoscaler import AutoscalerStatus
from minflinkd.rpc.jobs import CheckpointsInBrief, FailureRecord, JobDetails, JobStatus
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.component import Component, Crashed
from minflinkd.runtime.crash_points import CrashPoint, reach
from minflinkd.runtime.errors import Conflict, Consequence, ErrorInfo, error_info
from minflinkd.runtime.ids import JobId
from minflinkd.runtime.supervisor import Supervisor

log = structlog.get_logger(__name__)

KEPT_FAILURES = 32
KEPT_RECOVERIES = 32
LOOK = 0.02  # seconds between two checks whether a stopped job has ended
HOPELESS = 3  # failures after which a cancelled job ends without its JobMaster, unless a storage is to blame


class JobRun(Component):
    """Runs a job. `start` brings up the first JobMaster and raises what it raises.

    A job that is `recovered` ran under an earlier daemon: its start is retried, and its tasks may still run.

    `on_end` is called once, when the job has its `result`: its JobMaster has brought it to its end, or the job was
    cancelled and no JobMaster stays up to do it.
    """

    def __init__(
        self,
        stored: StoredJob,
        *,
        factory: JobMasterFactory,
        blobs: Blobs,
        store: JobStore,
        clock: Clock,
        restarts: RestartPolicy,
        recovered: bool,
        on_end: Callable[[JobRun], None],
    ) -> None:
        super().__init__(f"run of job {stored.job_id}")
        self.stored = stored
        self.result: StoredResult | None = None  # set when the job has ended
        self._result_stored = False
        self._counted: tuple[StoredJob, Counted] | None = None  # and the record from which it was computed
        self._store = store
        self._clock = clock
        self._factory = factory
        self._blobs = blobs
        self._on_end = on_end
        self.on_change: Callable[[], None] = lambda: None  # called when `details` may return something else
        self.autoscaler: AutoscalerStatus | None = None  # what it says of the job, if the job has one
        self._failures: tuple[FailureRecord, ...] = ()  # of JobMasters, newest first
        self._past: JobDetails | None = None  # as shown by the last JobMaster that made way for another version
        self._between = False  # one has made way, and the next is not up
        self._hopeless = 0
        self._preceded = recovered
        self._savepoints: Savepoints | None = None  # of the JobMaster that ended the job
        self._storing = asyncio.Lock()
        self._turn = StorageTurn(f"job {stored.job_id}")  # outlives the JobMasters, as their work in the storage may
        self._masters: Supervisor[JobMaster] = Supervisor(
            f"JobMaster of {stored.job_id}",
            self._new_master,
            clock=clock,
            gate=factory.gate,
            insist=recovered,
            prepare=self._prepared,
            on_up=self._up,
            on_down=self._down,
        )
        self.hot_restarts = HotRestarts(
            self, stored.history(), policy=restarts, masters=self._masters, store=store, clock=clock
        )

    @property
    def job_id(self) -> JobId:
        return self.stored.job_id

    @property
    def owner(self) -> str:
        return self.stored.owner

    @property
    def counted(self) -> Counted | None:
        """What the job takes of its owner's quota. None: its end is stored, so it never runs again."""
        if self._result_stored:
            return None
        if self._counted is None or self._counted[0] is not self.stored:
            share = share_of_versions(self.stored.history())
            self._counted = self.stored, Counted(self.job_id, self.owner, share)
        return self._counted[1]

    @property
    def master(self) -> JobMaster | None:
        """Return the running JobMaster, or None."""
        return self._masters.current

    async def _start(self) -> None:
        await self.hot_restarts.start()
        await self._masters.start()

    async def _stop(self) -> None:
        await self.hot_restarts.aclose()
        await self._masters.aclose()

    # --- what hot restarts ask (`RestartedJob`) ------------------------------------------------------------------

    def refuses_versions(self) -> str:
        if self.result is not None or self.tasks.closed:
            return "has ended"
        return "is being cancelled" if self.stored.cancelled else ""

    async def latest_stored(self) -> int:
        await self._turn.wait()
        return await latest_stored(self._factory.checkpoints_of(self.job_id), self._factory.pointers_of(self.job_id))

    async def versions_changed(self, versions: Versions) -> None:
        """Hold the artifacts of the versions that are kept. Those of a forgotten one are cleaned up from now on."""
        if versions.current != self.stored.history().current:
            self._past, self._between = self._shown(), True
        self.stored = replace(self.stored, graph=versions.current.graph, versions=versions)
        self.on_change()
        if self.result is None:  # otherwise its artifacts are being deleted
            await self._blobs.hold(self.job_id, keys_of_versions(versions))
            self._blobs.taken_over(self.job_id, keys_of_versions(versions))

    # --- inspection ----------------------------------------------------------------------------------------------

    def details(self) -> JobDetails:
        """Return what the JobMaster reports, and why there was none at times.

        The status is INITIALIZING, as in Flink, while there is no JobMaster.
        """
        if self.result is not None:
            return self.result.details
        shown = self._shown()
        failures = sorted((*shown.failures, *self._failures), key=lambda f: f.timestamp_ms, reverse=True)
        kept = tuple(failures[:KEPT_FAILURES])
        return self._with_restarts(replace(shown, failures=kept, autoscaler=self._of_autoscaler()))

    def _of_autoscaler(self) -> AutoscalerStatus | None:
        own = self.stored.graph.autoscaler
        return None if own is None else self.autoscaler or AutoscalerStatus(enabled=own.enabled)

    def _with_restarts(self, shown: JobDetails) -> JobDetails:
        versions = self.hot_restarts.versions
        return replace(
            shown, owner=self.owner, hot_restarts=restarts_of(versions), hot_restart_outcomes=versions.outcomes
        )

    def _shown(self) -> JobDetails:
        """Return the details with the recoveries of earlier versions.

        While no JobMaster is up between two versions, return those of the last one.
        """
        shown, past = self._of_master(), self._past
        if past is None:
            return shown
        if self._between and self.master is None:
            return past
        return replace(shown, recoveries=(*past.recoveries, *shown.recoveries)[-KEPT_RECOVERIES:])

    def checkpoints(self) -> CheckpointStatistics:
        if self.result is not None:
            return self.result.checkpoints
        master = self.master
        return CheckpointStatistics() if master is None else master.coordinator.statistics()

    def checkpoints_in_brief(self) -> CheckpointsInBrief | None:
        master = self.master
        return None if self.result is not None or master is None else master.coordinator.in_brief()

    def _of_master(self) -> JobDetails:
        master = self.master
        try:
            if master is not None:
                return master.details()
        except Exception:  # the list shows the other jobs anyway
            log.exception("a job cannot be shown", job=self.job_id)
        return waiting(self.stored)

    # --- cancelling ----------------------------------------------------------------------------------------------

    async def cancel(self) -> None:
        """Cancel the job. This is durable on return: the next JobMaster, too, only cancels.

        Raises Conflict after the end, StorageError. After an error it is not known whether the next JobMaster cancels.
        """
        if self.result is None:  # otherwise the lock may be held for long
            async with self._storing:
                if self.result is None and not self.stored.cancelled:
                    await self._store.mark_cancelled(self.job_id)
                    reach(CrashPoint.END_CANCELLED)
                    self.stored = replace(self.stored, cancelled=True)
                    self.hot_restarts.abandon()
                    self.on_change()
        if self.result is not None:
            raise Conflict(f"job {self.job_id} is {self.result.details.status.value} already")
        if (master := self.master) is None:
            self._masters.hurry()
        else:
            self._cancel(master)

    def _cancel(self, master: JobMaster) -> None:
        with contextlib.suppress(Crashed):  # its successor will cancel
            master.cancel()

    # --- the end -------------------------------------------------------------------------------------------------

    async def _ended(self, details: JobDetails) -> None:
        self._end(details)

    def _end(self, details: JobDetails) -> None:
        """The job is in its terminal state, and no JobMaster follows."""
        if self.result is not None:
            return
        reach(CrashPoint.END_REACHED)
        self.hot_restarts.abandon(finished=details.status is JobStatus.FINISHED)
        failures = sorted((*details.failures, *self._failures), key=lambda f: f.timestamp_ms, reverse=True)
        details = self._with_restarts(replace(details, failures=tuple(failures[:KEPT_FAILURES])))
        options = self._factory.checkpoint_options(self.stored.graph)
        retained = options.retain_on_cancellation and details.status is not JobStatus.FINISHED
        kept: tuple[int, ...] | None = None
        if (master := self.master) is not None:
            self._savepoints = master.savepoints
            retained = retained or master.savepoints.keeps_checkpoints
            # Otherwise an earlier checkpoint may be the only record of what is to be settled by hand.
            kept = master.coordinator.retained() if details.sinks_settled else None
        self.result = StoredResult(
            dirty=True, details=details, checkpoints=self.checkpoints(), retained=retained, kept=kept
        )
        self._masters.retire()
        self.on_change()
        self._on_end(self)

    def _end_without_master(self) -> None:
        """The job is cancelled, but nobody could settle its sinks.

        Staged output stays, with the checkpoints that record it.
        """
        now = self._clock.epoch_ms()
        shown = waiting(self.stored)
        timestamps = {**shown.timestamps, JobStatus.CANCELED.value: now}
        self._end(replace(shown, status=JobStatus.CANCELED, end_ms=now, timestamps=timestamps, sinks_settled=False))

    async def savepoints_ended(self) -> None:
        """Return when no savepoint is being made any more: until then its checkpoint must stay."""
        if self._savepoints is not None:
            await self._savepoints.ended()

    async def store_result(self) -> None:
        """Store the result. It is durable on return. Raises StorageError."""
        assert self.result is not None
        async with self._storing:  # do not cross the mark of a cancellation, which would bring the job back
            await self._store.put_result(self.result)
        self._result_stored = True

    async def has_ended(self, master: JobMaster) -> bool:
        """Return True when the result of the job, which this JobMaster stopped, is durable: the job never runs again.

        Return False if the JobMaster crashed before the job had ended: the job keeps running.
        """
        while not self._result_stored:
            if self.result is None and master.crashed.is_set():
                return False
            await self._clock.sleep(LOOK)
        return True

    # --- the JobMaster's ups and downs -----------------------------------------------------------------------------

    async def _prepared(self) -> None:
        """Fetch the artifacts before each JobMaster of the job starts: its TaskManagers will ask for them (B19)."""
        await self._blobs.recover(self.job_id, keys_of_versions(self.stored.history()))
        await self.hot_restarts.settled()

    def _succession(self) -> Succession:
        """Return what the next JobMaster takes over. If it is the job's first one, no tasks run yet."""
        succession = self.hot_restarts.succession()
        return dataclasses.replace(succession, preceded=succession.preceded and self._preceded)

    def _new_master(self) -> JobMaster:
        master = self._factory.make(self.stored, self._turn, self._succession(), self._ended)
        master.on_change = self.on_change
        return master

    def _up(self, master: JobMaster) -> None:
        self._preceded = True
        self._between = False
        self.on_change()
        if self.stored.cancelled:  # perhaps during the start
            self._cancel(master)
        self.hot_restarts.up(master)

    def _down(self, error: Exception) -> None:
        self._blobs.failed(self.job_id)
        info = error_info(error)
        told = ErrorInfo(
            code="jobmaster-down",
            message=f"the JobMaster failed: {info.message.partition(chr(10))[0]}"[:1000],
            consequence=Consequence.RETRYABLE,
            hint="a new one is started, and goes on from the last checkpoint",
        )
        record = FailureRecord(timestamp_ms=self._clock.epoch_ms(), error=told)
        same = bool(self._failures) and self._failures[0].error == told
        self._failures = (record, *self._failures[1 if same else 0 :])[:KEPT_FAILURES]
        self.on_change()
        if info.consequence is Consequence.RETRYABLE:
            return
        self.hot_restarts.down(told)
        if not self.stored.cancelled:
            return
        self._hopeless += 1
        if self._hopeless >= HOPELESS:
            log.error("a cancelled job ends without its JobMaster", job=self.job_id, error=told.message)
            self._end_without_master()


def waiting(stored: StoredJob) -> JobDetails:
    """Return the details of a job without a JobMaster."""
    timestamps = {status.value: 0 for status in JobStatus}
    timestamps[JobStatus.INITIALIZING.value] = stored.submitted_ms
    return JobDetails(
        job_id=stored.job_id,
        graph=stored.graph,
        status=JobStatus.INITIALIZING,
        start_ms=stored.submitted_ms,
        end_ms=-1,
        timestamps=timestamps,
        tasks=(),
        submission=stored.submission,
    )
