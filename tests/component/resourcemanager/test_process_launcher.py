"""The process launcher. Small real processes stand in for TaskManagers."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from structlog.testing import capture_logs

from minflinkd.resourcemanager import process as module
from minflinkd.resourcemanager.launcher import StartFailed
from minflinkd.resourcemanager.process import ProcessLauncher
from minflinkd.resourcemanager.sizes import TaskManagerSize
from minflinkd.runtime import homes
from minflinkd.runtime.ids import ResourceId
from minflinkd.runtime.resource_profile import parse_profile
from tests.component.resourcemanager.launcher_world import (
    EXPLAIN,
    FAIL,
    FAMILY,
    HEARTBEAT_TIMEOUT,
    OTHER,
    POLITE,
    STUBBORN,
    TM,
    Host,
    alive,
)
from tests.waiting import until


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


async def test_the_command_of_a_process_is_made_for_its_size(host: Host) -> None:
    """Without one, it is the default (R40)."""
    size = TaskManagerSize(2, parse_profile({"gpu": 1}))
    await host.launcher.start(TM, size)
    await host.launcher.start(OTHER)
    assert host.sizes == [size, None]


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


async def test_all_are_stopped_side_by_side(host: Host) -> None:
    """A daemon that takes its TaskManagers along stops them all at the same time (A14)."""
    pids = [await host.start(STUBBORN), await host.start(POLITE, OTHER)]
    await host.launcher.stop_all()
    assert not any(alive(pid) for pid in pids)
    assert host.launcher.living() == ()


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


async def test_a_daemon_that_leads_no_more_neither_starts_nor_ends_taskmanagers(host: Host) -> None:
    """It was stopped for a minute and takes them for lost. The next leader has adopted their tasks (A11)."""
    pid = await host.start()
    host.leads = False
    await host.launcher.stop(TM, kill=True)
    await host.launcher.stop(TM)
    await host.launcher.stop_all()
    assert alive(pid)
    with pytest.raises(StartFailed, match="not certain that this daemon leads"):
        await host.launcher.start(OTHER)
    host.leads = True
    await host.launcher.stop(TM, kill=True)
    assert not alive(pid)


async def test_a_taskmanager_that_was_asked_to_end_is_not_killed_by_one_that_has_lost_the_lead(host: Host) -> None:
    """The leadership ends within the grace period (A11)."""
    pid = await host.start(STUBBORN)
    stopping = asyncio.create_task(host.launcher.stop(TM))
    await asyncio.sleep(0)
    host.leads = False
    await stopping
    assert alive(pid)
    host.leads = True
    await host.launcher.stop(TM, kill=True)
