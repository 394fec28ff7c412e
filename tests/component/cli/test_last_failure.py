"""What `minflinkd info` says about a failure that a hot restart has repaired since."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from minflinkd.rpc.jobs import HotRestart, RecoveryRecord, RestartState
from tests.component.cli.conftest import Command, RunningDaemon
from tests.unit.rest.parties import FAILURE, RUNNING, STARTED, details

FAILED_AT = STARTED + 9000  # in milliseconds, as FAILURE has it


def restarted(daemon: RunningDaemon, state: RestartState, requested_ms: int) -> None:
    restart = HotRestart(
        number=2, state=state, requested_ms=requested_ms, checkpoint_id=7, phases={"stopped": 0.5, "running": 0.9}
    )
    daemon.dispatcher.jobs[RUNNING] = replace(details(failures=(FAILURE,)), hot_restarts=(restart,))


@pytest.mark.parametrize("state", [RestartState.COMPLETED, RestartState.ON_TRIAL])
@pytest.mark.parametrize("requested_ms", [FAILED_AT + 60_000, FAILED_AT - 400])
def test_a_failure_is_told_in_a_line_as_that_of_an_earlier_version(
    daemon: RunningDaemon, command: Command, state: RestartState, requested_ms: int
) -> None:
    """A failure while the earlier version was being stopped counts as its own, not as the running version's."""
    restarted(daemon, state, requested_ms)
    shown = command("info", RUNNING).output
    assert "No failure since hot restart 2. The last one of an earlier version" in shown
    assert "user-code: delays failed" in shown
    assert "Last failure" not in shown
    assert "AttributeError" not in shown, "its traceback is of code that is gone"


@pytest.mark.parametrize(
    ("state", "requested_ms"),
    [
        (RestartState.COMPLETED, FAILED_AT - 60_000),  # the running version has failed
        (RestartState.STARTING, FAILED_AT + 60_000),  # nobody knows yet whether it repairs anything
        (RestartState.ROLLED_BACK, FAILED_AT + 60_000),  # the version that failed runs again
    ],
)
def test_a_failure_of_the_version_that_counts_is_told_in_full(
    daemon: RunningDaemon, command: Command, state: RestartState, requested_ms: int
) -> None:
    restarted(daemon, state, requested_ms)
    shown = command("info", RUNNING).output
    assert "Last failure, " in shown
    assert "AttributeError: 'DataFrame' object has no attribute 'selectt'" in shown


def test_a_restart_is_told_in_a_line(daemon: RunningDaemon, command: Command) -> None:
    """The cause may end with a piece of a log. The last failure shows all of it."""
    cause = "slots-lost: tm-1 is gone: killed by signal 9; the end of its log:\n2026-11-23 opened\n" + "x" * 900
    recovery = RecoveryRecord(failed_ms=FAILED_AT, cause=cause, checkpoint_id=7, phases={"slots": 0.5})
    daemon.dispatcher.jobs[RUNNING] = replace(details(), restarts=1, recoveries=(recovery,))
    (told,) = [line for line in command("info", RUNNING).output.splitlines() if "slots-lost" in line]
    assert told.endswith("the end of its log: from checkpoint 7; slots 0.50 s")
