"""The guard that removes what earlier attempts left. The fault tests rely on it."""

from __future__ import annotations

import os
from pathlib import Path

from tests.attempt_guard import attempts_of, guarding, take_away_all
from tests.attempt_guard.sitecustomize import RECORDS, take_away

JOB = "a" * 32


def recorded(base: Path, *attempts: str) -> Path:
    """Write the record of a task. Each of its attempts has a file in its directory, and one in its log."""
    task = Path(os.environ[RECORDS], JOB, "events")
    task.mkdir(parents=True)
    for attempt in attempts:
        for kind in ("attempts", "exchanges"):
            (base / kind / attempt).mkdir(parents=True)
            (base / kind / attempt / "file").touch()
        (task / attempt).write_text(str(base / "attempts" / attempt))
    return task


def test_what_earlier_attempts_left_goes_with_their_logs(tmp_path: Path) -> None:
    """The attempt that starts keeps its files, and so do others."""
    with guarding():
        task = recorded(tmp_path, "first", "second")
        (tmp_path / "attempts" / "other").mkdir()
        take_away(task, but="second")
        assert attempts_of(JOB) == {"second": tmp_path / "attempts" / "second"}
        found = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*")}
        assert found == {"attempts/second", "attempts/other", "exchanges/second"}
        take_away_all(JOB)
        assert attempts_of(JOB) == {}
        assert [path.name for path in (tmp_path / "attempts").iterdir()] == ["other"]


def test_what_the_taskmanager_has_removed_already_is_forgotten(tmp_path: Path) -> None:
    """Both remove the directory of an attempt that has ended, in either order."""
    with guarding():
        task = recorded(tmp_path, "first")
        (tmp_path / "attempts/first").rename(tmp_path / "elsewhere")
        take_away(task, but="second")
        assert attempts_of(JOB) == {}
