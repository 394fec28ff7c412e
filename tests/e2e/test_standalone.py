"""A daemon that starts no TaskManagers, and two that are started by hand (R7)."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from minflinkd.cli.endpoint import Refused
from tests.cluster import Cluster, free_port, running_cluster, write_job
from tests.standalone import standalone_task_manager
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="module")]

HEARTBEAT = 1.0  # seconds
SILENCE = 30.0  # seconds until a silent TaskManager is lost


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    settings = {
        "resourcemanager.driver": "standalone",
        "resourcemanager.taskmanager-registration.timeout": "2 s",  # how long a submission waits for a TaskManager
        "jobmanager.rpc.port": free_port(),
        "heartbeat.interval": f"{HEARTBEAT} s",
        "heartbeat.timeout": f"{SILENCE} s",
        "slot.request.timeout": "3 s",
        "taskmanager.numberOfTaskSlots": 1,
        "taskmanager.memory.heap.size": "512 MiB",
    }
    async with running_cluster(tmp_path_factory.mktemp("cluster"), **settings) as cluster:
        yield cluster


def two_groups(base: Path) -> Path:
    """Write a job of two unconnected tasks. Each of them needs the only slot of a TaskManager."""

    def copy(name: str) -> dict[str, Any]:
        (base / name).mkdir()
        (base / name / "1.json").write_text('{"v": 1}\n')
        source = {"format": "json", "path": str(base / name), "schema": "v BIGINT"}
        sink = {"format": "parquet", "path": str(base / f"{name}-out")}
        return {
            f"{name}_in": {"source": source, "slot-sharing-group": name},
            f"{name}_out": {"inputs": [f"{name}_in"], "sink": sink, "slot-sharing-group": name},
        }

    document = {
        "name": "two groups",
        "parallelism": 1,
        "checkpointing": {"interval": "1 s"},
        "vertices": copy("left") | copy("right"),
    }
    return write_job(base / "job.yaml", document)


@pytest.mark.slow  # test_lost_taskmanager has them with a job
async def test_taskmanagers_started_by_hand_serve_a_job_and_are_given_back(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster starts without a TaskManager. In the end, its TaskManagers end, each in another way (R5, R7, R10)."""
    # For the TaskManagers only, whose sessions may take their time: the daemon runs already.
    monkeypatch.setenv("MINFLINKD_RESOURCEMANAGER_TASKMANAGER_REGISTRATION_TIMEOUT", "200 s")
    job = two_groups(tmp_path)
    port = cluster.settings["jobmanager.rpc.port"]

    with pytest.raises(Refused, match=r"resourcemanager\.driver: standalone"):
        await cluster.submit(job)

    async with standalone_task_manager(cluster, tmp_path / "one", "tm-one", port=port) as one:
        await cluster.await_ready(1, timeout=200)
        job_id = await cluster.submit(job)

        async def told_why() -> str | None:
            return (await cluster.client.exceptions(job_id)).root_exception

        why = await until(told_why, "the job says what it waits for")
        assert "slot sharing group" in why
        assert "resourcemanager.driver: standalone" in why

        async with standalone_task_manager(cluster, tmp_path / "two", "tm-two", port=port) as two:
            running = await cluster.await_state(job_id, "RUNNING", timeout=250)
            assert {vertex.minflinkd.taskmanager_id for vertex in running.vertices} == {"tm-one", "tm-two"}
            await cluster.await_checkpoints(job_id, 1)
            await cluster.cancel(job_id)

            async def given_back() -> bool:
                found = await cluster.task_managers()
                return sorted((tm.id, tm.free_slots) for tm in found) == [("tm-one", 1), ("tm-two", 1)]

            await until(given_back, "both are there, and nobody holds their slots")

            one.process.send_signal(signal.SIGTERM)
            assert await one.process.wait() == 0
            assert {path.name for path in one.home.iterdir()} == {"log"}
            assert await seconds_until_lost(cluster, "tm-one") < SILENCE / 2

            brood = two.tree()
            two.process.kill()
            assert await seconds_until_lost(cluster, "tm-two") < SILENCE / 2
            _, alive = await asyncio.to_thread(psutil.wait_procs, brood, 10)
            assert alive == []


async def seconds_until_lost(cluster: Cluster, resource_id: str) -> float:
    """Return the seconds until it is lost.

    It is doubted when its connection ends, and lost after two heartbeats, not only after the heartbeat timeout.
    """
    began = time.monotonic()

    async def lost() -> bool:
        return resource_id not in {tm.id for tm in await cluster.task_managers(ready=False)}

    await until(lost, f"{resource_id} is lost")
    return time.monotonic() - began
