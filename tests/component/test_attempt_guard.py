"""The guard of the fault tests gets into processes that are started meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.attempt_guard import guarding
from tests.attempt_guard.sitecustomize import RECORDS


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def test_a_process_that_is_started_meanwhile_has_the_guard_and_no_other_has(tmp_path: Path) -> None:
    """The guard replaces the method that prepares a restore in the session child."""
    code = (
        "from minflinkd.taskmanager.session.restore.directory import Restoring; print(Restoring.prepare.__qualname__)"
    )
    with guarding(), guarding():
        assert run(code) == "_guard.<locals>.guarded"
    assert run(code) == "Restoring.prepare"
    assert RECORDS not in os.environ


def test_another_sitecustomize_runs_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults are planted in this way too. The order of the two must not matter."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.planted = True\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with guarding():
        assert run("import sys; print(sys.planted)") == "True"
    assert os.environ["PYTHONPATH"] == str(tmp_path)
