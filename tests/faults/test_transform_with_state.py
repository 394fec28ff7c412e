"""State of `transformWithState`, whose records name files by their paths, after all that makes a job restore it.

The tests share one job and run in this order. Each one feeds it, and compares all of its output with the batch.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.attempt_guard import attempts_of, take_away_all
from tests.cluster import Cluster, running_cluster
from tests.faults.hot_restarts import ONE, restarted
from tests.faults.running_counts import RunningCounts
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]


@dataclass
class Counted:
    cluster: Cluster
    counts: RunningCounts
    job_id: str

    async def goes_on(self) -> None:
        """Check that it continues from its state, and that nothing is left of earlier attempts."""
        self.counts.feed()
        await self.counts.exact(self.cluster, self.job_id)
        job = await self.cluster.client.job(self.job_id)
        assert set(attempts_of(self.job_id)) == {vertex.minflinkd.attempt_id for vertex in job.vertices}

    async def attempt(self) -> str | None:
        (vertex,) = (await self.cluster.client.job(self.job_id)).vertices
        return vertex.minflinkd.attempt_id

    async def restarts(self, before: str | None) -> None:
        async def restarted() -> bool:
            return await self.attempt() not in (None, before)

        await until(restarted, "another attempt", timeout=120)


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def counted(shared: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Counted]:
    """A job that has counted some events, and has them in a checkpoint."""
    counts = RunningCounts(tmp_path_factory.mktemp("counts"))
    counts.feed()
    await shared.await_ready(1, timeout=300)
    counted = Counted(shared, counts, await shared.submit(counts.write()))
    await counts.exact(shared, counted.job_id)
    yield counted
    await shared.cancel_all()


@pytest.mark.slow  # a kill has the same state restored
async def test_it_goes_on_after_a_function_has_raised(counted: Counted) -> None:
    """The job continues by rows and by frames, in the same session as before (C11, C14)."""
    before = await counted.attempt()
    counted.counts.fail_once()
    await counted.goes_on()
    assert counted.counts.has_failed
    assert await counted.attempt() != before


@pytest.mark.slow  # tests/spark/test_session_transform has the restore, test_exactly_once the kills
@pytest.mark.parametrize("victim", ["session child", "TaskManager"])
async def test_it_goes_on_after_a_kill(counted: Counted, victim: str) -> None:
    """The job continues on another TaskManager, which has no copy of its state (C11, C14, R11)."""
    cluster = counted.cluster
    await cluster.await_ready(2, timeout=300)
    struck = await cluster.measured((await cluster.task_manager_of(counted.job_id)).id)
    before = await counted.attempt()
    pid = struck.minflinkd.pid if victim == "TaskManager" else int(struck.minflinkd.metrics["session.pid"])
    os.kill(pid, signal.SIGKILL)
    await counted.restarts(before)
    await counted.goes_on()


@pytest.mark.slow  # tests/spark/test_session_transform.py restores it
async def test_another_version_of_the_function_goes_on_with_the_state(counted: Counted) -> None:
    """A hot restart changes the code. The session is the same, but not its state stores (C25, H3, H4)."""
    counted.counts.weight = 3
    before, file = await counted.attempt(), counted.counts.write()
    restart = asyncio.create_task(restarted(counted.cluster, counted.job_id, file))
    await counted.restarts(before)
    counted.counts.feed(1)  # a version is on trial until it has processed rows
    done = await restart
    assert done.state == "completed", done
    await counted.goes_on()


@pytest.mark.slow  # tests/e2e/test_savepoints has it with other state
async def test_a_savepoint_is_the_start_of_a_job_elsewhere(counted: Counted, tmp_path: Path) -> None:
    """The other daemon has another root directory, and the job fewer partitions (C24, C25, R20).

    Then it is restored from a checkpoint there. Neither the first daemon's attempts nor the original directory of the
    savepoint exist any more.
    """
    counts = counted.counts
    path = await counted.cluster.client.stop(counted.job_id, str(tmp_path / "savepoints"), drain=False)
    moved = Path(shutil.move(path.removeprefix("file://"), tmp_path / "moved"))
    take_away_all(counted.job_id)
    async with running_cluster(tmp_path / "elsewhere", **ONE) as cluster:
        await cluster.await_ready(1, timeout=300)
        counts.parallelism = 1
        job_id = await cluster.submit(counts.write(restore={"path": str(moved)}))
        there = Counted(cluster, counts, job_id)
        await there.goes_on()
        counts.fail_once()
        await there.goes_on()
        assert counts.has_failed
        await cluster.cancel(job_id)
    assert counts.leftovers == []
