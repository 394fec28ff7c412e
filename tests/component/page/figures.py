"""Made-up figures of jobs that always are the same: a past in the daemon's book, and samples that go on with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from minflinkd.metrics.history.book import HistoryBook, Mark, MarkKind
from minflinkd.metrics.history.series import CLUSTER, FINE_MS, JOB, PHASES, TASK, Value
from minflinkd.rest.history.measured import Measured
from minflinkd.rest.history.sampler import JobSample, Sample
from minflinkd.rpc.jobs import JobDetails

Figure = Callable[[str, int], float]
_LENGTHS = (0.1, 0.05, 0.2, 0.15, 1.4, 0.1)  # of the phases, in seconds


def fill(book: HistoryBook, jobs: Iterable[JobDetails], now_ms: int, slots: int) -> None:
    """Put down what was measured of these jobs in so many slots before now, and what has happened to them."""
    last = now_ms // FINE_MS
    for slot in range(last - slots, last + 1):
        book.cluster.put(slot, [_of_cluster(slot * FINE_MS)[name] for name in CLUSTER.names])
    for job in jobs:
        past = book.heard_of(job.job_id, job.graph.name, now_ms)
        assert past is not None
        for slot in range(last - slots, last + 1):
            found = _measured(job, slot * FINE_MS)
            book.put(past, slot, found.job, found.tasks)
        past.mark(_marks(now_ms), now_ms)


def sample(jobs: Iterable[JobDetails], at_ms: int) -> Sample:
    found = {job.job_id: JobSample(job.graph.name, _measured(job, at_ms)) for job in jobs if job.end_ms < 0}
    return Sample(at_ms, _of_cluster(at_ms), found)


def _marks(now_ms: int) -> list[Mark]:
    return [
        Mark(now_ms - 1_900_000, MarkKind.RESTART, "TaskManager tm-ba9876543210 was lost"),
        Mark(now_ms - 1_888_000, MarkKind.RECOVERED, "after 12.1 s from checkpoint 41"),
        Mark(now_ms - 1_100_000, MarkKind.HOT_RESTART, "hot restart 1: completed, running after 1.6 s"),
        Mark(now_ms - 190_000, MarkKind.CHECKPOINT_FAILED, "checkpoint 57: the storage does not answer"),
        Mark(now_ms - 100_000, MarkKind.SAVEPOINT, "savepoint 60, 0.3 s"),
    ]


def _measured(job: JobDetails, at_ms: int) -> Measured:
    tasks = {str(task.task.id): [of(task.task.id, at_ms) for of in _OF_TASK] for task in job.tasks}
    own: dict[str, Value] = {
        "rows_in_per_second": _rate(job.job_id, at_ms),
        "rows_out_per_second": _small(job.job_id, at_ms),
        "checkpoint_duration": _lasted(job.job_id, at_ms),
        "checkpoint_bytes": round(_wave(job.job_id, at_ms) * 48_000_000),
        "restarts": job.restarts,
        "pending_records": job.pending_records,
    }
    return Measured([own[name] for name in JOB.names], tasks)


def _of_cluster(at_ms: int) -> dict[str, Value]:
    lag = round(_wave("lag", at_ms) * 0.004, 5)
    return {
        "slots_total": 8,
        "slots_free": 3,
        "task_managers": 3,
        "jobs_running": 3,
        "loop_lag": lag,
        "rpc_per_second": round(_wave("rpc", at_ms) * 40, 1),
        "rpc_unanswered_per_second": 0.0,
        "rpc_slowest": round(_wave("slowest", at_ms) * 0.03, 4),
        "rpc_in_flight": 1,
    }


def _wave(name: str, at_ms: int) -> float:
    """Return the same number between 0 and 1 for the same name and time."""
    seed = sum(map(ord, name))
    slow = math.sin(at_ms / 400_000 + seed) + math.sin(at_ms / 90_000 + 2 * seed) / 3
    return max(0.0, min(1.0, (slow + math.sin(at_ms / 31_000 + 3 * seed) / 12 + 1.6) / 3.2))


def _rate(name: str, at_ms: int) -> float:
    return round(_wave(name, at_ms) * 20_000)


def _small(name: str, at_ms: int) -> float:
    return round(_wave(name + "out", at_ms) * 300)


def _lasted(name: str, at_ms: int) -> float:
    return round(_wave(name + "d", at_ms) * 2.5, 3)


def _phase(most: float) -> Figure:
    return lambda name, at_ms: round(_wave(name, at_ms) * most, 4)


_BY_NAME: dict[str, Figure] = {
    "rows_in_per_second": _rate,
    "rows_out_per_second": _small,
    "batch_duration": _lasted,
    "state_rows": lambda name, at_ms: round(_wave(name, at_ms) * 90_000),
    "state_bytes": lambda name, at_ms: round(_wave(name, at_ms) * 48_000_000),
    "watermark_lag": lambda name, at_ms: round(_wave(name + "w", at_ms) * 90, 1),
    "backpressured": lambda name, at_ms: round(max(0.0, _wave(name + "h", at_ms) - 0.45), 3),
    "output_backlog": lambda name, at_ms: round(_wave(name + "b", at_ms) * 3_000_000),
    **{f"phase_{name}": _phase(most) for name, most in zip(PHASES, _LENGTHS, strict=True)},
}
_OF_TASK = [_BY_NAME[name] for name in TASK.names]
