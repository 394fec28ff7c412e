"""When a job leaves a TaskManager that is drained, and why it does not (A15b)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minflinkd.dispatcher.move_decisions import FIRST_PAUSE, LONGEST_PAUSE, Move, Situation, begun, decide, failed
from minflinkd.jobgraph.model import RuntimeMode
from minflinkd.rpc.jobs import HotRestart, JobStatus, RestartState
from minflinkd.runtime.errors import ErrorInfo

ON_IT = Situation(JobStatus.RUNNING, RuntimeMode.STREAMING, on_drained=True)
NO_ROOM = ErrorInfo(code="no-slots", message="no TaskManager has room")


def with_restart(number: int, state: RestartState, error: ErrorInfo | None = None) -> Situation:
    return replace(ON_IT, restarts=(HotRestart(number=number, state=state, requested_ms=0, error=error),))


def test_a_running_job_moves_at_once() -> None:
    """Nothing is waited for (A15b)."""
    assert decide(Move(), ON_IT, 0.0) == (Move(), True)


def test_a_job_moves_once_its_jobmaster_knows_where_it_runs() -> None:
    """Otherwise it would take no new slots before its tasks stop; it knows with the next heartbeat (A15b)."""
    assert decide(Move(), replace(ON_IT, on_drained=False), 0.0) == (Move(), False)


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (replace(ON_IT, mode=RuntimeMode.BATCH), "batch"),
        (replace(ON_IT, status=JobStatus.RESTARTING), "RESTARTING"),
        (replace(ON_IT, refuses="is being cancelled"), "is being cancelled"),
        (with_restart(4, RestartState.STARTING), "hot restart 4"),
        (with_restart(4, RestartState.ON_TRIAL), "on-trial"),
    ],
)
def test_a_job_that_cannot_move_stays_and_says_why(job: Situation, why: str) -> None:
    """It runs on (A15b)."""
    move, begins = decide(Move(), job, 0.0)
    assert not begins
    assert why in move.why


def test_a_move_under_way_is_not_begun_again() -> None:
    """However often it is asked for, and whatever was in the way of the one before (A15b)."""
    moving = begun(Move(why="another hot restart was under way"), 4)
    assert moving == Move(4)
    assert decide(moving, with_restart(4, RestartState.HANDING_OVER), 1.0) == (moving, False)


def test_a_move_under_way_says_which_slots_it_waits_for() -> None:
    """Perhaps there will be none, and an operator must do something (A15b)."""
    job = replace(with_restart(4, RestartState.HANDING_OVER), waits_for="no more than 1 TaskManagers may run")
    assert decide(begun(Move(), 4), job, 1.0)[0].why == job.waits_for


@pytest.mark.parametrize("outcome", [RestartState.FAILED, RestartState.ROLLED_BACK])
def test_a_move_that_failed_is_repeated_after_a_pause_which_doubles(outcome: RestartState) -> None:
    """Meanwhile the job says what was in the way (A15b)."""
    job, now, pauses = with_restart(4, outcome, NO_ROOM), 0.0, []
    move = Move()
    for _ in range(6):
        move, begins = decide(begun(move, 4), job, now)
        assert not begins
        assert NO_ROOM.message in move.why
        assert decide(move, job, move.not_before - 0.01) == (move, False)
        pauses.append(move.not_before - now)
        now = move.not_before
        assert decide(move, job, now) == (replace(move, why=""), True), "it moves: nothing is in the way any more"
    assert pauses == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE, 8 * FIRST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]


def test_a_move_that_was_refused_is_asked_for_again_after_a_pause() -> None:
    """As if it had failed (A15b)."""
    move = failed(begun(Move(), 4), "another hot restart is under way", 7.0)
    assert move == Move(0, 1, 7.0 + FIRST_PAUSE, "another hot restart is under way")
    assert decide(move, ON_IT, 7.0 + FIRST_PAUSE - 0.1) == (move, False)
    assert decide(move, ON_IT, 7.0 + FIRST_PAUSE)[1]


@pytest.mark.parametrize("outcome", [RestartState.COMPLETED, RestartState.REPLACED, RestartState.ABANDONED])
def test_a_move_that_ended_otherwise_leaves_no_trace(outcome: RestartState) -> None:
    """If the job is still there, it moves again at once (A15b)."""
    assert decide(begun(Move(), 4), with_restart(4, outcome), 1.0) == (Move(), True)
