"""A process of the TaskManager dies while one version makes way for another."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from minflinkd.cli.submission import restart
from minflinkd.rest.schemas import HotRestartInfo
from tests.cluster import Cluster
from tests.faults.hot_restarts import ended, running_versions
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

VICTIMS = {"TaskManager": None, "session child": "session.pid", "JVM": "jvm.pid"}
STEPS = ("handing-over", "stopped", "running")  # the old version still counts; nothing runs; the new one is on trial


def _has_reached(step: str, found: HotRestartInfo) -> bool:
    return found.over or step in (found.state, *found.phases)


@pytest.mark.slow  # test_hot_restart_crashes ends the JobMaster at each of these steps in `make test`
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("step", STEPS)
async def test_after_a_kill_exactly_one_version_goes_on_and_the_output_is_exact(
    cluster: Cluster, tmp_path: Path, victim: str, step: str
) -> None:
    """The version that the hot restart reports continues from a consistent checkpoint (H8)."""
    await cluster.await_ready(2)
    async with running_versions(cluster, tmp_path) as versions:
        runs_it = await cluster.measured((await cluster.task_manager_of(versions.job_id)).id)
        metric = VICTIMS[victim]
        pid = runs_it.minflinkd.pid if metric is None else int(runs_it.minflinkd.metrics[metric])
        file = versions.write("2")
        number = (
            await restart(cluster.client, versions.job_id, file, params={}, options={}, tell=lambda _: None)
        ).number

        async def reached() -> bool:
            job = await cluster.client.job(versions.job_id)
            return any(_has_reached(step, found) for found in job.minflinkd.hot_restarts)

        await until(reached, f"step {step}", pause=0.002)
        os.kill(pid, signal.SIGKILL)
        over = partial(ended, cluster, versions.job_id, number)
        last = await until(over, "the end of the hot restart", timeout=120)
        assert last.state in ("completed", "rolled-back", "failed")
    assert versions.written()[-1] == ("2" if last.state == "completed" else "1")
