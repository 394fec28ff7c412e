"""What the daemons keep of jobs: the real job store, over the real records in the modelled ZooKeeper."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.checkpoint.store import CheckpointStore
from minflinkd.dispatcher.job_store import JobStore, StoredJob, StoredResult, Unreadable
from minflinkd.dispatcher.versions import Version, Versions
from minflinkd.jobgraph.model import JobGraph
from minflinkd.rpc.jobs import JobDetails, JobStatus
from minflinkd.runtime.ids import JobId
from tests.sim.protocol.journal import Violation

if TYPE_CHECKING:
    from tests.sim.election.daemon import Leadership
    from tests.sim.election.world import ElectionWorld
    from tests.sim.protocol.world import Job


def narrower(groups: tuple[int, ...]) -> tuple[int, ...]:
    """Return what the next version of a job wants that `narrows`."""
    return tuple(max(1, slots - 1) for slots in groups)


class Records:
    def __init__(self, world: ElectionWorld) -> None:
        self._world = world

    def of(self, leadership: Leadership) -> JobStore:
        assert leadership.records is not None
        return JobStore(leadership.records, shared=True)

    async def jobs(self, leadership: Leadership) -> dict[JobId, tuple[StoredJob | None, JobStatus | None]]:
        """Return the stored jobs, and the results. Raises MinflinkError."""
        store = self.of(leadership)
        found: dict[JobId, tuple[StoredJob | None, JobStatus | None]] = {}
        for result in await store.results(await store.result_ids()):
            if isinstance(result, Unreadable):
                raise Violation(f"a result cannot be read: {result.reason}")
            found[result.details.job_id] = (None, result.details.status)
        for job in await store.jobs():
            if isinstance(job, Unreadable):
                raise Violation(f"a job cannot be read: {job.reason}")
            if job.job_id not in found:
                found[job.job_id] = (job, None)
        return found

    async def put_job(self, leadership: Leadership, job: Job) -> None:
        stored = StoredJob(job_id=job.job_id, submitted_ms=0, graph=_graph(job.plan.groups))
        await self.of(leadership).put_job(stored)
        self._world.rules.counts(leadership, "a job")

    async def cancel(self, leadership: Leadership, job: Job) -> None:
        await self.of(leadership).mark_cancelled(job.job_id)
        self._world.rules.counts(leadership, "a cancellation")

    async def put_result(self, leadership: Leadership, job: Job, status: JobStatus) -> None:
        graph = _graph(job.plan.groups)
        details = JobDetails(
            job_id=job.job_id, graph=graph, status=status, start_ms=0, end_ms=0, timestamps={}, tasks=()
        )
        await self.of(leadership).put_result(StoredResult(dirty=True, details=details))
        self._world.rules.counts(leadership, "a result")

    async def put_next_version(self, leadership: Leadership, job: Job) -> None:
        """Store the version that follows, if it differs."""
        if not job.plan.narrows:
            return
        store = self.of(leadership)
        number = await store.last_version_number(job.job_id) + 1
        versions = Versions(current=Version(graph=_graph(narrower(job.plan.groups))))
        await store.put_versions(job.job_id, number, versions)
        self._world.rules.counts(leadership, "a version")


class Checkpoints(CheckpointStore):
    """The real store of one job's checkpoints."""

    def __init__(self, world: ElectionWorld, leadership: Leadership, job_id: JobId) -> None:
        super().__init__(
            world.checkpoints_of(job_id),
            job_id=job_id,
            epoch=leadership.epoch,
            turn=leadership.turn(job_id),
            leads=lambda: leadership.daemon.elector.leads(leadership.epoch),
            pointers=world.store.of(leadership).pointers(job_id),
        )
        self._leadership = leadership
        self._rules = world.rules

    async def write(self, checkpoint: CompletedCheckpoint) -> None:
        await super().write(checkpoint)
        self._rules.counts(self._leadership, f"checkpoint {checkpoint.checkpoint_id}")


def groups_of(stored: StoredJob) -> tuple[int, ...]:
    return tuple(stored.history().current.graph.params["groups"])


def with_groups(job: Job, groups: tuple[int, ...]) -> None:
    job.plan = replace(job.plan, groups=groups)


def _graph(groups: tuple[int, ...]) -> JobGraph:
    return JobGraph(name="sim", vertices=(), params={"groups": list(groups)})
