"""The lock of a state directory ends with the process that holds it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from minflinkd.ha.embedded import (
    StateDirectory,
    StateDirectoryTaken,
)


def test_a_killed_daemon_does_not_keep_its_directory(tmp_path: Path) -> None:
    """The lock ends with the process, however that ends (A6, A10)."""
    program = (
        "import sys, pathlib; from minflinkd.ha.embedded import StateDirectory;"
        "s = StateDirectory(pathlib.Path(sys.argv[1])); print(s.take(), flush=True); sys.stdin.read()"
    )
    daemon = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert daemon.stdout is not None
    assert daemon.stdin is not None
    assert daemon.stdout.readline() == "1\n"
    directory = StateDirectory(tmp_path)
    with pytest.raises(StateDirectoryTaken):
        directory.take()
    daemon.kill()
    daemon.wait(10)
    daemon.stdin.close()
    daemon.stdout.close()
    assert directory.take() == 2
    directory.release()
