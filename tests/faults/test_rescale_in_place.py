"""A job gets more and fewer slots while its tasks run, and while processes die (H6, R20)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from functools import partial
from pathlib import Path

import pytest

from minflinkd.rest.schemas import HotRestartInfo, JobVertex
from minflinkd.runtime.errors import MinflinkError
from tests.cluster import Cluster, free_port, running_cluster
from tests.exactly_once.kills import drawn_seed
from tests.faults.hot_restarts import ONE, ended, processes_of, running_versions
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

EIGHT = {**ONE, "taskmanager.numberOfTaskSlots": 8}
WIDTHS = (4, 8, 2)
VICTIMS = ("session", "TaskManager", "daemon")


async def task(cluster: Cluster, job_id: str) -> JobVertex:
    (only,) = (await cluster.client.job(job_id)).vertices
    return only


async def rescaled(cluster: Cluster, job_id: str, parallelism: int) -> HotRestartInfo:
    """Rescale the job, and return the restart when it is over."""
    before = await cluster.client.job(job_id)
    number = max((restart.number for restart in before.minflinkd.hot_restarts), default=0) + 1
    await cluster.client.rescale(job_id, {vertex.id: {"upperBound": parallelism} for vertex in before.vertices})
    return await until(partial(ended, cluster, job_id, number), f"the end of rescale {number}", timeout=120)


async def goes_on(cluster: Cluster, job_id: str, batches: int) -> JobVertex:
    """Return the task when its attempt has finished so many micro-batches."""

    async def finished() -> JobVertex | None:
        now = await task(cluster, job_id)
        return now if now.minflinkd.batches >= batches else None

    return await until(finished, f"{batches} micro-batches of one attempt", timeout=120)


async def test_a_job_is_rescaled_from_2_over_4_and_8_to_2_by_one_attempt_that_misses_no_micro_batch(
    tmp_path: Path,
) -> None:
    """The attempt, and its count of micro-batches, go on. Every row is in the output once."""
    async with running_cluster(tmp_path / "cluster", **EIGHT) as cluster:
        await cluster.await_ready(1)
        async with running_versions(cluster, tmp_path, **{"max-parallelism": 8}) as versions:
            processes = await processes_of(cluster)
            first = last = await task(cluster, versions.job_id)
            for parallelism in WIDTHS:
                done = await rescaled(cluster, versions.job_id, parallelism)
                assert (done.state, "stopped" in done.phases) == ("completed", False)
                now = await goes_on(cluster, versions.job_id, last.minflinkd.batches + 2)
                assert now.parallelism == parallelism
                assert now.minflinkd.attempt_id == first.minflinkd.attempt_id
                last = now
            assert await processes_of(cluster) == processes
            assert (await cluster.client.job(versions.job_id)).minflinkd.restarts == 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_whatever_dies_while_a_job_is_rescaled_its_output_is_exact(tmp_path: Path) -> None:
    """Each kill comes at an instant that a seed draws. The job then has the old parallelism or the new one."""
    rng = random.Random(drawn_seed())
    settings = {**EIGHT, "resourcemanager.max-taskmanagers": 2, "rest.port": free_port()}
    async with running_cluster(tmp_path / "cluster", **settings) as cluster:
        await cluster.await_ready(1)
        async with running_versions(cluster, tmp_path, **{"max-parallelism": 8}) as versions:
            before = (await task(cluster, versions.job_id)).parallelism
            for victim in VICTIMS * 2:
                wanted = rng.choice([n for n in (1, 2, 4, 8) if n != before])
                pid = await pid_of(victim, cluster, versions.job_id)
                rescaling = asyncio.create_task(rescaled(cluster, versions.job_id, wanted))
                await asyncio.sleep(rng.uniform(0.0, 0.5))  # not a synchronisation
                os.kill(pid, signal.SIGKILL)
                if victim == "daemon":
                    await cluster.process.wait()
                    await cluster.start_again()
                with contextlib.suppress(MinflinkError):  # the daemon died before it answered
                    await rescaling
                await versions.goes_on()
                graph = await task(cluster, versions.job_id)
                assert graph.parallelism in (before, wanted), victim
                before = graph.parallelism


async def pid_of(victim: str, cluster: Cluster, job_id: str) -> int:
    if victim == "daemon":
        return cluster.process.pid
    name = (await task(cluster, job_id)).minflinkd.taskmanager_id
    assert name is not None
    tm = await cluster.measured(name)
    return tm.minflinkd.pid if victim == "TaskManager" else int(tm.minflinkd.metrics["session.pid"])
