"""One JobMaster makes way for the next on purpose, and the next one has to prove itself (H3, H7)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from minflinkd.checkpoint.metadata import CompletedCheckpoint, restore_point
from minflinkd.jobgraph.model import Task, Vertex
from minflinkd.jobmaster.succession import InheritedCheckpoints, NotStoodDown
from minflinkd.rpc import messages as m
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.network import RESOURCE_MANAGER
from minflinkd.runtime.errors import Consequence, ErrorInfo
from minflinkd.runtime.ids import AttemptId, TaskId, VertexId
from minflinkd.storage.publication import SinkTransaction
from tests.sim.jobmaster.successors import succeeded
from tests.sim.jobmaster.world import BOOM, JOB, TM, World, graph, running
from tests.unit.checkpoint.builders import completed, snapshot
from tests.waiting import until

pytestmark = pytest.mark.looptime


async def test_a_job_master_stands_down_behind_a_last_checkpoint_and_its_slots_stay(tmp_path: Path) -> None:
    """A JobMaster that stands down takes a checkpoint and cancels its tasks.

    It ends no job, frees no slot and settles no sink (H3, H3a).
    """
    async with running(tmp_path) as world:
        assert await world.master.making_way.stand_down(final=True) == 1
        assert world.story == ["deploy 0", "trigger 1 and stop", "publish 1", "cancel"]
        assert (world.ended, len(world.tm.held)) == ([], 1)
        assert world.master.status is JobStatus.RESTARTING
        await asyncio.sleep(60)
        assert world.story[4:] == [], "it brings nothing up again"


async def test_the_next_version_runs_on_the_same_slots_without_asking_for_any(tmp_path: Path) -> None:
    """The next version gets its slots also while the ResourceManager is away (H4)."""
    async with running(tmp_path) as world:
        slots = dict(world.tm.held)
        world.wire.faults.drop_if = lambda _s, target, _m: target == RESOURCE_MANAGER
        base = await world.master.making_way.stand_down(final=True)
        asked = len(world.given)
        async with succeeded(world, tmp_path, graph("numbers", parallelism=1), base=base) as heard:
            await until(lambda: "proven by" in "".join(heard.said))
            assert (world.tm.held, len(world.given)) == (slots, asked)
            restore = world.tm.deployed[-1].restore
            assert restore is not None
            assert restore.checkpoint_id == base
            assert heard.said == ["running", "proven by 17"]


async def test_the_statistics_of_checkpoints_go_on(tmp_path: Path) -> None:
    """The job is the same (C30)."""
    async with running(tmp_path) as world:
        base = await world.master.making_way.stand_down(final=True)
        async with succeeded(world, tmp_path, graph(), base=base) as heard:
            await until(lambda: len(heard.said) == 2)
            assert world.master.coordinator.statistics().completed == 2


async def test_a_job_whose_last_checkpoint_fails_makes_way_with_the_one_before_it(tmp_path: Path) -> None:
    """If its last checkpoint fails, a job makes way with the one before it (H3)."""
    async with running(tmp_path, timeout=300.0) as world:
        await world.master.coordinator.trigger()
        world.tm.mute = True
        assert await world.master.making_way.stand_down(final=True) == 1


async def test_a_job_that_has_no_checkpoint_and_cannot_take_one_goes_on(tmp_path: Path) -> None:
    """The next version would have nothing to start from (H3)."""
    async with running(tmp_path, timeout=300.0) as world:
        world.tm.mute = True
        with pytest.raises(NotStoodDown):
            await world.master.making_way.stand_down(final=True)
        assert world.master.status is JobStatus.RUNNING


async def test_a_version_with_sinks_that_the_next_one_lacks_stops_when_they_have_committed(tmp_path: Path) -> None:
    """Nobody could commit for them later (H3, J13)."""
    async with running(tmp_path, timeout=3600.0) as world:
        hears_late = asyncio.get_running_loop().time() + 10.0

        def late(_: object, __: object, message: object) -> bool:
            waits = asyncio.get_running_loop().time() < hears_late
            return waits and isinstance(message, m.NotifyCheckpointComplete)

        world.wire.faults.drop_if = late
        assert await world.master.making_way.stand_down(final=True, publish=True) == 1
        assert world.master.making_way.published
        assert world.story == ["deploy 0", "trigger 1 and stop", "publish 1", "cancel"]
        assert asyncio.get_running_loop().time() >= hears_late


async def test_a_version_whose_sinks_cannot_commit_goes_on_where_the_next_one_lacks_them(tmp_path: Path) -> None:
    """If the old version's sinks cannot commit, its tasks, which stood still, restart from the checkpoint (H3, J13)."""
    async with running(tmp_path, timeout=3600.0) as world:
        world.wire.faults.drop_if = lambda _s, _t, message: isinstance(message, m.NotifyCheckpointComplete)
        with pytest.raises(NotStoodDown, match="have not committed what they owe"):
            await world.master.making_way.stand_down(final=True, publish=True)
        assert not world.master.making_way.published
        await until(lambda: world.master.status is JobStatus.RUNNING)
        assert [number for _, number, _ in world.deployments()] == [0, 1]


@pytest.mark.parametrize("published", [True, False])
def test_rows_that_a_sink_owed_are_left_behind_with_it_only_where_they_are_committed(published: bool) -> None:
    """Otherwise the task would report that it has no such sink, and the version before it would come back (J13)."""
    owed = tuple(SinkTransaction(job_id=JOB, sink=sink, checkpoint_id=5) for sink in ("gone", "a"))
    point = completed(5, replace(snapshot(5, TaskId("a"), AttemptId("1" * 32)), transactions=owed))
    tasks = {TaskId("a"): Task(id=TaskId("a"), vertices=(Vertex(id=VertexId("a")),), parallelism=1)}
    (restore,) = InheritedCheckpoints(5, published=published).restores(point, tasks).values()
    assert [t.sink for t in restore.snapshot.transactions] == (["a"] if published else ["gone", "a"])
    (restore,) = InheritedCheckpoints(4, published=True).restores(point, tasks).values()
    assert restore.snapshot.transactions == owed, "of this version itself"


@pytest.mark.parametrize(("base", "allowed", "compared"), [(5, False, True), (5, True, False), (4, False, False)])
def test_state_of_an_earlier_version_must_mean_the_same_unless_that_is_allowed(
    base: int, allowed: bool, compared: bool
) -> None:
    """Meanings are compared even if the earlier version had no checkpoint when it was asked to make way (H2)."""
    point = completed(5, snapshot(5, TaskId("a"), AttemptId("1" * 32)))
    tasks = {TaskId("a"): Task(id=TaskId("a"), vertices=(Vertex(id=VertexId("a")),), parallelism=1)}
    (restore,) = InheritedCheckpoints(base, allow_changed=allowed).restores(point, tasks).values()
    assert restore.same_meaning is compared


async def test_a_job_that_restarts_after_a_failure_makes_way_with_its_last_checkpoint(tmp_path: Path) -> None:
    """Whoever repairs a job that fails repeatedly need not wait until it runs (H3)."""
    async with running(tmp_path) as world:
        await world.master.coordinator.trigger()
        await world.tm.report(world.tm.deployed[0].attempt_id, m.TaskState.FAILED, BOOM)
        assert world.master.status is JobStatus.RESTARTING
        assert await world.master.making_way.stand_down(final=True) == 1


async def test_a_checkpoint_in_progress_is_no_obstacle(tmp_path: Path) -> None:
    """A checkpoint in progress does not keep a job from making way: another one follows it (H3)."""
    async with running(tmp_path, timeout=3600.0) as world:
        world.tm.mute = True
        pending = world.wire.tasks.job("slow", _trigger(world), on_error=lambda _: None)
        await until(lambda: "trigger 1" in world.story)
        world.tm.mute = False
        assert await world.master.making_way.stand_down(final=True) == 2
        pending.cancel()


async def _trigger(world: World) -> None:
    await world.master.coordinator.trigger()


async def test_a_job_that_is_cancelled_while_it_makes_way_ends(tmp_path: Path) -> None:
    """A cancel ends the job as usual (H3a)."""
    async with running(tmp_path) as world:
        world.tm.cancel_takes = 2.0
        standing_down = asyncio.ensure_future(world.master.making_way.stand_down(final=False))
        await until(lambda: "cancel" in world.story)
        world.master.cancel()
        with pytest.raises(NotStoodDown, match="CANCELED"):
            await standing_down
        await until(lambda: world.ended)
        assert world.ended[0].status is JobStatus.CANCELED


async def test_a_job_that_stood_down_in_vain_goes_on(tmp_path: Path) -> None:
    """If the next version does not come, the job restarts its tasks and goes on (H3a)."""
    async with running(tmp_path) as world:
        await world.master.making_way.stand_down(final=True)
        world.master.making_way.go_on()
        await until(lambda: world.master.status is JobStatus.RUNNING)
        assert [number for _, number, _ in world.deployments()] == [0, 1]


@pytest.mark.parametrize("consequence", list(Consequence))
async def test_a_version_on_trial_that_fails_neither_restarts_nor_ends(
    tmp_path: Path, consequence: Consequence
) -> None:
    """No failure restarts or ends a version on trial. Whoever put it on trial decides (H7)."""
    async with running(tmp_path) as world:
        base = await world.master.making_way.stand_down(final=True)
        world.tm.mute = True
        async with succeeded(world, tmp_path, graph(), base=base) as heard:
            await until(lambda: heard.said)
            error = ErrorInfo(code="user-code", message="boom", consequence=consequence)
            await world.tm.report(world.tm.deployed[-1].attempt_id, m.TaskState.FAILED, error)
            await until(lambda: "disproved" in heard.said)
            assert heard.errors == [error]
            assert await world.master.making_way.stand_down(final=False) == base
            assert len(world.tm.held) == 1
            assert (world.ended, len(world.tm.deployed)) == ([], 2)


async def test_a_lost_task_manager_does_not_speak_against_a_version(tmp_path: Path) -> None:
    """After the loss of a TaskManager the version restarts and is still on trial (H7)."""
    async with running(tmp_path, slots={TM: 8}) as world:
        base = await world.master.making_way.stand_down(final=True)
        world.tm.mute = True
        async with succeeded(world, tmp_path, graph(), base=base) as heard:
            await until(lambda: heard.said)
            world.tm.mute = False
            world.tm.held.clear()
            world.tm.tasks.clear()
            await until(lambda: len(world.tm.deployed) == 3)
            await until(lambda: heard.said[-1].startswith("proven"))
            assert "disproved" not in heard.said


async def test_a_version_whose_vertices_hold_no_state_of_the_old_one_is_disproved(tmp_path: Path) -> None:
    """The restore finds what the earlier check could not know (C25, H2)."""
    async with running(tmp_path) as world:
        base = await world.master.making_way.stand_down(final=True)
        async with succeeded(world, tmp_path, graph("letters"), base=base) as heard:
            await until(lambda: heard.errors)
            assert heard.errors[0].code == "state-not-matched"
    async with running(tmp_path / "again") as world:
        base = await world.master.making_way.stand_down(final=True)
        async with succeeded(world, tmp_path / "again", graph("letters"), base=base, allow=True) as heard:
            await until(lambda: heard.said or heard.errors)
            await until(lambda: heard.said[-1].startswith("proven"))
            assert world.tm.deployed[-1].restore is None


async def test_the_slots_of_a_wider_version_are_there_before_the_one_that_runs_makes_way(tmp_path: Path) -> None:
    """The job asks only for the missing slots, and the running version does not grow into them (H4)."""
    async with running(tmp_path) as world:
        await world.master.making_way.reserve({"default": 3}, patience=20)
        assert sorted(map(len, world.tm.held.values())) == [1, 2]
        await asyncio.sleep(120)
        assert world.deployments() == [("numbers", 0, 1)]
        base = await world.master.making_way.stand_down(final=True)
        async with succeeded(world, tmp_path, graph("numbers", parallelism=3), base=base) as heard:
            await until(lambda: len(heard.said) == 2)
            assert world.deployments() == [("numbers", 0, 1), ("numbers", 0, 3)]
            assert sum(map(len, world.tm.held.values())) == 3


async def test_a_narrower_version_keeps_its_part_of_an_allocation_and_gives_the_rest_back(tmp_path: Path) -> None:
    """A narrower version gives unused slots back once it runs. Its task stays where it is, in the same attempt (H4)."""
    async with running(tmp_path, graph(parallelism=4), {TM: 4}) as world:
        (allocation,) = world.tm.held
        base = await world.master.making_way.stand_down(final=True)
        async with succeeded(world, tmp_path, graph(parallelism=1), base=base) as heard:
            await until(lambda: len(heard.said) == 2)
            assert world.deployments() == [("numbers", 0, 4), ("numbers", 0, 1)]
            assert len(world.tm.held[allocation]) == 4
            await until(lambda: len(world.tm.held[allocation]) == 1)
            assert (world.needs, world.master.status) == ((), JobStatus.RUNNING)
            assert len(world.tm.deployed) == 2


async def test_a_version_that_is_wider_than_any_taskmanager_can_be_is_refused_at_once(tmp_path: Path) -> None:
    """Waiting would not help (R5)."""
    async with running(tmp_path, slots={TM: 4}) as world:
        world.largest = 4
        began = asyncio.get_running_loop().time()
        with pytest.raises(NotStoodDown, match=r"wants 9 slots of one TaskManager .* a TaskManager has 4"):
            await world.master.making_way.reserve({"default": 9}, patience=3600)
        assert asyncio.get_running_loop().time() - began < 10
        await until(lambda: world.needs == ())
        assert (world.master.status, world.story) == (JobStatus.RUNNING, ["deploy 0"])


async def test_a_version_that_wants_more_slots_than_there_are_is_not_begun(tmp_path: Path) -> None:
    """The running version does not stop for it, and keeps none of the slots that came meanwhile (H2, H7)."""
    async with running(tmp_path, slots={TM: 1}) as world:
        with pytest.raises(NotStoodDown, match="no more TaskManagers may run"):
            await world.master.making_way.reserve({"default": 3}, patience=20)
        await asyncio.sleep(60)
        assert (world.needs, world.story) == ((), ["deploy 0"])
        assert world.master.status is JobStatus.RUNNING


def test_what_a_removed_sink_owed_is_left_out_also_of_later_restore_points() -> None:
    """Checkpoints of the version before are still retained, so the restore point names what they owed (H3, J13)."""

    def owing(number: int, *sinks: str) -> CompletedCheckpoint:
        owed = tuple(
            SinkTransaction(job_id=JOB, sink=sink, root="", checkpoint_id=number, files=(), tokens=(f"{sink}{number}",))
            for sink in sinks
        )
        return completed(number, replace(snapshot(number, TaskId("a"), AttemptId("1" * 32)), transactions=owed))

    point = restore_point((owing(4, "gone", "a"), owing(5, "gone", "a"), owing(6, "a")))
    assert point is not None
    tasks = {TaskId("a"): Task(id=TaskId("a"), vertices=(Vertex(id=VertexId("a")),), parallelism=1)}

    def owed(published: bool) -> list[str]:
        found = InheritedCheckpoints(5, published=published).owed(point, tasks)
        return [token for task in found.tasks for t in task.transactions for token in t.tokens]

    assert owed(published=True) == ["a4", "a5", "a6"]
    assert owed(published=False) == ["gone4", "a4", "gone5", "a5", "a6"]
