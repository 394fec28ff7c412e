"""`minflinkd blobs` (E10)."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from minflinkd.blob import connection
from minflinkd.cli import progress
from tests.component.cli.conftest import Command, RunningDaemon
from tests.unit.rest.parties import RUNNING

OTHER = "0" * 31 + "1"


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "a.py").write_bytes(b"a")
    (tmp_path / "b.zip").write_bytes(b"bb")
    return [str(tmp_path / "a.py"), str(tmp_path / "b.zip")]


def listed(command: Command, *arguments: str) -> dict[str, object]:
    shown = command("blobs", "list", "--json", *arguments)
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    assert isinstance(found, dict)
    return found


def test_files_are_uploaded_and_listed_by_job(command: Command, files: list[str]) -> None:
    """The files of a job are one set, which is complete when the command ends (B6)."""
    sent = command("blobs", "upload", *files, "--job", "carrier-delays")
    assert sent.exit_code == 0, sent.output
    keys = [line.split()[0] for line in sent.stdout.splitlines()]
    assert [line.split()[1] for line in sent.stdout.splitlines()] == files
    command("blobs", "upload", files[0], "--transient")
    found = listed(command)
    assert found["totals"] == {"blobs": 3, "size": 4, "states": {"staged": 3}}
    assert found["jobs"] == [
        {"job": RUNNING, "blobs": 2, "size": 3, "states": {"staged": 2}},
        {"job": "none", "blobs": 1, "size": 1, "states": {"staged": 1}},
    ]
    blobs = listed(command, "--job", "carrier-delays")["blobs"]
    assert isinstance(blobs, list)
    assert {blob["key"] for blob in blobs} == set(keys)
    assert {blob["kind"] for blob in blobs} == {"permanent"}
    table = command("blobs", "list", "--job", "none").stdout
    assert "transient" in table
    assert "1 blob (1 staged), 1 B" in table


def test_what_is_there_is_not_stored_again(command: Command, daemon: RunningDaemon, files: list[str]) -> None:
    """B1"""
    first = command("blobs", "upload", files[0], "--job", OTHER).stdout
    assert command("blobs", "upload", files[0], "--job", OTHER).stdout == first
    assert len(daemon.stored()) == 1


@pytest.mark.parametrize("job", [(), ("--job", "none")])
def test_a_permanent_blob_needs_a_job(
    command: Command, daemon: RunningDaemon, files: list[str], job: tuple[str, ...]
) -> None:
    shown = command("blobs", "upload", *files, *job)
    assert (shown.exit_code, daemon.stored()) == (2, [])
    assert "--job" in shown.output


def test_a_transient_blob_is_deleted_by_the_beginning_of_its_key(
    command: Command, daemon: RunningDaemon, files: list[str]
) -> None:
    """A transient blob's user may delete it (B2)."""
    (stored,) = json.loads(command("blobs", "upload", files[0], "--transient", "--json").stdout)
    shown = command("blobs", "delete", stored["key"][:10])
    assert (shown.exit_code, shown.output) == (0, f"{stored['key']} is deleted.\n")
    assert daemon.stored() == []


def test_what_cannot_be_deleted_says_why(command: Command, daemon: RunningDaemon, files: list[str]) -> None:
    """Exit codes are documented (E10)."""
    key = command("blobs", "upload", files[0], "--job", OTHER).stdout.split()[0]
    refused = command("blobs", "delete", key)
    assert (refused.exit_code, "permanent" in refused.stderr) == (5, True)
    as_json = command("blobs", "delete", key, "--json")
    assert (as_json.exit_code, json.loads(as_json.stderr)["code"]) == (5, "blob-permanent")
    assert command("blobs", "delete", "t-0123").exit_code == 4
    for job in (OTHER, "none"):
        arguments = ("--job", job) if job != "none" else ()
        command("blobs", "upload", files[1], "--transient", *arguments)
    sha256 = next(path.name for path in daemon.stored() if path.name.startswith("t-"))[:40]
    ambiguous = command("blobs", "delete", sha256)
    assert (ambiguous.exit_code, "means 2 blobs" in ambiguous.stderr) == (2, True)
    assert len(daemon.stored()) == 3


def test_without_a_blob_server_the_exit_code_says_so(
    command: Command, daemon: RunningDaemon, files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code is 3, after the last try (E10)."""
    monkeypatch.setattr(connection, "LONGEST_PAUSE", 0.1)
    daemon.call(daemon.blobs.aclose())
    shown = command("blobs", "upload", files[0], "--transient")
    assert (shown.exit_code, "Is the daemon running" in shown.stderr) == (3, True)


@pytest.mark.parametrize("watched", [True, False])
def test_a_bar_is_shown_on_a_terminal_alone(daemon: RunningDaemon, tmp_path: Path, watched: bool) -> None:
    large = tmp_path / "lib[" / "x]large.bin"  # not markup
    large.parent.mkdir()
    with large.open("wb") as file:
        file.truncate(progress.LARGE)
    program = [sys.executable, "-m", "minflinkd", "blobs", "upload", str(large), "--transient", "--url", daemon.url]
    ours, theirs = pty.openpty()
    try:
        stderr = theirs if watched else subprocess.PIPE
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
        done = subprocess.run(program, stdout=subprocess.PIPE, stderr=stderr, timeout=60, check=True, env=environment)
        os.write(theirs, b"end")
        shown = b""
        while not shown.endswith(b"end"):
            shown += os.read(ours, 65536)
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.stdout.startswith(b"t-")
    assert (b"lib[/x]large.bin" in shown and b"MiB" in shown) == watched
    assert watched or done.stderr == b""
