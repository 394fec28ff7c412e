"""The daemon dies at each step of a hot restart, and at each step of a rescale: one version goes on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from minflinkd.cli.submission import restart
from minflinkd.runtime.crash_points import OF_HOT_RESTARTS, VARIABLE, CrashPoint
from minflinkd.runtime.errors import MinflinkError
from tests.cluster import Cluster, free_port, running_cluster
from tests.faults.hot_restarts import ONE, Versions, ended, processes_of, running_versions
from tests.waiting import until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.asyncio(loop_scope="session"),
]


async def test_a_daemon_killed_at_each_step_comes_back_with_one_version_and_exact_output(tmp_path: Path) -> None:
    """Before the switch the old version continues, after it the new one (H8)."""
    async with fragile_cluster(tmp_path) as (cluster, armed), running_versions(cluster, tmp_path) as versions:
        before = await processes_of(cluster)
        for number, point in enumerate(OF_HOT_RESTARTS, start=1):
            (armed / point).touch()
            with contextlib.suppress(MinflinkError):  # the daemon dies, perhaps before it answers
                file = versions.write(str(number + 1))
                await restart(cluster.client, versions.job_id, file, params={}, options={}, tell=lambda _: None)
            await comes_back(cluster, versions, number, point)
        assert await processes_of(cluster) == before
        assert (await cluster.client.job(versions.job_id)).minflinkd.restarts == 0
    assert not {"2", "3"} & set(versions.written()), "versions that never counted wrote nothing"


async def test_a_daemon_killed_at_each_step_of_a_rescale_comes_back_with_one_parallelism(tmp_path: Path) -> None:
    """The state is in as many partitions as the version that goes on has, and the output is exact (A14c, H8)."""
    async with fragile_cluster(tmp_path) as (cluster, armed), running_versions(cluster, tmp_path) as versions:
        parallelism = (await cluster.client.job(versions.job_id)).vertices[0].parallelism
        for number, point in enumerate(OF_HOT_RESTARTS, start=1):
            (armed / point).touch()
            vertices = (await cluster.client.job(versions.job_id)).vertices
            wanted = 3 - parallelism  # 2, 1, 2, ...
            with contextlib.suppress(MinflinkError):
                await cluster.client.rescale(versions.job_id, {v.id: {"upperBound": wanted} for v in vertices})
            if await comes_back(cluster, versions, number, point) == "completed":
                parallelism = wanted
            vertices = (await cluster.client.job(versions.job_id)).vertices
            assert {v.parallelism for v in vertices} == {parallelism}, point
        assert (await cluster.client.job(versions.job_id)).minflinkd.restarts == 0


@contextlib.asynccontextmanager
async def fragile_cluster(base: Path) -> AsyncIterator[tuple[Cluster, Path]]:
    """A cluster of one TaskManager, and the directory for the names of points at which the daemon is to die."""
    (armed := base / "crash-at").mkdir()
    options, environ = {**ONE, "rest.port": free_port()}, {**os.environ, VARIABLE: str(armed)}
    async with running_cluster(base / "cluster", environ=environ, **options) as cluster:
        await cluster.await_ready(1)
        yield cluster, armed


async def comes_back(cluster: Cluster, versions: Versions, number: int, point: CrashPoint) -> str:
    """Wait until the daemon has died at this point, and start the next one. Return what became of the hot restart."""
    assert await asyncio.wait_for(cluster.process.wait(), timeout=60) == -signal.SIGKILL
    await cluster.start_again()
    await versions.goes_on()
    over = partial(ended, cluster, versions.job_id, number)
    last = await until(over, f"the end of hot restart {number}", timeout=90)
    counts = point not in (CrashPoint.RESTART_ACCEPTED, CrashPoint.RESTART_STOPPED)
    assert last.state == ("completed" if counts else "failed"), point
    return last.state
