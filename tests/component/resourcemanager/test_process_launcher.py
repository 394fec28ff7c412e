"""The process launcher. Small real processes stand in for TaskManagers."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from structlog.testing import capture_logs

from minflinkd.config.cluster_options import Heartbeat
from minflinkd.resourcemanager import process as module
from minflinkd.resourcemanager.launcher import StartFailed
from minflinkd.resourcemanager.process import ProcessLauncher
from minflinkd.runtime import homes
from minflinkd.runtime.ids import ResourceId
from tests.waiting import until

HEARTBEAT_TIMEOUT = Heartbeat().timeout
TM = ResourceId("tm-000000000001")
OTHER = ResourceId("tm-000000000002")

SLEEP = "import time\nprint('up', flush=True)\ntime.sleep(60)"
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP
FAIL = "import sys\nprint('no such thing as Spark', file=sys.stderr)\nsys.exit(3)"
EXPLAIN = "import sys\nsys.exit('many lines\\nerror: no such thing as Java')"
POLITE = (
    "import signal, sys, pathlib\n"
    "def end(*_):\n    print('good bye', flush=True)\n    sys.exit(0)\n"
    "signal.signal(signal.SIGTERM, end)\n" + SLEEP
)
# A session child, one that has left the process group, and the supervisor.
FAMILY = (
    "import subprocess, sys, pathlib\n"
    "sleep = [sys.executable, '-c', 'import time; time.sleep(60)']\n"
    "near, far = subprocess.Popen(sleep), subprocess.Popen(sleep, start_new_session=True)\n"
    "pathlib.Path('family').write_text(f'{near.pid} {far.pid}')\n" + SLEEP
)


class Host:
    """A launcher whose TaskManagers run a given script. It remembers what the launcher reported."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "taskmanagers"
        self.script = SLEEP
        self.grace = 0.2
        self.exits: asyncio.Queue[tuple[ResourceId, str]] = asyncio.Queue()
        self.launcher = self.new_launcher()

    def new_launcher(self) -> ProcessLauncher:
        return ProcessLauncher(
            directory=self.directory,
            command=self.command,
            on_exit=lambda resource_id, reason: self.exits.put_nowait((resource_id, reason)),
            grace=self.grace,
            extra_directories=lambda resource_id: (self.directory.parent / "scratch" / resource_id,),
        )

    def command(self, resource_id: ResourceId, directory: Path) -> Sequence[str]:
        (directory / "script.py").write_text(self.script)
        return [sys.executable, str(directory / "script.py")]

    async def start(self, script: str = SLEEP, resource_id: ResourceId = TM) -> int:
        """Start a TaskManager. Return its pid when the script has said that it is up."""
        self.script = script
        await self.launcher.start(resource_id)
        if script in (FAIL, EXPLAIN):
            return 0
        await until(lambda: "up" in self.log(resource_id))
        return next(one.pid for one in self.launcher.living() if one.resource_id == resource_id)

    def log(self, resource_id: ResourceId = TM) -> str:
        return (self.directory / resource_id / "log" / "taskmanager.log").read_text()

    async def exit(self) -> tuple[ResourceId, str]:
        async with asyncio.timeout(5):
            return await self.exits.get()

    async def crash(self) -> None:
        """End the daemon without cleanup and start another."""
        await self.launcher.aclose()
        self.launcher = self.new_launcher()


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def pidfds() -> int:
    """Return how many pidfds this process has open."""
    return sum("pidfd" in os.readlink(file) for file in Path("/proc/self/fd").iterdir() if file.is_symlink())


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    host = Host(tmp_path)
    yield host
    for launched in await host.launcher.adopt():
        await host.launcher.stop(launched.resource_id, kill=True)
    await host.launcher.aclose()


async def test_the_exit_of_a_process_is_told_at_once_with_its_code_and_the_end_of_its_log(host: Host) -> None:
    """So it is known at once why no TaskManager could be started (R11, R5)."""
    await host.start(FAIL)
    began = time.monotonic()
    resource_id, reason = await host.exit()
    assert time.monotonic() - began < HEARTBEAT_TIMEOUT
    assert resource_id == TM
    assert reason == "its process ended with exit code 3; its log ends:\nno such thing as Spark"
    await until(lambda: host.launcher.living() == ())


async def test_a_taskmanager_that_cannot_go_on_says_why_in_one_line(host: Host) -> None:
    """The reason appears in a job's error. The rest of a log that ends with it says less (R5)."""
    await host.start(EXPLAIN)
    _, reason = await host.exit()
    assert reason == "its process ended with exit code 1: no such thing as Java"


async def test_a_process_killed_by_a_signal_is_told_at_once(host: Host) -> None:
    """The launcher sees the exit long before a heartbeat is missed (R11)."""
    pid = await host.start()
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    _, reason = await host.exit()
    assert time.monotonic() - began < HEARTBEAT_TIMEOUT
    assert reason.startswith("its process was killed by SIGKILL")


async def test_a_signal_without_a_name_is_told_by_its_number(host: Host) -> None:
    number = signal.SIGRTMIN + 1
    pid = await host.start()
    os.kill(pid, number)
    assert (await host.exit())[1].startswith(f"its process was killed by signal {number}")


async def test_an_exit_is_told_though_its_log_cannot_be_read_in_time(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slots are lost, whatever the disk does (R11)."""
    go_on = threading.Event()
    monkeypatch.setattr(module, "LOG_TIMEOUT", 0.01)
    monkeypatch.setattr(module, "_tail", lambda _: "late" if go_on.wait(10) else "")
    try:
        await host.start(FAIL)
        assert await host.exit() == (TM, "its process ended with exit code 3")
    finally:
        go_on.set()


async def test_nothing_stays_of_an_ended_taskmanager_but_its_log(host: Host) -> None:
    """The working directory is deleted, and so is what the TaskManager has elsewhere (R11)."""
    scratch = host.directory.parent / "scratch" / TM / "state"
    scratch.mkdir(parents=True)
    pid = await host.start()
    home = host.directory / TM
    assert home.stat().st_mode & 0o777 == 0o700
    os.kill(pid, signal.SIGKILL)
    await host.exit()
    await until(lambda: [entry.name for entry in home.iterdir()] == ["log"])
    await until(lambda: not scratch.parent.exists())
    assert host.log() == "up\n"


async def test_the_session_child_does_not_outlive_its_supervisor(host: Host) -> None:
    """The whole process group is killed, and so are processes that have left it (R11)."""
    pid = await host.start(FAMILY)
    family = [int(word) for word in (host.directory / TM / "family").read_text().split()]
    assert all(alive(member) for member in family)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not any(alive(member) for member in family))


async def test_a_taskmanager_is_asked_to_end_before_it_is_killed(host: Host) -> None:
    """An idle one ends in order (R6)."""
    host.grace = 30
    host.launcher = host.new_launcher()
    pid = await host.start(POLITE)
    await host.launcher.stop(TM)
    assert not alive(pid)
    assert host.log() == "up\ngood bye\n"
    assert await host.exit() == (TM, "its process ended with exit code 0")


async def test_one_that_does_not_end_when_asked_is_killed(host: Host) -> None:
    pid = await host.start(STUBBORN)
    await host.launcher.stop(TM)
    assert not alive(pid)
    assert "SIGKILL" in (await host.exit())[1]


async def test_a_stopped_taskmanager_is_killed(host: Host) -> None:
    """A process that was stopped with SIGSTOP never handles a SIGTERM (R11)."""
    pid = await host.start(POLITE)
    os.kill(pid, signal.SIGSTOP)
    await until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    await host.launcher.stop(TM, kill=True)
    assert not alive(pid)
    assert "good bye" not in host.log()


async def test_stopping_one_that_is_gone_or_never_was_does_nothing(host: Host) -> None:
    """Repeats are harmless (R8)."""
    await host.launcher.stop(OTHER, kill=True)
    await host.start()
    await asyncio.gather(*(host.launcher.stop(TM, kill=True) for _ in range(3)))
    await host.launcher.stop(TM)
    assert host.exits.qsize() == 1


async def test_stopping_one_whose_directory_is_slow_to_go_is_no_failure(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process has ended, so it would be wrong to report that it is still there."""
    go_on = threading.Event()
    remove = ProcessLauncher._remove
    monkeypatch.setattr(ProcessLauncher, "_remove", lambda *about: remove(*about) if go_on.wait(10) else None)
    pid = await host.start()
    os.kill(pid, signal.SIGKILL)
    await host.exit()
    try:
        with monkeypatch.context() as patch, capture_logs() as logs:
            patch.setattr(module, "KILL_TIMEOUT", 0.01)
            await host.launcher.stop(TM)
        assert [line["event"] for line in logs] == ["an ended TaskManager's directory is not removed yet"]
    finally:
        go_on.set()
    await until(lambda: [entry.name for entry in (host.directory / TM).iterdir()] == ["log"])


async def test_a_command_that_cannot_be_run_is_an_error_of_the_start(host: Host, tmp_path: Path) -> None:
    """The error says why (R5)."""
    host.command = lambda *_: [str(tmp_path / "no-such-program")]  # type: ignore[method-assign]
    host.launcher = host.new_launcher()
    with pytest.raises(StartFailed, match="no-such-program"):
        await host.launcher.start(TM)
    assert host.launcher.living() == ()
    assert list(host.directory.iterdir()) == []  # a directory for each failure would fill the disk


@pytest.mark.parametrize("failing", ["_write_identity", "psutil.Process", "os.pidfd_open"])
async def test_a_process_that_cannot_be_watched_is_ended(
    host: Host, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """The disk is full or too many files are open just after its start. No unknown TaskManager may be left (R7)."""
    children: list[subprocess.Popen[bytes]] = []
    spawn = ProcessLauncher._spawn

    def spawned(*about: Any) -> subprocess.Popen[bytes]:
        children.append(spawn(*about))
        monkeypatch.setattr(f"{module.__name__}.{failing}", refuse)  # from now on
        return children[-1]

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(ProcessLauncher, "_spawn", spawned)
    with pytest.raises(StartFailed, match="no space left"):
        await host.launcher.start(TM)
    monkeypatch.undo()
    assert [child.returncode for child in children] == [-signal.SIGKILL]
    assert list(host.directory.iterdir()) == []


async def test_a_cancelled_start_leaves_no_process_that_nobody_watches(host: Host) -> None:
    """The ResourceManager ends in the middle of the start (A1)."""
    starting = asyncio.create_task(host.launcher.start(TM))
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await until(lambda: len(host.launcher.living()) == 1)


async def test_a_process_that_is_being_launched_is_waited_for_by_whoever_asks_what_lives(host: Host) -> None:
    """A ResourceManager that takes over during a start must neither start a duplicate nor kill the process (R7)."""
    asked = threading.Event()
    launch = host.command
    host.launcher._command = lambda *about: launch(*about) if asked.wait(10) else []
    starting = asyncio.create_task(host.launcher.start(TM))
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    adopting = asyncio.create_task(host.launcher.adopt())
    reaping = asyncio.create_task(host.launcher.reap_leftovers())
    await asyncio.sleep(0)
    assert not adopting.done()
    asked.set()
    assert [one.resource_id for one in await adopting] == [TM]
    await reaping
    assert [one.resource_id for one in host.launcher.living()] == [TM]


async def test_a_launch_that_hangs_is_waited_for_no_longer_than_is_bearable(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that does not answer must not keep the daemon from its work."""
    monkeypatch.setattr(module, "LAUNCH_TIMEOUT", 0.01)
    go_on = threading.Event()
    launch = host.command
    host.launcher._command = lambda *about: launch(*about) if go_on.wait(10) else []
    starting = asyncio.create_task(host.launcher.start(TM))
    await asyncio.sleep(0)
    try:
        assert await host.launcher.adopt() == ()
    finally:
        go_on.set()
    await starting


async def test_taskmanagers_that_are_being_launched_are_stopped_with_the_others(host: Host) -> None:
    """Stopping all TaskManagers includes those that are being started (A14)."""
    starting = asyncio.create_task(host.launcher.start(TM))
    await asyncio.sleep(0)
    await host.launcher.stop_all()
    await starting
    assert host.launcher.living() == ()


async def test_taskmanagers_outlive_the_daemon_and_the_next_one_finds_them(host: Host) -> None:
    """The next daemon finds them by pid, start time and token, and reports their exits like its own ones (R7, A14)."""
    pid = await host.start()
    await host.start(resource_id=OTHER)
    await host.crash()
    assert alive(pid)
    assert {(one.resource_id, one.pid) for one in await host.launcher.adopt()} >= {(TM, pid)}
    assert len(await host.launcher.adopt()) == 2
    os.kill(pid, signal.SIGKILL)
    assert (await host.exit())[0] == TM
    await host.launcher.stop(OTHER)
    assert (await host.exit())[0] == OTHER


async def test_all_are_stopped_side_by_side(host: Host) -> None:
    """A daemon that takes its TaskManagers along stops them all at the same time (A14)."""
    pids = [await host.start(STUBBORN), await host.start(POLITE, OTHER)]
    await host.launcher.stop_all()
    assert not any(alive(pid) for pid in pids)
    assert host.launcher.living() == ()


async def test_a_daemon_that_does_not_come_up_ends_its_own_taskmanagers_and_nobody_elses(host: Host) -> None:
    """The next daemon finds those of the one before (A6)."""
    left = await host.start()
    await host.crash()
    own = await host.start(resource_id=OTHER)
    await host.launcher.adopt()
    await host.launcher.stop_all(adopted=False)
    assert alive(left)
    assert not alive(own)


async def test_leftovers_of_an_earlier_daemon_are_killed_and_nothing_else(host: Host) -> None:
    """A daemon that wants to begin anew kills the TaskManagers of the one before."""
    left = await host.start()
    await host.crash()
    own = await host.start(resource_id=OTHER)
    await host.launcher.reap_leftovers()
    assert not alive(left)
    assert alive(own)


async def test_a_leftover_that_does_not_die_does_not_keep_the_daemon_from_starting(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leftover hangs in the kernel, on a disk, and dies as soon as it can."""
    left = [await host.start(), await host.start(resource_id=OTHER)]
    await host.crash()
    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(module, "KILL_TIMEOUT", 0.01)
        patch.setattr("os.killpg", lambda *_: None)
        await host.launcher.reap_leftovers()
    assert all(alive(pid) for pid in left)
    assert len([line for line in logs if line["event"] == "a leftover is still there"]) == 2


async def test_what_died_while_no_daemon_was_there_is_removed_with_all_that_it_left_running(host: Host) -> None:
    """Livy showed why: its children outlived the server unseen."""
    pid = await host.start(FAMILY)
    family = [int(word) for word in (host.directory / TM / "family").read_text().split()]
    await host.crash()
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not alive(pid))
    assert await host.launcher.adopt() == ()
    assert not any(alive(member) for member in family)
    assert [entry.name for entry in (host.directory / TM).iterdir()] == ["log"]


async def test_a_process_started_just_before_the_daemon_was_killed_is_found_by_its_token(host: Host) -> None:
    """The daemon may be killed between the start of a process and the note of its pid (A6)."""
    pid = await host.start()
    await host.crash()
    file = host.directory / TM / "identity.json"
    identity = msgspec.json.decode(file.read_bytes(), type=module.Identity)
    file.write_bytes(msgspec.json.encode(module.Identity(token=identity.token)))
    assert [(one.resource_id, one.pid) for one in await host.launcher.adopt()] == [(TM, pid)]


async def test_a_process_that_ends_while_it_is_looked_for_is_not_found(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are found nevertheless (A6)."""
    await host.start()
    await host.crash()
    file = host.directory / TM / "identity.json"
    identity = msgspec.json.decode(file.read_bytes(), type=module.Identity)
    file.write_bytes(msgspec.json.encode(module.Identity(token=identity.token)))

    def ended(pid: int) -> int:
        raise ProcessLookupError(pid)

    monkeypatch.setattr("os.getsid", ended)
    assert await host.launcher.adopt() == ()


async def test_what_a_cancelled_search_finds_is_watched(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ResourceManager ends in the middle of its start, and the next one searches again (A1)."""
    pid = await host.start()
    await host.crash()
    before = pidfds()
    begun, go_on = threading.Event(), threading.Event()
    find = ProcessLauncher._find_living

    def find_slowly(launcher: ProcessLauncher) -> list[Any]:
        begun.set()
        return find(launcher) if go_on.wait(10) else []

    monkeypatch.setattr(ProcessLauncher, "_find_living", find_slowly)
    searching = asyncio.create_task(host.launcher.adopt())
    await until(begun.is_set)
    searching.cancel()
    await asyncio.gather(searching, return_exceptions=True)
    again = asyncio.create_task(host.launcher.adopt())
    go_on.set()
    assert [one.pid for one in await again] == [pid]
    assert pidfds() == before + 1
    os.kill(pid, signal.SIGKILL)
    assert (await host.exit())[0] == TM
    assert host.exits.empty()


async def test_an_exit_while_the_launcher_ends_is_left_to_the_next_one(host: Host) -> None:
    """A launcher that is ending could no longer report the exit (A14)."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow_to_end() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await go_on.wait()

    pid = await host.start()
    host.launcher._tasks.job("slow to end", slow_to_end())
    await begun.wait()
    crashing = asyncio.create_task(host.crash())
    await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not alive(pid))
    go_on.set()
    await crashing
    assert host.exits.empty()
    assert await host.launcher.adopt() == ()


async def test_another_process_with_the_same_pid_is_not_taken_for_a_taskmanager(host: Host) -> None:
    """Pids are reused. The other process is left alone (R11)."""
    pid = await host.start()
    await host.crash()
    file = host.directory / TM / "identity.json"
    file.write_bytes(msgspec.json.encode(module.Identity(token="another", pid=pid, created=time.time())))
    assert await host.launcher.adopt() == ()
    assert alive(pid)
    psutil.Process(pid).kill()


async def test_the_logs_of_the_latest_taskmanagers_are_kept(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """If TaskManagers keep failing, one directory for each would fill the host's disk."""
    monkeypatch.setattr(homes, "LOGS_KEPT", 2)
    for number in range(4):
        resource_id = ResourceId(f"tm-00000000000{number}")
        await host.start(FAIL, resource_id)
        await host.launcher.stop(resource_id)
    assert len(list(host.directory.iterdir())) == 2


async def test_a_taskmanager_that_was_not_started_here_keeps_its_directory(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standalone TaskManagers may share the state directory. This launcher does not know them (R7)."""
    monkeypatch.setattr(homes, "LOGS_KEPT", 0)
    standalone = host.directory / OTHER
    for name in ("log", "state"):
        (standalone / name).mkdir(parents=True)
    assert await host.launcher.adopt() == ()
    await host.start(FAIL)
    await host.launcher.stop(TM)
    assert {entry.name for entry in standalone.iterdir()} == {"log", "state"}
    assert not (host.directory / TM).exists()


async def test_systemds_variables_are_not_handed_on(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A TaskManager that speaks to systemd as the daemon would feed the daemon's watchdog."""
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    pid = await host.start()
    assert "NOTIFY_SOCKET" not in psutil.Process(pid).environ()
