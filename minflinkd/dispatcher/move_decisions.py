"""Decides when a job leaves draining TaskManagers, and says why it is still there (A15b). Pure.

A job leaves by a hot restart of the same version: it has its slots on other TaskManagers before it takes its last
checkpoint. If the hot restart fails, the job keeps running where it is. The next attempt follows after a pause, which
grows with each failure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from minflinkd.jobgraph.model import RuntimeMode
from minflinkd.rpc.jobs import HotRestart, JobStatus, RestartState

FIRST_PAUSE = 5.0  # seconds after a move that failed; doubled with each
LONGEST_PAUSE = 60.0


@dataclass(frozen=True)
class Situation:
    """What the decision depends on."""

    status: JobStatus
    mode: RuntimeMode
    on_drained: bool  # its JobMaster knows that the job runs on draining TaskManagers
    restarts: tuple[HotRestart, ...] = ()  # its hot restarts; oldest first
    waits_for: str = ""  # why it does not have the slots yet that it asks for
    refuses: str = ""  # why it accepts no new version any more

    @property
    def under_way(self) -> HotRestart | None:
        last = self.restarts[-1] if self.restarts else None
        return last if last is not None and not last.state.over else None


@dataclass(frozen=True)
class Move:
    """The state of a job's move."""

    number: int = 0  # of the hot restart that moves it; 0: none is under way
    failures: int = 0  # in a row
    not_before: float = 0.0
    why: str = ""  # why it is still there


def decide(move: Move, job: Situation, now: float) -> tuple[Move, bool]:
    """Return the new state of the move, and whether to begin a hot restart."""
    move = _noted(move, job, now)
    if why := _hindrance(job):
        return replace(move, why=why), False
    if (restart := job.under_way) is not None:
        why = f"hot restart {restart.number} of the job is under way ({restart.state.value})"
        return replace(move, why=job.waits_for if restart.number == move.number else why), False
    if now < move.not_before:
        return move, False
    return replace(move, why=""), job.on_drained


def begun(move: Move, number: int) -> Move:
    return replace(move, number=number, why="")


def failed(move: Move, why: str, now: float) -> Move:
    """The move was refused, or its hot restart failed."""
    pause = min(FIRST_PAUSE * 2.0 ** min(move.failures, 10), LONGEST_PAUSE)
    return Move(0, move.failures + 1, now + pause, why)


def _noted(move: Move, job: Situation, now: float) -> Move:
    """Note the outcome of the hot restart that moves the job, if it has ended."""
    restart = next((r for r in job.restarts if r.number == move.number), None)
    if restart is None or not restart.state.over:
        return move
    if restart.state in (RestartState.FAILED, RestartState.ROLLED_BACK):
        said = restart.error.message if restart.error is not None else "there is no reason"
        return failed(move, f"hot restart {restart.number} is {restart.state.value}: {said}", now)
    return Move()


def _hindrance(job: Situation) -> str:
    """Return why the job cannot move at present; "" if it can."""
    if job.mode is RuntimeMode.BATCH:
        return "it is a batch job, and runs to its end here"
    if job.refuses:
        return f"it {job.refuses}"
    if job.status is not JobStatus.RUNNING:
        return f"it is {job.status.value}; it comes up on another TaskManager"
    return ""
