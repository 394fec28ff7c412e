"""Turns what is known of a job at one moment into the values of its series. Pure.

Rates are made of counters: rows since the previous sample, over the time since then. A micro-batch counts its rows when
it ends. So if one takes longer than the time between two samples, its rows are spread over as many samples as it took.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from minflinkd.checkpoint.row_counts import sink_rows, source_rows
from minflinkd.checkpoint.statistics import CheckpointStatistics
from minflinkd.metrics.history.series import FINE_MS, JOB, PHASES, TASK, Value
from minflinkd.rpc.jobs import ExecutionState, JobDetails, JobStatus, TaskDetails

MOST_SPREAD: Final = 12  # samples
# The daemon has just begun to look for the tasks: it is not known what they do.
_UNKNOWN: Final = frozenset({JobStatus.RECONCILING, JobStatus.INITIALIZING})


class _Counted(NamedTuple):
    at_ms: int
    rows_in: int
    rows_out: int
    source_rows: int
    sink_rows: int


_NOTHING: Final = _Counted(0, 0, 0, 0, 0)


class Measured(NamedTuple):
    """`None` instead of a value: it is not known."""

    job: Sequence[Value]  # in the order of JOB
    tasks: dict[str, Sequence[Value]]  # by task, in the order of TASK

    def job_by_name(self) -> dict[str, Value]:
        return dict(zip(JOB.names, self.job, strict=True))

    def tasks_by_name(self) -> dict[str, dict[str, Value]]:
        return {task: dict(zip(TASK.names, values, strict=True)) for task, values in self.tasks.items()}


@dataclass
class _Attempt:
    """What earlier samples have shown of an attempt."""

    attempt_id: str
    counted: deque[_Counted] = field(default_factory=lambda: deque(maxlen=MOST_SPREAD))
    batch_id: int = -1
    held: bool = False
    held_ms: float | None = None  # of backpressure that samples have shown so far; None: not known


class JobMeter:
    """Keeps what is needed to compare a sample of a job with those before it."""

    def __init__(self) -> None:
        self._attempts: dict[str, _Attempt] = {}
        self._looked = False

    def measure(self, details: JobDetails, checkpoints: CheckpointStatistics | None, now_ms: int) -> Measured:
        if details.status in _UNKNOWN:
            self._attempts, self._looked = {}, False
            return Measured(_of_job(details, checkpoints, None, None), {})
        tasks: dict[str, Sequence[Value]] = {}
        rates: list[tuple[Value, Value]] = []
        for task in details.tasks:
            tasks[str(task.task.id)], of_job = self._task(task, now_ms)
            rates.append(of_job)
        self._attempts = {name: one for name, one in self._attempts.items() if name in tasks}
        self._looked = True
        return Measured(_of_job(details, checkpoints, _sum(r[0] for r in rates), _sum(r[1] for r in rates)), tasks)

    def _task(self, details: TaskDetails, now_ms: int) -> tuple[Sequence[Value], tuple[Value, Value]]:
        """Return the values of a task, and its part of the job's two rates."""
        name, metrics = str(details.task.id), details.metrics
        if details.attempt_id is None or details.state not in (ExecutionState.RUNNING, ExecutionState.FINISHED):
            self._attempts.pop(name, None)
            self._attempts[name] = _Attempt("")  # the next attempt begins under this one's eyes
            return [0.0, 0.0, *[None] * (len(TASK.series) - 2)], (0.0, 0.0)
        known = self._attempts.get(name)
        if known is None or known.attempt_id != details.attempt_id:
            seen_from_start = known is not None or self._looked
            known = self._attempts[name] = _Attempt(details.attempt_id)
            if seen_from_start:
                known.counted.append(_NOTHING._replace(at_ms=now_ms - FINE_MS))
                known.held_ms = 0.0
        rates = _rates(known, _counted(details, now_ms), metrics.batch_ms)
        share = _backpressure(known, details, now_ms)
        known.batch_id = metrics.batch_id
        begun = metrics.batches > 0
        lag = (now_ms - metrics.watermark_ms) / 1000 if metrics.watermark_ms else None
        phases = [ms / 1000 if (ms := metrics.batch_phases.get(name)) is not None else None for name in PHASES]
        values: list[Value] = [
            rates[0],
            rates[1],
            metrics.batch_ms / 1000 if begun else None,
            metrics.state_rows if begun else None,
            metrics.state_bytes if begun else None,
            lag,
            share,
            metrics.output_backlog,
            *phases,
        ]
        return values, (rates[2], rates[3])


def _counted(details: TaskDetails, now_ms: int) -> _Counted:
    metrics = details.metrics
    sources, sinks = source_rows(details.task, metrics.rows), sink_rows(details.task, metrics.rows)
    return _Counted(now_ms, metrics.rows_in, metrics.rows_out, sources, sinks)


def _rates(known: _Attempt, now: _Counted, batch_ms: float) -> tuple[Value, Value, Value, Value]:
    """Return the rates since as many samples as the last micro-batch took, at least since the previous one."""
    spread = max(1, min(MOST_SPREAD, -(-int(batch_ms) // FINE_MS)))
    before = known.counted[-min(spread, len(known.counted))] if known.counted else None
    known.counted.append(now)
    if before is None or now.at_ms <= before.at_ms:
        return (None, None, None, None)
    seconds = (now.at_ms - before.at_ms) / 1000
    one, two, three, four = (max(0, new - old) / seconds for new, old in zip(now[1:], before[1:], strict=True))
    return (one, two, three, four)


def _backpressure(known: _Attempt, details: TaskDetails, now_ms: int) -> Value:
    """Return for which share of the time since the previous sample the task was held back.

    A task that is held back says so when it begins and when it ends, and perhaps nothing in between.
    """
    metrics = details.metrics
    before, shown = (known.counted[-2].at_ms if len(known.counted) > 1 else None), known.held_ms
    was_held, known.held = known.held, metrics.backpressured
    if shown is None or before is None:
        known.held_ms = metrics.backpressured_ms
        return None
    passed = now_ms - before
    if passed <= 0:
        return None
    if was_held and metrics.backpressured and metrics.batch_id == known.batch_id:
        known.held_ms = shown + passed
        return 1.0
    known.held_ms = max(shown, metrics.backpressured_ms)
    return min(1.0, max(0.0, metrics.backpressured_ms - shown) / passed)


def _of_job(
    details: JobDetails, checkpoints: CheckpointStatistics | None, rows_in: Value, rows_out: Value
) -> list[Value]:
    last = None if checkpoints is None else checkpoints.latest_completed
    return [
        rows_in,
        rows_out,
        None if last is None else last.duration_ms / 1000,
        None if last is None else last.bytes_full,
        details.restarts,
        details.pending_records,
    ]


def _sum(values: Iterable[Value]) -> Value:
    found = list(values)
    known = [value for value in found if value is not None]
    return float(sum(known)) if len(known) == len(found) else None
