"""`minflinkd checkpoint` (C20, E10)."""

from __future__ import annotations

import json

from minflinkd.rpc import jobs as j
from minflinkd.runtime.errors import Conflict, Consequence, ErrorInfo
from tests.component.cli.conftest import Command, RunningDaemon
from tests.unit.rest.parties import RUNNING


def answers(daemon: RunningDaemon, *statuses: j.OperationStatus) -> list[j.CheckpointJob]:
    """Let the Dispatcher give these answers about the operation, one by one. Return the requests that it gets."""
    asked: list[j.CheckpointJob] = []
    following = list(statuses)

    async def trigger(request: j.CheckpointJob) -> j.Done:
        asked.append(request)
        return j.Done()

    async def status(_: j.GetSavepoint) -> j.OperationStatus:
        return following.pop(0)

    daemon.dispatcher.mailbox.on(j.CheckpointJob, trigger)
    daemon.dispatcher.mailbox.on(j.GetSavepoint, status)
    return asked


def test_a_checkpoint_is_waited_for_and_its_id_printed(command: Command, daemon: RunningDaemon) -> None:
    """The id is on a line of its own, for scripts (C20)."""
    asked = answers(daemon, j.OperationStatus(done=False), j.OperationStatus(done=True, location="7"))
    shown = command("checkpoint", RUNNING)
    assert (shown.exit_code, shown.stdout) == (0, "7\n"), shown.output
    assert [request.job_id for request in asked] == [RUNNING]


def test_a_checkpoint_is_json_for_programs(command: Command, daemon: RunningDaemon) -> None:
    """E10."""
    answers(daemon, j.OperationStatus(done=True, location="7"))
    assert json.loads(command("checkpoint", RUNNING, "--json").stdout) == {"jobid": RUNNING, "checkpoint-id": 7}


def test_what_failed_a_checkpoint_is_told(command: Command, daemon: RunningDaemon) -> None:
    """Nothing is printed that a script could take for an id (C23)."""
    error = ErrorInfo(code="checkpoint-failed", message="storage: the disk is full", consequence=Consequence.RETRYABLE)
    answers(daemon, j.OperationStatus(done=True, error=error))
    shown = command("checkpoint", RUNNING)
    assert shown.exit_code == 2
    assert shown.stdout == ""
    assert "the disk is full" in shown.stderr


def test_a_job_that_cannot_take_one_and_one_that_is_not_there_are_told_apart(
    command: Command, daemon: RunningDaemon
) -> None:
    """The two cases have different exit codes (E11)."""

    async def refuse(_: j.CheckpointJob) -> j.Done:
        raise Conflict("Not all tasks are RUNNING")

    daemon.dispatcher.mailbox.on(j.CheckpointJob, refuse)
    shown = command("checkpoint", RUNNING)
    assert (shown.exit_code, "Not all tasks are RUNNING" in shown.stderr) == (5, True)
    assert command("checkpoint", "nowhere").exit_code == 4
