"""A component of the daemon crashes by a bug of its own, and everything else continues (A1, R12 - R14)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from minflinkd.rest.schemas import JobInfo
from tests.faults.in_process import InProcess, in_process_cluster, plant_bug
from tests.waiting import until
from tests.windows_job import WindowsJob, leftovers, result

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory, truth: list[tuple[Any, ...]]) -> AsyncIterator[InProcess]:
    """One TaskManager, which the first job starts, and room for another that nobody should need.

    It depends on `truth` so that it starts after it: `truth` blocks the daemon's loop.
    """
    settings = {
        "resourcemanager.min-taskmanagers": 1,
        "resourcemanager.standby-taskmanagers": 0,
        "resourcemanager.max-taskmanagers": 2,
        "taskmanager.numberOfTaskSlots": 2,
        "taskmanager.memory.heap.size": "512m",
        "heartbeat.timeout": "10 s",  # no test here depends on silence, and this process is the daemon
    }
    async with in_process_cluster(tmp_path_factory.mktemp("cluster"), **settings) as cluster:
        yield cluster


async def running(cluster: InProcess, windows: WindowsJob, out: Path) -> JobInfo:
    """Start the windows job on the one TaskManager, and wait until it has checkpoints with data to restore."""
    job_id = await cluster.submit(windows.write(out.name))
    await cluster.await_job(job_id, processes_beyond(0), "processes")
    completed = (await cluster.client.checkpoints(job_id)).counts.completed
    await cluster.await_checkpoints(job_id, completed + 2)
    return await cluster.client.job(job_id)


def processes_beyond(batches: int) -> Callable[[JobInfo], bool]:
    """Return whether the job's task has finished more micro-batches. On a busy machine the first takes its time."""
    return lambda job: job.vertices[0].minflinkd.batches > batches


async def session(cluster: InProcess) -> tuple[str, int, float, float]:
    """Return the only TaskManager and the pids of its supervisor, session child and JVM."""
    (only,) = await cluster.task_managers()
    manager = (await cluster.measured(only.id)).minflinkd
    return only.id, manager.pid, manager.metrics["session.pid"], manager.metrics["jvm.pid"]


async def finished(cluster: InProcess, job_id: str, out: Path, truth: list[tuple[Any, ...]]) -> JobInfo:
    job = await cluster.await_state(job_id, "FINISHED", timeout=120)
    assert result(out) == truth
    assert leftovers(out) == []
    return job


async def agreed(cluster: InProcess, job_id: str) -> None:
    """Wait until ResourceManager, TaskManager and JobMaster agree on every slot (R12)."""

    async def agree() -> bool:
        manager, master = cluster.resource_manager, cluster.job_master(job_id)
        if manager is None or master is None:
            return False
        known = manager.snapshot().resources.task_managers
        holdings = master._core.state.pool.held
        if len(known) != 1 or not holdings:
            return False
        ((resource_id, task_manager),) = known.items()
        if task_manager.report is None:
            return False
        view = {n: slot.allocation_id for n, slot in enumerate(task_manager.slots) if slot.allocation_id is not None}
        table = {slot.index: slot.allocation_id for slot in task_manager.report.slots if slot.allocation_id is not None}
        pool = {n: allocation for allocation, held in holdings.items() for n in held.slots}
        return view == table == pool and {held.resource_id for held in holdings.values()} == {resource_id}

    await until(agree, "ResourceManager, TaskManager and JobMaster agree on the slots", timeout=10)


def nothing_was_started(cluster: InProcess) -> bool:
    assert cluster.daemon.launcher is not None
    return len(cluster.daemon.launcher.living()) == 1


@pytest.mark.slow
async def test_the_resource_manager_crashes_and_a_running_job_does_not_notice(
    cluster: InProcess, windows: WindowsJob, truth: list[tuple[Any, ...]], out: Path
) -> None:
    """Micro-batches and checkpoints continue. The new ResourceManager's view equals the slot tables (R12)."""
    before, warm = await running(cluster, windows, out), await session(cluster)
    batches = before.vertices[0].minflinkd.batches
    completed = (await cluster.client.checkpoints(before.jid)).counts.completed
    await cluster.crash_resource_manager()
    await agreed(cluster, before.jid)
    await cluster.await_checkpoints(before.jid, completed + 2)
    after = await cluster.await_job(before.jid, processes_beyond(batches), "processes")
    assert after.state == "RUNNING"
    assert after.vertices[0].minflinkd.attempt_id == before.vertices[0].minflinkd.attempt_id
    assert after.minflinkd.restarts == 0
    assert await session(cluster) == warm
    assert nothing_was_started(cluster)
    done = await finished(cluster, before.jid, out, truth)
    assert (done.minflinkd.restarts, done.vertices[0].minflinkd.attempt_number) == (0, 0)


@pytest.mark.slow  # tests/sim crashes JobMasters, and test_kill_daemon has tasks of a session adopted
async def test_a_job_master_crashes_and_the_next_one_adopts_its_tasks(
    cluster: InProcess, windows: WindowsJob, truth: list[tuple[Any, ...]], out: Path
) -> None:
    """No task restarts, and checkpoints continue under the next JobMaster (A14b)."""
    before, warm = await running(cluster, windows, out), await session(cluster)
    await cluster.crash_job_master(before.jid)
    await adopted(cluster, before)
    assert (await session(cluster), nothing_was_started(cluster)) == (warm, True)
    await agreed(cluster, before.jid)
    (story,) = (await cluster.client.exceptions(before.jid)).history.entries
    assert (story.minflinkd.code, "injected into jobmaster" in story.minflinkd.message) == ("jobmaster-down", True)
    done = await finished(cluster, before.jid, out, truth)
    assert (done.minflinkd.restarts, done.vertices[0].minflinkd.attempt_number) == (0, 0)


@pytest.mark.slow  # one crash of each is enough for `make test`
async def test_job_masters_that_crash_again_and_again_restart_no_task(
    cluster: InProcess, windows: WindowsJob, truth: list[tuple[Any, ...]], out: Path
) -> None:
    """Each crash comes as soon as the tasks are adopted, at any moment of a checkpoint (A14b, A16)."""
    before = await running(cluster, windows, out)
    for _ in range(4):
        await cluster.crash_job_master(before.jid)
        await adopted(cluster, before)
    done = await finished(cluster, before.jid, out, truth)
    assert (done.minflinkd.restarts, done.vertices[0].minflinkd.attempt_number) == (0, 0)


@pytest.mark.slow  # tests/sim has it without Spark
async def test_resource_manager_and_job_master_crash_at_once(
    cluster: InProcess, windows: WindowsJob, truth: list[tuple[Any, ...]], out: Path
) -> None:
    """ResourceManager and JobMaster come back in any order, without help, and no task restarts (R14, A14b)."""
    before, warm = await running(cluster, windows, out), await session(cluster)
    await asyncio.gather(cluster.crash_resource_manager(), cluster.crash_job_master(before.jid))
    await adopted(cluster, before)
    assert (await session(cluster), nothing_was_started(cluster)) == (warm, True)
    await agreed(cluster, before.jid)
    await finished(cluster, before.jid, out, truth)


@pytest.mark.slow
async def test_a_job_master_that_crashes_over_a_cancellation_does_not_undo_it(
    cluster: InProcess, windows: WindowsJob, truth: list[tuple[Any, ...]], out: Path
) -> None:
    """The next JobMaster ends the cancelled job, although tasks of the crashed one still run at first (R26)."""
    before, warm = await running(cluster, windows, out), await session(cluster)

    async def published() -> bool:
        return any(out.glob("part-*"))

    await until(published, "the first published rows")
    master = cluster.job_master(before.jid)
    assert master is not None
    plant_bug(master)
    await cluster.cancel(before.jid)
    assert master.crashed.is_set()

    async def free() -> bool:
        (manager,) = await cluster.task_managers()
        return manager.free_slots == manager.slots_number

    await until(free, "the slots are free")
    assert set(result(out)) <= set(truth)
    assert len(result(out)) == len(set(result(out)))
    assert leftovers(out) == []
    assert (await session(cluster), nothing_was_started(cluster)) == (warm, True)


async def adopted(cluster: InProcess, before: JobInfo) -> None:
    """Wait until the job is RUNNING again under another JobMaster, with the attempt that it had."""
    await cluster.await_state(before.jid, "RUNNING")
    after = await cluster.client.job(before.jid)
    assert after.vertices[0].minflinkd.attempt_id == before.vertices[0].minflinkd.attempt_id
    assert after.vertices[0].minflinkd.batches >= before.vertices[0].minflinkd.batches
    assert after.minflinkd.restarts == 0
