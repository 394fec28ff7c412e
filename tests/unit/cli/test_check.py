"""`minflinkd check` without Spark. tests/e2e/test_check.py covers it with a session."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import structlog
from click.testing import CliRunner, Result

from minflinkd.cli.exits import ExitCode
from minflinkd.cli.main import main
from minflinkd.cli.private_daemon import private_config

JOB = """\
name: clicks
params: {minutes: 60}
vertices:
  clicks:
    source: {format: json, path: /data/clicks, schema: "user STRING"}
  out:
    inputs: [clicks]
    sink: {format: parquet, path: "/data/out/${minutes}"}
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    return file


def check(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["check", *map(str, arguments)])


def test_a_sound_file_is_exit_code_0(job: Path) -> None:
    """The output says that Spark was not asked (issue 15, 11)."""
    shown = check(job, "--no-spark")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert "no faults (by the file alone; Spark was not asked)" in shown.stdout


def test_every_fault_is_named_with_its_line(job: Path) -> None:
    """The exit code is 1 (J4)."""
    job.write_text(JOB.replace("[clicks]", "[click]").replace("minutes: 60", "hours: 1"))
    shown = check(job, "--no-spark")
    assert shown.exit_code == 1
    assert f"{job} has 2 faults" in shown.stderr
    assert f"{job}:7: vertices.out.inputs[0]: " in shown.stderr
    assert "did you mean clicks?" in shown.stderr
    assert check(job, "--no-spark", "-p", "minutes=30").stderr.startswith(f"{job} has 1 fault\n")


def test_faults_as_json_are_an_answer_on_stdout(job: Path) -> None:
    job.write_text(JOB.replace("[clicks]", "[click]"))
    shown = check(job, "--no-spark", "--json")
    answer = json.loads(shown.stdout)
    assert (shown.exit_code, answer["valid"], answer["spark"], answer["file"]) == (1, False, False, str(job))
    (fault,) = answer["faults"]
    assert (fault["path"], fault["line"], fault["hint"]) == ("vertices.out.inputs[0]", 7, "did you mean clicks?")
    assert json.loads(check(job, "--no-spark", "--json", "-p", "minutes=1").stdout)["valid"] is False


def test_a_file_that_is_no_yaml_is_a_fault(job: Path) -> None:
    job.write_text("name: [")
    shown = check(job, "--no-spark")
    assert (shown.exit_code, "this is not YAML" in shown.stderr) == (1, True)


def test_with_json_a_job_that_could_not_be_checked_is_an_error_as_json(job: Path, tmp_path: Path) -> None:
    """The error is on stderr, with the code that a script checks, and with the faults that the file shows (E10)."""
    job.write_text(JOB.replace("[clicks]", "[click]"))
    shown = CliRunner().invoke(main, ["check", str(job), "--json"], env={"JAVA_HOME": str(tmp_path)})
    assert (shown.exit_code, shown.stdout) == (ExitCode.DAEMON_FAILED, "")
    error = json.loads(shown.stderr)
    assert (error["code"], error["hint"][:13]) == ("no-java", "set JAVA_HOME")
    assert "could not be checked: JAVA_HOME is" in error["errors"][0]
    assert f"{job}:7: vertices.out.inputs[0]: " in error["errors"][1]


def test_a_wrong_option_of_the_configuration_is_exit_code_2(job: Path) -> None:
    before = structlog.get_config()
    shown = check(job, "-D", "taskmanager.memory.heap.sise=1g")
    assert (shown.exit_code, "taskmanager.memory.heap.size" in shown.stderr) == (2, True)
    assert structlog.get_config() == before, "the log of the process is as it was"


def test_what_sessions_can_do_is_the_users_and_where_things_lie_is_not(tmp_path: Path) -> None:
    """A check on a daemon's host, with the daemon's configuration, takes none of its ports and touches no file."""
    file = tmp_path / "minflinkd.yaml"
    file.write_text(
        "taskmanager.spark.conf: {spark.sql.ansi.enabled: 'false'}\n"
        "rest.port: 8081\nrest.bind-address: 0.0.0.0\nsecurity.allow-unauthenticated: true\n"
        "resourcemanager.driver: standalone\njobmanager.rpc.port: 6123\n"
        "process.working-dir: /var/lib/minflinkd\nexecution.checkpointing.dir: s3://bucket/checkpoints\n"
        "high-availability.storageDir: s3://bucket/ha\ntaskmanager.spark.master: spark://cluster:7077\n"
        "taskmanager.state.local.root-dir: /fast\n"
    )
    config = private_config(file, {"MINFLINKD_REST_PORT": "80"}, {}, home=tmp_path / "home", start_timeout=120)
    changed = {item.key: str(item.value) for item in config.as_items() if not item.is_default}
    assert changed == {
        "taskmanager.spark.conf": '{"spark.sql.ansi.enabled": "false"}',
        "security.audit-log": "none",
        "rest.port": "0",
        "resourcemanager.max-taskmanagers": "1",
        "resourcemanager.taskmanager-registration.timeout": "2 min",
        "taskmanager.session.class-archive": "false",
        "process.working-dir": str(tmp_path / "home"),
    }
