"""A PySpark script that runs as a job: its processes die, and it is moved by a savepoint."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from minflinkd.cli.submission import submit
from minflinkd.rest.schemas import JobInfo
from tests.cluster import Cluster
from tests.windows_job import SQL, WindowsJob, leftovers, result

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

SCRIPT = f'''\
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

events, target, ends = sys.argv[1:]
trigger = {{"availableNow": True}} if ends == "ends" else {{"processingTime": "400 milliseconds"}}
spark = SparkSession.builder.appName("windows").getOrCreate()
positive = F.udf(lambda v: v >= 0, "boolean")
rows = spark.readStream.schema("k STRING, time TIMESTAMP, v BIGINT").option("maxFilesPerTrigger", 1).json(events)
clean = rows.withWatermark("time", "1 minute").where(positive("v"))
clean.createOrReplaceTempView("clean")
windows = spark.sql("""{SQL}""")
windows.writeStream.queryName("windows").option("checkpointLocation", "/nowhere").trigger(**trigger).start(target)
clean.select("k", "v").writeStream.queryName("rows").format("json").trigger(**trigger).start(target + "-rows")
spark.streams.awaitAnyTermination()
'''


def works(job: JobInfo) -> bool:
    return job.state == "RUNNING" and all(v.status == "RUNNING" and v.minflinkd.batches > 0 for v in job.vertices)


@pytest.mark.slow  # tests/e2e/test_scripts has a script to its end, test_kill_taskmanager the kills of what it became
async def test_a_script_goes_on_after_kills_and_from_a_savepoint(
    cluster: Cluster, windows: WindowsJob, truth: list[tuple[Any, ...]], out: Path
) -> None:
    """Both outputs are exactly those of the batch, though it ends by another trigger than it began with (C11, J12)."""
    script = windows.base / "windows_script.py"
    script.write_text(SCRIPT)
    args = [str(windows.events), str(out)]

    async def start(*more: str, **options: Any) -> str:
        accepted = await submit(cluster.client, script, params={}, args=[*args, *more], tell=lambda _: None, **options)
        cluster.jobs.append(accepted.jobid)
        return accepted.jobid

    await cluster.await_ready(2)
    job_id = await start("goes on")
    for which in ("session.pid", "supervisor"):
        job = await cluster.await_job(job_id, works, "works")
        struck = await cluster.task_manager_of(job_id)
        metrics = (await cluster.measured(struck.id)).minflinkd.metrics
        os.kill(struck.minflinkd.pid if which == "supervisor" else int(metrics[which]), signal.SIGKILL)
        restarts = job.minflinkd.restarts
        await cluster.await_job(job_id, lambda job, before=restarts: job.minflinkd.restarts > before, "restarts")  # type: ignore[misc]
    await cluster.await_job(job_id, works, "works again")
    savepoint = await cluster.client.stop(job_id, str(windows.base / f"{out.name}-savepoints"), drain=False)
    again = await start("ends", restore={"path": savepoint, "mode": "no-claim"})
    await cluster.await_state(again, "FINISHED", timeout=180)
    assert result(out) == truth
    assert leftovers(out) == []
    lines = [line for file in Path(f"{out}-rows").glob("part-*") for line in file.read_text().splitlines()]
    assert len(lines) == sum(n for _, _, n, _ in truth)
