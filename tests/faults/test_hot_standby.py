"""With `recovery: hot-standby`, a job goes on where its state lies and its tasks were rehearsed (R32)."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from minflinkd.rest.schemas import JobInfo
from tests.cluster import Cluster
from tests.exactly_once.kills import Kills, drawn_seed
from tests.faults.test_exactly_once import MORE
from tests.windows_job import WindowsJob, leftovers, result

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]


def stands_by(job: JobInfo) -> bool:
    standby = job.minflinkd.hot_standby
    return standby is not None and standby.ready


def log_of(cluster: Cluster, resource_id: str) -> str:
    logs = cluster.state / "taskmanagers" / resource_id / "log"
    return "".join(path.read_text(errors="replace") for path in sorted(logs.glob("taskmanager*.log*")))


async def test_a_job_goes_on_where_its_tasks_were_rehearsed(
    cluster: Cluster, windows: WindowsJob, truth: list[tuple[Any, ...]], out: Path
) -> None:
    """Its state is there before the loss, and what the rehearsal wrote is nowhere (R32, C14, J12)."""
    await cluster.await_ready(2)
    job_id = await cluster.submit(windows.write(out.name, mode="streaming", recovery="hot-standby"))
    before = await cluster.await_job(job_id, stands_by, "has a hot standby")
    assert before.minflinkd.hot_standby is not None
    standby = str(before.minflinkd.hot_standby.taskmanager_id)
    killed = await cluster.task_manager_of(job_id)
    assert standby != killed.id
    os.kill(killed.minflinkd.pid, signal.SIGKILL)

    def goes_on(job: JobInfo) -> bool:
        return all(v.minflinkd.taskmanager_id == standby and v.minflinkd.batches > 0 for v in job.vertices)

    after = await cluster.await_job(job_id, goes_on, "goes on at its standby")
    await cluster.client.stop(job_id, str(windows.base / f"{out.name}-savepoint"), drain=True)
    await cluster.await_state(job_id, "FINISHED", timeout=120)
    story = log_of(cluster, standby).splitlines()  # of other tests' jobs, too
    assert any("a task was rehearsed" in line and job_id in line for line in story)
    attempts = {str(vertex.minflinkd.attempt_id) for vertex in after.vertices}
    own = "\n".join(line for line in story if any(attempt in line for attempt in attempts))
    laid_out = [(int(files), int(fetched)) for fetched, files in re.findall(r"fetched=(\d+) files=(\d+)", own)]
    assert any(files for files, _ in laid_out), laid_out
    # The last checkpoint may be so new that the standby had only the one before it, whose files are most of its own.
    assert all(fetched < files for files, fetched in laid_out if files), laid_out
    assert result(out) == truth
    assert leftovers(out) == []
    assert list((cluster.state / "taskmanagers" / standby / "attempts").glob("rehearsal-*")) == []


@pytest.mark.slow  # the test above kills once
@pytest.mark.timeout(3600)
async def test_what_jobs_wrote_equals_the_batch_after_ten_kills_with_a_hot_standby(tmp_path: Path) -> None:
    """While rehearsals run beside the jobs, or are cut off by their recovery, no row is lost or doubled (R32, C40)."""
    changes = {"recovery": "hot-standby"}
    parts = ("taskmanager", "session", "jvm", "daemon")
    trial = Kills(
        tmp_path,
        MORE,
        seed=drawn_seed(),
        kills=10,
        parts=parts,
        files=2000,
        pace="500 ms",
        endless=True,
        changes=changes,
    )
    await trial.run()
    for name in MORE:
        trial.verify(name)
