"""What happens to tasks while there is no daemon: they finish, they fail, or nobody comes for too long."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from tests.cluster import Cluster, free_port, lives, running_cluster
from tests.faults.hot_restarts import ONE, drained, processes_of
from tests.faults.test_kill_daemon import attempts_in, micro_batches
from tests.waiting import until
from tests.windows_job import WindowsJob, leftovers, result

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="module")]

# While `poison` is there, a row makes the task fail, and says so in a file.
POISON = """
import os

from pyspark.sql import functions as f
from pyspark.sql.types import LongType

@f.udf(LongType())
def checked(v):
    if os.path.exists({poison!r}):
        open({poison!r} + ".bitten", "w").close()
        raise ValueError('poison')
    return v

def clean(inputs, params):
    return inputs['events'].withColumn('v', checked('v')).where('v >= 0')
"""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def cluster(base: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(base, **ONE, **{"rest.port": free_port()}) as cluster:
        await cluster.await_ready(1)
        yield cluster


@pytest.fixture
def windows(tmp_path: Path) -> WindowsJob:
    job = WindowsJob(tmp_path, files=40, pace="200 ms")
    job.write_events()
    return job


async def finished(cluster: Cluster, job_id: str, windows: WindowsJob) -> int:
    """Wait for the job's end, compare its output, and return how often it was restored from a checkpoint."""
    await cluster.await_state(job_id, "FINISHED", timeout=180)
    assert result(windows.base / "out") == windows.expected()
    assert leftovers(windows.base / "out") == []
    return (await cluster.client.checkpoints(job_id)).counts.restored


@pytest.mark.slow  # tests/unit/jobmaster/test_end_after_takeover.py has the decision
async def test_a_job_whose_input_ends_without_a_daemon_is_finished_by_the_next_one(
    cluster: Cluster, base: Path, windows: WindowsJob
) -> None:
    """It takes the last checkpoint, publishes what the task has staged meanwhile, and restarts nothing (A14, C4)."""
    job_id = await cluster.submit(windows.write("out"))
    await cluster.await_checkpoints(job_id, 2)
    await until(lambda: any((windows.base / "out").glob("part-*")), "something is published")
    before = await processes_of(cluster)
    await cluster.kill()
    await until(lambda: micro_batches(base) >= windows.files - 1, "all input is processed")
    assert result(windows.base / "out") != windows.expected(), "nobody publishes the rest"
    await cluster.start_again()
    assert await finished(cluster, job_id, windows) == 0
    assert await processes_of(cluster) == before


@pytest.mark.slow  # tests/sim has the decision
async def test_a_task_that_fails_without_a_daemon_is_restarted_by_the_next_one(
    cluster: Cluster, tmp_path: Path, windows: WindowsJob
) -> None:
    """It restarts from its checkpoint, in the warm session, and nothing is lost or done twice (A14, A14a)."""
    poison, bitten = tmp_path / "poison", tmp_path / "poison.bitten"
    windows = replace(windows, artifact=POISON.format(poison=str(poison)))
    job_id = await cluster.submit(windows.write("out"))
    await cluster.await_checkpoints(job_id, 2)
    before = await processes_of(cluster)
    await cluster.kill()
    poison.touch()
    await until(bitten.exists, "the task fails")
    poison.unlink()
    await cluster.start_again()
    assert await finished(cluster, job_id, windows) == 1
    assert await processes_of(cluster) == before


@pytest.mark.slow  # tests/unit/jobmaster/test_reconciling.py has the decision
async def test_tasks_that_are_lost_together_with_the_daemon_are_a_restart_of_their_job(
    cluster: Cluster, windows: WindowsJob
) -> None:
    """As after a power failure: nothing is left to adopt. The user sees that work was repeated, and why (A14a)."""
    job_id = await cluster.submit(windows.write("out"))
    await cluster.await_checkpoints(job_id, 2)
    supervisor = psutil.Process((await cluster.task_manager_of(job_id)).minflinkd.pid)
    processes = [supervisor, *supervisor.children(recursive=True)]
    await cluster.kill()
    for process in processes:
        process.kill()
    await cluster.start_again()
    assert await finished(cluster, job_id, windows) == 1
    shown = (await cluster.client.job(job_id)).minflinkd
    assert shown.restarts == 1
    (recovery,) = shown.recoveries
    assert recovery.cause.startswith("not adopted from the JobMaster before: events")


@pytest.mark.slow  # tests/unit/taskmanager/test_adoption.py has the end
async def test_tasks_that_nobody_comes_for_end_and_the_next_daemon_restarts_their_job(
    tmp_path: Path, windows: WindowsJob
) -> None:
    """They end after the orphan timeout. The session stays warm for the restart from the checkpoint (A14, A14a)."""
    settings = {**ONE, "rest.port": free_port(), "high-availability.orphan-timeout": "4 s"}
    async with running_cluster(tmp_path / "cluster", **settings) as cluster:
        job_id = await cluster.submit(windows.write("out", mode="streaming"))
        await cluster.await_checkpoints(job_id, 2, timeout=150)
        before = await processes_of(cluster)
        (attempt,) = attempts_in(tmp_path / "cluster")
        await cluster.kill()
        await until(lambda: attempt not in attempts_in(tmp_path / "cluster"), "the task ends")
        assert all(lives(psutil.Process(int(pid))) for pid in (before[0], *before[1].values()))
        await cluster.start_again()
        await cluster.await_job(job_id, lambda job: job.vertices[0].minflinkd.batches > 0, "goes on")
        assert await processes_of(cluster) == before
        await drained(cluster, job_id, tmp_path / "savepoints", source="events", files=windows.files)
        assert await finished(cluster, job_id, windows) == 1
