"""`minflinkd checkpoints JOB --verify`: what it prints, and its exit codes (C29, E10)."""

from __future__ import annotations

import json

import pytest

from minflinkd.checkpoint import messages as c
from minflinkd.checkpoint.damage import Damage
from minflinkd.checkpoint.inventory import VerifiedCheckpoint
from minflinkd.rpc.messages import Done
from minflinkd.runtime.errors import ErrorInfo
from tests.component.cli.conftest import Command, RunningDaemon
from tests.unit.rest.checkpoint_statistics import COMPLETE
from tests.unit.rest.parties import RUNNING

WHOLE = VerifiedCheckpoint(checkpoint_id=6, files=3, size=2048)
DAMAGED = VerifiedCheckpoint(checkpoint_id=7, damage=(Damage("7.seg", "it is missing"), Damage("8.seg", "it is short")))


def answers(daemon: RunningDaemon, answer: c.Verification) -> None:
    async def trigger(_: c.VerifyCheckpoints) -> Done:
        return Done()

    async def result(_: c.GetVerification) -> c.Verification:
        return answer

    daemon.dispatcher.mailbox.on(c.VerifyCheckpoints, trigger)
    daemon.dispatcher.mailbox.on(c.GetVerification, result)


def test_whole_checkpoints_are_listed_and_the_exit_code_is_zero(command: Command, daemon: RunningDaemon) -> None:
    answers(daemon, c.Verification(done=True, checkpoints=(WHOLE,)))
    shown = command("checkpoints", RUNNING, "--verify")
    assert shown.exit_code == 0
    assert shown.output.splitlines()[-1].split()[:2] == ["6", "whole"]


def test_damaged_files_are_named_and_the_exit_code_is_2(command: Command, daemon: RunningDaemon) -> None:
    answers(daemon, c.Verification(done=True, checkpoints=(DAMAGED, WHOLE)))
    shown = command("checkpoints", RUNNING, "--verify")
    assert shown.exit_code == 2
    assert "DAMAGED" in shown.output
    assert "Checkpoint 7: 7.seg: it is missing" in shown.output
    assert "Checkpoint 7: 8.seg: it is short" in shown.output
    as_json = command("checkpoints", RUNNING, "--verify", "--json")
    assert as_json.exit_code == 2
    assert [one["whole"] for one in json.loads(as_json.stdout)] == [False, True]


def test_it_is_another_exit_code_if_the_storage_does_not_answer(command: Command, daemon: RunningDaemon) -> None:
    """Scripts must not take this for damage."""
    error = ErrorInfo(code="storage-transient", message="no answer")
    answers(daemon, c.Verification(done=True, error=error))
    shown = command("checkpoints", RUNNING, "--verify", "--json")
    assert shown.exit_code == 3
    assert json.loads(shown.stderr)["code"] == "storage-transient"


@pytest.mark.parametrize("arguments", [["--verify", "--id", "7"]])
def test_all_checkpoints_are_verified_or_none(command: Command, arguments: list[str]) -> None:
    assert command("checkpoints", RUNNING, *arguments).exit_code == 2


def test_known_damage_is_shown_with_the_checkpoints(command: Command, daemon: RunningDaemon) -> None:
    """Nobody has to ask for a verification to learn of it."""
    daemon.dispatcher.checkpoints = COMPLETE
    shown = command("checkpoints", RUNNING).output
    assert "Checkpoint 4 is damaged, given up for checkpoint 3: 1-4-tm.seg: it is missing" in shown
