"""User code that fails, blocks or ends its process, beside a job that must not notice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.waiting import until
from tests.windows_job import WindowsJob, leftovers, result

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

FAILS_LATER = """
from pyspark.sql.functions import col, udf

def burst(v):
    if v == 99:
        raise ValueError("a burst of ninety-nine")
    return v

def clean(inputs, params):
    return inputs["events"].withColumn("v", udf(burst, "bigint")("v"))
"""

# A C call that holds the interpreter longer than heartbeat.timeout, so that no other thread of the session child runs.
BLOCKS = """
import ctypes

def clean(inputs, params):
    ctypes.PyDLL(None).sleep(12)
    return inputs["events"].where("v >= 0")
"""

# Passes when the submission is analysed, and ends the session child when the task is built.
EXITS = """
import os
from pathlib import Path

def clean(inputs, params):
    analysed = Path(params["analysed"])
    if analysed.exists():
        os._exit(3)
    analysed.touch()
    return inputs["events"].where("v >= 0")
"""


def streaming(windows: WindowsJob, name: str, artifact: str, **changes: Any) -> Any:
    """Write an endless job with its own code over the same events."""
    job = WindowsJob(windows.base, artifact=artifact)
    return job.write(name, mode="streaming", **changes)


async def test_a_failing_job_does_not_disturb_its_neighbour(
    cluster: Cluster, windows: WindowsJob, truth: list[tuple[Any, ...]]
) -> None:
    """Two jobs share a TaskManager. One fails in user code; /jobs/:id/exceptions has the traceback (J7)."""
    await cluster.await_ready(1)
    good = await cluster.submit(windows.write("neighbour"))
    await cluster.await_state(good, "RUNNING")
    bad = await cluster.submit(
        streaming(windows, "failing", FAILS_LATER, **{"restart-strategy": {"kind": "none"}, "parallelism": 2})
    )

    async def failed() -> bool:
        return (await cluster.client.job(bad)).state == "FAILED"

    await until(failed, "the job with the failing code is FAILED", timeout=90)
    both = {(await cluster.client.job(job_id)).vertices[0].minflinkd.taskmanager_id for job_id in (good, bad)}
    assert len(both) == 1, "the two jobs must have shared a TaskManager"
    cause = (await cluster.client.exceptions(bad)).root_exception or ""
    assert "ValueError: a burst of ninety-nine" in cause
    assert "in burst" in cause

    job = await cluster.await_state(good, "FINISHED", timeout=120)
    assert job.minflinkd.restarts == 0
    assert result(windows.base / "neighbour") == truth
    assert leftovers(windows.base / "failing") == []


@pytest.mark.slow  # a quarter of a minute, most of it waiting
async def test_code_that_blocks_the_interpreter_costs_no_heartbeat(cluster: Cluster, windows: WindowsJob) -> None:
    """The driver spends twelve seconds in C. The TaskManager stays, and so does its session (J7)."""
    before = {tm.id: tm.minflinkd.session_generation for tm in await cluster.await_ready(2)}
    silences = cluster.log.count("no heartbeat")  # of other tests
    job_id = await cluster.submit(streaming(windows, "blocking", BLOCKS))
    job = await cluster.await_state(job_id, "RUNNING", timeout=90)
    after = {tm.id: tm.minflinkd.session_generation for tm in await cluster.task_managers()}
    assert after.items() >= before.items()
    assert job.minflinkd.restarts == 0
    assert cluster.log.count("no heartbeat") == silences
    await cluster.cancel(job_id)


@pytest.mark.slow  # test_exactly_once kills the session child of several jobs
async def test_code_that_exits_the_process_costs_only_the_jobs_of_that_child(
    cluster: Cluster, windows: WindowsJob, truth: list[tuple[Any, ...]], out: Path
) -> None:
    """A job calls `os._exit` while it is built. Its neighbour restarts, exactly-once; the supervisor stays (J7)."""
    await cluster.await_ready(2)
    good = await cluster.submit(windows.write("survivor"))
    await cluster.await_state(good, "RUNNING")
    await cluster.await_checkpoints(good, 1)
    supervisor = await cluster.task_manager_of(good)
    params = {"analysed": str(windows.base / "analysed"), "input": str(windows.events), "output": str(out)}
    bad = await cluster.submit(
        streaming(windows, out.name, EXITS, params=params, **{"restart-strategy": {"kind": "none"}})
    )

    async def failed() -> bool:
        return (await cluster.client.job(bad)).state == "FAILED"

    await until(failed, "the job that ends its process is FAILED", timeout=90)
    assert "session" in ((await cluster.client.exceptions(bad)).root_exception or "")
    job = await cluster.await_state(good, "FINISHED", timeout=120)
    assert job.minflinkd.restarts == 1, "it ran in the child that ended"
    assert result(windows.base / "survivor") == truth
    managers = {tm.id: tm for tm in await cluster.task_managers(ready=False)}
    assert managers[supervisor.id].minflinkd.pid == supervisor.minflinkd.pid
