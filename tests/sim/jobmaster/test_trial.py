"""A version on trial, until it has processed rows and then completed a checkpoint (H7)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from minflinkd.jobgraph.model import JobGraph
from minflinkd.rpc import messages as m
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.network import job_master
from minflinkd.storage.location import Location
from tests.sim.jobmaster.successors import Heard, succeeded
from tests.sim.jobmaster.world import BOOM, JOB, TM, TM2, World, graph, running
from tests.untimed_storage import untimed_storages
from tests.waiting import until

pytestmark = pytest.mark.looptime

FINDS_NONE = m.TaskMetrics(waited=True)
LONG = 15 * 60.0  # in seconds, many times hot-restart.timeout


@asynccontextmanager
async def idle(
    world: World, tmp_path: Path, job: JobGraph | None = None, patience: float | None = None
) -> AsyncIterator[Heard]:
    """Run a version that has found no input after checkpoint 1."""
    base = await world.master.making_way.stand_down(final=True)
    world.tm.finds = FINDS_NONE
    heard = Heard(patience=patience)
    async with succeeded(world, tmp_path, job or graph(), base=base, heard=heard, interval=10.0):
        await until(lambda: heard.said == ["running", "idle"])
        yield heard


@pytest.mark.parametrize("reports", [m.TaskMetrics(batches=1, rows_in=1), m.TaskMetrics(batches=1, advanced=True)])
async def test_a_version_takes_no_checkpoint_before_it_has_processed_rows(
    tmp_path: Path, reports: m.TaskMetrics
) -> None:
    """After such a checkpoint the old version could not be brought back.

    Spark cannot count the rows of every source (H7).
    """
    async with running(tmp_path) as world:
        base = await world.master.making_way.stand_down(final=True)
        world.tm.finds = m.TaskMetrics()
        async with succeeded(world, tmp_path, graph(), base=base) as heard:
            await until(lambda: heard.said)
            await asyncio.sleep(5)
            assert "trigger 17" not in world.story
            world.tm.progress(reports)
            await until(lambda: "trigger 17" in world.story)
            await until(lambda: heard.said == ["running", "proven by 17"])


async def test_a_version_without_input_is_on_trial_until_it_has_processed_rows(tmp_path: Path) -> None:
    """A trial without input lasts for hours. A checkpoint follows the first rows at once, and then as usual (H7)."""
    async with running(tmp_path) as world, idle(world, tmp_path) as heard:
        await asyncio.sleep(LONG)
        assert (heard.said, "trigger 17" in world.story) == (["running", "idle"], False)
        world.tm.progress(m.TaskMetrics(rows_in=3))
        await until(lambda: heard.said[2:] == ["proven by 17"])
        await until(lambda: "trigger 18" in world.story)


async def test_a_version_that_fails_with_its_first_rows_is_disproved_hours_later(tmp_path: Path) -> None:
    """Nothing of it was published, so the version before it continues from its own checkpoint (H7)."""
    async with running(tmp_path) as world, idle(world, tmp_path) as heard:
        await asyncio.sleep(LONG)
        await world.tm.report(world.tm.deployed[-1].attempt_id, m.TaskState.FAILED, BOOM)
        await until(lambda: heard.errors == [BOOM])
        assert await world.master.making_way.stand_down(final=False) == 1
        assert "trigger 17" not in world.story


async def test_a_version_that_hangs_with_its_first_rows_is_disproved(tmp_path: Path) -> None:
    """Hours after it was RUNNING, a version must process the rows that it finds within hot-restart.timeout (H7)."""
    async with running(tmp_path) as world, idle(world, tmp_path) as heard:
        await asyncio.sleep(LONG)
        world.tm.progress(m.TaskMetrics())
        await until(lambda: heard.errors)
        assert heard.errors[0].code == "hot-restart-timeout"
        assert "trigger 17" not in world.story


async def test_a_version_that_looks_for_rows_in_vain_again_is_still_on_trial(tmp_path: Path) -> None:
    """A micro-batch without rows proves nothing (H7)."""
    async with running(tmp_path) as world, idle(world, tmp_path) as heard:
        for _ in range(20):
            world.tm.progress(m.TaskMetrics(batches=1))
            await asyncio.sleep(10)
            world.tm.progress(m.TaskMetrics(batches=1, waited=True))
            await asyncio.sleep(60)
        assert heard.said == ["running", "idle"]


async def test_a_source_in_which_nothing_comes_does_not_hold_back_what_the_others_yield(tmp_path: Path) -> None:
    """Rows of the other sources wait for the checkpoint, and it may take days until every source has a row (H7)."""
    job = graph("numbers", "letters")
    async with running(tmp_path, job) as world, idle(world, tmp_path, job) as heard:
        world.tm.progress(m.TaskMetrics(batches=1, rows_in=1), "numbers")
        await until(lambda: heard.said[2:] == ["proven by 17"])


async def test_a_task_that_is_busy_with_its_first_rows_is_waited_for(tmp_path: Path) -> None:
    """Whether it can process them is not known yet (H7)."""
    job = graph("numbers", "letters")
    async with running(tmp_path, job) as world, idle(world, tmp_path, job) as heard:
        world.tm.progress(m.TaskMetrics(), "letters")
        await asyncio.sleep(1)
        world.tm.progress(m.TaskMetrics(batches=1, rows_in=1), "numbers")
        await asyncio.sleep(10)
        assert heard.said == ["running", "idle"]
        world.tm.progress(m.TaskMetrics(batches=1, rows_in=1), "letters")
        await until(lambda: heard.said[2:] == ["proven by 17"])


async def test_output_that_comes_without_input_ends_the_trial(tmp_path: Path) -> None:
    """Timers run the user's code too, and their output would otherwise not be published before there is input (H7)."""
    async with running(tmp_path) as world, idle(world, tmp_path) as heard:
        world.tm.progress(m.TaskMetrics(batches=1, waited=True, rows_out=5))
        await until(lambda: heard.said[2:] == ["proven by 17"])


async def test_a_trial_that_may_not_last_for_ever_ends_with_a_checkpoint(tmp_path: Path) -> None:
    """`hot-restart.trial` is the limit (H7)."""
    async with running(tmp_path) as world, idle(world, tmp_path, patience=600.0) as heard:
        await asyncio.sleep(590)
        assert heard.said == ["running", "idle"]
        await until(lambda: heard.said[2:] == ["proven by 17"])


def place(path: Path) -> Location:
    return untimed_storages().at(str(path))


async def test_whoever_asks_for_a_savepoint_ends_the_trial(tmp_path: Path) -> None:
    """The savepoint belongs to the new version and can start jobs of it.

    Only that version can read what follows it (H7, C24).
    """
    async with running(tmp_path) as world, idle(world, tmp_path) as heard:
        await asyncio.sleep(LONG)
        await world.master.savepoints.take(place(tmp_path / "savepoints"))
        await until(lambda: heard.said[2:] == ["proven by 17"])
        await until(lambda: "trigger 18" in world.story)


async def test_a_checkpoint_that_was_asked_for_and_failed_leaves_the_version_on_trial(tmp_path: Path) -> None:
    """The version stays on trial, because only a completed checkpoint ends the trial (H7)."""
    async with running(tmp_path) as world, idle(world, tmp_path) as heard:
        world.tm.mute = True
        asking = asyncio.ensure_future(world.master.savepoints.take(place(tmp_path / "savepoints")))
        await until(lambda: "trigger 17" in world.story)
        world.tm.mute = False
        world.master.coordinator.decline(world.tm.deployed[-1].attempt_id, 17, BOOM)
        assert isinstance((await asyncio.gather(asking, return_exceptions=True))[0], Exception)
        await asyncio.sleep(LONG)
        assert (heard.said, heard.errors) == (["running", "idle"], [])
        assert "trigger 18" not in world.story


async def test_a_version_on_trial_can_be_stopped_with_a_savepoint(tmp_path: Path) -> None:
    """The job is FINISHED then (C24)."""
    async with running(tmp_path) as world, idle(world, tmp_path) as heard:
        await world.master.savepoints.stop(place(tmp_path / "savepoints"))
        await until(lambda: world.ended)
        assert world.ended[0].status is JobStatus.FINISHED
        assert heard.errors == []


async def test_a_version_on_trial_can_be_drained(tmp_path: Path) -> None:
    """The final checkpoint of a drain ends the trial (C24)."""
    async with running(tmp_path) as world, idle(world, tmp_path) as heard:
        await world.master.savepoints.drain(place(tmp_path / "savepoints"))
        await until(lambda: world.ended)
        assert world.ended[0].status is JobStatus.FINISHED
        assert heard.errors == []


async def test_a_version_on_trial_can_be_cancelled(tmp_path: Path) -> None:
    """A version on trial can be cancelled like any other (H3a)."""
    async with running(tmp_path) as world, idle(world, tmp_path):
        world.master.cancel()
        await until(lambda: world.ended)
        assert world.ended[0].status is JobStatus.CANCELED


async def test_a_lost_taskmanager_does_not_end_a_trial(tmp_path: Path) -> None:
    """The version starts elsewhere, finds no input there either, and is proven by its first rows (H7)."""
    async with running(tmp_path, slots={TM: 2, TM2: 1}) as world, idle(world, tmp_path) as heard:
        other = world.task_managers[TM2]
        other.finds = FINDS_NONE
        await asyncio.sleep(LONG)
        world.slots[TM] = 0
        lost = m.TaskManagerLost(resource_id=TM, reason="killed")
        world.wire.party("rm").tell(job_master(JOB), lost, fence=world.master.leader_id)
        await until(lambda: other.deployed and world.master.status is JobStatus.RUNNING)
        await asyncio.sleep(LONG)
        assert (heard.errors, set(heard.said)) == ([], {"running", "idle"})
        assert not any("trigger 17" in told for told in world.story)
        other.progress(m.TaskMetrics(rows_in=1))
        await until(lambda: heard.said[-1] == "proven by 17")


async def test_a_version_grows_when_it_is_no_longer_on_trial(tmp_path: Path) -> None:
    """The checkpoint from which it would continue wider would end the trial (H7, R20)."""
    wide = graph(parallelism=2)
    async with running(tmp_path, wide, {TM: 1}) as world, idle(world, tmp_path, wide) as heard:
        before = len(world.tm.deployed)
        world.tm.rigid = True
        world.slots[TM] = 1
        await until(lambda: sum(map(len, world.tm.held.values())) == 2)
        await asyncio.sleep(LONG)
        assert (heard.said, len(world.tm.deployed)) == (["running", "idle"], before)
        world.tm.finds = m.TaskMetrics(rows_in=1)
        world.tm.progress(world.tm.finds)
        await until(lambda: len(world.tm.deployed) > before and world.master.status is JobStatus.RUNNING)
        assert world.tm.deployed[-1].task.parallelism == 2
