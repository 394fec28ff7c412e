"""A TaskManager that the daemon started is killed or stopped while it runs the main job."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import os
import random
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from minflinkd.rest.schemas import JobInfo, TaskManager
from tests.cluster import Cluster
from tests.files import files_below
from tests.waiting import until
from tests.windows_job import WindowsJob, leftovers, result

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]


async def run_until_killed(cluster: Cluster, job_id: str, instant: float) -> TaskManager:
    """Send SIGKILL to the job's TaskManager, `instant` seconds after the job is RUNNING."""
    await cluster.await_state(job_id, "RUNNING")
    await asyncio.sleep(instant)  # not a synchronisation
    killed = await cluster.task_manager_of(job_id)
    os.kill(killed.minflinkd.pid, signal.SIGKILL)
    return killed


@pytest.mark.slow  # test_exactly_once kills TaskManagers as well
@pytest.mark.parametrize("seed", [pytest.param(n, id=f"instant {n}") for n in range(6)])
async def test_results_are_exactly_once_after_a_kill_at_a_random_instant(
    cluster: Cluster, windows: WindowsJob, truth: list[tuple[Any, ...]], seed: int
) -> None:
    """The job continues on the standby. The output is the batch's, and nothing staged is left (C11, C14, J12, R11)."""
    before = {tm.id for tm in await cluster.await_ready(2)}
    output = windows.base / f"kill{seed}"
    job_id = await cluster.submit(windows.write(output.name))
    killed = await run_until_killed(cluster, job_id, random.Random(seed).uniform(0.0, 8.0))

    job = await cluster.await_state(job_id, "FINISHED", timeout=120)
    assert job.minflinkd.restarts >= 1
    assert {job.vertices[0].minflinkd.taskmanager_id} == before - {killed.id}, "the standby was there"
    assert result(output) == truth
    assert leftovers(output) == []
    assert killed.id not in {tm.id for tm in await cluster.task_managers(ready=False)}


def blobs_of(cluster: Cluster, job_id: str, store: str) -> set[str]:
    """Return the blobs of a job. `store` is below the state directory, with `*` for a name that is not known."""
    directories = [Path(found, job_id) for found in glob.glob(store, root_dir=cluster.state)]
    return {path.name for directory in directories for path in files_below(cluster.state / directory)}


async def assert_offloaded(cluster: Cluster, job_id: str) -> set[str]:
    """Check that blobs are offloaded, with this daemon's low `blob.offload.minsize` (B2, B3).

    Return those that a redeployment will find again.
    """
    permanent = {key for key in blobs_of(cluster, job_id, "blobs") if key.startswith("p-")}
    assert len(permanent) > 1, "the artifact, and what every deployment of the job is made of"
    assert permanent <= blobs_of(cluster, job_id, "ha/*/blobs"), "from where TaskManagers fetch them"

    async def none_transient() -> bool:
        return not any(key.startswith("t-") for key in blobs_of(cluster, job_id, "blobs"))

    await until(none_transient, "acknowledgements deleted on delivery", pause=0.01)
    return permanent


async def await_no_blobs(cluster: Cluster, job_id: str) -> None:
    """Wait until the blobs of a job that has ended are gone (B17)."""

    async def gone() -> bool:
        return not blobs_of(cluster, job_id, "blobs") and not blobs_of(cluster, job_id, "ha/*/blobs")

    await until(gone, "no blob of the job is left")


@pytest.mark.slow  # tests/unit/blob/test_offloading.py has what travels how
async def test_a_large_log_of_a_task_manager_travels_once(cluster: Cluster) -> None:
    """The log travels as blobs, which are deleted when another log is requested (B3, B18, E31)."""
    (task_manager, *_) = await cluster.await_ready(1)
    directory = cluster.state / "taskmanagers" / task_manager.id / "log"
    data = b"".join(b"line %09d of a large log\n" % n for n in range(400_000))
    assert len(data) > 10 * 1024 * 1024
    large, small = directory / "large.log", directory / "small.log"

    def kept() -> set[str]:
        return blobs_of(cluster, "none", "blobs")

    async def read(name: str, offset: int = 0) -> bytes:
        return b"".join([piece async for piece in cluster.client.read_log(task_manager.id, name, offset=offset)])

    await asyncio.to_thread(large.write_bytes, data)
    try:

        async def sent_once() -> set[str] | None:
            blobs = kept()
            assert await read(large.name) == data
            return blobs if kept() == blobs else None  # a piece that uploads too slowly goes by message, once

        blobs = await until(sent_once, "it comes as blobs, and nothing is sent again")
        with large.open("ab") as log:
            log.write(b"one more\n")
        assert await read(large.name, offset=len(data)) == b"one more\n"
        assert kept() == blobs

        small.write_bytes(data[:5000])

        async def replaced() -> bool:
            assert await read(small.name) == data[:5000]
            return len(kept()) == 1

        await until(replaced, "the blobs of the log before deleted")
    finally:
        large.unlink()
        small.unlink(missing_ok=True)


@pytest.mark.slow  # test_exactly_once kills TaskManagers, and each test of a daemon starts one
async def test_without_a_standby_a_new_task_manager_is_started(
    cluster: Cluster, windows: WindowsJob, truth: list[tuple[Any, ...]], out: Path
) -> None:
    """The lost TaskManager is replaced for its job, although none is kept ready; rows are exactly-once (R3, R11)."""
    number = {"resourcemanager.standby-taskmanagers": 0, "resourcemanager.max-taskmanagers": 1}
    async with cluster.configured(
        **number, **{"resourcemanager.min-taskmanagers": 1, "resourcemanager.taskmanager-timeout": "100 ms"}
    ):
        (only,) = await cluster.await_count(1)
        # The timeout is long enough for a busy machine: the TaskManager must not end before the job has it.
        async with cluster.configured(
            **number, **{"resourcemanager.min-taskmanagers": 0, "resourcemanager.taskmanager-timeout": "60 s"}
        ):
            job_id = await cluster.submit(windows.write(out.name))
            killed = await run_until_killed(cluster, job_id, 2.0)
            assert killed.id == only.id
            job = await cluster.await_state(job_id, "FINISHED", timeout=180)
    assert job.minflinkd.restarts >= 1
    assert job.vertices[0].minflinkd.taskmanager_id != only.id
    assert result(out) == truth
    assert leftovers(out) == []


@pytest.mark.slow  # the simulated processes of tests/sim/protocol stop in every seed
async def test_a_task_manager_stopped_until_its_job_runs_elsewhere_does_no_harm_and_ends(
    cluster: Cluster, windows: WindowsJob, truth: list[tuple[Any, ...]], out: Path
) -> None:
    """After SIGSTOP to all its processes its silence gives it away. After SIGCONT it ends with all of them (R10, R11).

    The messages about the job travel as blobs. What its second deployment has in common with the first is not sent
    again (B2, B3).
    """
    await cluster.await_ready(2)
    job_id = await cluster.submit(windows.write(out.name))
    await cluster.await_checkpoints(job_id, 2)
    offloaded = await assert_offloaded(cluster, job_id)
    struck = await cluster.task_manager_of(job_id)
    supervisor = psutil.Process(struck.minflinkd.pid)
    tree = [supervisor, *supervisor.children(recursive=True)]
    for process in tree:
        with contextlib.suppress(psutil.NoSuchProcess):  # Spark's Python workers come and go
            process.suspend()

    def elsewhere(job: JobInfo) -> bool:
        task = job.vertices[0].minflinkd
        return task.taskmanager_id not in (None, struck.id) and task.batches > 0

    await cluster.await_job(job_id, elsewhere, "goes on elsewhere")
    assert offloaded <= await assert_offloaded(cluster, job_id)
    for process in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()
    _, alive = await asyncio.to_thread(psutil.wait_procs, tree, 60)
    assert alive == []

    job = await cluster.await_state(job_id, "FINISHED", timeout=120)
    assert job.minflinkd.restarts == 1
    assert result(out) == truth
    assert leftovers(out) == []
    await await_no_blobs(cluster, job_id)
    assert struck.id not in {tm.id for tm in await cluster.await_ready(2)}
