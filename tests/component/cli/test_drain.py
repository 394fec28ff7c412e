"""`minflinkd taskmanager drain` and `minflinkd upgrade`: what they ask for, and what they say meanwhile (A15b)."""

from __future__ import annotations

import json

import pytest

from minflinkd.config.options import Item
from tests.component.cli.conftest import Command, RunningDaemon
from tests.unit.rest.parties import RUNNING, TM


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the cluster of these tests, a TaskManager starts for ever."""
    monkeypatch.setattr("minflinkd.cli.upgrade.SETTLING", 1.0)


def test_drain_begins_and_returns(command: Command, daemon: RunningDaemon) -> None:
    """The beginning of an id names it (A15b)."""
    daemon.resource_manager.held = [""]
    shown = command("taskmanager", "drain", TM[:6])
    assert (shown.exit_code, daemon.resource_manager.drained) == (0, True)
    assert f"{TM} is draining" in shown.output


def test_drain_with_wait_names_the_jobs_that_stay_and_why_until_it_has_ended(
    command: Command, daemon: RunningDaemon
) -> None:
    """Each change is said once (A15b)."""
    daemon.resource_manager.held = ["", "no room", "no room", ""]
    daemon.resource_manager.standalone = True  # nobody looks for a process on this host
    shown = command("taskmanager", "drain", TM, "--wait")
    assert shown.exit_code == 0
    assert shown.output.splitlines() == [
        f"{TM}: job {RUNNING} is moving",
        f"{TM}: job {RUNNING} is still there: no room",
        f"{TM}: job {RUNNING} is moving",
        f"{TM} has ended",
    ]


def test_a_taskmanager_that_has_yet_to_register_with_the_next_leader_has_not_ended(
    command: Command, daemon: RunningDaemon
) -> None:
    """Another daemon leads, which lists it a moment later, and was not told that it is drained (A15b, A11)."""
    manager = daemon.resource_manager
    manager.held, manager.standalone = ["it is a batch job"] * 4, True

    def another_leads(looks: int) -> None:
        if looks == 4:
            daemon.is_replaced()
        if looks == 7:
            manager.registered, manager.drained = True, False

    manager.before_look = another_leads
    shown = command("taskmanager", "drain", TM, "--wait")
    assert (shown.exit_code, shown.output.splitlines()[-1]) == (0, f"{TM} has ended")
    assert (manager.drained, manager.drains, manager.held) == (True, 2, [])


def test_a_taskmanager_that_does_not_register_with_the_next_leader_has_ended(
    command: Command, daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had the time that a registration takes, so the command ends (A15b)."""
    monkeypatch.setattr("minflinkd.cli.drain.RECONNECTING", 0.5)
    manager = daemon.resource_manager
    daemon.options = [Item("heartbeat.timeout", "500 ms", is_default=False, sensitive=False)]
    manager.held, manager.standalone = ["it is a batch job"] * 100, True

    def another_leads(looks: int) -> None:
        if looks == 4:
            daemon.is_replaced()

    manager.before_look = another_leads
    shown = command("taskmanager", "drain", TM, "--wait")
    assert (shown.exit_code, shown.output.splitlines()[-1]) == (0, f"{TM} has ended")
    assert manager.looks > 6


def test_drain_with_a_timeout_says_nothing_of_a_taskmanager_that_it_does_not_find(
    command: Command, daemon: RunningDaemon
) -> None:
    """It may register yet (A15b)."""
    manager = daemon.resource_manager
    manager.held, manager.standalone = ["it is a batch job"] * 100, True

    def another_leads(looks: int) -> None:
        if looks == 4:
            daemon.is_replaced()

    manager.before_look = another_leads
    shown = command("taskmanager", "drain", TM, "--wait", "--wait-timeout", "1.5")
    assert (shown.exit_code, "has ended" in shown.stdout) == (5, False)


def test_drain_that_is_undone_by_somebody_else_says_so(command: Command, daemon: RunningDaemon) -> None:
    """The exit code is 5 (A15b)."""
    manager = daemon.resource_manager
    manager.held = ["it is a batch job"] * 100
    manager.before_look = lambda looks: setattr(manager, "drained", looks < 4 and manager.drained)
    shown = command("taskmanager", "drain", TM, "--wait")
    assert (shown.exit_code, "somebody has undone the drain" in shown.output) == (5, True)


def test_drain_that_waits_for_too_long_leaves_it_drained(command: Command, daemon: RunningDaemon) -> None:
    """The exit code is 5 (A15b)."""
    daemon.resource_manager.held = ["it is a batch job"] * 1_000
    shown = command("taskmanager", "drain", TM, "--wait", "--wait-timeout", "0.5", "--json")
    assert (shown.exit_code, daemon.resource_manager.drained) == (5, True)
    assert json.loads(shown.stdout) == {
        "id": TM,
        "draining": True,
        "ended": False,
        "held-by": {RUNNING: "it is a batch job"},
    }


def test_drain_can_be_undone(command: Command, daemon: RunningDaemon) -> None:
    """The TaskManager is used as before (A15b)."""
    daemon.resource_manager.drained, daemon.resource_manager.held = True, ["it is a batch job"] * 2
    shown = command("taskmanager", "drain", TM, "--undo")
    assert (shown.exit_code, daemon.resource_manager.drained) == (0, False)
    assert f"{TM} is used again" in shown.output


def test_a_taskmanager_that_is_not_there_is_not_drained(command: Command) -> None:
    """The exit code is 4 (A15b, E10)."""
    assert command("taskmanager", "drain", "tm-nobody").exit_code == 4


def test_taskmanager_shows_that_it_is_drained_and_what_it_waits_for(command: Command, daemon: RunningDaemon) -> None:
    """Both in the list and alone (A15b)."""
    daemon.resource_manager.drained, daemon.resource_manager.held = True, ["it is a batch job"] * 3
    assert "draining" in command("taskmanagers").output
    assert f"job {RUNNING} is still there: it is a batch job" in command("taskmanagers", TM).output


@pytest.mark.parametrize("version", ["0.0.9", ""])
def test_upgrade_replaces_what_is_of_another_version(command: Command, daemon: RunningDaemon, version: str) -> None:
    """A TaskManager that tells no version is older (A15b)."""
    daemon.resource_manager.version, daemon.resource_manager.held = version, [""]
    daemon.resource_manager.standalone = False
    shown = command("upgrade", "--wait-timeout", "20")
    assert shown.exit_code == 0, shown.output
    assert f"job {RUNNING} to move" in shown.output
    assert shown.output.splitlines()[-1] == f"{TM} has ended"


def test_upgrade_waits_for_taskmanagers_that_have_yet_to_register(command: Command, daemon: RunningDaemon) -> None:
    """The daemon was restarted a moment ago. Otherwise the answer would be that there is nothing to do (A15b)."""
    daemon.resource_manager.late = 2
    shown = command("upgrade", "--dry-run")
    assert f"{TM} (version 0.0.9, the daemon is 0.1.0): job {RUNNING} to move" in shown.output


def test_upgrade_goes_on_if_a_taskmanager_has_ended_before_its_turn(command: Command, daemon: RunningDaemon) -> None:
    """An idle one may end by itself (A15b)."""
    daemon.resource_manager.ended = True
    shown = command("upgrade")
    assert shown.exit_code == 0, shown.output
    assert f"{TM} has ended by itself" in shown.output


def test_upgrade_drains_a_taskmanager_that_was_not_registered_when_its_turn_came(
    command: Command, daemon: RunningDaemon
) -> None:
    """Another daemon led just then: its answer that it knows no such TaskManager is not its end (A15b, A11)."""
    manager = daemon.resource_manager
    manager.held, manager.standalone = ["it is a batch job"] * 2, False

    def another_leads() -> None:
        if manager.looks == 1:
            daemon.is_replaced()

    def registers(looks: int) -> None:
        manager.registered = manager.registered or looks == 4

    manager.before_drain, manager.before_look = another_leads, registers
    shown = command("upgrade")
    assert shown.exit_code == 0, shown.output
    assert shown.output.splitlines()[-1].startswith(f"{TM} has ended")
    assert (manager.drained, manager.held) == (True, [])


def test_a_dry_run_of_upgrade_drains_nothing(command: Command, daemon: RunningDaemon) -> None:
    """It says what would be done (A15b)."""
    shown = command("upgrade", "--dry-run")
    assert f"{TM} (version 0.0.9, the daemon is 0.1.0): job {RUNNING} to move" in shown.output
    assert not daemon.resource_manager.drained


def test_upgrade_leaves_taskmanagers_alone_that_run_by_themselves(command: Command, daemon: RunningDaemon) -> None:
    """Nobody here could start one in its place (A15b)."""
    daemon.resource_manager.standalone = True
    shown = command("upgrade")
    assert "was not started by the daemon" in shown.output
    assert not daemon.resource_manager.drained


def test_upgrade_has_nothing_to_do_if_all_are_of_the_daemons_version(command: Command, daemon: RunningDaemon) -> None:
    """A repeated upgrade changes nothing (A15b)."""
    daemon.resource_manager.version = "0.1.0"
    shown = command("upgrade", "--json")
    assert json.loads(shown.stdout)["replaced"] == []
    assert not daemon.resource_manager.drained
