"""Finds out what has changed since the last look, and makes events of it. Pure.

What is compared are the parties' answers, not the JSON: in that, a duration changes with every look.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec.structs import replace

from minflinkd.checkpoint.statistics import CheckpointStatistics
from minflinkd.metrics.history.series import Value
from minflinkd.rest.backend import encode
from minflinkd.rest.checkpoints_json import statistics_json
from minflinkd.rest.events.log import Event, Parts
from minflinkd.rest.exceptions import exceptions_of
from minflinkd.rest.history.sampler import JobSample, Sample
from minflinkd.rest.jobs import job_info, job_summary
from minflinkd.rest.schemas import ClusterOverview
from minflinkd.rest.taskmanagers import Assigned, assigned_tasks, task_managers_of
from minflinkd.rpc.jobs import JobDetails, JobOverview
from minflinkd.rpc.messages import TaskManagerInfo
from minflinkd.runtime.ids import JobId

MOST_EXCEPTIONS: Final = 20  # as many as GET .../exceptions answers by default
# A list of 1,000 TaskManagers has 2 MB. It is sent as often as that makes so many bytes a second for a subscriber.
BYTES_PER_SECOND: Final = 200_000
SELDOM: Final = 10.0  # seconds between two lists if nothing but figures of processes have changed


class ClusterChanges:
    """What `/events` tells of."""

    def __init__(self) -> None:
        self._jobs: dict[JobId, JobOverview] = {}
        self._overview: ClusterOverview | None = None
        self._task_managers: tuple[TaskManagerInfo, ...] | None = None
        self._steady: tuple[tuple[TaskManagerInfo, ...], Assigned] | None = None
        self._sent_at = float("-inf")
        self._pace = 0.0  # seconds that the last list is worth

    def of_jobs(self, jobs: Iterable[JobOverview], now_ms: int) -> Iterator[Event]:
        found = {job.job_id: job for job in jobs}
        for job_id, job in self._jobs.items():
            now = found.get(job_id)
            if now is None or now.name != job.name:  # who could see it by its old name must learn that, too
                data = encode({"jid": job_id})
                yield Event("job-gone", data, key=f"job/{job_id}", job_name=job.name, gone=True)
        for job_id, job in found.items():
            if self._jobs.get(job_id) != job:
                yield Event("job", encode(job_summary(job, now_ms)), key=f"job/{job_id}", job_name=job.name)
        self._jobs = found

    def of_overview(self, overview: ClusterOverview) -> Iterator[Event]:
        if overview != self._overview:
            self._overview = overview
            yield Event("overview", encode(overview), key="overview")

    def of_task_managers(self, known: tuple[TaskManagerInfo, ...], now: float) -> Iterator[Event]:
        """`now`: seconds that never go back. A change that comes too soon is told of later. Call `of_jobs` before."""
        assigned = assigned_tasks(self._jobs.values())
        moved = self._steady is not None and assigned != self._steady[1]
        if (known == self._task_managers and not moved) or now < self._sent_at + self._pace:
            return
        steady = (tuple(map(_without_figures, known)), assigned)
        if steady == self._steady and now < self._sent_at + max(SELDOM, 10 * self._pace):
            return
        data = encode(task_managers_of(known, assigned))
        self._task_managers, self._steady, self._sent_at = known, steady, now
        self._pace = len(data) / BYTES_PER_SECOND
        yield Event("taskmanagers", data, key="taskmanagers")


class JobChanges:
    """What `/jobs/:jobid/events` tells of."""

    def __init__(self) -> None:
        self._details: JobDetails | None = None
        self._checkpoints: CheckpointStatistics | None = None

    def of(self, details: JobDetails, checkpoints: CheckpointStatistics, now_ms: int) -> Iterator[Event]:
        before = self._details
        if details != before:
            self._details = details
            yield Event("job", encode(job_info(details, now_ms)), key="job")
        if checkpoints != self._checkpoints:
            self._checkpoints = checkpoints
            yield Event("checkpoints", encode(statistics_json(checkpoints)), key="checkpoints")
        if before is None or details.failures != before.failures:
            yield Event("exceptions", encode(exceptions_of(details, limit=MOST_EXCEPTIONS)), key="exceptions")


def sample_of_cluster(sample: Sample) -> Event:
    head = b'{"at":%d,"cluster":%s,"jobs":{' % (sample.at_ms, encode(dict(sample.cluster)))

    def joined(pieces: list[bytes]) -> bytes:
        return head + b",".join(pieces) + b"}}"

    pieces = tuple((job.name, _piece(job_id, job)) for job_id, job in sample.jobs.items())
    return Event("sample", joined([piece for _, piece in pieces]), parts=Parts(pieces, joined))


def sample_of_job(at_ms: int, job: JobSample) -> Event:
    tasks = {task: _shortened(values) for task, values in job.values.tasks_by_name().items()}
    return Event("sample", encode({"at": at_ms, "job": _shortened(job.values.job_by_name()), "tasks": tasks}))


def _piece(job_id: JobId, job: JobSample) -> bytes:
    return b'"%s":%s' % (job_id.encode(), encode(_shortened(job.values.job_by_name())))


def _shortened(values: Mapping[str, Value]) -> dict[str, Any]:
    """Return the values with as many digits as the past keeps of them."""
    return {name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in values.items()}


def _without_figures(info: TaskManagerInfo) -> TaskManagerInfo:
    return replace(info, last_heartbeat_ms=0, report=replace(info.report, metrics={}))
