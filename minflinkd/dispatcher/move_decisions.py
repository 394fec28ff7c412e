"""Decides when a job leaves TaskManagers that are drained, and says why it is still there (A15b). Pure.

A job leaves by a hot restart without a change: its slots on other TaskManagers are there before it takes its last
checkpoint. If that fails, it runs on where it is, and is asked again later, each time after a longer pause.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from minflinkd.jobgraph.model import RuntimeMode
from minflinkd.rpc.jobs import HotRestart, JobStatus, RestartState

FIRST_PAUSE = 5.0  # seconds after a move that failed; doubled with each
LONGEST_PAUSE = 60.0


@dataclass(frozen=True)
class Situation:
    """What the decision needs to know about a job."""

    status: JobStatus
    mode: RuntimeMode
    on_drained: bool  # its JobMaster knows that it runs on TaskManagers that are drained
    restarts: tuple[HotRestart, ...] = ()  # of its hot restarts; oldest first
    waits_for: str = ""  # why slots that it asks for are not there yet
    refuses: str = ""  # why it takes no new version any more

    @property
    def under_way(self) -> HotRestart | None:
        last = self.restarts[-1] if self.restarts else None
        return last if last is not None and not last.state.over else None


@dataclass(frozen=True)
class Move:
    """How the move of a job has gone until now."""

    number: int = 0  # of the hot restart that moves it; 0: none is under way
    failures: int = 0  # in a row
    not_before: float = 0.0
    why: str = ""  # why it is still there


def decide(move: Move, job: Situation, now: float) -> tuple[Move, bool]:
    """Return what is known about the move now, and whether to begin one."""
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
    """The move was refused, or came to nothing."""
    pause = min(FIRST_PAUSE * 2.0 ** min(move.failures, 10), LONGEST_PAUSE)
    return Move(0, move.failures + 1, now + pause, why)


def _noted(move: Move, job: Situation, now: float) -> Move:
    """Note how the hot restart that was to move the job has ended, if it has."""
    restart = next((r for r in job.restarts if r.number == move.number), None)
    if restart is None or not restart.state.over:
        return move
    if restart.state in (RestartState.FAILED, RestartState.ROLLED_BACK):
        said = restart.error.message if restart.error is not None else "nobody said why"
        return failed(move, f"hot restart {restart.number} is {restart.state.value}: {said}", now)
    return Move()


def _hindrance(job: Situation) -> str:
    """Return what keeps the job from moving at present; "" if nothing does."""
    if job.mode is RuntimeMode.BATCH:
        return "it is a batch job, and runs to its end here"
    if job.refuses:
        return f"it {job.refuses}"
    if job.status is not JobStatus.RUNNING:
        return f"it is {job.status.value}; it comes up on another TaskManager"
    return ""
