"""The sweep of orphans on request, over all jobs, running and ended (F7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from minflinkd.checkpoint.orphans import sweep
from minflinkd.dispatcher.job_run import JobRun
from minflinkd.rpc import jobs as j
from minflinkd.rpc.network import Mailbox
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.errors import Conflict
from minflinkd.runtime.ids import JobId
from minflinkd.storage.location import Location

log = structlog.get_logger(__name__)

NO_RECORD = "its job's record cannot be read"
NO_MASTER = "its job has no JobMaster now"


class OrphanSweeps:
    """`run_of` returns the run of a job that is to run. `unreadable`: whether the job's record cannot be read."""

    def __init__(
        self,
        *,
        root: Callable[[], Location],
        run_of: Callable[[JobId], JobRun | None],
        unreadable: Callable[[JobId], bool],
        leads: Callable[[], bool],
        grace: Callable[[], float],
        clock: Clock,
    ) -> None:
        self._root = root
        self._run_of = run_of
        self._unreadable = unreadable
        self._leads = leads
        self._grace = grace
        self._clock = clock
        self._sweeping = asyncio.Lock()

    def attach(self, mailbox: Mailbox) -> None:
        mailbox.on(j.SweepOrphans, self._sweep)

    async def _sweep(self, request: j.SweepOrphans) -> j.OrphanReport:
        """Raises Conflict, NotLeading, StorageError."""
        if self._sweeping.locked():
            raise Conflict("orphans are being looked for already", hint="wait for that to end")
        async with self._sweeping:
            grace = self._grace()
            found = await sweep(
                self._root(),
                of_running=self._of_running,
                before_ms=self._clock.epoch_ms() - round(grace * 1000),
                leads=self._leads,
                only=request.job_id,
                dry_run=request.dry_run,
            )
        if not request.dry_run:
            log.info("orphans deleted by hand", files=sum(len(job.files) for job in found))
        return j.OrphanReport(jobs=found, dry_run=request.dry_run, grace=grace)

    async def _of_running(self, job_id: JobId, before_ms: int) -> j.JobOrphans | None:
        if self._unreadable(job_id):
            return j.JobOrphans(job_id=job_id, skipped=NO_RECORD)
        if (run := self._run_of(job_id)) is None:
            return None
        if run.master is None or not run.master.coordinator.running:
            return j.JobOrphans(job_id=job_id, skipped=NO_MASTER)
        return await run.master.coordinator.orphans(before_ms)
