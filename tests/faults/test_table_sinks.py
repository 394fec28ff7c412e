"""Rows go into tables of Delta Lake and Iceberg on an object store once, while whatever is around them dies (K8)."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from minflinkd.runtime.crash_points import OF_SINKS, VARIABLE
from tests.cluster import Cluster, running_cluster
from tests.faults.hot_restarts import ONE, restarted, running_versions
from tests.faults.test_rescale_in_place import rescaled
from tests.faults.test_sinks import CLUSTER, events
from tests.lakes import Delta, Iceberg, Lake
from tests.servers.s3 import SeaweedFS
from tests.waiting import until
from tests.windows_job import SQL, WindowsJob

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


async def test_tables_get_the_rows_of_the_batch_whatever_dies(
    seaweedfs: SeaweedFS, windows: WindowsJob, truth: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    """Sessions die before and after commits, then their TaskManager, then the object store (K2 to K4, K8)."""
    delta, iceberg = (
        Delta(tmp_path / "whatever-dies", seaweedfs.endpoint),
        Iceberg(tmp_path / "dies", seaweedfs.endpoint),
    )
    keyed = {lake: lake.described("keyed") for lake in (delta, iceberg)}
    for sink in keyed.values():
        sink["options"] = sink["options"] | {"key": "minute, k"}
    armed = tmp_path / "armed"
    armed.mkdir()
    vertices = {
        "events": events(windows),
        "clean": {"inputs": ["events"], "python": "windows:clean"},
        "minutes": {"inputs": ["clean"], "sql": SQL},
        "delta": {"inputs": ["minutes"], "sink": delta.described("minutes") | {"partition-by": ["k"]}},
        "iceberg": {"inputs": ["minutes"], "sink": iceberg.described("minutes")},
        "keyed_delta": {"inputs": ["minutes"], "sink": keyed[delta]},
        "keyed_iceberg": {"inputs": ["minutes"], "sink": keyed[iceberg]},
    }
    job = WindowsJob(tmp_path, pace="400 ms").write("tables", vertices=vertices, params={})
    environ = {**os.environ, VARIABLE: str(armed)}
    async with running_cluster(tmp_path / "cluster", environ=environ, **CLUSTER) as cluster:
        job_id = await cluster.submit(job)
        for point in OF_SINKS * 2:
            await dies(cluster, job_id, armed / point.value)
        os.kill((await cluster.task_manager_of(job_id)).minflinkd.pid, signal.SIGKILL)
        await seaweedfs.restart()
        finished = await cluster.await_state(job_id, "FINISHED", timeout=240)
        assert finished.minflinkd.restarts >= 5
    for lake, table in ((delta, "minutes"), (iceberg, "minutes"), (delta, "keyed"), (iceberg, "keyed")):
        assert await rows_in(lake, table) == truth


async def dies(cluster: Cluster, job_id: str, point: Path) -> None:
    """Let the session die at a crash point, and wait for a checkpoint after that."""
    point.touch()
    await until(lambda: not point.exists(), f"a session died at {point.name}", timeout=60)
    completed = (await cluster.client.checkpoints(job_id)).counts.completed
    await cluster.await_checkpoints(job_id, completed + 1)


async def test_a_job_through_its_versions_and_widths_writes_each_row_once(tmp_path: Path) -> None:
    """A hot restart goes on in the directory of the attempt before it, and a wider one on other partitions (H4)."""
    lakes = (Delta(tmp_path / "delta"), Iceberg(tmp_path / "iceberg"))
    also = {lake.directory.name: {"inputs": ["minutes"], "sink": lake.described("versions")} for lake in lakes}
    async with running_cluster(tmp_path / "cluster", **ONE) as cluster:
        async with running_versions(cluster, tmp_path, vertices=also) as versions:
            for tag in ("2", "3"):
                done = await restarted(cluster, versions.job_id, versions.write(tag, vertices=also))
                assert done.state == "completed"
                await versions.goes_on()
                assert (await rescaled(cluster, versions.job_id, 5 - int(tag))).state == "completed"
                await versions.goes_on()
        expected = versions.windows.expected()
    for lake in lakes:
        assert await rows_in(lake, "versions") == expected


async def rows_in(lake: Lake, table: str) -> list[tuple[Any, ...]]:
    """Return the rows of the windows job that are in a table."""
    rows = await asyncio.to_thread(lake.rows, table)
    return sorted((int(row["minute"].timestamp()), row["k"], row["n"], row["total"]) for row in rows)
