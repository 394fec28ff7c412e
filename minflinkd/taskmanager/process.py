"""One TaskManager as a process: from its settings to its end by a signal, by the ResourceManager, or on its own."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import psutil

from minflinkd.runtime import crash_points
from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.taskmanager.settings import TaskManagerSettings, check_memory
from minflinkd.taskmanager.supervisor import TaskManager


class CannotGoOn(MinflinkError):
    """The TaskManager ended on its own: its session did not start, or no ResourceManager accepted it in time."""

    code = "taskmanager-ended"
    consequence = Consequence.RETRYABLE


async def run(settings: TaskManagerSettings, *, started: Callable[[TaskManager], None] = lambda _: None) -> None:
    """Run a TaskManager until it has ended as it was told to. Raises InvalidSettings, CannotGoOn, OSError."""
    crash_points.announce()
    check_memory(settings, psutil.virtual_memory().total)
    manager = TaskManager(settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, manager.exit_requested.set)
    async with manager:
        started(manager)
        await manager.exit_requested.wait()
    if manager.failure:
        raise CannotGoOn(manager.failure)
