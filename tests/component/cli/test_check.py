"""`minflinkd check` as a program, on a machine without Java."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from minflinkd.cli.exits import ExitCode
from tests.unit.cli.test_check import JOB


def test_without_java_the_job_is_not_said_to_be_sound(tmp_path: Path) -> None:
    """Half a check could pass for a whole one.

    Faults in the file are shown nevertheless, and nothing is left behind.
    """
    job = tmp_path / "job.yaml"
    job.write_text(JOB.replace("[clicks]", "[click]"))
    (tmp_path / "empty").mkdir()
    environ = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"}
    done = subprocess.run(
        [sys.executable, "-m", "minflinkd", "check", str(job)],
        env={**environ, "PATH": str(tmp_path / "empty"), "TMPDIR": str(tmp_path / "empty")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == ExitCode.DAEMON_FAILED
    assert f"{job}:7: vertices.out.inputs[0]: " in done.stderr
    assert "The job could not be checked: [no-java] no Java was found" in done.stderr
    assert list((tmp_path / "empty").iterdir()) == []
