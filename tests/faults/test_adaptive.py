"""With fewer slots than it wants, a job runs with what there is, and grows when there are more (R20)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minflinkd.rest.schemas import JobInfo
from tests.cluster import running_cluster
from tests.windows_job import WindowsJob, leftovers, result

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

ADAPTIVE = "jobmanager.adaptive-scheduler"
ONE_TASK_MANAGER = {
    "taskmanager.numberOfTaskSlots": 4,
    "resourcemanager.max-taskmanagers": 1,
    f"{ADAPTIVE}.submission.resource-wait-timeout": "1 s",
    f"{ADAPTIVE}.executing.cooldown-after-rescaling": "1 s",
}


def runs_with(parallelism: int) -> Callable[[JobInfo], bool]:
    """Return a condition: the job runs with this parallelism, and has processed something."""

    def runs(job: JobInfo) -> bool:
        task = job.vertices[0]
        return job.state == "RUNNING" and task.parallelism == parallelism and task.minflinkd.batches > 0

    return runs


@pytest.mark.slow  # tests/sim has it without Spark
async def test_a_job_starts_with_the_slots_there_are_and_grows_when_others_are_given_back(
    tmp_path: Path, windows: WindowsJob, truth: list[tuple[Any, ...]], out: Path
) -> None:
    """The job wants 4 slots and gets 2. When the other job ends, it goes on with 4, exactly (R20)."""
    async with running_cluster(tmp_path, **ONE_TASK_MANAGER) as cluster:
        (only,) = await cluster.await_ready(1)
        other = await cluster.submit(windows.write("beside", mode="streaming"))
        await cluster.await_state(other, "RUNNING")
        job_id = await cluster.submit(windows.write(out.name, parallelism=4))
        await cluster.await_job(job_id, runs_with(2), "runs with 2 slots")
        await cluster.await_checkpoints(job_id, 1)
        await cluster.cancel(other)
        await cluster.await_job(job_id, runs_with(4), "has grown to 4 slots")
        job = await cluster.await_state(job_id, "FINISHED", timeout=120)
        assert job.vertices[0].minflinkd.taskmanager_id == only.id
        assert job.minflinkd.restarts == 0, "to grow is no restart"
        assert (await cluster.client.exceptions(job_id)).root_exception is None
    assert result(out) == truth
    assert leftovers(out) == []
