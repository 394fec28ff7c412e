"""A task that fails restarts alone, with the tasks that depend on it, and the others do not notice (R16)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from minflinkd.rest.schemas import JobInfo
from tests.cluster import Cluster, write_job
from tests.windows_job import WindowsJob, leftovers, result

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

# Fails once, when the test says so: in a Python worker, in the middle of a micro-batch.
FAILS_ONCE = """
from pathlib import Path
from pyspark.sql.functions import udf

def clean(inputs, params):
    fuse = params["fuse"]

    def checked(v):
        try:
            Path(fuse).unlink()
        except FileNotFoundError:
            return v
        raise ValueError("the fuse was there")

    return inputs["events"].withColumn("v", udf(checked, "bigint")("v")).where("v >= 0")
"""


def attempts(job: JobInfo) -> dict[str, tuple[str | None, int]]:
    """Return the id and number of each task's attempt."""
    return {v.minflinkd.task_id: (v.minflinkd.attempt_id, v.minflinkd.attempt_number) for v in job.vertices}


async def test_a_reader_that_fails_restarts_while_the_task_that_it_reads_from_runs_on(
    cluster: Cluster, windows: WindowsJob, truth: list[tuple[Any, ...]], out: Path, tmp_path: Path
) -> None:
    """It reads again what it had read since the checkpoint, and every row is in the output once (C40, R16)."""
    fuse = tmp_path / "fuse"
    job = WindowsJob(windows.base, pace=windows.pace, artifact=FAILS_ONCE)
    file = job.write(out.name, parallelism=1, params={"input": str(job.events), "output": str(out), "fuse": str(fuse)})
    document = json.loads(file.read_text())
    document["vertices"]["clean"]["inputs"] = [{"id": "events", "exchange": True}]
    await cluster.await_ready(1)
    job_id = await cluster.submit(write_job(file, document))
    before = attempts(await cluster.await_state(job_id, "RUNNING"))
    await cluster.await_checkpoints(job_id, 2)
    fuse.touch()
    finished = await cluster.await_state(job_id, "FINISHED", timeout=180)
    assert not fuse.exists()
    after = attempts(finished)
    assert after["events"] == before["events"], "the source has not restarted"
    assert after["clean"][1] == before["clean"][1] + 1
    assert finished.minflinkd.restarts == 1
    (recovery,) = finished.minflinkd.recoveries
    (name,) = recovery.tasks
    assert "clean" in name
    assert "the fuse was there" in recovery.cause
    assert recovery.checkpoint_id is not None
    assert result(out) == truth
    assert not leftovers(out)
