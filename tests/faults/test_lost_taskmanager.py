"""TaskManagers that are given up while they still live: stopped, or cut off. The daemon cannot kill them.

There are two of them, started by hand as on other hosts, each connected through a proxy. The test disturbs the one that
gets the job, and the job continues on the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from minflinkd.rest.schemas import JobInfo
from tests.cluster import Cluster, free_port, running_cluster
from tests.proxy import Proxy
from tests.standalone import Standalone, await_registered, standalone_task_manager
from tests.waiting import until
from tests.windows_job import WindowsJob, leftovers, result

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]


@dataclass(frozen=True)
class Pair:
    cluster: Cluster
    managers: list[Standalone]
    wires: dict[str, Proxy]

    async def strike(self, job_id: str) -> Standalone:
        """Return the TaskManager that runs the job, once the job has a checkpoint."""
        await self.cluster.await_checkpoints(job_id, 2)
        runs_on = (await self.cluster.task_manager_of(job_id)).id
        (struck,) = [manager for manager in self.managers if manager.resource_id == runs_on]
        return struck

    async def await_elsewhere(self, job_id: str, struck: Standalone) -> None:
        """Wait until the job runs on the other one and has processed something there."""

        def processes(job: JobInfo) -> bool:
            task = job.vertices[0].minflinkd
            return task.taskmanager_id not in (None, struck.resource_id) and task.batches > 0

        await self.cluster.await_job(job_id, processes, "goes on elsewhere")

    async def await_listed(self, manager: Standalone, *, listed: bool) -> None:
        async def as_wanted() -> bool:
            return (manager.resource_id in {tm.id for tm in await self.cluster.task_managers(ready=False)}) is listed

        await until(as_wanted, f"{manager.resource_id} is {'there' if listed else 'given up'}")


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    base = tmp_path_factory.mktemp("pair")
    port = free_port()
    settings = {
        "jobmanager.rpc.port": port,
        "resourcemanager.driver": "standalone",
        "heartbeat.timeout": "10 s",
        "high-availability.orphan-timeout": "15 s",
        "slot.request.timeout": "20 s",
    }
    async with running_cluster(base / "daemon", **settings) as cluster, contextlib.AsyncExitStack() as stack:
        pair = Pair(cluster, [], {})
        for name in ("left", "right"):
            wire = await stack.enter_async_context(Proxy("127.0.0.1", port))
            manager = standalone_task_manager(cluster, base / name, f"tm-{name}", port=wire.port)
            pair.managers.append(await stack.enter_async_context(manager))
            pair.wires[pair.managers[-1].resource_id] = wire
        yield pair


async def no_attempts(manager: Standalone) -> None:
    async def none() -> bool:
        return manager.attempts == []

    await until(none, f"{manager.resource_id} has ended its tasks")


@pytest.mark.slow  # test_kill_taskmanager has it with TaskManagers that the daemon starts
async def test_a_task_manager_stopped_until_its_job_runs_elsewhere_does_no_harm(
    pair: Pair, windows: WindowsJob, truth: list[tuple[Any, ...]], out: Path
) -> None:
    """After it was given up it continues, ends the job's tasks, publishes nothing, and registers again (R10, R15)."""
    cluster = pair.cluster
    await await_registered(cluster, pair.managers)
    job_id = await cluster.submit(windows.write(out.name))
    struck = await pair.strike(job_id)
    assert struck.attempts, "it runs the job's task"
    struck.stop()
    try:
        await pair.await_elsewhere(job_id, struck)
    finally:
        struck.go_on()

    await no_attempts(struck)
    job = await cluster.await_state(job_id, "FINISHED", timeout=120)
    assert job.minflinkd.restarts == 1, "what came back late did not disturb the job"
    assert result(out) == truth
    assert leftovers(out) == []
    await await_registered(cluster, pair.managers, timeout=60)


@pytest.mark.slow
async def test_a_task_manager_stopped_until_its_job_has_ended_does_no_harm(
    pair: Pair, windows: WindowsJob, truth: list[tuple[Any, ...]], out: Path
) -> None:
    """It does no harm even when nobody is left to tell it what not to touch (J12, R10, R15)."""
    cluster = pair.cluster
    await await_registered(cluster, pair.managers)
    job_id = await cluster.submit(windows.write(out.name))
    struck = await pair.strike(job_id)
    struck.stop()
    try:
        await cluster.await_state(job_id, "FINISHED", timeout=120)
    finally:
        struck.go_on()

    await no_attempts(struck)
    await await_registered(cluster, pair.managers, timeout=60)
    assert result(out) == truth
    assert leftovers(out) == []


@pytest.mark.slow  # the simulated network of tests/sim/protocol cuts off and delays in every seed
async def test_a_task_manager_that_is_cut_off_ends_its_tasks_and_comes_back(
    pair: Pair, windows: WindowsJob, truth: list[tuple[Any, ...]], out: Path
) -> None:
    """The connection swallows everything. The session stays warm, and what was swallowed arrives late (R15)."""
    cluster = pair.cluster
    await await_registered(cluster, pair.managers)
    before = {tm.id: tm.minflinkd for tm in await cluster.task_managers()}
    job_id = await cluster.submit(windows.write(out.name))
    struck = await pair.strike(job_id)
    wire = pair.wires[struck.resource_id]
    wire.swallow()
    try:
        await pair.await_listed(struck, listed=False)
        await pair.await_elsewhere(job_id, struck)
        await no_attempts(struck)  # at the orphan timeout: nobody can tell it (A14)
    finally:
        wire.pass_on()
    await pair.await_listed(struck, listed=True)

    job = await cluster.await_state(job_id, "FINISHED", timeout=120)
    assert job.minflinkd.restarts == 1, "what arrived late did not disturb the job"
    assert result(out) == truth
    assert leftovers(out) == []
    await await_registered(cluster, pair.managers, timeout=60)
    again = {tm.id: tm.minflinkd for tm in await cluster.task_managers()}[struck.resource_id]
    known = before[struck.resource_id]
    assert again.instance_id != known.instance_id, "it had to register again"
    assert (again.pid, again.session_generation) == (known.pid, known.session_generation)
