"""`minflinkd doctor`: a job, the cluster, a machine before the first start (E19a)."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from minflinkd.cli.main import main
from tests.component.cli.conftest import Command, RunningDaemon
from tests.unit.rest.parties import RUNNING, failing


def machine(*args: str) -> tuple[int, list[dict[str, str]]]:
    """Return the exit code, and the checks of this machine."""
    done = CliRunner().invoke(main, ["doctor", "--machine", "--json", *args])
    return done.exit_code, json.loads(done.stdout)["machine"]


def sane(tmp_path: Path) -> list[str]:
    options = {"process.working-dir": tmp_path / "state", "rest.port": 0}
    return [part for key, value in options.items() for part in ("-D", f"{key}={value}")]


def test_a_job_is_told_in_sentences(command: Command, daemon: RunningDaemon) -> None:
    daemon.dispatcher.jobs[RUNNING] = failing()
    shown = command("doctor", "carrier-delays")
    assert shown.exit_code == 0, shown.output
    assert "critical  The job restarts again and again (job carrier-delays)" in shown.output
    assert "seven is poison" in shown.output
    assert "What to do: " in shown.output


def test_a_job_can_be_read_by_a_program(command: Command, daemon: RunningDaemon) -> None:
    daemon.dispatcher.jobs[RUNNING] = failing()
    found = json.loads(command("doctor", RUNNING, "--json").output)
    assert found["findings"][0]["code"] == "restarts-repeatedly"


def test_a_job_that_does_not_exist_is_an_error(command: Command) -> None:
    assert command("doctor", "nothing").exit_code == 4


def test_options_of_the_machine_do_not_go_with_a_job(command: Command) -> None:
    assert command("doctor", "carrier-delays", "--machine").exit_code == 2


def test_without_a_job_the_machine_and_the_cluster_are_told(command: Command, tmp_path: Path) -> None:
    """The ports are those of the daemon that answers, and so no finding."""
    shown = command("doctor", *sane(tmp_path))
    assert shown.exit_code == 0, shown.output
    assert "This machine\n" in shown.output
    assert "java: " in shown.output
    assert "port: " not in shown.output
    assert "The cluster\n" in shown.output


def test_without_a_daemon_the_machine_is_checked_all_the_same(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["doctor", "--url", "http://127.0.0.1:1", *sane(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "no daemon answers at http://127.0.0.1:1" in done.output


def test_a_sound_machine_passes_and_nothing_is_left_there(tmp_path: Path) -> None:
    code, found = machine(*sane(tmp_path))
    assert code == 0, found
    names = {each["name"] for each in found}
    assert names == {"configuration", "java", "memory", "directory", "disk", "files", "port", "clock", "storage"}
    assert not list(tmp_path.iterdir())


def test_a_taken_port_is_found_with_its_option(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        code, found = machine(*sane(tmp_path), "-D", f"rest.port={other.getsockname()[1]}")
    [port] = [each for each in found if each["name"] == "port" and each["outcome"] == "failed"]
    assert code == 2
    assert "rest.port" in port["sentence"] + port["do"]


def test_a_missing_java_is_found_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    code, found = machine(*sane(tmp_path))
    [java] = [each for each in found if each["name"] == "java"]
    assert (code, java["outcome"]) == (2, "failed")
    assert "Java" in java["do"]


def test_a_wrong_configuration_is_told_alone(tmp_path: Path) -> None:
    code, found = machine("-D", "rest.prot=1")
    assert code == 2
    assert [each["name"] for each in found] == ["configuration"]
    assert "rest.port" in found[0]["sentence"]


def test_a_storage_that_cannot_be_used_is_found_by_its_backend(tmp_path: Path) -> None:
    """The checkpoint directory is tried by the plugin of its scheme, as the daemon would use it."""
    (tmp_path / "file").write_text("in the way")
    place = f"file://{tmp_path / 'file' / 'checkpoints'}"
    code, found = machine(*sane(tmp_path), "-D", f"execution.checkpointing.dir={place}")
    storages = {each["sentence"].partition(": ")[0]: each["outcome"] for each in found if each["name"] == "storage"}
    assert code == 2
    assert storages[place] == "failed"


def test_a_checkpoint_directory_elsewhere_is_tried_with_a_round_trip(tmp_path: Path) -> None:
    place = tmp_path / "checkpoints"
    place.mkdir()
    code, found = machine(*sane(tmp_path), "-D", f"execution.checkpointing.dir=file://{place}")
    assert code == 0
    told = next(each for each in found if str(place) in each["sentence"])
    assert told["outcome"] == "ok"
    assert "written, read, listed and deleted" in told["sentence"]
    assert not list(place.iterdir())
