"""A process launcher whose TaskManagers are small real processes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from minflinkd.config.cluster_options import Heartbeat
from minflinkd.resourcemanager.process import ProcessLauncher
from minflinkd.resourcemanager.sizes import TaskManagerSize
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
        self.sizes: list[TaskManagerSize | None] = []  # of what was started
        self.grace = 0.2
        self.leads = True
        self.exits: asyncio.Queue[tuple[ResourceId, str]] = asyncio.Queue()
        self.launcher = self.new_launcher()

    def new_launcher(self) -> ProcessLauncher:
        return ProcessLauncher(
            directory=self.directory,
            command=self.command,
            on_exit=lambda resource_id, reason: self.exits.put_nowait((resource_id, reason)),
            grace=self.grace,
            extra_directories=lambda resource_id: (self.directory.parent / "scratch" / resource_id,),
            leads=lambda: self.leads,
        )

    def command(self, resource_id: ResourceId, directory: Path, size: TaskManagerSize | None) -> Sequence[str]:
        self.sizes.append(size)
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
