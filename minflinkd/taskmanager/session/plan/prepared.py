"""Keeps the plans that an analysis has built for the deployment that usually follows (H3).

So they need not be built between the last micro-batch of one version of a job and the first one of the next.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from minflinkd.jobgraph.model import Task
from minflinkd.jobgraph.params import names_secrets
from minflinkd.rpc.messages import JobContext
from minflinkd.runtime.ids import JobId, VertexId
from minflinkd.taskmanager.session.code.libraries import JobCode
from minflinkd.taskmanager.session.plan.plan import Plan

KEPT = 60.0  # seconds, not longer: a plan has its sources as they were when it was built
JOBS = 8  # at most, the latest ones: each plan is a Spark session with its views


@dataclass(frozen=True)
class PreparedTask:
    """A task with its plan. `inputs`: the schemas of exchanges that it was built with. `code`: held for this plan."""

    job: JobContext
    task: Task
    inputs: Mapping[VertexId, str]
    plan: Plan
    code: JobCode

    def release(self) -> None:
        self.plan.release()
        self.code.release()


class Prepared:
    """The prepared tasks of the latest jobs. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs: dict[JobId, tuple[float, list[PreparedTask]]] = {}  # expiry time and tasks; the latest job last

    def keep(self, job_id: JobId, tasks: list[PreparedTask]) -> None:
        """Keep the tasks of a job, in place of what was kept for it before."""
        with self._lock:
            dropped = self._jobs.pop(job_id, (0.0, []))[1]
            if tasks:
                self._jobs[job_id] = (self._clock() + KEPT, tasks)
            while len(self._jobs) > JOBS:
                dropped += self._jobs.pop(next(iter(self._jobs)))[1]
        _release(dropped)

    def take(self, job: JobContext, task: Task, inputs: Mapping[VertexId, str]) -> PreparedTask | None:
        """Take out the prepared task if it is exactly this one; otherwise return None. The caller releases it.

        A task with secrets is always built anew, since these may have changed.
        """
        self.drop_old()
        if any(map(names_secrets, task.vertices)):
            return None
        with self._lock:
            _, kept = self._jobs.get(job.job_id, (0.0, []))
            for prepared in kept:
                if (prepared.job, prepared.task, dict(prepared.inputs)) == (job, task, dict(inputs)):
                    kept.remove(prepared)
                    return prepared
        return None

    def drop_old(self) -> None:
        now = self._clock()
        with self._lock:
            old = [job_id for job_id, (until, _) in self._jobs.items() if until <= now]
            dropped = [task for job_id in old for task in self._jobs.pop(job_id)[1]]
        _release(dropped)


def _release(tasks: list[PreparedTask]) -> None:
    for task in tasks:
        task.release()
