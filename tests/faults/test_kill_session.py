"""The session child or its JVM is killed or stopped. The supervisor stays and starts a new one."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from minflinkd.rest.schemas import TaskManager
from tests.cluster import Cluster
from tests.waiting import until
from tests.windows_job import WindowsJob, leftovers, result

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]


async def run_and_signal(cluster: Cluster, windows: WindowsJob, name: str, which: str, number: int) -> TaskManager:
    """Submit the main job, send a signal to one of its TaskManager's processes, and wait for the job's end."""
    await cluster.await_ready(2)
    job_id = await cluster.submit(windows.write(name))
    await cluster.await_state(job_id, "RUNNING")
    await cluster.await_checkpoints(job_id, 2)
    struck = await cluster.measured((await cluster.task_manager_of(job_id)).id)
    os.kill(int(struck.minflinkd.metrics[f"{which}.pid"]), number)
    job = await cluster.await_state(job_id, "FINISHED", timeout=120)
    assert job.minflinkd.restarts >= 1
    return struck


@pytest.mark.parametrize(
    ("which", "number"),
    [
        # In `make test`, test_exactly_once kills JVMs and session children.
        pytest.param("jvm", signal.SIGKILL, id="the JVM is killed", marks=pytest.mark.slow),
        pytest.param("session", signal.SIGKILL, id="the session child is killed", marks=pytest.mark.slow),
        pytest.param("jvm", signal.SIGSTOP, id="the JVM is stopped", marks=pytest.mark.slow),
        pytest.param("session", signal.SIGSTOP, id="the session child is stopped", marks=pytest.mark.slow),
    ],
)
async def test_a_lost_session_is_replaced_under_its_supervisor(
    cluster: Cluster, windows: WindowsJob, truth: list[tuple[Any, ...]], which: str, number: int
) -> None:
    """The job continues elsewhere. The TaskManager stays registered and gets a new session child (J7, R11)."""
    name = f"{which}-{number}"
    struck = await run_and_signal(cluster, windows, name, which, number)
    assert result(windows.base / name) == truth
    assert leftovers(windows.base / name) == []

    async def back() -> TaskManager | None:
        managers = {tm.id: tm for tm in await cluster.task_managers()}
        return managers.get(struck.id)

    again = await until(back, "the struck TaskManager with a new session", timeout=120, pause=0.2)
    assert again.minflinkd.pid == struck.minflinkd.pid
    assert again.minflinkd.instance_id == struck.minflinkd.instance_id
    assert again.minflinkd.session_generation == struck.minflinkd.session_generation + 1
