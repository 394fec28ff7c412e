"""A job of two tasks with an exchange between them, when the TaskManager that runs both is killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster, write_job
from tests.windows_job import WindowsJob, leftovers, result

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]


@pytest.mark.slow  # test_exactly_once kills such a job three times
async def test_a_windowed_aggregate_behind_an_exchange_survives_the_loss_of_its_taskmanager(
    cluster: Cluster, windows: WindowsJob, truth: list[tuple[Any, ...]], out: Path
) -> None:
    """Both tasks restart from the same cut, and every row is in the output once (C40, J8, J9)."""
    await cluster.await_ready(2)
    file = windows.write(out.name)
    document = json.loads(file.read_text())
    document["vertices"]["minutes"]["inputs"] = [{"id": "clean", "exchange": True}]
    job = await cluster.submit(write_job(file, document))
    await cluster.await_state(job, "RUNNING")
    await cluster.await_checkpoints(job, 3)
    victim = await cluster.task_manager_of(job)
    os.kill(victim.minflinkd.pid, signal.SIGKILL)
    await cluster.await_state(job, "FINISHED", timeout=240)
    assert result(out) == truth
    assert not leftovers(out)
