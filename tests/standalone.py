"""TaskManagers that a test starts by hand, as on another host: the daemon can neither see nor kill their processes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.cluster import Cluster
from tests.waiting import until

# The daemon's options that hold here as well.
INHERITED = ("taskmanager.", "heartbeat.", "jobmanager.", "blob.", "high-availability.orphan-timeout")


@dataclass(frozen=True)
class Standalone:
    """One TaskManager with all its processes."""

    resource_id: str
    home: Path
    process: asyncio.subprocess.Process

    def tree(self) -> list[psutil.Process]:
        supervisor = psutil.Process(self.process.pid)
        return [supervisor, *supervisor.children(recursive=True)]

    def stop(self) -> None:
        """Send SIGSTOP to all of its processes."""
        for process in self.tree():
            with contextlib.suppress(psutil.NoSuchProcess):  # Spark's Python workers come and go
                process.suspend()

    def go_on(self) -> None:
        for process in reversed(self.tree()):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    @property
    def attempts(self) -> list[Path]:
        """The directories of its attempts; there is none once its queries have ended."""
        return sorted((self.home / "state" / "attempts").glob("*"))


@contextlib.asynccontextmanager
async def standalone_task_manager(
    cluster: Cluster, directory: Path, resource_id: str, *, port: int
) -> AsyncIterator[Standalone]:
    """Run `minflinkd taskmanager` with its files in `directory`. `port` is the daemon's, or a proxy's."""
    directory.mkdir(parents=True, exist_ok=True)
    daemon = {key: value for key, value in cluster.settings.items() if key.startswith(INHERITED)}
    settings = daemon | {
        "jobmanager.rpc.port": port,
        "security.secret-file": cluster.state / "cluster.secret",
        "process.working-dir": directory,
    }
    with (directory / f"{resource_id}.log").open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "minflinkd", "taskmanager", "--resource-id", resource_id),
            *(part for key, value in settings.items() for part in ("--set", f"{key}={value}")),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    manager = Standalone(resource_id, directory / "taskmanagers" / resource_id, process)
    try:
        yield manager
    finally:
        await _end(manager)


async def _end(manager: Standalone) -> None:
    """Stop it with SIGTERM. A process that does not end is killed, and the test fails."""
    process = manager.process
    if process.returncode is not None:
        return
    tree = manager.tree()
    manager.go_on()
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(60):
            await process.wait()
    _, alive = await asyncio.to_thread(psutil.wait_procs, tree, 15)
    for leftover in alive:
        with contextlib.suppress(psutil.Error):
            leftover.kill()
    await process.wait()
    assert not alive, f"TaskManager {manager.resource_id} left processes: {[p.pid for p in alive]}"


async def await_registered(cluster: Cluster, managers: list[Standalone], *, timeout: float = 150.0) -> None:
    """Wait until all of them are registered, each with a ready session and every slot free."""
    wanted = {manager.resource_id for manager in managers}

    async def there() -> bool:
        found = {tm.id for tm in await cluster.task_managers() if tm.free_slots == tm.slots_number}
        return wanted <= found

    await until(there, f"{sorted(wanted)} registered and free", timeout=timeout, pause=0.1)
