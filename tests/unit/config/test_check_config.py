"""`minflinkd check-config`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from minflinkd.cli.check_config import check_config


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.delenv("MINFLINKD_CONFIG", raising=False)
    return CliRunner()


def test_a_good_file_ends_with_0_and_shows_what_differs_from_the_defaults(cli: CliRunner, tmp_path: Path) -> None:
    """The output is for people by default (E10)."""
    file = tmp_path / "minflinkd.yaml"
    file.write_text("rest.port: 8082\n")
    result = cli.invoke(check_config, [str(file), "--set", "heartbeat.interval=2s"])
    assert result.exit_code == 0
    assert result.output.splitlines()[1:] == [
        f"  rest.port: 8082  ({file}:1)",
        "  heartbeat.interval: 2 s  (command line)",
    ]


def test_a_bad_file_ends_with_2_and_every_fault(cli: CliRunner, tmp_path: Path) -> None:
    """The check is the same as at the start (E20)."""
    file = tmp_path / "minflinkd.yaml"
    file.write_text("rest.prt: 8082\nlog.level: x\n")
    result = cli.invoke(check_config, [str(file)])
    assert result.exit_code == 2
    assert "did you mean rest.port?" in result.stderr
    assert "minflinkd.yaml:2: log.level" in result.stderr


def test_json_says_the_same_to_a_program(cli: CliRunner, tmp_path: Path) -> None:
    """Every command has --json (E10)."""
    file = tmp_path / "minflinkd.yaml"
    file.write_text("rest.port: 8082\n")
    good = json.loads(cli.invoke(check_config, [str(file), "--json"]).stdout)
    assert good == {
        "valid": True,
        "file": str(file),
        "changed": {"rest.port": "8082"},
        "origins": {"rest.port": [f"{file}:1"]},
    }
    result = cli.invoke(check_config, [str(file), "--json"], env={"MINFLINKD_REST_PORT": "x"})
    bad = json.loads(result.stdout)
    assert result.exit_code == 2
    assert (bad["valid"], bad["code"], bad["faults"][0]["key"]) == (False, "invalid-config", "rest.port")


def test_without_a_file_it_checks_the_one_that_the_environment_names(cli: CliRunner, tmp_path: Path) -> None:
    """`serve` would read the same file (E10)."""
    file = tmp_path / "mine.yaml"
    file.write_text("rest.port: 8083\n")
    result = cli.invoke(check_config, [], env={"MINFLINKD_CONFIG": str(file)})
    assert "rest.port: 8083" in result.output


def test_an_override_without_a_value_is_refused(cli: CliRunner) -> None:
    """Errors say what to do next (E10)."""
    result = cli.invoke(check_config, ["--set", "rest.port"])
    assert result.exit_code == 2
    assert "is not KEY=VALUE" in result.stderr


def test_a_user_that_does_not_exist_is_a_fault(cli: CliRunner, tmp_path: Path) -> None:
    """The daemon would not start: whoever checks the configuration learns it first (E44)."""
    arguments = ["--set", "taskmanager.run-as=no-such-user", "--set", f"taskmanager.state.local.root-dir={tmp_path}"]
    result = cli.invoke(check_config, arguments)
    assert result.exit_code == 2
    assert "taskmanager.run-as: no-such-user: " in result.output
    assert "useradd" in result.output
