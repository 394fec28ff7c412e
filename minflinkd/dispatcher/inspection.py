"""Answers questions about jobs: those that run, those that have ended, and those that cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec.structs import replace

from minflinkd.checkpoint import messages as c
from minflinkd.checkpoint.offsets import Offsets, read_offsets
from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.checkpoint.statistics import CheckpointStatistics
from minflinkd.dispatcher.job_list import JobList
from minflinkd.dispatcher.job_results import JobResults
from minflinkd.dispatcher.job_run import JobRun, waiting
from minflinkd.dispatcher.job_store import StoredJob, Unreadable
from minflinkd.dispatcher.quotas import Balance, QuotaBook
from minflinkd.jobgraph.model import JobGraph
from minflinkd.rpc import jobs as j
from minflinkd.rpc.network import Mailbox
from minflinkd.runtime.errors import ErrorInfo, NotFound, in_a_line
from minflinkd.runtime.ids import AllocationId, JobId
from minflinkd.storage.interface import ObjectNotFound
from minflinkd.storage.location import Location


class Inspection:
    """`runs`, `results` and `unreadable` are the Dispatcher's own, not copies."""

    def __init__(
        self,
        *,
        runs: Mapping[JobId, JobRun],
        results: JobResults,
        unreadable: Mapping[JobId, j.JobDetails],
        checkpoint_options: Callable[[JobGraph], CheckpointOptions],
        checkpoints_of: Callable[[JobId], Location],
        quotas: QuotaBook,
    ) -> None:
        self._quotas = quotas
        self._runs = runs
        self._results = results
        self._unreadable = unreadable
        self._checkpoint_options = checkpoint_options
        self._checkpoints_of = checkpoints_of
        self._list = JobList(ids=self._ids, overview=self._overview)

    def attach(self, mailbox: Mailbox) -> None:
        mailbox.on(j.ListJobs, self._list_jobs)
        mailbox.on(j.GetJob, self._get)
        mailbox.on(c.GetCheckpoints, self._checkpoints)
        mailbox.on(c.GetCheckpointOptions, self._options)
        mailbox.on(c.GetOffsets, self._offsets)
        mailbox.on(j.GetQuotas, self._get_quotas)

    def all(self) -> tuple[j.JobDetails, ...]:
        return (*(run.details() for run in self._runs.values()), *self._others())

    def _others(self) -> Iterator[j.JobDetails]:
        yield from self._unreadable.values()
        yield from (result.details for result in self._results.all() if result.details.job_id not in self._runs)

    def changed(self, job_id: JobId) -> None:
        """The job may look different in the list, or may be new there, or gone (see JobList)."""
        self._list.changed(job_id)

    async def _list_jobs(self, _: j.ListJobs) -> tuple[j.JobOverview, ...]:
        return await self._list.all()

    def _ids(self) -> Iterable[JobId]:
        ended = (result.details.job_id for result in self._results.all())
        return dict.fromkeys((*self._runs, *self._unreadable, *ended))

    def _overview(self, job_id: JobId) -> j.JobOverview | None:
        if (run := self._runs.get(job_id)) is not None:
            return _overview(run.details(), run.checkpoints_in_brief())
        if (result := self._results.get(job_id)) is not None:
            return _overview(result.details)
        unreadable = self._unreadable.get(job_id)
        return None if unreadable is None else _overview(unreadable)

    async def _get(self, request: j.GetJob) -> j.JobDetails:
        return self.details(request.job_id)

    def details(self, job_id: JobId) -> j.JobDetails:
        """Raises NotFound."""
        if (run := self._runs.get(job_id)) is not None:
            return run.details()
        if (result := self._results.get(job_id)) is not None:
            return result.details
        if (unreadable := self._unreadable.get(job_id)) is not None:
            return unreadable
        raise NotFound(f"there is no job {job_id}", hint="`minflinkd list --all` shows the jobs")

    async def _checkpoints(self, request: c.GetCheckpoints) -> CheckpointStatistics:
        self.details(request.job_id)
        if (run := self._runs.get(request.job_id)) is not None:
            return run.checkpoints()
        if (result := self._results.get(request.job_id)) is not None:
            return result.checkpoints
        return CheckpointStatistics()

    async def _options(self, request: c.GetCheckpointOptions) -> CheckpointOptions:
        return self._checkpoint_options(self.details(request.job_id).graph)

    async def _get_quotas(self, request: j.GetQuotas) -> tuple[j.UserQuota, ...]:
        users = {request.user} | (self._quotas.users() if request.everybody else frozenset())
        return tuple(_quota(user, self._quotas.balances(user)) for user in sorted(users))

    async def _offsets(self, request: c.GetOffsets) -> Offsets:
        """Return the job's offsets. For a job without a JobMaster, they are the last recorded ones."""
        self.details(request.job_id)
        run = self._runs.get(request.job_id)
        if run is not None and run.master is not None:
            return run.master.offsets()
        try:
            return await read_offsets(self._checkpoints_of(request.job_id))
        except ObjectNotFound:
            return Offsets(job_id=request.job_id)


def _overview(details: j.JobDetails, checkpoints: j.CheckpointsInBrief | None = None) -> j.JobOverview:
    counts: dict[str, int] = {}
    assigned: dict[AllocationId, int] = {}
    for task in details.tasks:
        counts[task.state.value] = counts.get(task.state.value, 0) + 1
        if task.allocation_id is not None:
            assigned[task.allocation_id] = assigned.get(task.allocation_id, 0) + 1
    return j.JobOverview(
        job_id=details.job_id,
        name=details.graph.name,
        status=details.status,
        start_ms=details.start_ms,
        end_ms=details.end_ms,
        last_modification_ms=max(details.timestamps.values(), default=details.start_ms),
        tasks=counts,
        owner=details.owner,
        mode=details.graph.mode,
        assigned=assigned,
        on_trial=details.on_trial,
        restarts=details.restarts,
        repeated=None if details.repeated is None else _briefly(details.repeated),
        next_restart_ms=details.next_restart_ms,
        waiting=in_a_line(" ".join(details.waiting)),
        last_failure=_in_a_line(details.failures[0]) if details.failures else None,
        checkpoints=checkpoints,
    )


def _quota(user: str, balances: Mapping[str, Balance]) -> j.UserQuota:
    shown = {kind: j.QuotaBalance(used=each.used, limit=each.limit.most) for kind, each in balances.items()}
    return j.UserQuota(user=user, **shown)


def _briefly(found: j.RepeatedFailures) -> j.RepeatedFailures:
    """Shorten the message: it may have thousands of characters, and jobs are listed often, and all at once."""
    return replace(found, last=_in_a_line(found.last))


def _in_a_line(failure: j.FailureRecord) -> j.FailureRecord:
    error = replace(failure.error, message=in_a_line(failure.error.message), traceback="")
    return replace(failure, error=error)


def unreadable_details(record: Unreadable, now_ms: int) -> j.JobDetails:
    """R27: Return details that list an unreadable job with its error, as a job that does not come up."""
    graph = JobGraph(name=f"unreadable {record.job_id}", vertices=())
    error = ErrorInfo(
        code="unreadable-job",
        message=f"{record.path} cannot be read: {record.reason}",
        hint="nothing of the job was changed; restore or delete this record, then restart the daemon (a path that "
        "begins with zookeeper: is below the cluster's node `records`)",
    )
    details = waiting(StoredJob(job_id=record.job_id, submitted_ms=now_ms, graph=graph))
    return replace(details, failures=(j.FailureRecord(timestamp_ms=now_ms, error=error),))
