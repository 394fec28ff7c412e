"""A TaskManager is killed while it runs the main job."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.windows_job import WindowsJob, leftovers, result

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=[pytest.mark.slow] if n >= 3 else [], id=f"instant {n}") for n in range(10)]
)
async def test_results_are_exactly_once_after_a_kill_at_a_random_instant(
    cluster: Cluster, windows: WindowsJob, truth: list[tuple[Any, ...]], seed: int
) -> None:
    """C11, C14, J12, R11: kill -9 of the TaskManager; the output equals the batch's, and nothing staged is left."""
    await cluster.await_ready(2)
    output = windows.base / f"kill{seed}"
    job_id = await cluster.submit(windows.write(output.name))
    await cluster.await_state(job_id, "RUNNING")
    await asyncio.sleep(random.Random(seed).uniform(0.0, 8.0))  # the instant: not a synchronisation
    killed = await cluster.task_manager_of(job_id)
    os.kill(killed.minflinkd.pid, signal.SIGKILL)

    job = await cluster.await_state(job_id, "FINISHED", timeout=120)
    assert job.minflinkd.restarts >= 1
    assert result(output) == truth
    assert leftovers(output) == []
    assert killed.id not in {tm.id for tm in await cluster.task_managers(ready=False)}
