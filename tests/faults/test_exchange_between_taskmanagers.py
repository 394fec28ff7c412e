"""A job with two tasks on two TaskManagers and an exchange between them, when one of the two is killed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from minflinkd.rest.schemas import JobInfo
from tests.cluster import Cluster, write_job
from tests.waiting import until
from tests.windows_job import WindowsJob, leftovers, result

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

SOURCE, WINDOWS = 0, 1  # the job's tasks


def spanning(windows: WindowsJob, out: Path) -> Path:
    """Write a job with the windows in a slot sharing group of their own.

    Each group is too wide for the TaskManager of the other one.
    """
    file = windows.write(out.name, parallelism=3)
    document = json.loads(file.read_text())
    for name in ("minutes", "out"):
        document["vertices"][name]["slot-sharing-group"] = "windows"
    return write_job(file, document)


def attempts(job: JobInfo) -> dict[str, str | None]:
    return {vertex.minflinkd.task_id: vertex.minflinkd.attempt_id for vertex in job.vertices}


def places(job: JobInfo) -> tuple[str | None, ...]:
    by_first = {vertex.minflinkd.task_id: vertex.minflinkd.taskmanager_id for vertex in job.vertices}
    return by_first["events"], by_first["minutes"]


async def test_tasks_on_two_taskmanagers_are_one_job_with_one_result(cluster: Cluster, tmp_path: Path) -> None:
    """Windows read an exchange between TaskManagers. At the end nothing of the exchange is left (C40, J11)."""
    job = WindowsJob(tmp_path, files=5)
    job.write_events()
    await cluster.await_ready(2)
    out = job.base / "result"
    job_id = await cluster.submit(spanning(job, out))
    running = await cluster.await_state(job_id, "RUNNING")
    source, reader = places(running)
    assert None not in (source, reader)
    assert source != reader
    finished = await cluster.await_state(job_id, "FINISHED", timeout=180)
    assert finished.minflinkd.restarts == 0
    assert result(out) == counted(job.events)
    assert not leftovers(out)
    await until(lambda: deleted(cluster), "logs and mirrors are deleted")


def counted(events: Path) -> list[tuple[Any, ...]]:
    """Return the rows that the job must yield."""
    found: dict[tuple[int, str], list[int]] = {}
    for file in events.glob("*.json"):
        for event in map(json.loads, file.read_text().splitlines()):
            if event["v"] >= 0:
                minute = int(datetime.fromisoformat(event["time"]).timestamp()) // 60 * 60
                found.setdefault((minute, event["k"]), []).append(event["v"])
    return sorted((minute, k, len(values), sum(values)) for (minute, k), values in found.items())


@pytest.mark.slow
@pytest.mark.parametrize("struck", [SOURCE, WINDOWS])
async def test_windows_over_an_exchange_survive_the_loss_of_either_taskmanager(
    cluster: Cluster, windows: WindowsJob, truth: list[tuple[Any, ...]], out: Path, struck: int
) -> None:
    """Every row is in the output once. If the windows are lost, the source runs on (C40, J9, J11, R16)."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    await cluster.await_ready(2)
    job_id = await cluster.submit(spanning(windows, out))
    job = await cluster.await_state(job_id, "RUNNING")
    assert len(set(places(job))) == 2
    await cluster.await_checkpoints(job_id, 1)
    await asyncio.sleep(random.Random(seed).uniform(0.0, 6.0))  # the random part is the instant of the kill
    victim = next(tm for tm in await cluster.task_managers(ready=False) if tm.id == places(job)[struck])
    os.kill(victim.minflinkd.pid, signal.SIGKILL)
    before = attempts(job)
    job = await cluster.await_state(job_id, "FINISHED", timeout=300)
    assert job.minflinkd.restarts >= 1
    after = attempts(job)
    assert after["minutes"] != before["minutes"]
    if job.minflinkd.restarts == 1:  # on a busy machine, more may be lost than was killed
        assert (after["events"] == before["events"]) == (struck == WINDOWS)
    assert result(out) == truth
    assert not leftovers(out)
    await until(lambda: deleted(cluster), "logs and mirrors are deleted")


async def deleted(cluster: Cluster) -> bool:
    """Whether logs and mirrors of exchanges are gone, on all TaskManagers."""
    homes = cluster.state / "taskmanagers"
    return not [*homes.glob("*/state/exchanges/*"), *homes.glob("*/state/attempts/*/mirrors/*")]
