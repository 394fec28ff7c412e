"""The record of a job's failures and restarts, for every later JobMaster of the job.

It is `history.json` next to the job's checkpoints. It holds how often the job restarted, the state of its restart
strategy, the failures in a row, the last failures, checkpoint counts (for completed ones, the metadata has them as
well), and whether the job was RUNNING. It is written right after each failure and each start, and when a JobMaster ends
normally. If a daemon is killed, at most the last second is lost. Times are wall-clock, since every process starts its
monotonic clock anew.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace as copy

from minflinkd.checkpoint.statistics import CheckpointCounts
from minflinkd.jobmaster.scheduler.events import Past
from minflinkd.jobmaster.scheduler.restart import RestartHistory
from minflinkd.jobmaster.scheduler.state import JobState
from minflinkd.jobmaster.scheduler.streak import Failure, Streak
from minflinkd.rpc.jobs import FailureRecord

FILE = "history.json"
VERSION = 1
KEPT_FAILURES = 8  # in storage
KEPT_TEXT = 8000  # characters of a message, and of a traceback, which ends with what was raised

WallClock = Callable[[float], int]  # seconds of the injected clock -> milliseconds since 1970
OwnClock = Callable[[int], float]  # the inverse


class StrategyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`RestartHistory`, with `backoff` in seconds."""

    failures_ms: tuple[int, ...] = ()
    backoff: float = 0.0
    attempts: int = 0


class StreakRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`Streak`, with `ran` in seconds."""

    failures: int = 0
    since_ms: int = 0
    ran: float = 0.0
    last: FailureRecord | None = None


class JobHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The record. New fields must have a default."""

    version: int = VERSION
    restarts: int = 0
    strategy: StrategyRecord = StrategyRecord()
    streak: StreakRecord = StreakRecord()
    failures: tuple[FailureRecord, ...] = ()  # newest first
    checkpoints: CheckpointCounts = CheckpointCounts()
    running: str = ""  # the version that was RUNNING; empty if none was, or its tasks ended with the daemon

    def of_another_version(self) -> JobHistory:
        """Return the history for a version that replaces the failed one: its restart strategy starts afresh."""
        return copy(self, strategy=StrategyRecord(), running="")


def history_of(state: JobState, checkpoints: CheckpointCounts, wall: WallClock, *, version: str) -> JobHistory:
    return JobHistory(
        restarts=state.restarts,
        strategy=StrategyRecord(
            failures_ms=tuple(map(wall, state.history.failures)),
            backoff=state.history.backoff,
            attempts=state.history.attempts,
        ),
        streak=StreakRecord(
            failures=state.streak.failures,
            since_ms=wall(state.streak.since) if state.streak.failures else 0,
            ran=state.streak.ran,
            last=None if state.streak.last is None else record_of(state.streak.last, wall),
        ),
        failures=tuple(record_of(failure, wall) for failure in reversed(state.failures)),
        checkpoints=checkpoints,
        running="" if state.running is None else version,
    )


def past_of(history: JobHistory, own: OwnClock) -> Past:
    strategy, streak = history.strategy, history.streak
    return Past(
        restarts=history.restarts,
        history=RestartHistory(
            failures=tuple(map(own, strategy.failures_ms)), backoff=strategy.backoff, attempts=strategy.attempts
        ),
        streak=Streak(
            failures=streak.failures,
            since=own(streak.since_ms),
            ran=streak.ran,
            last=None if streak.last is None else _failure(streak.last, own),
        ),
        failures=tuple(_failure(record, own) for record in reversed(history.failures)),
    )


def record_of(failure: Failure, wall: WallClock) -> FailureRecord:
    return copy(failure.record, timestamp_ms=wall(failure.at))


def encode(history: JobHistory) -> bytes:
    """Encode for storage: the last failures, each with the start of its message and the end of its traceback."""
    failures = tuple(_short(record) for record in history.failures[:KEPT_FAILURES])
    last = history.streak.last
    streak = copy(history.streak, last=None if last is None else _short(last))
    return msgspec.json.format(msgspec.json.encode(copy(history, failures=failures, streak=streak)), indent=1)


def decode(data: bytes) -> JobHistory:
    """Decode a stored record. Raises msgspec.DecodeError."""
    return msgspec.json.decode(data, type=JobHistory)


def _short(record: FailureRecord) -> FailureRecord:
    error = record.error
    return copy(record, error=copy(error, message=error.message[:KEPT_TEXT], traceback=error.traceback[-KEPT_TEXT:]))


def _failure(record: FailureRecord, own: OwnClock) -> Failure:
    return Failure(own(record.timestamp_ms), copy(record, timestamp_ms=0))
