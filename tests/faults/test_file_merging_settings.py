"""A job continues from checkpoints that were written with other settings of file merging (F9)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import Cluster, running_cluster
from tests.exactly_once.stored import StoredCheckpoints
from tests.windows_job import WindowsJob, leftovers, result

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

FILE_MERGING = "execution.checkpointing.file-merging"
OFF = {f"{FILE_MERGING}.enabled": False}
ON: dict[str, object] = {}
SMALL = {f"{FILE_MERGING}.max-file-size": "2 KiB", f"{FILE_MERGING}.max-space-amplification": 1.05}
PART = 4  # files of input, each of them a minute


@pytest.mark.slow
async def test_a_job_goes_on_from_checkpoints_that_were_written_with_other_settings(tmp_path: Path) -> None:
    """With merging off, on, on with another file size, and off again, the job has all earlier state (F9)."""
    chain = (OFF, ON, SMALL, OFF)
    job = WindowsJob(tmp_path, files=PART * len(chain))
    path: Path | None = None
    files = list[int]()  # the number of physical files that the retained checkpoint names
    for number, settings in enumerate(chain):
        job.write_events(number * PART, PART)
        async with running_cluster(tmp_path / "cluster", **settings, **_ONE_TASKMANAGER) as cluster:
            if number == len(chain) - 1:
                await cluster.await_state(await _submit(cluster, job, path), "FINISHED", timeout=150)
                break
            path = await _part(cluster, job, path)
            stored = StoredCheckpoints(path.parent)
            assert stored.damaged() == []
            files.append(len(stored.named()))
    off, on, _ = files
    assert on < off, f"what was set is what was done: {files}"
    assert result(tmp_path / "out") == job.batch()
    assert leftovers(tmp_path / "out") == []


_ONE_TASKMANAGER = {"resourcemanager.standby-taskmanagers": 1, "resourcemanager.max-taskmanagers": 1}


async def _submit(cluster: Cluster, job: WindowsJob, path: Path | None, **changes: object) -> str:
    restore = {} if path is None else {"restore": {"path": f"file://{path}"}}
    return await cluster.submit(job.write("out", **restore, **changes))


async def _part(cluster: Cluster, job: WindowsJob, path: Path | None) -> Path:
    """Process the input that there is. Return the directory of the checkpoint after it, which is retained."""
    checkpointing = {"interval": "500 ms", "externalized": "retain", "num-retained": 1}
    job_id = await _submit(cluster, job, path, mode="streaming", checkpointing=checkpointing)
    await cluster.await_state(job_id, "RUNNING", timeout=150)
    await cluster.await_job(
        job_id, lambda info: info.vertices[0].minflinkd.batches >= PART, f"has processed {PART} micro-batches"
    )
    count = (await cluster.client.checkpoints(job_id)).counts.completed
    await cluster.await_checkpoints(job_id, count + 2)
    await cluster.cancel(job_id)
    return StoredCheckpoints(cluster.state / "checkpoints" / job_id).latest()
