"""Growth, regions and a new JobMaster in virtual time, with real checkpoints."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from minflinkd.rpc.jobs import ExecutionState, JobStatus
from minflinkd.rpc.messages import TaskState
from tests.sim.jobmaster.world import BOOM, TM, TM2, graph, new_master, running
from tests.untimed_storage import untimed_storages
from tests.waiting import until

pytestmark = pytest.mark.looptime


async def test_a_job_starts_narrow_and_grows_without_a_stop_when_slots_appear(tmp_path: Path) -> None:
    """Its attempt goes on. The job shows its present parallelism, and why that has changed (R20)."""
    async with running(tmp_path, graph(parallelism=4), {TM: 1}) as world:
        await asyncio.sleep(20)
        world.slots[TM] = 3
        await until(lambda: world.story == ["deploy 0", "resize to 4"])
        shown = world.master.details()
        assert ([t.task.parallelism for t in shown.tasks], shown.restarts, shown.failures) == ([4], 0, ())
        assert shown.recoveries[0].cause == "rescale: default 1 -> 4, without a stop"
        await until(lambda: world.needs == ())


async def test_a_job_whose_tasks_must_stop_for_it_grows_from_a_checkpoint(tmp_path: Path) -> None:
    """No restart is counted (R20)."""
    async with running(tmp_path, graph(parallelism=4), {TM: 1}) as world:
        world.tm.rigid = True
        shown = world.master.details()
        assert [t.task.parallelism for t in shown.tasks] == [1]
        assert shown.waiting == ("no more TaskManagers may run",)
        await asyncio.sleep(20)
        world.slots[TM] = 3
        await until(lambda: len(world.tm.deployed) == 2 and world.master.status is JobStatus.RUNNING)
        restore = world.tm.deployed[-1].restore
        assert world.deployments() == [("numbers", 0, 1), ("numbers", 1, 4)]
        assert restore is not None
        assert restore.snapshot.parallelism == 1
        shown = world.master.details()
        assert ([t.task.parallelism for t in shown.tasks], shown.restarts, shown.failures) == ([4], 0, ())
        assert shown.recoveries[0].cause == "rescale: default 1 -> 4"
        assert world.story == ["deploy 0", "trigger 1 and stop", "publish 1", "cancel", "deploy 1"]
        await until(lambda: world.needs == ())


async def test_growth_elsewhere_gives_the_old_slots_back(tmp_path: Path) -> None:
    """R4."""
    async with running(tmp_path, graph(parallelism=4), {TM: 1, TM2: 0}) as world:
        world.slots[TM2] = 4
        await until(lambda: world.task_managers[TM2].deployed)
        await until(lambda: world.tm.held == {})
        assert world.story[-1] == "free"
        assert world.master.status is JobStatus.RUNNING


async def test_a_failed_region_restarts_from_the_last_checkpoint_while_the_other_runs_on(tmp_path: Path) -> None:
    """The coordinator is real. Checkpoints continue when all tasks run again (R16)."""
    async with running(tmp_path, graph("a", "b"), interval=10.0) as world:
        await until(lambda: world.story.count("publish 1") == 2)
        failing, survivor = world.tm.deployed
        await world.tm.report(failing.attempt_id, TaskState.FAILED, BOOM)
        assert world.master.status is JobStatus.RESTARTING
        states = {t.task.id: t.state for t in world.master.details().tasks}
        assert states == {failing.task.id: ExecutionState.FAILED, survivor.task.id: ExecutionState.RUNNING}
        await until(lambda: world.master.status is JobStatus.RUNNING)
        again = world.tm.deployed[-1]
        assert (again.task.id, again.attempt_number) == (failing.task.id, 1)
        assert again.restore is not None
        assert again.restore.checkpoint_id == 1
        assert world.tm.cancelled == []
        await until(lambda: world.story.count("publish 2") == 2)


async def test_a_new_jobmaster_goes_on_with_the_slots_that_its_taskmanager_has_kept(tmp_path: Path) -> None:
    """The job runs from the checkpoint, as wide as before. It asks only for slots that were missing (R13)."""
    async with running(tmp_path, graph(parallelism=4), {TM: 2}, interval=5.0) as world:
        await until(lambda: "publish 1" in world.story)
        await world.master.aclose()
        world.tm.tasks.clear()
        (kept,) = world.tm.held
        storages = untimed_storages()
        world.master = new_master(world, graph(parallelism=4), storages, tmp_path)
        with capture_logs():
            async with world.master:
                began = asyncio.get_running_loop().time()
                assert await world.tm.offer(kept, 2)
                await until(lambda: world.master.status is JobStatus.RUNNING)
                assert asyncio.get_running_loop().time() - began < 1
        await storages.aclose()
        first, second = world.tm.deployed
        assert second.allocation_id == first.allocation_id
        assert second.task.parallelism == 2
        assert second.restore is not None
