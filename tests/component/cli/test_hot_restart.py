"""`minflinkd hot-restart` and `minflinkd rescale` (H1, E10)."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from minflinkd.cli.main import main
from minflinkd.jobgraph.difference import SettingChange
from minflinkd.jobgraph.faults import GraphFault
from minflinkd.rpc.jobs import HotRestartJob, RescaleJob, RestartState
from tests.component.cli.conftest import Command, RunningDaemon
from tests.component.cli.test_run import JOB
from tests.unit.rest.parties import RUNNING


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "flights.py").write_text("def late(inputs, params):\n    return inputs['flights']\n")
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    return file


def sent(daemon: RunningDaemon) -> list[HotRestartJob]:
    return [request for request in daemon.dispatcher.restarts if isinstance(request, HotRestartJob)]


def test_a_new_version_is_uploaded_beside_the_running_one_and_followed_to_its_end(
    command: Command, daemon: RunningDaemon, job: Path
) -> None:
    """H1, B6."""
    shown = command("hot-restart", RUNNING, str(job), "--yes", "-p", "minutes=30", "--checkpoint", "latest")
    assert shown.exit_code == 0, shown.output
    assert "The new version runs." in shown.output
    assert "0.300 s  running" in shown.output
    (request,) = sent(daemon)
    document = json.loads(request.document)
    assert (request.latest, request.replace, document["params"]) == (True, False, {"minutes": 30})
    assert document["artifacts"][0].keys() == {"name", "key", "size"}


def test_the_changes_are_shown_before_the_question(command: Command, daemon: RunningDaemon, job: Path) -> None:
    """A user who answers no has changed nothing (H2)."""
    arguments = ["hot-restart", RUNNING, str(job)]
    shown = CliRunner().invoke(main, arguments, input="n\n", env={"MINFLINKD_URL": daemon.url})
    assert shown.exit_code == 0, shown.output
    for line in (
        "~ vertex delays: sql",
        "~ params.minutes: 60 -> 30",
        "  state of delays (stateStoreSave) is kept",
        "The job goes on as it is.",
    ):
        assert line in shown.output
    assert [request.dry_run for request in sent(daemon)] == [True]


def test_the_changes_are_shown_without_a_question_too(command: Command, daemon: RunningDaemon, job: Path) -> None:
    """A script's log then says what was deployed. An artifact, known by its hash, is just shown as another one (H2)."""
    daemon.dispatcher.changed_artifacts = (
        SettingChange(path="artifacts.airports.csv", before='"p-111"'),
        SettingChange(path="artifacts.carriers.csv", after='"p-222"'),
        SettingChange(path="artifacts.flights.py", before='"p-111"', after='"p-222"'),
    )
    shown = command("hot-restart", RUNNING, str(job), "--yes")
    assert shown.exit_code == 0, shown.output
    for line in (
        "~ vertex delays: sql",
        "~ params.minutes: 60 -> 30",
        "~ flights.py: content changed",
        "+ carriers.csv",
        "- airports.csv",
        "  state of delays (stateStoreSave) is kept",
    ):
        assert line in shown.output.splitlines()
    assert "p-111" not in shown.output
    assert [request.dry_run for request in sent(daemon)] == [False]


def test_the_changes_are_shown_once(command: Command, daemon: RunningDaemon, job: Path) -> None:
    arguments = ["hot-restart", RUNNING, str(job)]
    shown = CliRunner().invoke(main, arguments, input="y\n", env={"MINFLINKD_URL": daemon.url})
    assert shown.exit_code == 0, shown.output
    assert shown.output.count("~ vertex delays: sql") == 1


def test_a_version_that_has_found_no_input_is_told_to_be_on_trial_and_is_not_waited_for(
    command: Command, daemon: RunningDaemon, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial may take days. The version runs, and whoever deploys goes on (H7)."""
    monkeypatch.setattr("minflinkd.cli.hot_restart._GRACE", 0.1)
    daemon.dispatcher.restart_ends = RestartState.ON_TRIAL
    shown = command("hot-restart", RUNNING, str(job), "--yes")
    assert shown.exit_code == 0, shown.output
    assert "The new version runs, and is on trial: no input yet." in shown.output
    shown = command("rescale", RUNNING, "--parallelism", "4")
    assert "on trial: no input yet" in shown.output
    shown = command("info", RUNNING)
    assert "on trial: no input yet" in shown.output
    shown = command("list")
    assert "RUNNING, on trial: no input yet" in shown.output


def test_a_trial_that_is_over_soon_is_followed_to_its_end(command: Command, daemon: RunningDaemon, job: Path) -> None:
    """A job that gets a row now and then is without input most of the time (H7)."""
    daemon.dispatcher.restart_ends = RestartState.ON_TRIAL
    later = threading.Timer(0.3, daemon.dispatcher.end_trial, [RestartState.COMPLETED])
    later.start()
    shown = command("hot-restart", RUNNING, str(job), "--yes")
    later.join()
    assert shown.exit_code == 0, shown.output
    assert "The new version runs." in shown.output


def test_a_trial_is_waited_for_on_request(
    command: Command, daemon: RunningDaemon, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users who want to know the outcome of a trial can wait for it (H7)."""
    monkeypatch.setattr("minflinkd.cli.hot_restart._GRACE", 0.0)
    daemon.dispatcher.restart_ends = RestartState.ON_TRIAL
    later = threading.Timer(0.3, daemon.dispatcher.end_trial, [RestartState.ROLLED_BACK])
    later.start()
    shown = command("hot-restart", RUNNING, str(job), "--yes", "--wait-trial")
    later.join()
    assert shown.exit_code == 1
    assert "The job goes on as it was (rolled-back)" in shown.output


def test_a_dry_run_is_json_for_programs(command: Command, daemon: RunningDaemon, job: Path) -> None:
    """E10."""
    shown = command("hot-restart", RUNNING, str(job), "--dry-run", "--json")
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["changes"]["state"][0]["fate"] == "kept"


def test_a_version_that_was_rolled_back_is_told_with_its_reason_and_an_exit_code(
    command: Command, daemon: RunningDaemon, job: Path
) -> None:
    """H7."""
    daemon.dispatcher.restart_ends = RestartState.ROLLED_BACK
    shown = command("hot-restart", RUNNING, str(job), "--yes")
    assert shown.exit_code == 1
    assert "The job goes on as it was (rolled-back)" in shown.output


def test_the_faults_of_a_new_version_are_told_with_their_lines(
    command: Command, daemon: RunningDaemon, job: Path
) -> None:
    """J4, H2."""
    daemon.dispatcher.faults = (GraphFault(path="vertices.late", problem="no such column"),)
    shown = command("hot-restart", RUNNING, str(job), "--yes")
    assert shown.exit_code == 2
    assert f"{job}:7: vertices.late: no such column" in shown.output
    assert "the job goes on as it is" in shown.output


def test_a_job_is_rescaled(command: Command, daemon: RunningDaemon) -> None:
    """H6."""
    shown = command("rescale", RUNNING, "--parallelism", "4", "--least", "2")
    assert shown.exit_code == 0, shown.output
    assert daemon.dispatcher.restarts == [RescaleJob(job_id=RUNNING, vertices={"flights": 4, "out": 4}, least=2)]
