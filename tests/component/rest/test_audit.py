"""The audit log is written without blocking the event loop, and rotated (E43)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from minflinkd.rest.identity import audit
from minflinkd.rest.identity.audit import AuditLog, Deed, append
from tests.waiting import until


def deed(path: str) -> Deed:
    return Deed(who="ci", role="submit", sender="127.0.0.1", method="POST", path=path, status=202)


def paths(file: Path) -> list[str]:
    return [json.loads(line)["path"] for line in file.read_text().splitlines()] if file.exists() else []


async def test_lines_are_in_order_and_the_last_ones_are_written_at_the_end(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    async with AuditLog(file) as log:
        for number in range(100):
            log.record(deed(f"/{number}"))
        await until(lambda: len(paths(file)) == 100, "all lines are written")
        log.record(deed("/last"))
    assert paths(file) == [f"/{number}" for number in range(100)] + ["/last"]


async def test_a_large_file_is_rotated_and_the_oldest_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not fill a disk (E43)."""
    monkeypatch.setattr(audit, "LARGEST", 10)
    monkeypatch.setattr(audit, "KEPT", 2)
    file = tmp_path / "audit.log"
    for number in range(4):
        append(file, f"line {number} of the log\n".encode())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit.log", "audit.log.1", "audit.log.2"]
    assert file.read_text() == "line 3 of the log\n"
    assert (tmp_path / "audit.log.1").read_text() == "line 2 of the log\n"
    assert (tmp_path / "audit.log.2").read_text() == "line 1 of the log\n"
    assert (tmp_path / "audit.log.1").stat().st_mode & 0o777 == 0o600


async def test_a_log_that_cannot_be_rotated_grows_and_has_each_line_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file may be the daemon's, and its directory not (E43)."""
    monkeypatch.setattr(audit, "LARGEST", 10)

    def refused(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(audit, "_rotate", refused)
    for number in range(3):
        append(tmp_path / "audit.log", f"line {number}\n".encode())
    assert (tmp_path / "audit.log").read_text() == "line 0\nline 1\nline 2\n"


async def test_lines_wait_while_the_file_cannot_be_written_and_none_is_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk ends no request (E43)."""
    monkeypatch.setattr(audit, "AGAIN", 0.01)
    monkeypatch.setattr(audit, "MOST_WAITING", 3)
    directory = tmp_path / "log"
    file = directory / "audit.log"
    with capture_logs() as logs:
        async with AuditLog(file) as log:
            for number in range(5):
                log.record(deed(f"/{number}"))
            await until(lambda: any("cannot be written" in line["event"] for line in logs), "a warning")
            assert any("is lost" in line["event"] for line in logs)
            directory.mkdir()
            await until(lambda: len(paths(file)) == 3, "the lines are written")
            await asyncio.sleep(0)
    assert paths(file) == ["/0", "/1", "/2"]
