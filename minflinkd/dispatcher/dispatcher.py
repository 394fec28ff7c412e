"""The Dispatcher: the one that knows all jobs (resources.md R24 - R27)."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec
import structlog

from minflinkd.checkpoint import statistics
from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.dispatcher.job_store import JobStore, StoredJob, StoredResult
from minflinkd.dispatcher.submission import Analyzer, Artifacts
from minflinkd.dispatcher.unrecovered import Unrecovered
from minflinkd.jobgraph.faults import InvalidJobGraph
from minflinkd.jobgraph.model import JobGraph
from minflinkd.jobmaster.job_master import JobMaster, JobMasterOptions
from minflinkd.rpc import jobs as j
from minflinkd.rpc import messages as m
from minflinkd.rpc.network import DISPATCHER, RESOURCE_MANAGER, Mailbox, Network
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.component import Component
from minflinkd.runtime.errors import Conflict, MinflinkError, NotFound, error_info
from minflinkd.runtime.ids import IdSource, JobId, parse_job_id
from minflinkd.storage.location import Location
from minflinkd.storage.registry import Storages

log = structlog.get_logger(__name__)

CLEANUP_PAUSE = 1.0  # seconds, doubled with every try
RECOVERY_PAUSE = 1.0
LONGEST_PAUSE = 60.0
EXPIRY_INTERVAL = 60.0


class Blobs(Artifacts, Protocol):
    async def delete_job(self, job_id: JobId) -> None:
        """Local and HA copies; idempotent."""
        ...


@dataclass(frozen=True, kw_only=True)
class DispatcherOptions:
    """Times in seconds."""

    checkpoint_root: str  # URI; every job has a directory of its own below it
    session_timeout: float = 60.0  # for a TaskManager that can analyse a submission
    result_expiration: float = 3600.0
    job_master: JobMasterOptions


class Dispatcher(Component):
    """Jobs that run have a JobMaster here; jobs that have ended a result."""

    def __init__(
        self,
        *,
        network: Network,
        store: JobStore,
        storages: Storages,
        blobs: Blobs,
        clock: Clock,
        ids: IdSource,
        rng: random.Random,
        options: DispatcherOptions,
    ) -> None:
        super().__init__("dispatcher")
        self._network = network
        self._store = store
        self._storages = storages
        self._blobs = blobs
        self._clock = clock
        self._ids = ids
        self._rng = rng
        self.options = options
        self._masters: dict[JobId, JobMaster] = {}
        self._results: dict[JobId, StoredResult] = {}
        self._unrecovered: dict[JobId, Unrecovered] = {}
        self._submitting: set[JobId] = set()
        self._analyzer = Analyzer(
            network=network, clock=clock, ids=ids, artifacts=blobs, session_timeout=options.session_timeout
        )
        self._mailbox = Mailbox(DISPATCHER)
        self._mailbox.on(j.SubmitJob, self._submit)
        self._mailbox.on(j.ListJobs, self._list)
        self._mailbox.on(j.GetJob, self._get)
        self._mailbox.on(j.GetCheckpoints, self._checkpoints)
        self._mailbox.on(j.CancelJob, self._cancel)

    def details(self) -> tuple[j.JobDetails, ...]:
        """Every job, running and ended."""
        running = [master.details() for master in self._masters.values()]
        waiting = [u.details() for job_id, u in self._unrecovered.items() if job_id not in self._masters]
        ended = [r.details for job_id, r in self._results.items() if job_id not in self._masters]
        return (*running, *waiting, *ended)

    # --- lifecycle -----------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        for result in await self._store.results():
            self._results[result.details.job_id] = result
            if result.dirty:
                self.tasks.job(f"cleanup of {result.details.job_id}", self._clean_up(result))
        for stored in await self._store.jobs():
            if not await self._recover(stored):
                self.tasks.job(f"recovery of {stored.job_id}", self._recover_later(stored))
        self._network.attach(self._mailbox)
        self.tasks.loop("expiry of results", self._expire)

    async def _stop(self) -> None:
        self._network.detach(self._mailbox)
        for master in list(self._masters.values()):
            await master.aclose()
        self._masters.clear()

    async def _recover(self, stored: StoredJob) -> bool:
        """R27: one job that cannot be recovered does not keep the others from it; it is shown, and its files stay."""
        job_id = stored.job_id
        try:
            await self._start_master(stored)
        except Exception as error:
            log.exception("a job could not be recovered", job=job_id, name=stored.graph.name)
            self._unrecovered[job_id] = Unrecovered(stored, error_info(error), self._clock.epoch_ms())
            return False
        self._unrecovered.pop(job_id, None)
        return True

    async def _recover_later(self, stored: StoredJob) -> None:
        """A storage that was away comes back, and a person may mend the rest."""
        pause = RECOVERY_PAUSE
        while True:
            await self._clock.sleep(pause)
            if await self._recover(stored):
                return
            pause = min(2 * pause, LONGEST_PAUSE)

    # --- submission ----------------------------------------------------------------------------------------------

    async def _submit(self, request: j.SubmitJob) -> j.SubmissionAnswer:
        """Checked, stored durably, started, answered, in this order (R25, J4)."""
        job_id = parse_job_id(request.job_id)
        if job_id in self._masters or job_id in self._results or job_id in self._unrecovered:
            return j.SubmissionAnswer(job_id=job_id)
        if job_id in self._submitting:
            raise Conflict(f"job {job_id} is being submitted already", hint="wait for that submission's answer")
        self._submitting.add(job_id)
        try:
            return await self._accept(job_id, request)
        except BaseException:
            if not request.dry_run:
                await self._withdraw(job_id)
            raise
        finally:
            self._submitting.discard(job_id)

    async def _withdraw(self, job_id: JobId) -> None:
        """What was not accepted is not recovered later either, least of all without its blobs (R25)."""
        if (master := self._masters.pop(job_id, None)) is not None:
            await master.aclose()
        await self._store.delete_job(job_id)
        await self._blobs.delete_job(job_id)

    async def _accept(self, job_id: JobId, request: j.SubmitJob) -> j.SubmissionAnswer:
        began, submitted_ms = self._clock.monotonic(), self._clock.epoch_ms()
        try:
            graph = await self._analyzer.check(job_id, request.document, self._context)
        except InvalidJobGraph as error:
            if not request.dry_run:
                await self._blobs.delete_job(job_id)
            return j.SubmissionAnswer(job_id=job_id, faults=error.faults)
        if request.dry_run:
            return j.SubmissionAnswer(job_id=job_id)
        phases = {"analyzed": round(self._clock.monotonic() - began, 4)}
        stored = StoredJob(job_id=job_id, submitted_ms=submitted_ms, graph=graph, submission=phases)
        await self._store.put_job(stored)
        phases["stored"] = round(self._clock.monotonic() - began, 4)
        await self._start_master(stored)
        log.info("job accepted", job=job_id, name=graph.name, tasks=len(graph.vertices))
        return j.SubmissionAnswer(job_id=job_id)

    async def _start_master(self, stored: StoredJob) -> None:
        job_id, graph = stored.job_id, stored.graph
        options = self.options.job_master
        master = JobMaster(
            job_id=job_id,
            graph=graph,
            context=self._context(job_id, graph),
            options=replace(options, checkpoints=checkpoint_options(options.checkpoints, graph)),
            network=self._network,
            storages=self._storages,
            clock=self._clock,
            ids=self._ids,
            rng=self._rng,
            submitted_ms=stored.submitted_ms,
            submission=stored.submission,
            on_end=self._ended,
        )
        self._masters[job_id] = master
        try:
            await master.start()
        except BaseException:
            self._masters.pop(job_id, None)
            raise

    def _context(self, job_id: JobId, graph: JobGraph) -> m.JobContext:
        return m.JobContext(
            job_id=job_id,
            name=graph.name,
            params=graph.params,
            mode=graph.mode,
            checkpointing=graph.checkpointing,
            checkpoint_root=f"{self.options.checkpoint_root.rstrip('/')}/{job_id}",
            artifacts=tuple(m.ArtifactRef(name=a.name, key=a.key or "", size=a.size) for a in graph.artifacts),
            spark=graph.spark,
            trigger_interval=float(graph.trigger_interval),
        )

    # --- the end of a job ----------------------------------------------------------------------------------------

    async def _ended(self, details: j.JobDetails) -> None:
        """R26: the result first, then the cleanup, which goes on after a crash in the middle."""
        job_id = details.job_id
        master = self._masters[job_id]
        result = StoredResult(dirty=True, details=details, checkpoints=master.coordinator.statistics())
        await self._until_done(f"result of {job_id}", lambda: self._store.put_result(result))
        self._results[job_id] = result
        self.tasks.job(f"cleanup of {job_id}", self._clean_up(result))

    async def _clean_up(self, result: StoredResult) -> None:
        job_id = result.details.job_id
        master = self._masters.pop(job_id, None)
        if master is not None:
            with contextlib.suppress(MinflinkError):  # it would be noticed by its silence
                farewell = m.JobMasterEnded(job_id=job_id, leader_id=master.leader_id)
                await self._network.ask(RESOURCE_MANAGER, farewell, timeout=5.0)
            await master.aclose()
        if result.details.status is not j.JobStatus.FAILED:  # a failed job's are kept as long as its result
            await self._until_done(f"checkpoints of {job_id}", self._checkpoints_of(job_id).delete_tree)
        await self._until_done(f"blobs of {job_id}", lambda: self._blobs.delete_job(job_id))
        clean = msgspec.structs.replace(result, dirty=False)
        await self._until_done(f"result of {job_id}", lambda: self._store.put_result(clean))
        self._results[job_id] = clean

    def _checkpoints_of(self, job_id: JobId) -> Location:
        return self._storages.at(self.options.checkpoint_root).child(job_id)

    async def _until_done(self, what: str, action: Callable[[], Any]) -> None:
        """Repeat an idempotent step of storage work until it succeeds; the daemon's end is the only other way out."""
        pause = CLEANUP_PAUSE
        while True:
            try:
                await action()
                return
            except Exception as error:
                log.warning("a step after a job's end failed and is repeated", step=what, error=str(error), pause=pause)
                await self._clock.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _expire(self) -> None:
        while True:
            await self._clock.sleep(EXPIRY_INTERVAL)
            limit = self._clock.epoch_ms() - self.options.result_expiration * 1000
            for job_id, result in list(self._results.items()):
                if not result.dirty and 0 < result.details.end_ms < limit:
                    await self._checkpoints_of(job_id).delete_tree()
                    await self._store.delete_result(job_id)
                    del self._results[job_id]

    # --- requests ------------------------------------------------------------------------------------------------

    async def _list(self, _: j.ListJobs) -> tuple[j.JobOverview, ...]:
        return tuple(_overview(details) for details in self.details())

    async def _get(self, request: j.GetJob) -> j.JobDetails:
        return self._details(request.job_id)

    def _details(self, job_id: JobId) -> j.JobDetails:
        if (master := self._masters.get(job_id)) is not None:
            return master.details()
        if (result := self._results.get(job_id)) is not None:
            return result.details
        if (unrecovered := self._unrecovered.get(job_id)) is not None:
            return unrecovered.details()
        raise NotFound(f"there is no job {job_id}", hint="`minflinkd list --all` shows the jobs")

    async def _checkpoints(self, request: j.GetCheckpoints) -> j.JsonAnswer:
        self._details(request.job_id)
        if (master := self._masters.get(request.job_id)) is not None:
            found = master.coordinator.statistics()
        elif (result := self._results.get(request.job_id)) is not None:
            found = result.checkpoints
        else:
            found = statistics.CheckpointStatistics()
        if request.config:
            graph = self._details(request.job_id).graph
            options = checkpoint_options(self.options.job_master.checkpoints, graph)
            shown = statistics.config_to_flink_json(options)
        elif request.checkpoint_id is not None:
            shown = statistics.details_to_flink_json(found, request.checkpoint_id)
        else:
            shown = statistics.to_flink_json(found)
        return j.JsonAnswer(body=msgspec.json.encode(shown))

    async def _cancel(self, request: j.CancelJob) -> m.Done:
        details = self._details(request.job_id)
        master = self._masters.get(request.job_id)
        if master is None and not details.status.terminal:
            raise Conflict(
                f"job {request.job_id} is not recovered yet: {details.failures[0].error.message}",
                hint="cancel it when its JobMaster is up",
            )
        if master is None or details.status.terminal:
            raise Conflict(f"job {request.job_id} is {details.status.value} already")
        master.cancel()
        return m.Done()


def checkpoint_options(defaults: CheckpointOptions, graph: JobGraph) -> CheckpointOptions:
    """The daemon's options, where the job does not say otherwise."""
    job = graph.checkpointing
    return replace(
        defaults,
        mode=job.mode,
        interval=defaults.interval if job.interval is None else float(job.interval),
        timeout=defaults.timeout if job.timeout is None else float(job.timeout),
        min_pause=defaults.min_pause if job.min_pause is None else float(job.min_pause),
        num_retained=defaults.num_retained if job.num_retained is None else job.num_retained,
        tolerable_failed=(
            defaults.tolerable_failed if job.tolerable_failed_checkpoints is None else job.tolerable_failed_checkpoints
        ),
    )


def _overview(details: j.JobDetails) -> j.JobOverview:
    counts: dict[str, int] = {}
    for task in details.tasks:
        counts[task.state.value] = counts.get(task.state.value, 0) + 1
    return j.JobOverview(
        job_id=details.job_id,
        name=details.graph.name,
        status=details.status,
        start_ms=details.start_ms,
        end_ms=details.end_ms,
        last_modification_ms=max(details.timestamps.values(), default=details.start_ms),
        tasks=counts,
    )
