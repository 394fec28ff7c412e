"""What `minflinkd serve` and `minflinkd taskmanager` say when they cannot start, and that they leave nothing: no Spark.

A terminal is a pseudo-terminal. Otherwise every line is JSON, as systemd's journal gets it.
"""

from __future__ import annotations

import json
import os
import pty
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minflinkd.cli.exits import ExitCode

TIMEOUT = 180  # seconds


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as held:
        yield int(held.getsockname()[1])


@pytest.fixture
def without_java(tmp_path: Path) -> dict[str, str]:
    """An environment without Java."""
    empty = tmp_path / "programs"
    empty.mkdir()
    return {**{key: value for key, value in os.environ.items() if key != "JAVA_HOME"}, "PATH": str(empty)}


def settings(state: Path, **more: object) -> list[str]:
    values = {"process.working-dir": state, "rest.port": 0, "resourcemanager.standby-taskmanagers": 1, **more}
    return [part for key, value in values.items() for part in ("--set", f"{key}={value}")]


def serve(state: Path, environ: dict[str, str] | None = None, **more: object) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit code and the lines of the log, as they come if stderr is no terminal."""
    done = subprocess.run(
        [sys.executable, "-m", "minflinkd", "serve", *settings(state, **more)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.stdout == ""
    return done.returncode, [json.loads(line) for line in done.stderr.splitlines()]


def on_a_terminal(*arguments: str, environ: dict[str, str] | None = None) -> tuple[int, str]:
    """Return the exit code, and what somebody at a terminal sees."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "minflinkd", *arguments], env=environ, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:  # EIO: the last process that had the terminal has ended
        pass
    finally:
        os.close(ours)
    return process.wait(TIMEOUT), shown.decode().replace("\r\n", "\n")


def test_without_java_a_daemon_does_not_start(tmp_path: Path, without_java: dict[str, str]) -> None:
    """An error with a code comes before "ready", instead of TaskManagers that end again and again (Issue 15, 9)."""
    code, lines = serve(tmp_path / "state", without_java)
    assert (code, lines[-1]["level"], lines[-1]["code"]) == (ExitCode.DAEMON_FAILED, "error", "no-java")
    assert "no Java was found" in lines[-1]["error"]
    assert "ready" not in [line["event"] for line in lines]
    assert not (tmp_path / "state" / "taskmanagers").exists()


def test_a_terminal_shows_the_error_as_a_sentence(tmp_path: Path, without_java: dict[str, str]) -> None:
    """A person at a terminal does not have to read JSON (Issue 15, 9)."""
    environ = without_java | {"JAVA_HOME": "/no/such/jdk"}
    code, shown = on_a_terminal("serve", *settings(tmp_path / "state"), environ=environ)
    assert code == ExitCode.DAEMON_FAILED
    error, hint = shown.splitlines()[-2:]
    assert error == "Error: The daemon cannot run: [no-java] JAVA_HOME is /no/such/jdk, where there is no bin/java"
    assert "unset it" in hint
    assert "{" not in shown


def test_a_daemon_that_starts_no_taskmanagers_needs_no_java(tmp_path: Path, without_java: dict[str, str]) -> None:
    """With resourcemanager.driver: standalone, it gets as far as its ports."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        options = {"resourcemanager.driver": "standalone", "jobmanager.rpc.port": held.getsockname()[1]}
        _, lines = serve(tmp_path / "state", without_java, **options)
    assert lines[-1]["code"] == "port-taken"


def test_a_taskmanager_of_ones_own_needs_java(tmp_path: Path, without_java: dict[str, str]) -> None:
    options = settings(tmp_path / "state", **{"jobmanager.rpc.port": 9})
    code, shown = on_a_terminal("taskmanager", *options, environ=without_java)
    assert code == ExitCode.DAEMON_FAILED
    assert "Error: The TaskManager cannot run: [no-java] no Java was found" in shown
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("option", "expected"),
    [("rest.port", "port-taken"), ("jobmanager.rpc.port", "port-taken"), ("blob.server.port", "blob-ports-taken")],
)
def test_a_taken_port_is_found_before_a_taskmanager_is_started(
    tmp_path: Path, taken: int, option: str, expected: str
) -> None:
    """The error names the port's option, who has the port, and what to do (Issue 15, 9)."""
    code, lines = serve(tmp_path / "state", **{option: taken})
    assert (code, lines[-1]["code"]) == (ExitCode.DAEMON_FAILED, expected)
    assert lines[-1]["error"].startswith(f"port {taken} of 127.0.0.1 is taken ({option}) by ")
    assert f"(pid {os.getpid()})" in lines[-1]["error"]
    assert option in lines[-1]["hint"]
    assert not (tmp_path / "state" / "taskmanagers").exists()


def test_a_state_directory_that_is_a_file_is_named(tmp_path: Path) -> None:
    """The error says more than [Errno 17] or [Errno 20] (Issue 15, 9)."""
    (tmp_path / "file").touch()
    for state in (tmp_path / "file", tmp_path / "file" / "below"):
        code, lines = serve(state)
        assert (code, lines[-1]["code"]) == (ExitCode.DAEMON_FAILED, "unusable-state-directory")
        assert f"the state directory {state} (process.working-dir, --state-dir)" in lines[-1]["error"]
        assert f"{tmp_path / 'file'} is a file" in lines[-1]["error"]


def test_a_state_directory_that_cannot_be_made_is_named() -> None:
    """The error says more than [Errno 2] (Issue 15, 9)."""
    code, lines = serve(Path("/proc/nothing"))
    assert (code, lines[-1]["code"]) == (ExitCode.DAEMON_FAILED, "unusable-state-directory")
    assert "/proc/nothing: No such file or directory" in lines[-1]["error"]
    assert "write" in lines[-1]["hint"]


def test_a_secret_file_that_is_none_is_named(tmp_path: Path) -> None:
    code, lines = serve(tmp_path / "state", **{"security.secret-file": tmp_path})
    assert (code, lines[-1]["code"]) == (ExitCode.DAEMON_FAILED, "unusable-secret")
    assert str(tmp_path) in lines[-1]["error"]
