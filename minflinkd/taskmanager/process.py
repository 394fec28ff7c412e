"""One TaskManager as a process: from its settings to its end by a signal, by the ResourceManager, or on its own."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psutil

from minflinkd.runtime import crash_points
from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.runtime.system_user import SystemUser, system_user, use_files_as
from minflinkd.taskmanager.settings import TaskManagerSettings, check_memory
from minflinkd.taskmanager.supervisor import TaskManager


class CannotGoOn(MinflinkError):
    """The TaskManager ended on its own: its session did not start, or no ResourceManager accepted it in time."""

    code = "taskmanager-ended"
    consequence = Consequence.RETRYABLE


async def run(settings: TaskManagerSettings, *, started: Callable[[TaskManager], None] = lambda _: None) -> None:
    """Run a TaskManager until it has ended as it was told to.

    Raises InvalidSettings, NoSuchUser, CannotGoOn, OSError.
    """
    crash_points.announce()
    check_memory(settings, psutil.virtual_memory().total)
    manager = TaskManager(settings)
    loop = asyncio.get_running_loop()
    if settings.run_as:
        loop.set_default_executor(session_files(system_user(settings.run_as)))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, manager.exit_requested.set)
    async with manager:
        started(manager)
        await manager.exit_requested.wait()
    if manager.failure:
        raise CannotGoOn(manager.failure)


def session_files(user: SystemUser) -> ThreadPoolExecutor:
    """Return the threads of `asyncio.to_thread`: they have no more access to files than the session's user.

    Storage and logs have threads of their own, which use files as this process's user.
    """
    workers = min(32, (os.cpu_count() or 1) + 4)  # as many as asyncio takes
    return ThreadPoolExecutor(workers, f"files of {user.name}", initializer=use_files_as, initargs=(user,))
