"""The phases of a job, and the status that users see for them."""

from __future__ import annotations

from typing import get_args

import pytest

from minflinkd.jobmaster.scheduler.phases import (
    LEGAL,
    ComingUp,
    Ended,
    FindingRestorePoint,
    Initializing,
    Phase,
    Predecessors,
    Reconciling,
    Rescaling,
    Running,
    Settling,
    StandingDown,
    StoodDown,
    Stopping,
    WaitingForSlots,
    job_status,
)
from minflinkd.rpc.jobs import JobStatus as S

RUNNING = Running(since=1.0, checkpointed=True)
OUTCOMES = (S.FINISHED, S.CANCELED, S.FAILED)
EXAMPLES: dict[type[Phase], tuple[Phase, ...]] = {
    Initializing: (Initializing(),),
    Reconciling: (Reconciling(5.0, Predecessors("v1")),),
    WaitingForSlots: (WaitingForSlots(),),
    FindingRestorePoint: (FindingRestorePoint(frozenset()),),
    ComingUp: (ComingUp(),),
    Running: (RUNNING,),
    Rescaling: (Rescaling(RUNNING),),
    StandingDown: (StandingDown(),),
    StoodDown: (StoodDown(),),
    Stopping: tuple(map(Stopping, OUTCOMES)),
    Settling: tuple(map(Settling, OUTCOMES)),
    Ended: tuple(map(Ended, OUTCOMES)),
}
# Flink's org.apache.flink.api.common.JobStatus, as its default scheduler moves: without what only its Dispatcher does
FLINK = {
    S.INITIALIZING: {S.CREATED, S.RECONCILING, S.CANCELLING, S.FAILING},
    # Flink has the status, and no scheduler of its own that still uses it.
    S.RECONCILING: {S.RUNNING, S.CREATED, S.RESTARTING, S.CANCELLING, S.FAILING},
    S.CREATED: {S.RUNNING, S.RESTARTING, S.CANCELLING, S.FAILING},
    S.RUNNING: {S.RESTARTING, S.CANCELLING, S.FAILING, S.FINISHED},
    S.RESTARTING: {S.RUNNING, S.CANCELLING, S.FAILING},
    S.FAILING: {S.FAILED},
    S.CANCELLING: {S.CANCELED},
}


def test_every_phase_has_an_example_here() -> None:
    assert set(EXAMPLES) == set(get_args(Phase))


def moves() -> list[tuple[Phase, Phase]]:
    """Return all legal moves. The outcome of an ending job stays what it is."""
    return [
        (before, after)
        for source, targets in LEGAL.items()
        for before in EXAMPLES[source]
        for target in targets
        for after in EXAMPLES[target]
        if getattr(before, "outcome", None) in (None, getattr(after, "outcome", None))
        # Only a job that runs can finish.
        if before is RUNNING
        or source is Rescaling
        or getattr(after, "outcome", None) is not S.FINISHED
        or isinstance(before, Stopping | Settling)
    ]


@pytest.mark.parametrize(("before", "after"), moves())
@pytest.mark.parametrize("restarted", [False, True])
def test_a_legal_move_of_phases_is_a_legal_move_of_flinks_status(before: Phase, after: Phase, restarted: bool) -> None:
    """Clients written for Flink see no sequence of states that Flink would not show."""
    restarted = restarted and not isinstance(before, Initializing | Reconciling)
    was = job_status(before, restarted=restarted)
    # A job that waits for slots again after it was up has begun a restart.
    again = restarted or (isinstance(after, WaitingForSlots) and not isinstance(before, Initializing | Reconciling))
    if isinstance(before, FindingRestorePoint) and isinstance(after, WaitingForSlots):
        again = restarted  # slots were lost meanwhile: it is still the same restart
    now = job_status(after, restarted=again)
    assert now is was or now in FLINK[was], f"{was} -> {now}"


def test_a_job_that_ends_as_finished_is_running_until_then() -> None:
    """As in Flink, whose clients wait for a terminal state."""
    assert job_status(Stopping(S.FINISHED), restarted=False) is S.RUNNING
    assert job_status(Settling(S.FINISHED), restarted=True) is S.RUNNING
    assert job_status(Ended(S.FINISHED), restarted=True) is S.FINISHED


def test_a_job_that_comes_up_is_created_at_first_and_restarting_later() -> None:
    for phase in (WaitingForSlots(), FindingRestorePoint(frozenset()), ComingUp()):
        assert job_status(phase, restarted=False) is S.CREATED
        assert job_status(phase, restarted=True) is S.RESTARTING
