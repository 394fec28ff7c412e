"""`minflinkd savepoint` and `stop` whose daemon is lost come to an end that the next daemon tells (A14c)."""

from __future__ import annotations

import pytest

from minflinkd.rpc import jobs as j
from minflinkd.runtime.errors import Conflict, Consequence, ErrorInfo, MinflinkError
from tests.component.cli.conftest import Command, RunningDaemon
from tests.unit.rest.parties import RUNNING

LOST = ErrorInfo(
    code="operation-lost",
    message="the daemon was lost before the savepoint was complete",
    consequence=Consequence.RETRYABLE,
    hint="the job goes on; ask again",
)


class NotNow(MinflinkError):
    """What a daemon says that has just begun to lead."""

    code = "job-not-running"
    consequence = Consequence.RETRYABLE


def answers(daemon: RunningDaemon, *triggers: MinflinkError | None, status: j.OperationStatus) -> list[str]:
    """Let the Dispatcher answer, or refuse, one trigger after the other. Return the trigger ids that it gets."""
    asked: list[str] = []
    following = list(triggers)

    async def trigger(request: j.TriggerSavepoint) -> j.Done:
        asked.append(request.trigger_id)
        if (error := following.pop(0)) is not None:
            raise error
        return j.Done()

    async def told(request: j.GetSavepoint) -> j.OperationStatus:
        assert request.trigger_id in asked
        return status

    daemon.dispatcher.mailbox.on(j.TriggerSavepoint, trigger)
    daemon.dispatcher.mailbox.on(j.GetSavepoint, told)
    return asked


@pytest.mark.parametrize("what", ["savepoint", "stop"])
def test_an_operation_that_was_lost_with_its_daemon_fails_and_says_what_to_do(
    command: Command, daemon: RunningDaemon, what: str
) -> None:
    """Nothing is printed that a script could take for a savepoint (A14c)."""
    answers(daemon, None, status=j.OperationStatus(done=True, error=LOST))
    shown = command(what, RUNNING)
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "[operation-lost]" in shown.stderr
    assert "the job goes on; ask again" in shown.stderr


@pytest.mark.parametrize("what", ["savepoint", "stop"])
def test_a_trigger_that_is_repeated_over_a_takeover_keeps_its_id(
    command: Command, daemon: RunningDaemon, what: str
) -> None:
    """So the next daemon knows whether it has been carried out, and does not do it twice (A14c, C24)."""
    asked = answers(daemon, NotNow("the job is RECONCILING"), Conflict("x"), status=j.OperationStatus(done=True))
    shown = command(what, RUNNING)
    assert shown.exit_code == 5  # the second answer is no reason to try again
    assert len(asked) == 2
    assert len(set(asked)) == 1
