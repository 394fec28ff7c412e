"""If nobody can give slots, the wait ends after its timeout, and says what was asked, what there was, and why."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from minflinkd.rest.schemas import ErrorDetails
from tests.cluster import Cluster, running_cluster
from tests.e2e.command import minflinkd
from tests.waiting import until
from tests.windows_job import WindowsJob

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

TIMEOUT = 8  # seconds


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything on the PATH, as a directory from which a test can remove `java`."""
    directory = tmp_path_factory.mktemp("programs")
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).glob("*"):
            if not (directory / program.name).is_symlink():
                (directory / program.name).symlink_to(program)
    return directory


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def small(tmp_path_factory: pytest.TempPathFactory, programs: Path) -> AsyncIterator[Cluster]:
    """A cluster with at most one TaskManager, which has two slots."""
    environ = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"} | {"PATH": str(programs)}
    settings = {
        "resourcemanager.max-taskmanagers": 1,
        "taskmanager.numberOfTaskSlots": 2,
        "slot.request.timeout": f"{TIMEOUT} s",
        "heartbeat.timeout": "10 s",
    }
    async with running_cluster(tmp_path_factory.mktemp("small"), environ=environ, **settings) as cluster:
        yield cluster


async def failure_of(cluster: Cluster, job_id: str, *, timeout: float) -> ErrorDetails:
    """Wait until the job has FAILED, and return the first error in /jobs/:id/exceptions."""

    async def failed() -> bool:
        return (await cluster.client.job(job_id)).state == "FAILED"

    await until(failed, f"job {job_id} is FAILED", timeout=timeout)
    return (await cluster.client.exceptions(job_id)).history.entries[0].minflinkd


@pytest.mark.slow  # tests/unit has the sentence, and who gets it
async def test_a_job_that_finds_all_slots_taken_learns_that_no_more_task_managers_may_run(
    small: Cluster, windows: WindowsJob
) -> None:
    """The driver is at its maximum (R5)."""
    await small.await_ready(1)
    first = await small.submit(windows.write("takes-all", mode="streaming"))
    await small.await_state(first, "RUNNING")
    never = {"restart-strategy": {"kind": "none"}}
    second = await small.submit(windows.write("finds-none", mode="streaming", **never))
    error = await failure_of(small, second, timeout=TIMEOUT + 20)
    assert error.code == "no-slots"
    assert "2 slots" in error.message, "what was asked"
    assert f"{TIMEOUT} s (slot.request.timeout)" in error.message
    assert "1 TaskManager is registered with 0 of 2 slots free" in error.message, "what there was"
    assert "(resourcemanager.max-taskmanagers)" in error.message, "why there are no more"

    code, out, _ = await minflinkd(small, "info", second)
    assert code == 0
    assert "resourcemanager.max-taskmanagers" in " ".join(out.split())
    assert (await small.client.job(first)).minflinkd.restarts == 0
    await small.cancel(first)


@pytest.mark.slow  # tests/component/taskmanager/test_java has the sentence, tests/unit/resourcemanager who gets it
async def test_a_job_whose_task_manager_cannot_be_replaced_learns_that_java_is_missing(
    small: Cluster, windows: WindowsJob, programs: Path
) -> None:
    """`java` is removed, then the only TaskManager is killed (R5, R11)."""
    await small.await_ready(1)
    job_id = await small.submit(windows.write("without-java", mode="streaming"))
    await small.await_state(job_id, "RUNNING")
    (programs / "java").unlink()
    os.kill((await small.task_manager_of(job_id)).minflinkd.pid, signal.SIGKILL)

    async def told() -> ErrorDetails | None:
        failures = (await small.client.exceptions(job_id)).history.entries
        return next((f.minflinkd for f in failures if "no Java was found" in f.minflinkd.message), None)

    error = await until(told, "a request for slots that failed says why", timeout=120)
    assert error.code == "no-slots"
    assert "2 slots" in error.message, "what was asked"
    assert "registered" in error.message, "what there was"


async def test_a_submission_to_task_managers_with_an_impossible_heap_is_told_so(
    tmp_path: Path, windows: WindowsJob
) -> None:
    """No session can start to analyse the job. The error names the setting and the machine's limit (R5)."""
    settings = {"taskmanager.memory.heap.size": "900 TiB", "resourcemanager.max-taskmanagers": 1}
    async with running_cluster(tmp_path, **settings) as cluster:
        file = windows.write("impossible-heap")
        code, _, err = await minflinkd(cluster, "run", str(file))
        assert code != 0
        told = " ".join(err.split())
        assert "no TaskManager could be started" in told
        assert "taskmanager.memory.heap.size (921600 GiB) is more than this machine's memory" in told
        assert (await cluster.client.jobs()).jobs == ()
