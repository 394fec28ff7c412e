"""A job's savepoints, and its end with one, also if something fails on the way (C24)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from minflinkd.checkpoint.external import read_external
from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.checkpoint.savepoints import SavepointNotWritten, write_savepoint
from minflinkd.jobgraph.model import Restore, RestoreMode
from minflinkd.jobmaster import savepoints
from minflinkd.jobmaster.savepoints import StopFailed
from minflinkd.rpc import messages as m
from minflinkd.rpc.jobs import JobStatus
from minflinkd.runtime.errors import Conflict, ErrorInfo
from minflinkd.storage.location import Location
from tests.sim.jobmaster.world import World, graph, running
from tests.untimed_storage import untimed_storages
from tests.waiting import until

pytestmark = pytest.mark.looptime


def place(path: Path) -> Location:
    return untimed_storages().at(str(path))


def nowhere(path: Path) -> Location:
    """Return a directory that cannot be created."""
    path.write_text("a file is in the way")
    return place(path / "savepoints")


async def runs_again(world: World) -> None:
    """Wait until another attempt runs from the last checkpoint."""
    await until(lambda: [d.attempt_number for d in world.tm.deployed] == [0, 1])
    await until(lambda: world.master.status is JobStatus.RUNNING)


async def test_a_savepoint_is_written_and_the_job_goes_on(tmp_path: Path) -> None:
    """A savepoint is written once everything that it covers is published (C24)."""
    async with running(tmp_path) as world:
        path = await world.master.savepoints.take(place(tmp_path / "savepoints"))
        assert world.story == ["deploy 0", "trigger 1", "publish 1"]
        found = await read_external(untimed_storages(), path)
        assert (found.checkpoint.checkpoint_id, found.checkpoint.self_contained) == (1, True)
        assert world.master.status is JobStatus.RUNNING


async def test_a_job_is_stopped_behind_its_savepoint(tmp_path: Path) -> None:
    """The order is trigger, publication, savepoint, end (C24)."""
    async with running(tmp_path) as world:
        path = await world.master.savepoints.stop(place(tmp_path / "savepoints"))
        await read_external(untimed_storages(), path)
        await until(lambda: world.ended)
        assert world.story[:3] == ["deploy 0", "trigger 1 and stop", "publish 1"]
        assert world.story[-1] == "end FINISHED"


async def test_a_savepoint_that_is_being_copied_is_known_until_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is cancelled meanwhile. Its checkpoints must stay until the copy is complete (C24)."""
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(*arguments: Location | CompletedCheckpoint) -> Location:
        begun.set()
        await go.wait()
        return await write_savepoint(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(savepoints, "write_savepoint", slow)
    async with running(tmp_path) as world:
        await world.master.savepoints.ended()  # none is being made
        taking = asyncio.ensure_future(world.master.savepoints.take(place(tmp_path / "savepoints")))
        await begun.wait()
        world.master.cancel()
        await until(lambda: world.ended)
        await world.master.aclose()
        ended = asyncio.ensure_future(world.master.savepoints.ended())
        await asyncio.sleep(60)
        assert not ended.done()
        go.set()
        await ended
        await read_external(untimed_storages(), await taking)


async def test_a_stop_whose_savepoint_cannot_be_written_restarts_the_job(tmp_path: Path) -> None:
    """After the failed stop, the tasks stand still, and only a restart lets them go on (C24)."""
    async with running(tmp_path) as world:
        with pytest.raises(StopFailed):
            await world.master.savepoints.stop(nowhere(tmp_path / "file"))
        await runs_again(world)
        assert world.tm.deployed[-1].restore is not None
        await world.master.coordinator.trigger()


async def test_a_drained_job_ends_with_a_savepoint_of_its_final_checkpoint(tmp_path: Path) -> None:
    """A drain ends the job with a savepoint of its final checkpoint (C24)."""
    async with running(tmp_path, graph("a", "b")) as world:
        path = await world.master.savepoints.drain(place(tmp_path / "savepoints"))
        found = await read_external(untimed_storages(), path)
        assert [task.input_ended for task in found.checkpoint.tasks] == [True, True]
        await until(lambda: world.ended)
        assert world.story.count("drain") == 2
        assert world.story[-1] == "end FINISHED"


async def test_a_second_drain_is_a_conflict(tmp_path: Path) -> None:
    """Only one drain can be under way (C24)."""
    async with running(tmp_path) as world:
        world.tm.drained = m.TaskState.RUNNING
        first = world.wire.tasks.job("drain", drain(world, tmp_path), on_error=lambda _: None)
        await until(lambda: "drain" in world.story)
        with pytest.raises(Conflict):
            await world.master.savepoints.drain(place(tmp_path / "savepoints"))
        first.cancel()


async def drain(world: World, directory: Path) -> None:
    await world.master.savepoints.drain(place(directory / "savepoints"))


async def test_a_drain_that_a_task_refuses_restarts_the_job_and_says_why(tmp_path: Path) -> None:
    """Other tasks may be at the end of time already (C24)."""
    async with running(tmp_path) as world:
        world.tm.drained = ErrorInfo(code="nothing-to-drain", message="there was no input")
        with pytest.raises(StopFailed, match="there was no input"):
            await world.master.savepoints.drain(place(tmp_path / "savepoints"))
        await runs_again(world)
        await world.master.savepoints.take(place(tmp_path / "savepoints"))


async def test_a_task_that_fails_while_it_is_drained_fails_the_drain_and_not_the_job(tmp_path: Path) -> None:
    """The job goes on as if the drain had not been requested (C24)."""
    async with running(tmp_path) as world:
        world.tm.drained = m.TaskState.FAILED
        with pytest.raises(StopFailed, match="ended before"):
            await world.master.savepoints.drain(place(tmp_path / "savepoints"))
        await runs_again(world)
        await world.master.coordinator.trigger()


async def test_a_drained_job_whose_savepoint_cannot_be_written_ends_and_keeps_its_checkpoints(tmp_path: Path) -> None:
    """There is no way back from the end of time (C24)."""
    async with running(tmp_path) as world:
        with pytest.raises(SavepointNotWritten):
            await world.master.savepoints.drain(nowhere(tmp_path / "file"))
        await until(lambda: world.ended)
        assert world.story[-1] == "end FINISHED"
        assert world.master.savepoints.keeps_checkpoints


@pytest.mark.parametrize("mode", list(RestoreMode))
async def test_a_job_starts_from_a_savepoint_until_it_has_a_checkpoint_of_its_own(
    tmp_path: Path, mode: RestoreMode
) -> None:
    """With mode `claim`, the savepoint is deleted then (C24, C25)."""
    async with running(tmp_path / "old") as world:
        path = await world.master.savepoints.take(place(tmp_path / "savepoints"))
    job = replace(graph(), restore=Restore(path=path, mode=mode))
    async with running(tmp_path / "new", job) as world:
        restore = world.tm.deployed[0].restore
        assert restore is not None
        assert (restore.root, restore.snapshot.checkpoint_id) == (path, 1)
        restored = world.master.coordinator.statistics().latest_restored
        assert restored is not None
        assert restored.path == path
        assert Path(path.removeprefix("file://")).exists()
        await world.master.coordinator.trigger()
        if mode is RestoreMode.CLAIM:
            await until(lambda: not Path(path.removeprefix("file://")).exists())
        await world.tm.report(world.tm.deployed[0].attempt_id, m.TaskState.FAILED, ErrorInfo(code="x", message="x"))
    if mode is RestoreMode.NO_CLAIM:
        await read_external(untimed_storages(), path)
