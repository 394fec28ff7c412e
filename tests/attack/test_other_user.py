"""Another user of the daemon's host gets nowhere: no socket, no token, no answer over HTTP (E40)."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.attack.conftest import AttackedDaemon

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

TRIES = """
# Before it becomes nobody, who may not read the interpreter:
import encodings.idna, encodings.latin_1, http.client, json, os, socket, sys
path, port, state, gid = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
os.setgroups([]); os.setgid(gid); os.setuid(gid)

def tried(body):
    try:
        return body()
    except Exception as error:
        return type(error).__name__

def over_socket():
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        client.sendall(b"GET /jobs HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n")
        return int(client.recv(4096).split()[1])

def over_http(method, where, **headers):
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    client.request(method, where, headers=headers)
    return client.getresponse().status

print(json.dumps({
    "socket": tried(over_socket),
    "unlink": tried(lambda: os.unlink(path)),
    "token": tried(lambda: open(os.path.join(state, "http.token")).read()),
    "tokens": tried(lambda: open(os.path.join(state, "tokens.json")).read()),
    "audit": tried(lambda: open(os.path.join(state, "audit.log")).read()),
    "get": tried(lambda: over_http("GET", "/jobs")),
    "post": tried(lambda: over_http("POST", "/jobs")),
    "blobs": tried(lambda: over_http("GET", "/blobs/access")),
    "handover": tried(lambda: over_http("POST", "/cluster/handover")),
    "guess": tried(lambda: over_http("GET", "/jobs", Authorization="Bearer mfl-" + "0" * 16 + "-" + "x" * 43)),
    "health": tried(lambda: over_http("GET", "/health/live")),
}))
"""


class OpenPlace(AttackedDaemon):
    """Its directories can be reached by anybody, as /run and /var/lib can, unlike pytest's."""

    def __init__(self, base: Path, **more: str) -> None:
        base.chmod(0o755)
        super().__init__(base / "state", {"XDG_RUNTIME_DIR": str(base)}, **more)
        self.socket = base / "minflinkd" / f"http-{self.url.rpartition(':')[2]}.sock"


@contextlib.contextmanager
def attackable(**more: str) -> Iterator[OpenPlace]:
    with tempfile.TemporaryDirectory(prefix="open-") as base:
        found = OpenPlace(Path(base), **more)
        try:
            yield found
        finally:
            found.close()


@pytest.fixture
def daemon() -> Iterator[OpenPlace]:
    with attackable() as found:
        yield found


def as_nobody(daemon: OpenPlace) -> dict[str, Any]:
    arguments = (str(daemon.socket), daemon.url.rpartition(":")[2], str(daemon.state))
    ran = subprocess.run(
        [sys.executable, "-I", "-c", TRIES, *arguments, str(pwd.getpwnam("nobody").pw_uid)],
        capture_output=True,
        timeout=60,
        check=True,
        cwd="/",
    )
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


REFUSED = {
    "socket": "PermissionError",
    "unlink": "PermissionError",
    "token": "PermissionError",
    "tokens": "PermissionError",
    "audit": "PermissionError",
    "get": 401,
    "post": 401,
    "blobs": 401,
    "handover": 401,
    "guess": 401,
    "health": 200,
}


def test_another_user_of_the_host_gets_nowhere(daemon: OpenPlace) -> None:
    assert daemon.socket.is_socket()
    assert as_nobody(daemon) == REFUSED
    assert not daemon.daemon.handover_asked.is_set()


def test_the_kernels_word_counts_even_if_the_socket_is_open_to_all(daemon: OpenPlace) -> None:
    """If the operator changed the modes, or a file system has none (E40)."""
    daemon.socket.parent.chmod(0o755)
    daemon.socket.chmod(0o666)
    assert as_nobody(daemon) == {**REFUSED, "socket": 401}


def test_without_the_log_in_the_same_requests_are_answered() -> None:
    """Shows that the others try at all."""
    with attackable(security__allow_unauthenticated="true") as open_to_all:
        tried = as_nobody(open_to_all)
    assert (tried["get"], tried["blobs"], tried["handover"], tried["post"]) == (200, 200, 202, 415)


def test_the_command_line_tells_another_user_what_to_do(daemon: OpenPlace) -> None:
    """Errors say what to do next (E10)."""
    become = "import os, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534); "
    before = "import minflinkd.cli.main, minflinkd.cli.list_jobs, minflinkd.cli.client, minflinkd.cli.text; "
    run = "from minflinkd.cli.main import main; sys.argv = ['minflinkd', 'list']; main()"
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            before + become + run,
        ],
        env={**os.environ, "HOME": "/nonexistent", "MINFLINKD_URL": daemon.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 2, ran.stderr
    assert "This needs a token" in ran.stderr
    assert f"{daemon.state}/http.token" in ran.stderr
