"""The daemon ends while a job runs: it is killed, hands over, or is stopped. What its successor finds and does."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from minflinkd.rest.schemas import JobInfo
from tests.cluster import Cluster, free_port, lives, running_cluster
from tests.files import files_below
from tests.waiting import until
from tests.windows_job import WindowsJob, leftovers, result

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(Cluster.kill, id="killed"),
        pytest.param(Cluster.hand_over, id="handed over", marks=pytest.mark.slow),
    ],
)
async def test_a_daemon_that_is_killed_or_hands_over_stops_no_task(
    end: Callable[[Cluster], Awaitable[None]],
    windows: WindowsJob,
    truth: list[tuple[Any, ...]],
    out: Path,
    tmp_path: Path,
) -> None:
    """Micro-batches go on while nobody leads, and the next daemon adopts the attempts (A14, A15, A16).

    Nothing restarts, no TaskManager is started, and the output is exactly that of the batch (A6, R7, R14).
    """
    settings = {"rest.port": free_port(), "resourcemanager.standby-taskmanagers": 0}
    async with running_cluster(tmp_path / "cluster", **settings) as cluster:
        job_id = await cluster.submit(windows.write(out.name, **{"trigger-interval": "300 ms"}))
        await cluster.await_checkpoints(job_id, 2, timeout=150)
        before = await cluster.task_manager_of(job_id)
        supervisor = psutil.Process(before.minflinkd.pid)
        completed = (await cluster.client.checkpoints(job_id)).counts.completed
        attempts = attempts_in(tmp_path / "cluster")
        assert len(attempts) == 1
        await end(cluster)
        processed = micro_batches(tmp_path / "cluster")
        await until(
            lambda: micro_batches(tmp_path / "cluster") >= processed + 3,
            "no micro-batches without a daemon",
            timeout=60,
        )
        assert lives(supervisor)

        await cluster.start_again()

        def goes_on(job: JobInfo) -> bool:
            return job.state in ("RUNNING", "FINISHED") and job.vertices[0].minflinkd.batches > processed + 3

        await cluster.await_job(job_id, goes_on, "goes on under the next daemon")
        assert attempts_in(tmp_path / "cluster") == attempts
        (after,) = await cluster.task_managers(ready=False)
        assert (after.id, after.minflinkd.pid) == (before.id, before.minflinkd.pid)
        assert after.minflinkd.session_generation == before.minflinkd.session_generation
        job = await cluster.await_state(job_id, "FINISHED", timeout=120)
        counts = (await cluster.client.checkpoints(job_id)).counts
        assert counts.completed > completed, "the job's checkpoints were counted from the submission on"
        assert (counts.restored, job.minflinkd.restarts) == (0, 0)
        kept = [line for file in windows.events.glob("[0-9]*") for line in file.open() if json.loads(line)["v"] >= 0]
        assert job.minflinkd.source_records == len(kept), "each row counts once that the source's filter lets through"
        assert result(out) == truth
        assert leftovers(out) == []
    # A daemon that stops in order also stops TaskManagers of an earlier one. Not every init reaps orphans, so a zombie
    # may remain.
    assert not lives(supervisor)


@pytest.mark.slow
async def test_a_daemon_that_is_stopped_takes_a_last_checkpoint_of_each_job(
    windows: WindowsJob, truth: list[tuple[Any, ...]], out: Path, tmp_path: Path
) -> None:
    """The next start goes on from it: nothing is done twice, even by a job that takes no checkpoint by itself (A15)."""
    settings = {"rest.port": free_port(), "resourcemanager.standby-taskmanagers": 0}
    async with running_cluster(tmp_path / "cluster", **settings) as cluster:
        job_id = await cluster.submit(windows.write(out.name, checkpointing={"interval": "1 h"}))
        await cluster.await_job(job_id, lambda job: job.minflinkd.source_records > 0, "has read rows")
        supervisor = psutil.Process((await cluster.task_manager_of(job_id)).minflinkd.pid)
        await cluster.stop()
        assert not lives(supervisor)
        await cluster.start_again()
        job = await cluster.await_state(job_id, "FINISHED", timeout=180)
        checkpoints = await cluster.client.checkpoints(job_id)
        assert (checkpoints.counts.restored, job.minflinkd.restarts) == (1, 0)
        kept = [line for file in windows.events.glob("[0-9]*") for line in file.open() if json.loads(line)["v"] >= 0]
        assert job.minflinkd.source_records == len(kept), "each row was read once"
        assert result(out) == truth
        assert leftovers(out) == []


def attempts_in(cluster: Path) -> set[str]:
    """Return the attempts that have a directory on some TaskManager."""
    return {path.name for path in cluster.glob("state/taskmanagers/*/state/attempts/*") if path.is_dir()}


def micro_batches(cluster: Path) -> int:
    """Return the number of the last micro-batch that Spark has committed on any TaskManager."""
    commits = (path for path in files_below(cluster / "state" / "taskmanagers") if path.parent.name == "commits")
    return max((int(path.name) for path in commits if path.name.isdigit()), default=-1)
