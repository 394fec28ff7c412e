"""Threads that use files as another user, and programs that run as one (`taskmanager.run-as`). Root only."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from minflinkd.runtime.homes import remove
from minflinkd.runtime.system_user import call_as, may_act_as_others, system_user
from minflinkd.taskmanager.child.run_as import CannotRunAs, check_run_as, launching
from minflinkd.taskmanager.placing import link_or_copy
from minflinkd.taskmanager.process import session_files

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as another user here")

NOBODY = system_user("nobody")

# A daemon that is not root. It is given the three capabilities, as by systemd's AmbientCapabilities.
CAPABILITIES = "-all,+setuid,+setgid,+kill"
UNIT = """
import os, signal, subprocess, sys
from pathlib import Path
from minflinkd.runtime.system_user import call_as, may_act_as_others, system_user
from minflinkd.taskmanager.child.run_as import check_run_as, launching

root = Path(sys.argv[1])
nobody = system_user("nobody")
check_run_as("nobody", str(root))
before, environ = launching("nobody", root)
shown = subprocess.run(
    [*before, "/bin/grep", "-E", "^(Uid|Groups|Cap(Inh|Prm|Eff|Amb)|NoNewPrivs)", "/proc/self/status"],
    capture_output=True, text=True, check=True, env=environ, cwd="/",
).stdout
call_as(nobody, lambda: (root / "file").write_text("mine"))
child = subprocess.Popen([*before, "/bin/sleep", "100"], env=environ, cwd="/")
os.kill(child.pid, signal.SIGKILL)
print(os.geteuid(), child.wait(), len(Path(f"/proc/{os.getpid()}/environ").read_bytes()) > 0)
print(shown)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory of nobody's, which nobody reaches: pytest's own directories are closed."""
    root = Path(tempfile.mkdtemp(prefix="run-as-"))
    os.chown(root, NOBODY.uid, NOBODY.gid)
    yield root
    shutil.rmtree(root)


def test_files_that_such_a_thread_makes_belong_to_the_user(place: Path) -> None:
    """So neither the supervisor nor the session needs rights on files of the other."""
    with session_files(NOBODY) as threads:
        threads.submit((place / "file").write_text, "text").result()
    made = (place / "file").stat()
    assert (made.st_uid, made.st_gid) == (NOBODY.uid, NOBODY.gid)
    (place / "ours").write_text("text")
    assert (place / "ours").stat().st_uid == 0, "the thread of the test has changed"


@pytest.fixture
def reached() -> Iterator[Path]:
    """A directory of root's that every user may enter, so that a file's own mode decides."""
    directory = Path(tempfile.mkdtemp(prefix="run-as-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def _in_roots_group() -> Iterator[None]:
    before = os.getgroups()
    os.setgroups([0])
    yield
    os.setgroups(before)


@pytest.mark.usefixtures("_in_roots_group")
@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_a_link_of_user_code_leads_such_a_thread_nowhere(place: Path, reached: Path, mode: int) -> None:
    """Root would follow it, and upload the daemon's secret with a snapshot. Root's groups do not help either."""
    secret = reached / "cluster.secret"
    secret.write_text("secret")
    secret.chmod(mode)
    (place / "000001.sst").symlink_to(secret)
    assert (place / "000001.sst").read_text() == "secret"
    with pytest.raises(PermissionError):
        call_as(NOBODY, (place / "000001.sst").read_text)
    with pytest.raises(PermissionError):
        call_as(NOBODY, lambda: (place / "000001.sst").write_text("overwritten"))
    with pytest.raises(PermissionError):
        call_as(NOBODY, lambda: link_or_copy(secret, place / "linked"))
    assert secret.read_text() == "secret"


def test_a_directory_is_removed_as_the_user_only(place: Path, tmp_path: Path) -> None:
    """What a session leaves may be closed (mode 0700), and a part of the path may have become a link."""
    ours = tmp_path / "ours"
    (ours / "state").mkdir(parents=True)
    (ours / "state" / "kept").touch()
    ours.chmod(0o700)
    (place / "tm-1").symlink_to(ours)
    with pytest.raises(PermissionError):
        call_as(NOBODY, lambda: remove(place / "tm-1" / "state"))
    assert (ours / "state" / "kept").exists()
    call_as(NOBODY, lambda: remove(place / "tm-1"))
    assert ours.exists()
    call_as(NOBODY, lambda: (place / "tm-2" / "closed").mkdir(parents=True, mode=0o700))
    call_as(NOBODY, lambda: remove(place / "tm-2"))
    assert [*place.iterdir()] == []


def test_a_program_of_the_user_has_no_rights(place: Path) -> None:
    """Not those of root who started it, and none that it could gain."""
    before, environ = launching("nobody", place)
    shown = subprocess.run(
        [*before, "/bin/cat", "/proc/self/status"], capture_output=True, text=True, check=True, env=environ, cwd="/"
    ).stdout
    status = dict(line.split(":", 1) for line in shown.splitlines())
    assert status["Uid"].split() == [str(NOBODY.uid)] * 4
    assert status["Groups"].split() == []
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert status["NoNewPrivs"].split() == ["1"]


def test_a_signal_of_the_user_does_not_reach_us(place: Path) -> None:
    """A thread of ours that uses files as the user gives it no right to signal our process."""
    before, environ = launching("nobody", place)
    with session_files(NOBODY) as threads:
        threads.submit(os.getpid).result()
        for number in (signal.SIGKILL, signal.SIGSTOP):
            tried = subprocess.run(
                [*before, "/bin/sh", "-c", f"kill -{int(number)} {os.getpid()}"],
                env=environ,
                cwd="/",
                check=False,
                stderr=subprocess.DEVNULL,
            )
            assert tried.returncode != 0
        for name in ("environ", "mem", "maps"):
            tried = subprocess.run(
                [*before, "/bin/cat", f"/proc/{os.getpid()}/{name}"],
                env=environ,
                cwd="/",
                check=False,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            assert tried.returncode != 0, name


def test_a_daemon_that_is_not_root_needs_three_capabilities(place: Path) -> None:
    """CAP_SETUID, CAP_SETGID and CAP_KILL do; the session has none of them."""
    assert may_act_as_others()
    try:
        check_run_as("nobody", str(place))
    except CannotRunAs as error:
        pytest.skip(str(error))
    command = [
        *("setpriv", "--reuid=1", "--regid=1", "--clear-groups", "--no-new-privs"),
        *(f"--inh-caps={CAPABILITIES}", f"--ambient-caps={CAPABILITIES}", "--"),
        *(sys.executable, "-c", UNIT, str(place)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd="/", check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    first, *status = done.stdout.splitlines()
    assert first == f"1 -{int(signal.SIGKILL)} True"
    found = dict(line.split(":", 1) for line in status if line)
    assert found["Uid"].split() == [str(NOBODY.uid)] * 4
    assert {int(found[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    assert found["NoNewPrivs"].split() == ["1"]
    assert (place / "file").stat().st_uid == NOBODY.uid


def test_threads_are_refused_without_the_capabilities() -> None:
    """A process that may not switch must not go on as itself."""
    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "import encodings.idna, os\n"
        "from minflinkd.runtime.system_user import call_as, system_user\n"
        "import ctypes\n"
        "os.setgroups([]), os.setgid(1), os.setuid(1)\n"
        "try:\n    call_as(system_user('nobody'), lambda: print('done'))\n"
        "except OSError as error:\n    print('refused', error.errno)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.startswith("refused"), done.stdout + done.stderr


def test_pool_threads_refuse_work_if_they_cannot_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor whose threads fail to change runs nothing."""

    def refuse(_: object) -> None:
        raise PermissionError("no")

    monkeypatch.setattr("minflinkd.taskmanager.process.use_files_as", refuse)
    threads: ThreadPoolExecutor = session_files(NOBODY)
    with pytest.raises(Exception, match=r"broken|initializer"):
        threads.submit(os.getpid).result()
    threads.shutdown()
