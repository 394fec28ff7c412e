"""A TaskManager is drained while a job runs on it: the job goes on elsewhere, and the TaskManager ends."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import psutil
import pytest

from tests.cluster import Cluster, lives, running_cluster
from tests.faults.hot_restarts import ONE, running_versions
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]


@pytest.mark.slow
async def test_the_job_of_a_drained_task_manager_goes_on_on_another_which_may_exceed_the_maximum(
    tmp_path: Path,
) -> None:
    """The new one is warm before the job's tasks stop. Every row is in the output, once; nothing has failed (A15b)."""
    settings = {**ONE, "resourcemanager.standby-taskmanagers": 0}
    async with (
        running_cluster(tmp_path / "cluster", **settings) as cluster,
        running_versions(cluster, tmp_path) as versions,
    ):
        before = await cluster.task_manager_of(versions.job_id)
        supervisor = psutil.Process(before.minflinkd.pid)
        said = await minflinkd(cluster, "taskmanager", "drain", before.id, "--wait")
        assert f"{before.id} has ended" in said, said
        assert not lives(supervisor)
        await versions.goes_on()
        (after,) = await cluster.task_managers(ready=False)
        assert after.id != before.id
        job = await cluster.client.job(versions.job_id)
        assert {task.minflinkd.taskmanager_id for task in job.vertices} == {after.id}
        assert job.minflinkd.restarts == 0
        moved, *too_early = job.minflinkd.hot_restarts  # on a busy machine the new TaskManager may come late
        assert moved.state == "completed", moved
        assert all(other.state == "failed" for other in too_early), too_early


async def minflinkd(cluster: Cluster, *command: str) -> str:
    """Run a command to its end, and return what it says."""
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "minflinkd", *command, "--url", cluster.client.url, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(running.communicate(), 90 * PATIENCE)
    assert running.returncode == 0, out.decode()
    return out.decode()
