"""A job with a poison record says that it restarts repeatedly, until it is mended. Its counts are right throughout."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from minflinkd.rest.schemas import JobInfo, RepeatedRestarts
from tests.cluster import Cluster, write_job
from tests.waiting import WaitedInVain
from tests.windows_job import WindowsJob, leftovers

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

# While the file exists, whoever reads a seven fails.
POISON = """
import os
from pyspark.sql.functions import udf

def clean(inputs, params):
    poison = params["poison"]

    def bite(v):
        if v == 7 and os.path.exists(poison):
            raise ValueError("seven is poison")
        return v

    return inputs["events"].withColumn("v", udf(bite, "bigint")("v"))
"""
BACKOFF = 0.5


def poisoned(events: WindowsJob, out: Path, poison: Path) -> Path:
    """Write an endless job of two tasks. The second one fails."""
    directory = events.base / "poisoned"
    directory.mkdir()
    (directory / "cleaning.py").write_text(POISON)
    document: dict[str, Any] = {
        "name": "poisoned",
        "mode": "streaming",
        "params": {"poison": str(poison)},
        "checkpointing": {"interval": "1 s"},
        "restart-strategy": {
            "kind": "exponential-delay",
            "initial-backoff": f"{BACKOFF} s",
            "backoff-multiplier": 2,
            "jitter-factor": 0,
        },
        "artifacts": ["cleaning.py"],
        "vertices": {
            "events": {
                "source": {
                    "format": "json",
                    "path": str(events.events),
                    "schema": "k STRING, time TIMESTAMP, v BIGINT",
                    "options": {"maxFilesPerTrigger": 2},
                }
            },
            "clean": {"inputs": [{"id": "events", "exchange": True}], "python": "cleaning:clean"},
            "out": {"inputs": ["clean"], "sink": {"format": "parquet", "path": str(out)}},
        },
    }
    return write_job(directory / "job.yaml", document)


def counts(job: JobInfo) -> tuple[int, ...]:
    """Return the rows into and out of each task, then of the job."""
    first, second = (vertex.metrics for vertex in job.vertices)
    tasks = (first.read_records, first.write_records, second.read_records, second.write_records)
    return (*tasks, job.minflinkd.source_records, job.minflinkd.sink_records)


async def await_rows(cluster: Cluster, job_id: str, rows: int) -> JobInfo:
    seen: tuple[int, ...] = ()

    def counted(job: JobInfo) -> bool:
        nonlocal seen
        seen = counts(job)
        return seen == (rows,) * 6

    try:
        return await cluster.await_job(job_id, counted, f"has counted {rows} rows")
    except WaitedInVain as error:
        error.add_note(f"they are {seen}")
        raise


async def metrics_of(cluster: Cluster, name: str) -> list[str]:
    async with aiohttp.request("GET", f"{cluster.client.url}/metrics", headers=cluster.headers) as response:
        return [line for line in (await response.text()).splitlines() if line.startswith(name)]


@pytest.mark.slow  # unit tests have the pauses, test_hot_restart_crashes the mending
async def test_a_poisoned_job_restarts_repeatedly_ever_more_slowly_until_it_is_mended(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Between its failures the job is RUNNING, and only the mark says that it makes no progress.

    Rows count once, however often they are processed, and also after the session is lost.
    """
    events, out, poison = WindowsJob(tmp_path, files=4), tmp_path / "out", tmp_path / "poison"
    events.write_events()
    await cluster.await_ready(1)
    job_id = await cluster.submit(poisoned(events, out, poison))
    await await_rows(cluster, job_id, 400)
    await cluster.await_checkpoints(job_id, 2)

    poison.touch()
    events.write_events(first=4, count=4)
    seen = set[RepeatedRestarts]()

    def marked(job: JobInfo) -> bool:
        found = job.minflinkd.restarting_repeatedly
        if found is not None:
            seen.add(found)
        return found is not None and found.failures >= 4

    job = await cluster.await_job(job_id, marked, "restarts repeatedly", timeout=120)
    found = job.minflinkd.restarting_repeatedly
    assert found is not None
    assert (found.task, found.code) == ("clean", "user-code")
    assert "seven is poison" in found.message
    assert min(each.failures for each in seen) == 3
    (listed,) = [each for each in (await cluster.client.jobs()).jobs if each.jid == job_id]
    assert listed.minflinkd.restarting_repeatedly
    assert listed.minflinkd.restarts >= 4
    (measured,) = await metrics_of(cluster, "minflinkd_job_restarting_repeatedly{")
    assert f'taskmanager="{found.taskmanager_id}"' in measured
    assert 'task="clean"' in measured
    assert "the job restarts repeatedly" in cluster.log

    poison.unlink()
    job = await cluster.await_job(
        job_id,
        lambda job: job.state == "RUNNING" and job.minflinkd.restarting_repeatedly is None,
        "is healthy again",
        timeout=120,
    )
    waits = [recovery.phases["restore_point"] for recovery in job.minflinkd.recoveries[:4]]
    assert all(wait >= BACKOFF * 2**number for number, wait in enumerate(waits)), waits
    assert await metrics_of(cluster, "minflinkd_job_restarting_repeatedly{") == []
    job = await await_rows(cluster, job_id, 800)

    restarts, completed = job.minflinkd.restarts, (await cluster.client.checkpoints(job_id)).counts.completed
    struck = await cluster.measured((await cluster.task_manager_of(job_id)).id)
    os.kill(int(struck.minflinkd.metrics["session.pid"]), signal.SIGKILL)
    events.write_events(first=8, count=2)
    job = await await_rows(cluster, job_id, 1000)
    assert job.minflinkd.restarts > restarts
    assert job.minflinkd.restarting_repeatedly is None
    await cluster.await_checkpoints(job_id, completed + 2)
    await cluster.cancel(job_id)
    assert leftovers(out) == []
