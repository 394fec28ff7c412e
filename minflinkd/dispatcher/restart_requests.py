"""Requests for hot restarts (H1, H2, H9): checked and compared before anything that runs is stopped."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from minflinkd.blob.keys import BlobKey
from minflinkd.dispatcher import versions as v
from minflinkd.dispatcher.blobs import Blobs, artifact_keys
from minflinkd.dispatcher.job_run import JobRun
from minflinkd.dispatcher.job_store import StoredJob
from minflinkd.dispatcher.rescaling import rescaled
from minflinkd.dispatcher.state_fit import compare, held_state
from minflinkd.dispatcher.submission import Analyzer, ContextOf
from minflinkd.jobgraph.faults import InvalidJobGraph
from minflinkd.jobgraph.model import JobGraph, encode
from minflinkd.rpc import jobs as j
from minflinkd.rpc.messages import HeldState
from minflinkd.rpc.network import Mailbox
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.errors import Conflict
from minflinkd.runtime.ids import JobId, TaskId


class RestartRequests:
    """`run_of` raises NotFound, and Conflict for a job that has ended."""

    def __init__(
        self,
        *,
        analyzer: Analyzer,
        blobs: Blobs,
        clock: Clock,
        run_of: Callable[[JobId], JobRun],
        context: ContextOf,
    ) -> None:
        self._analyzer = analyzer
        self._blobs = blobs
        self._clock = clock
        self._run_of = run_of
        self._context = context
        self._checking: set[JobId] = set()

    def attach(self, mailbox: Mailbox) -> None:
        mailbox.on(j.HotRestartJob, self._restart)
        mailbox.on(j.RescaleJob, self._rescale)

    async def _rescale(self, request: j.RescaleJob) -> j.RestartAnswer:
        """Restart the job with another parallelism. Raises what `_restart` raises."""
        run = self._run_of(request.job_id)
        try:
            graph = rescaled(run.stored.graph, request.parallelism, request.vertices, request.least)
        except InvalidJobGraph as error:
            return j.RestartAnswer(job_id=request.job_id, faults=error.faults)
        document = encode(replace(graph, restore=None))
        return await self._restart(
            j.HotRestartJob(job_id=request.job_id, document=document, dry_run=request.dry_run, replace=request.replace)
        )

    async def _restart(self, request: j.HotRestartJob) -> j.RestartAnswer:
        """Check the new version, compare it, store it durably, begin the restart and answer.

        Raises NotFound, Conflict, NoSession, StorageError.
        """
        job_id, run = request.job_id, self._run_of(request.job_id)
        self._refuse_in_vain(run, request)
        self._checking.add(job_id)
        accepted = False
        try:
            answer, event = await self._check(run, request)
            if event is None:
                return answer
            if self._run_of(job_id) is not run or run.stored.cancelled:
                raise Conflict(f"job {job_id} was cancelled, or has ended, while its new version was checked")
            number = await run.restarting.request(event)
            accepted = True
            return replace(answer, number=number)
        finally:
            self._checking.discard(job_id)
            if not accepted and run.result is None:
                await self._blobs.hold(job_id, keys_of_versions(run.stored))

    def _refuse_in_vain(self, run: JobRun, request: j.HotRestartJob) -> None:
        """Refuse before the analysis what would be refused after it."""
        if run.job_id in self._checking:
            raise Conflict(f"another version of job {run.job_id} is being checked", hint="wait for its answer")
        if run.stored.cancelled:
            raise Conflict(f"job {run.job_id} is being cancelled")
        if run.restarting.under_way and not request.replace and not request.dry_run:
            raise Conflict(
                f"a hot restart of job {run.job_id} is under way", hint="wait for its end, or replace it (--replace)"
            )

    async def _check(self, run: JobRun, request: j.HotRestartJob) -> tuple[j.RestartAnswer, v.Requested | None]:
        """Check the new version. The event is None if no restart is to begin."""
        job_id, running = request.job_id, run.stored.graph
        latest = run.master.coordinator.latest() if run.master is not None else None
        snapshots = latest.tasks if latest is not None else ()

        async def held(graph: JobGraph) -> dict[TaskId, HeldState]:
            return held_state(graph, snapshots, self._context(job_id, graph).checkpoint_root)

        try:
            graph, analysis = await self._analyzer.analyze(
                job_id, request.document, self._context, held=held, beside=keys_of_versions(run.stored)
            )
        except InvalidJobGraph as error:
            return j.RestartAnswer(job_id=job_id, faults=error.faults), None
        # If the job has a checkpoint of its own, that counts. If not, the new version starts as the old one was
        # started.
        graph = replace(graph, restore=running.restore)
        allow, plans = request.allow_non_restored_state, analysis.operators
        changes, faults = compare(
            running,
            graph,
            snapshots,
            plans,
            analysis.verdicts,
            allow_non_restored=allow,
            allow_changed=request.allow_changed_state,
        )
        answer = j.RestartAnswer(job_id=job_id, faults=faults, changes=changes)
        if faults or request.dry_run:
            return answer, None
        return answer, v.Requested(
            graph,
            allow_non_restored=allow,
            allow_changed=request.allow_changed_state,
            final=not request.latest,
            replace=request.replace,
        )


def keys_of_versions(stored: StoredJob) -> frozenset[BlobKey]:
    """Return the artifacts of all versions that may be brought up. Raises InvalidId."""
    graphs = [stored.graph]
    if stored.versions is not None and (restart := stored.versions.restart) is not None:
        graphs += [restart.target, *([restart.old.graph] if restart.old is not None else [])]
    return frozenset[BlobKey]().union(*map(artifact_keys, graphs))
