"""Processes that kill themselves between two steps, at the point that a fault test names."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from minflinkd.runtime.crash_points import VARIABLE

PROGRAM = """
import sys
from minflinkd.runtime import log
from minflinkd.runtime.crash_points import CrashPoint, announce, reach
log.configure(json=True)
announce()
for name in sys.argv[1:]:
    reach(CrashPoint(name))
    print(name, flush=True)
"""


def run(value: str, *points: str) -> subprocess.CompletedProcess[str]:
    """Run a process with the variable set. It reaches these points one after the other."""
    environ = {**os.environ, VARIABLE: value}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *points], env=environ, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_process_dies_when_it_reaches_the_point_for_the_given_time() -> None:
    """The process uses SIGKILL, so nothing is tidied up. At its start it says that it may do so (C22)."""
    ended = run("upload:2", "upload", "sync", "upload", "notify")
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout.split() == ["upload", "sync"]
    assert "may kill itself" in ended.stderr


def test_a_file_in_a_directory_strikes_once(tmp_path: Path) -> None:
    """The first process that reaches the point removes the file. Without the file nothing happens (C40)."""
    (tmp_path / "notify").touch()
    assert run(str(tmp_path), "upload", "notify").returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []
    assert run(str(tmp_path), "upload", "notify").returncode == 0


def test_a_point_that_there_is_not_keeps_the_process_from_starting() -> None:
    """A fault test with a wrong name would test nothing."""
    ended = run("uplod:1", "upload")
    assert ended.returncode == 1
    assert "is no crash point" in ended.stderr
    assert ended.stdout == ""
