"""What a launcher finds when it starts: the TaskManagers of an earlier daemon, and what they left."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from typing import Any

import msgspec
import psutil
import pytest
from structlog.testing import capture_logs

from minflinkd.resourcemanager import process as module
from minflinkd.resourcemanager.process import ProcessLauncher
from tests.component.resourcemanager.launcher_world import FAMILY, OTHER, TM, Host, alive, pidfds
from tests.waiting import until


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


async def test_a_daemon_that_leads_again_reaps_the_taskmanagers_that_it_started_before(host: Host) -> None:
    """It stood by meanwhile and is still their parent: nobody else could reap them (A11, A14)."""
    ended, left = await host.start(), await host.start(resource_id=OTHER)
    await host.crash()
    os.kill(ended, signal.SIGKILL)
    await until(lambda: not alive(ended))
    assert [one.pid for one in await host.launcher.adopt()] == [left]
    assert not psutil.pid_exists(ended)
    os.kill(left, signal.SIGKILL)
    assert await host.exit() == (OTHER, "its process was killed by SIGKILL; its log ends:\nup")
    assert not psutil.pid_exists(left)


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
