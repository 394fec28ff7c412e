"""Nothing is left of a cancelled job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from minflinkd.checkpoint import layout
from tests.cluster import Cluster
from tests.files import files_below
from tests.waiting import until
from tests.windows_job import WindowsJob, leftovers

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]


async def test_a_cancelled_job_leaves_no_slot_query_thread_or_file(cluster: Cluster, tmp_path: Path) -> None:
    """The slots are soon free again, and the TaskManager keeps no Spark query, thread or file of the job (Issue)."""
    await cluster.await_ready(1)
    windows = WindowsJob(tmp_path)
    windows.write_events()
    threads: list[float] = []
    for n in range(3):  # the first job warms up thread pools
        job_id = await cluster.submit(windows.write(f"cancelled{n}", mode="streaming"))
        await cluster.await_state(job_id, "RUNNING")
        await cluster.await_checkpoints(job_id, 2)
        manager = await cluster.task_manager_of(job_id)
        assert {s.job_id for s in manager.minflinkd.slots} == {job_id, None}

        await cluster.client.cancel(job_id)

        async def free(resource_id: str = manager.id) -> bool:
            managers = {tm.id: tm for tm in await cluster.task_managers()}
            return managers[resource_id].free_slots == managers[resource_id].slots_number

        await until(free, "free slots", timeout=10, pause=0.02)  # benchmarks/ measures how fast
        await cluster.await_state(job_id, "CANCELED")

        working = cluster.state / "taskmanagers" / manager.id
        await until(_none_of(job_id, working), "no file of the job in the TaskManager", timeout=10)
        await until(_empty(working / "state" / "attempts"), "no attempt on disk", timeout=10)
        assert leftovers(windows.base / f"cancelled{n}") == []
        await until(_only_offsets(cluster.state / "checkpoints" / job_id), "no checkpoint of the job", timeout=10)
        await until(_none_of(job_id, cluster.state / "blobs"), "no blob of the job", timeout=10)

        child = psutil.Process(int((await cluster.measured(manager.id)).minflinkd.metrics["session.pid"]))
        threads.append(child.num_threads())

    async def few_threads() -> bool:
        threads[-1] = child.num_threads()
        return threads[-1] <= threads[0] + 2

    await until(few_threads, f"as few threads of the session child as after the first job: {threads}", timeout=30)


def _only_offsets(directory: Path) -> Callable[[], Awaitable[bool]]:
    async def only() -> bool:
        return all(layout.outlives_checkpoints(str(path.relative_to(directory))) for path in files_below(directory))

    return only


def _empty(directory: Path) -> Callable[[], Awaitable[bool]]:
    async def empty() -> bool:
        return not list(directory.glob("*"))

    return empty


def _none_of(job_id: str, directory: Path) -> Callable[[], Awaitable[bool]]:
    async def none() -> bool:
        return not [path for path in files_below(directory) if job_id in str(path)]

    return none
