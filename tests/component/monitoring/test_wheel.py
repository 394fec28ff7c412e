"""What an installation brings besides code (E19b)."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]


def test_a_wheel_contains_the_alerts_and_the_dashboard(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="pip install hatchling")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(build, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.glob("*.whl")
    names = {name.partition(".data/data/")[2] for name in zipfile.ZipFile(wheel).namelist()}
    brought = {
        f"share/minflinkd/{path.relative_to(REPOSITORY / 'deploy')}" for path in (REPOSITORY / "deploy").rglob("*.*")
    }
    assert brought
    assert brought <= names
