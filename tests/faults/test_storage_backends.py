"""A streaming job keeps checkpoints and blobs in each of the five backends, and recovers from there (S1, S5).

So it does in a storage without a backend, which is written through fsspec.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from minflinkd.storage.registry import Storages
from tests.cluster import Cluster, running_cluster
from tests.servers.azure import Azurite
from tests.servers.fixtures import running
from tests.servers.gcs import FakeGcs
from tests.servers.hdfs import Hdfs
from tests.servers.process import Server
from tests.servers.s3 import Moto
from tests.servers.sftp import Sftp
from tests.waiting import until
from tests.windows_job import WindowsJob, leftovers, result

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]


@dataclass(frozen=True)
class Backend:
    """Where a job keeps everything, and how to reach it. The option names are without `storage.`."""

    uri: str
    options: Mapping[str, str]


def _hdfs(server: Hdfs) -> Backend:
    return Backend(f"hdfs://{server.authority}/minflinkd", {})


def _s3(server: Moto) -> Backend:
    return Backend(f"s3://{server.bucket}/minflinkd", {f"s3.{key}": value for key, value in server.options.items()})


def _gs(server: FakeGcs) -> Backend:
    return Backend(f"gs://{server.bucket}/minflinkd", {"gs.endpoint-url": server.endpoint, "gs.token": "anon"})


def _az(server: Azurite) -> Backend:
    return Backend(f"az://{server.container}/minflinkd", {"abfs.connection-string": server.connection_string})


def _sftp(server: Sftp) -> Backend:
    return Backend(f"{server.uri}/minflinkd", {"sftp.writable": "true"})


SERVERS: Mapping[str, tuple[type[Server], Callable[[Any], Backend]]] = {
    "hdfs": (Hdfs, _hdfs),
    "s3": (Moto, _s3),
    "gs": (FakeGcs, _gs),
    "az": (Azurite, _az),
    "sftp": (Sftp, _sftp),
}


@contextlib.asynccontextmanager
async def served(name: str, directory: Path) -> AsyncIterator[Backend]:
    if name == "local":
        yield Backend(f"file://{directory}", {})
        return
    kind, backend_of = SERVERS[name]
    async with running(kind, directory) as server:
        with server.credentials() if isinstance(server, Sftp) else contextlib.nullcontext():
            yield backend_of(server)


OUT = "out"  # below the backend's URI: what the job's sink writes, unless the backend is the local disk


KEPT = re.compile(r"checkpoints/[^/]+/(offsets\.json|source-logs/.+)|ha/[^/]+/history/.+")  # after a job's end


async def objects(backend: Backend) -> list[str]:
    """Return everything except the published output and its manifests, and what is kept of jobs that have ended."""
    storages = Storages(backend.options)
    try:
        place = storages.at(backend.uri)
        found = [place.relative(entry.path) async for entry in place.list()]
    finally:
        await storages.aclose()
    return [
        path
        for path in found
        if not KEPT.fullmatch(path) and (not path.startswith(f"{OUT}/") or "/staged/" in path or "/publishing/" in path)
    ]


async def fetch_output(backend: Backend, target: Path) -> None:
    """Fetch what a reader of the directory sees. Names that begin with _ are skipped."""
    storages = Storages(backend.options)
    try:
        place = storages.at(f"{backend.uri}/{OUT}")
        found = [place.relative(entry.path) async for entry in place.list()]
        for path in found:
            if not path.startswith("_"):
                (target / path).parent.mkdir(parents=True, exist_ok=True)
                (target / path).write_bytes(await place.child(path).read_bytes())
    finally:
        await storages.aclose()


@pytest.mark.slow  # tests/storage has each storage, test_kill_taskmanager the recovery
@pytest.mark.parametrize("name", ["local", "hdfs", "s3", "gs", "az", "sftp"])
async def test_a_streaming_job_checkpoints_to_the_storage_and_recovers_from_it(
    windows: WindowsJob, truth: list[tuple[Any, ...]], tmp_path: Path, name: str
) -> None:
    """After a kill, the next TaskManager gets state and artifact from the storage (B8, C11, J12, R11, S1, S7).

    It gets nothing from the daemon. The output, in the same storage, equals the batch's. When the job is over, nothing
    else is left there, but for what a start from its offsets needs, and the daemon's history.
    """
    async with served(name, tmp_path / "storage") as backend:
        settings = {
            "execution.checkpointing.dir": f"{backend.uri}/checkpoints",
            "high-availability.storageDir": f"{backend.uri}/ha",
            **{f"storage.{key}": value for key, value in backend.options.items()},
            "resourcemanager.max-taskmanagers": 1,
            "taskmanager.numberOfTaskSlots": 4,
        }
        async with running_cluster(tmp_path / "cluster", **settings) as cluster:
            await run_through_a_kill(cluster, backend, windows, truth, f"storage-{name}")


async def fetches(cluster: Cluster, task_manager: str) -> dict[str, float]:
    """Return counters of a TaskManager's BlobCache, once it has reported one that is not 0."""

    async def told() -> dict[str, float] | None:
        metrics = (await cluster.client.task_manager(task_manager)).minflinkd.metrics
        found = {name: metrics.get(f"blobs.{name}", 0.0) for name in ("from_ha", "ha_failures", "from_server")}
        return found if any(found.values()) else None

    return await until(told, f"TaskManager {task_manager} tells where it fetched blobs", timeout=30)


async def run_through_a_kill(
    cluster: Cluster, backend: Backend, windows: WindowsJob, truth: list[tuple[Any, ...]], name: str
) -> None:
    output, remote = windows.base / name, not backend.uri.startswith("file:")
    sink = f"{backend.uri}/{OUT}" if remote else str(output)
    job_id = await cluster.submit(windows.write(name, params={"input": str(windows.events), "output": sink}))
    await cluster.await_checkpoints(job_id, 3)
    killed = await cluster.task_manager_of(job_id)
    kept = await objects(backend)
    assert any(path.startswith("checkpoints/") and path.endswith("_metadata") for path in kept)
    assert any(path.startswith("ha/") and job_id in path for path in kept), "the artifact"
    os.kill(killed.minflinkd.pid, signal.SIGKILL)

    job = await cluster.await_state(job_id, "FINISHED", timeout=180)
    assert job.minflinkd.restarts >= 1
    successor = await cluster.task_manager_of(job_id)
    assert successor.id != killed.id
    fetched = await fetches(cluster, successor.id)
    assert fetched["from_ha"] >= 1
    assert fetched["ha_failures"] == fetched["from_server"] == 0, "the artifact came from the storage"
    assert (await cluster.client.checkpoints(job_id)).counts.restored >= 1
    if remote:
        await fetch_output(backend, output)
    assert await asyncio.to_thread(result, output) == truth
    assert leftovers(output) == []

    async def empty() -> bool:
        return await objects(backend) == []

    await until(empty, f"nothing is left in {backend.uri}", timeout=20)
