"""`minflinkd init`: a project that works as it is (E10)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from minflinkd.cli.init import project
from minflinkd.cli.main import main


def made(directory: Path, *arguments: str) -> Path:
    done = CliRunner().invoke(main, ["init", str(directory), *arguments])
    assert done.exit_code == 0, done.output
    return directory


def test_the_file_alone_has_no_faults(tmp_path: Path) -> None:
    where = made(tmp_path / "My Clicks")
    assert "name: my-clicks\n" in (where / "job.yaml").read_text()
    checked = CliRunner().invoke(main, ["check", "--no-spark", str(where / "job.yaml")])
    assert checked.exit_code == 0, checked.output
    assert "@" not in "".join(project("clicks", tmp_path).values())


def test_a_project_is_explained(tmp_path: Path) -> None:
    shown = CliRunner().invoke(main, ["explain", "--no-plan", "--json", str(made(tmp_path / "clicks") / "job.yaml")])
    assert [task["id"] for task in json.loads(shown.stdout)["tasks"]] == ["events"]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    where = made(tmp_path / "clicks")
    (where / "job.yaml").write_text("mine")
    again = CliRunner().invoke(main, ["init", str(where)])
    assert (again.exit_code, (where / "job.yaml").read_text()) == (5, "mine")
    assert CliRunner().invoke(main, ["init", str(tmp_path / "x"), "--name", "Not a name"]).exit_code == 2


@pytest.mark.spark
@pytest.mark.slow
def test_spark_accepts_the_job_and_its_own_tests_pass(tmp_path: Path) -> None:
    """As the README of the project says: `make check test`."""
    where = made(tmp_path / "clicks")
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["make", "check", "test"],
        cwd=where,
        env=environ,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "has no faults" in done.stdout
