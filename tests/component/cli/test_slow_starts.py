"""How `info` and `taskmanagers` show TaskManagers whose sessions take long to start."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from minflinkd.rpc.messages import ListTaskManagers, SessionPhase, TaskManagerInfo
from minflinkd.taskmanager.child import start as session_start
from tests.component.cli.conftest import Command, RunningDaemon
from tests.unit.rest.parties import TM

LISTS = [("info",), ("taskmanagers",), ("taskmanagers", TM)]


def slow(load: float = 1.0) -> str:
    """Return the report of a TaskManager whose session has been starting for 95 s. It was expected to take 60 s."""
    return session_start.slow(session_start.begun(60.0, 0, now=0.0), load, now=95.0)


def reports(daemon: RunningDaemon, **fields: object) -> None:
    """Let the only TaskManager report this about its session from now on."""
    listed = daemon.resource_manager.list

    async def changed(question: ListTaskManagers) -> tuple[TaskManagerInfo, ...]:
        (info,) = await listed(question)
        report = replace(info.report, session=SessionPhase.STARTING, **fields)
        return (replace(info, report=report),)

    daemon.resource_manager.mailbox.on(ListTaskManagers, changed, fenced=False)


@pytest.mark.parametrize("arguments", LISTS)
def test_a_slow_start_is_told_with_how_long_it_takes_and_the_option(
    daemon: RunningDaemon, command: Command, arguments: tuple[str, ...]
) -> None:
    """Whoever waits for a spare learns that it is on its way, and which option expected it sooner."""
    reports(daemon, session_slow=slow())
    shown = command(*arguments)
    assert shown.exit_code == 0
    said = [line for line in shown.output.splitlines() if line.startswith("Warning: ")]
    assert said == [
        f"Warning: {TM}: the session has been starting for 95 s, longer than 60 s "
        "(resourcemanager.taskmanager-registration.timeout); it makes progress, and is waited for"
    ]


@pytest.mark.parametrize("arguments", LISTS)
def test_a_busy_machine_is_told_as_the_cause(
    daemon: RunningDaemon, command: Command, arguments: tuple[str, ...]
) -> None:
    reports(daemon, session_slow=slow(load=6.25))
    assert "it makes progress, and is waited for; 6.2 processes want each processor\n" in command(*arguments).output


@pytest.mark.parametrize("arguments", LISTS)
def test_a_start_that_fails_is_told_with_its_error(
    daemon: RunningDaemon, command: Command, arguments: tuple[str, ...]
) -> None:
    reports(daemon, session_error="no Java was found")
    assert f"Warning: {TM}: no Java was found\n" in command(*arguments).output


@pytest.mark.parametrize("arguments", LISTS)
def test_of_a_start_after_one_that_failed_the_present_one_is_told(
    daemon: RunningDaemon, command: Command, arguments: tuple[str, ...]
) -> None:
    """Each TaskManager has one line, and the error belongs to the start before."""
    reports(daemon, session_error="no Java was found", session_slow=slow())
    shown = command(*arguments).output
    assert "the session has been starting for 95 s" in shown
    assert "no Java" not in shown


@pytest.mark.parametrize("arguments", LISTS)
def test_nothing_is_told_of_a_session_that_starts_in_time(
    daemon: RunningDaemon, command: Command, arguments: tuple[str, ...]
) -> None:
    in_time = session_start.slow(session_start.begun(60.0, 0, now=0.0), 1.0, now=59.0)
    reports(daemon, session_slow=in_time)
    assert "Warning" not in command(*arguments).output


def test_scripts_read_it_from_json(daemon: RunningDaemon, command: Command) -> None:
    reports(daemon, session_slow=slow())
    (listed,) = json.loads(command("taskmanagers", "--json").output)["taskmanagers"]
    assert listed["minflinkd"]["session-slow"] == slow()
