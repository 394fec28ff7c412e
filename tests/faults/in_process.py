"""A real daemon inside the test's event loop, with real TaskManager processes: a test can crash its components."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil

from minflinkd.cli.client import Client
from minflinkd.config import load_config
from minflinkd.daemon import Daemon
from minflinkd.jobmaster.job_master import JobMaster
from minflinkd.resourcemanager.resource_manager import ResourceManager
from minflinkd.runtime.ids import JobId
from minflinkd.runtime.machine import Machine
from tests.cluster import FOR_TESTS, Cluster
from tests.waiting import until

C = TypeVar("C", ResourceManager, JobMaster)


class Bug(ValueError):
    """What a test makes a decision raise."""


class InProcess(Cluster):
    """A cluster whose daemon's components are accessible."""

    def __init__(self, daemon: Daemon, client: Client, state: Path) -> None:
        self.daemon = daemon
        self.client = client
        self.jobs = []
        self._state = state

    @property
    def state(self) -> Path:
        return self._state

    @property
    def resource_manager(self) -> ResourceManager | None:
        return self.daemon.resource_managers.current

    def job_master(self, job_id: str) -> JobMaster | None:
        return self.daemon.dispatcher.job_master(JobId(job_id))

    async def crash_resource_manager(self) -> tuple[ResourceManager, ResourceManager]:
        """Make its next decision raise. Return the crashed one and its successor."""
        return await _crash("ResourceManager", lambda: self.resource_manager)

    async def crash_job_master(self, job_id: str) -> tuple[JobMaster, JobMaster]:
        return await _crash("JobMaster", lambda: self.job_master(job_id))


def plant_bug(component: ResourceManager | JobMaster) -> None:
    """Make its next decision raise, as a real bug would: the machine's step raises whatever it is told next."""
    machine: Machine[Any, Any, Any] = component._core._machine

    def raising(*_: object) -> Any:
        raise Bug(f"injected into {component.name}")

    machine._step = raising


async def _crash(what: str, present: Callable[[], C | None]) -> tuple[C, C]:
    struck = present()
    assert struck is not None
    plant_bug(struck)

    async def replaced() -> C | None:
        found = present()
        return found if found is not struck else None

    successor = await until(replaced, f"a new {what}", timeout=20, pause=0.01)
    assert isinstance(struck.crash_cause, Bug)
    assert successor.leader_id > struck.leader_id
    return struck, successor


@contextlib.asynccontextmanager
async def in_process_cluster(base: Path, **settings: object) -> AsyncIterator[InProcess]:
    """A daemon in `base/state`. At the end it is stopped, and must not leave a process."""
    values = {**FOR_TESTS, "process.working-dir": str(base / "state"), **settings}
    daemon = Daemon(load_config(None, {}, {key: str(value) for key, value in values.items()}), {})
    before = set(psutil.Process().children(recursive=True))
    try:
        async with daemon, Client(daemon.info.url) as client:
            cluster = InProcess(daemon, client, base / "state")
            yield cluster
            for job_id in cluster.jobs:
                with contextlib.suppress(Exception):  # most have ended
                    await client.cancel(job_id)
    finally:
        left = set(psutil.Process().children(recursive=True)) - before
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
    assert not left, f"the daemon left processes behind: {left}"
