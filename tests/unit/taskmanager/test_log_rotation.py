"""Logs that processes print do not fill the disk (E45)."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from minflinkd.taskmanager import log_rotation
from minflinkd.taskmanager.log_rotation import KEPT, rotate


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_rotation, "LARGEST", 10)


def names(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(directory.iterdir())}


def test_a_large_log_is_emptied_in_place_and_its_last_parts_are_kept(tmp_path: Path) -> None:
    """Whoever has it open goes on to append to the same file."""
    with (tmp_path / "session.log").open("a") as printing:
        for n in range(KEPT + 2):
            printing.write(f"part {n} of the log")
            printing.flush()
            rotate(tmp_path)
        printing.write("new")
        printing.flush()
    assert names(tmp_path) == {
        "session.log": "new",
        **{f"session.log.{n}": f"part {KEPT + 2 - n} of the log" for n in range(1, KEPT + 1)},
    }


def test_small_and_foreign_logs_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "session.log").write_text("short")
    (tmp_path / "session-jvm.log").write_text("rotated by the JVM itself")
    before = names(tmp_path)
    rotate(tmp_path)
    rotate(tmp_path / "none")
    assert names(tmp_path) == before


def test_on_a_full_disk_a_large_log_is_emptied_without_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the log that has filled the disk would stay."""

    def full(source: Path, target: Path) -> Any:
        target.write_text("begun")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    (tmp_path / "taskmanager.log").write_text("a long log of a task manager")
    with capture_logs() as logs:
        rotate(tmp_path)
    assert names(tmp_path) == {"taskmanager.log": ""}
    assert [line["event"] for line in logs] == ["a log is emptied without a copy"]
