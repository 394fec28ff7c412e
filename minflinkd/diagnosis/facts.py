"""What is known of a job or the cluster at one moment. A missing fact leads to fewer findings, never to an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from minflinkd.checkpoint.statistics import CheckpointStatistics
from minflinkd.rpc.jobs import ExecutionState, JobDetails, JobOverview, JobStatus, TaskDetails
from minflinkd.rpc.messages import ResourceOverview, TaskManagerInfo
from minflinkd.runtime.ids import TaskId

Series = Sequence[float | None]


@dataclass(frozen=True)
class History:
    """What was measured before, oldest first, `step_ms` apart. None: nothing is known of that time."""

    step_ms: int = 0
    series: Mapping[str, Series] = field(default_factory=dict)

    def known(self, name: str, last_ms: int | None = None) -> list[float]:
        """Return the known values of a series, or those of its last `last_ms`."""
        values = self.series.get(name, ())
        if last_ms is not None and self.step_ms:
            values = values[-max(1, last_ms // self.step_ms) :]
        return [value for value in values if value is not None]


NO_HISTORY = History()


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    now: int  # milliseconds since 1970, as all times here
    details: JobDetails
    checkpoints: CheckpointStatistics | None = None
    resources: ResourceOverview | None = None
    task_managers: tuple[TaskManagerInfo, ...] = ()
    silent_after: int = 3000  # milliseconds; see `silence`
    tasks: Mapping[TaskId, History] = field(default_factory=dict)  # the history of each

    @property
    def running(self) -> bool:
        return self.details.status is JobStatus.RUNNING

    def running_tasks(self) -> Iterator[TaskDetails]:
        if self.running:
            yield from (task for task in self.details.tasks if task.state is ExecutionState.RUNNING)

    def history_of(self, task: TaskDetails) -> History:
        return self.tasks.get(task.task.id, NO_HISTORY)


@dataclass(frozen=True)
class Disk:
    """A file system that the daemon writes to."""

    path: str
    free: int
    total: int


@dataclass(frozen=True, kw_only=True)
class ClusterFacts:
    now: int
    jobs: tuple[JobOverview, ...] = ()
    resources: ResourceOverview | None = None
    task_managers: tuple[TaskManagerInfo, ...] = ()
    silent_after: int = 3000  # milliseconds; see `silence`
    disks: tuple[Disk, ...] = ()
    history: History = NO_HISTORY


def silent_after(interval: float, timeout: float) -> float:
    """Return the seconds of silence that are unusual: a heartbeat is missing, and there is still time to look."""
    return (interval + timeout) / 2


def silence(facts: JobFacts | ClusterFacts, info: TaskManagerInfo) -> int | None:
    """Return for how many milliseconds a TaskManager has been silent; None if that is not unusual."""
    age = facts.now - info.last_heartbeat_ms
    return age if age >= facts.silent_after else None
