"""What another user of the machine can learn from a session, or do to it (E40)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from minflinkd.runtime import private_files
from tests.cluster import lives
from tests.spark.session_child import Child, call, job, rate, task

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

SECRET = "hunter2 \\ with = : # ! and ü"

# As user `nobody`, sends what a caller of py4j sends, to each port, and prints each answer. `c` calls a method.
ATTACK = r"""
import encodings.idna, os, socket, sys  # all that it needs: `nobody` may not be able to read Python's files
os.setgroups([]), os.setgid(65534), os.setuid(65534)
for port in map(int, sys.argv[1:]):
    for sent in (b"c\nt\ngetSystemDependencies\ne\n", b"c\np0\ncall\nro1\ne\n", b"A\nguessed\ne\n", b"\x00" * 64):
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=3) as peer:
                peer.settimeout(1)
                peer.sendall(sent)
                answer = peer.recv(200)
        except OSError:  # refused, cut off, or no answer in time
            answer = b""
        print(port, answer)
"""


def _family(child: Child) -> list[psutil.Process]:
    whole = psutil.Process(child.pid)
    return [each for each in (whole, *whole.children(recursive=True)) if lives(each)]


def _ports(child: Child) -> set[int]:
    connections = (each for process in _family(child) for each in process.net_connections("tcp"))
    return {each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN}


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Child]:
    child = Child(tmp_path_factory.mktemp("guarded"))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(private_files.VARIABLE, "027")
            await child.start({"spark.hadoop.fs.s3a.secret.key": SECRET})
        yield child
    finally:
        await child.aclose()


async def test_settings_are_on_no_command_line_and_in_no_file_of_others(guarded: Child) -> None:
    """`ps` shows command lines to every user, and settings of Spark hold keys of object stores."""
    for process in _family(guarded):
        assert "hunter2" not in " ".join(process.cmdline()), process
    found = [path for path in guarded.directory.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]
    assert {path.name for path in found} <= {"session.json"}
    assert [path.stat().st_mode & 0o077 for path in found] == [0] * len(found)


async def test_settings_arrive_as_they_were_written(guarded: Child, tmp_path: Path) -> None:
    """They travel through a Java properties file, which has characters with a meaning."""
    (tmp_path / "shown.py").write_text(
        "def write(batch, epoch):\n"
        "    value = batch.sparkSession.conf.get('spark.hadoop.fs.s3a.secret.key')\n"
        f"    open({str(tmp_path / 'shown')!r}, 'w').write(value)\n"
    )
    artifacts = {"shown.py": str(tmp_path / "shown.py")}
    attempt = await guarded.run(job(), task(rate(10), call("shown:write", "numbers")), artifacts=artifacts)
    await guarded.batches(attempt, 0)
    assert (tmp_path / "shown").read_text() == SECRET
    assert (tmp_path / "shown").stat().st_mode & 0o777 == 0o640, "what jobs write follows the operator's umask"
    await guarded.stop(attempt)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
async def test_another_user_gets_nothing_from_the_ports_of_a_session(guarded: Child, tmp_path: Path) -> None:
    """Neither py4j's two servers nor Spark's own execute or tell anything without the session's token."""
    ports = _ports(guarded)
    assert len(ports) >= 3, "py4j on both sides, and Spark"
    attack = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-I", "-c", ATTACK, *map(str, sorted(ports))],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert attack.returncode == 0, attack.stderr
    told = attack.stdout.splitlines()
    assert len(told) == 4 * len(ports)
    refusals = ("b''", "b'!xsAuthentication error", r"b'!xn\n'")  # nothing, or py4j's answers to a wrong token
    assert all(line.partition(" ")[2].startswith(refusals) for line in told), attack.stdout
    (tmp_path / "on.py").write_text("def write(batch, epoch):\n    pass\n")
    artifacts = {"on.py": str(tmp_path / "on.py")}
    attempt = await guarded.run(job(), task(rate(10), call("on:write", "numbers")), artifacts=artifacts)
    await guarded.batches(attempt, 1)
    await guarded.stop(attempt)
