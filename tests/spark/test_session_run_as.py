"""`taskmanager.run-as`: sessions of another user run jobs, and their code reaches nothing of the daemon (E44)."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from minflinkd.runtime.errors import MinflinkError
from minflinkd.taskmanager.child.run_as import check_run_as
from tests.cluster import Cluster, running_cluster
from tests.waiting import until
from tests.windows_job import WindowsJob, leftovers, result

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may start sessions as another user here"),
]

USER = "nobody"

# It runs in the session child. Each thing is tried by itself, and what came of it is written down.
INTRUDER = r"""
import ctypes, json, os, signal
from pathlib import Path

STATE, DAEMON, REPORT = Path({state!r}), {daemon}, Path({report!r})
SUPERVISOR = os.getppid()


def read(path):
    with open(path, "rb") as file:
        return file.read(16)


def memory(pid):
    first = open(f"/proc/{{pid}}/maps").readline().split("-")[0]
    with open(f"/proc/{{pid}}/mem", "rb") as file:
        file.seek(int(first, 16))
        return file.read(16)


def attach(pid):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(16, pid, None, None) != 0:  # PTRACE_ATTACH
        raise OSError(ctypes.get_errno(), "ptrace")


def clean(inputs, params):
    tried = {{
        "list the state directory": lambda: os.listdir(STATE),
        "read the cluster's secret": lambda: read(STATE / "cluster.secret"),
        "read the daemon's token": lambda: read(STATE / "http.token"),
        "list checkpoints": lambda: os.listdir(STATE / "checkpoints"),
        "read the log that it prints to": lambda: read("/proc/self/fd/1"),
        "write to the state directory": lambda: (STATE / "mine").write_text("mine"),
        "become root": lambda: os.setuid(0),
        "become the daemon's group": lambda: os.setgroups([0]),
    }}
    for name, pid in (("the daemon", DAEMON), ("the supervisor", SUPERVISOR)):
        tried |= {{
            f"SIGKILL {{name}}": lambda pid=pid: os.kill(pid, signal.SIGKILL),
            f"SIGSTOP {{name}}": lambda pid=pid: os.kill(pid, signal.SIGSTOP),
            f"read the environment of {{name}}": lambda pid=pid: read(f"/proc/{{pid}}/environ"),
            f"read the memory of {{name}}": lambda pid=pid: memory(pid),
            f"list the files of {{name}}": lambda pid=pid: os.listdir(f"/proc/{{pid}}/fd"),
            f"trace {{name}}": lambda pid=pid: attach(pid),
        }}
    report = {{}}
    for name, action in tried.items():
        try:
            action()
            report[name] = "done"
        except PermissionError:
            report[name] = "refused"
        except Exception as error:
            report[name] = repr(error)
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    report["rights"] = [status[key].split() for key in ("Uid", "Groups", "CapPrm", "CapInh", "CapAmb", "NoNewPrivs")]
    report["supervisor"] = SUPERVISOR
    new = REPORT.with_suffix(".new")
    new.write_text(json.dumps(report))
    new.replace(REPORT)
    return inputs["events"].where("v >= 0")
"""


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory that every user reaches. pytest's own are closed to others."""
    place = Path(tempfile.mkdtemp(prefix="run-as-"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@pytest.fixture(scope="module")
def root(place: Path) -> Path:
    """The directory of sessions, which belongs to their user."""
    root = place / "sessions"
    root.mkdir(mode=0o700)
    _give(root)
    try:
        check_run_as(USER, str(root))
    except MinflinkError as error:
        pytest.skip(str(error))
    return root


def _give(path: Path) -> None:
    user = pwd.getpwnam(USER)
    os.chown(path, user.pw_uid, user.pw_gid)


def _foreign(root: Path) -> list[Path]:
    """Return the files below a directory that are not the user's."""
    uid = pwd.getpwnam(USER).pw_uid
    found = []
    for directory, _, names in os.walk(root):
        for path in (Path(directory), *(Path(directory) / name for name in names)):
            try:
                if path.lstat().st_uid != uid:
                    found.append(path)
            except FileNotFoundError:  # deleted meanwhile
                continue
    return found


async def test_a_job_runs_as_another_user_and_reaches_nothing_of_the_daemon(place: Path, root: Path) -> None:
    """It takes checkpoints, survives the loss of its session, and leaves nothing. Each thing that it tries fails."""
    settings = {
        "taskmanager.run-as": USER,
        "taskmanager.state.local.root-dir": str(root),
        "taskmanager.session.class-archive": False,
        "resourcemanager.standby-taskmanagers": 1,
        "resourcemanager.max-taskmanagers": 1,
        "taskmanager.numberOfTaskSlots": 4,
        "heartbeat.timeout": "60 s",
    }
    async with running_cluster(place / "cluster", **settings) as cluster:
        await cluster.await_ready(1, timeout=300)
        windows = _job(place, cluster)
        job_id = await cluster.submit(windows.write("out"))
        await cluster.await_state(job_id, "RUNNING", timeout=300)
        await cluster.await_checkpoints(job_id, 2, timeout=300)
        struck = await cluster.measured((await cluster.task_manager_of(job_id)).id)
        assert _foreign(root) == []
        os.kill(int(struck.minflinkd.metrics["session.pid"]), signal.SIGKILL)
        job = await cluster.await_state(job_id, "FINISHED", timeout=600)
        assert job.minflinkd.restarts >= 1
        assert result(windows.base / "out") == windows.expected()
        assert leftovers(windows.base / "out") == []
        report = json.loads((windows.base / "report.json").read_text())
        uid = str(pwd.getpwnam(USER).pw_uid)
        none = ["0" * 16]
        assert report.pop("rights") == [[uid] * 4, [], none, none, none, ["1"]]
        assert report.pop("supervisor") == struck.minflinkd.pid
        assert {name: came for name, came in report.items() if came != "refused"} == {}
        assert len(report) == 20
        assert _foreign(root) == []

        async def forgotten() -> bool:
            return not list(root.glob("*/state/snapshots/*"))

        await until(forgotten, "no copies of the ended job's snapshots", timeout=60)
        # Its logs are the daemon's, and hold what the JVM logs as well.
        logs = cluster.state / "taskmanagers" / struck.id / "log"
        assert {path.name for path in logs.iterdir()} == {"session.log", "taskmanager.log"}
    assert [*root.iterdir()] == []


def _job(place: Path, cluster: Cluster) -> WindowsJob:
    base = place / "job"
    base.mkdir()
    _give(base)
    code = INTRUDER.format(state=str(cluster.state), daemon=cluster.process.pid, report=str(base / "report.json"))
    windows = WindowsJob(base, pace="400 ms", files=30, artifact=code)
    windows.write_events()
    return windows
