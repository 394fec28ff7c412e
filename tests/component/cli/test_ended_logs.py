"""`minflinkd logs JOB` after a TaskManager of the job has ended. The end of its logs shows why."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from minflinkd.cli.job_logs import ENDED
from minflinkd.runtime.ids import ResourceId
from tests.component.cli.conftest import Command, RunningDaemon
from tests.unit.rest.parties import FAILURE, RUNNING, TM, details

GONE = ResourceId("tm-ffffffffffff")


def line(number: int, job: str = RUNNING) -> str:
    return f'{{"event": "event {number}", "job": "{job}"}}\n'


@pytest.fixture(autouse=True)
def home(daemon: RunningDaemon) -> None:
    """The job failed on a TaskManager that has ended since, and runs on another one."""
    daemon.dispatcher.jobs[RUNNING] = details(failures=(replace(FAILURE, resource_id=GONE),))
    daemon.task_manager.logs = {"taskmanager.log": line(7).encode()}
    logs = daemon.homes / GONE / "log"
    logs.mkdir(parents=True)
    lines = [line(number, RUNNING if number % 2 else "9" * 32) for number in range(4 * ENDED)]
    (logs / "taskmanager.log").write_text("".join(lines))
    (logs / "session.log").write_text("printed\nno end")


def test_the_end_of_what_concerns_the_job_is_printed_and_where_the_rest_is(command: Command) -> None:
    shown = command("logs", RUNNING)
    assert shown.exit_code == 0, shown.output
    place = f"taskmanagers/{GONE}/log of the state directory"
    assert shown.stderr == f"{GONE} has ended; its logs, of which the end is printed, are in {place}\n"
    living, ended, printed = shown.stdout.split("\n\n")
    assert living == f"==> {TM} taskmanager.log <==\n{line(7)}".rstrip()
    assert ended.splitlines()[0] == f"==> {GONE} taskmanager.log <=="
    wanted = [line(number).rstrip() for number in range(4 * ENDED) if number % 2]
    assert ended.splitlines()[1:] == wanted[-ENDED:]
    assert printed == f"==> {GONE} session.log <==\nprinted\nno end\n"


def test_tail_says_how_much_of_the_end(command: Command) -> None:
    shown = command("logs", RUNNING, "taskmanager.log", "--tail", "3").stdout
    assert shown.splitlines()[-3:] == [line(number).rstrip() for number in range(4 * ENDED) if number % 2][-3:]
    assert f"==> {GONE} taskmanager.log <==" in shown.splitlines()[-4]


def test_the_files_are_listed(command: Command) -> None:
    assert f"{GONE}" in command("logs", RUNNING, "--list").stdout
    listed = json.loads(command("logs", "--job", RUNNING, "--json").stdout)["taskmanagers"]
    assert [manager["id"] for manager in listed] == [TM, GONE]
