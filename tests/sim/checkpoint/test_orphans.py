"""Files left by a failing storage or a dead task are deleted within the grace period (F7, C22)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from minflinkd.checkpoint import orphans
from minflinkd.checkpoint.causes import CheckpointFailed
from minflinkd.runtime.errors import ErrorInfo
from tests.sim.checkpoint.world import World
from tests.unit.checkpoint.builders import A1, B1, TASKS, B, completed, name

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


def plant(world: World, *names: str) -> None:
    for file in names:
        world.storage.objects[world.location.child(file).path] = b"x"


async def test_what_nobody_refers_to_goes_within_the_grace_period_and_nothing_else() -> None:
    """An earlier checkpoint of this leader wrote it. Files of a later leader or a future checkpoint stay (F7)."""
    world = World(orphan_grace=100.0)
    async with world.coordinator as coordinator:
        world.run(TASKS)
        await coordinator.trigger()
        orphan, later, to_come = name(1, A1, 7), name(1, A1, 8, epoch=2), name(99, A1)
        plant(world, orphan, later, to_come, "notes.txt")
        await asyncio.sleep(60)
        assert orphan in world.names("")
        await asyncio.sleep(41)
        assert orphan not in world.names("")
        assert {later, to_come, "notes.txt", name(1, A1), name(1, B1)} <= set(world.names(""))


async def test_a_checkpoint_in_flight_keeps_what_its_tasks_write() -> None:
    """Nothing refers to it yet, however long the upload takes (F5)."""
    world = World(orphan_grace=10.0, timeout=1000.0)
    world.snapshot_takes[B] = 100.0
    async with world.coordinator as coordinator:
        world.run(TASKS)
        request = asyncio.create_task(coordinator.trigger())
        await asyncio.sleep(1)
        plant(world, name(1, B1))  # being written: not acknowledged
        point = await request
        assert point.physical_files() <= set(world.names(""))


async def test_files_that_could_not_be_deleted_go_when_the_storage_is_back() -> None:
    """A failed deletion is logged and does no harm. The files that it left are found later (C22, F7)."""
    world = World(orphan_grace=100.0, tolerable_failed=5)
    world.snapshot_takes[B] = None
    with capture_logs() as logs:
        async with world.coordinator as coordinator:
            world.run(TASKS)
            request = asyncio.create_task(coordinator.trigger())
            await asyncio.sleep(1)
            world.storage.broken.add(".seg")
            coordinator.decline(B1, 1, ErrorInfo(code="user-code", message="it broke"))
            with pytest.raises(CheckpointFailed, match="it broke"):
                await request
            await asyncio.sleep(30)
            assert world.names("1-") == [name(1, A1)]
            world.storage.broken.clear()
            await asyncio.sleep(100)
            assert world.names("1-") == []
    assert [log["what"] for log in logs if log["event"] == "given up"] == ["deletion of unreferenced files"]


async def test_nothing_is_swept_while_metadata_cannot_be_read() -> None:
    """Metadata that cannot be read may refer to any file, so nothing is swept (A12, F7)."""
    world = World(orphan_grace=10.0)
    await world.new_coordinator()._store.write(completed(1))
    plant(world, "chk-2/_metadata", name(1, A1), name(1, B1), name(2, A1))
    with capture_logs():
        async with world.coordinator:
            await asyncio.sleep(100)
            assert name(2, A1) in world.names("")


async def test_the_sweep_deletes_nothing_while_leadership_is_in_doubt() -> None:
    """The sweep does not even list files. Earlier suspects are judged anew when the doubt is over (F7, A11)."""
    world = World(orphan_grace=100.0)
    with capture_logs():
        async with world.coordinator as coordinator:
            world.run(TASKS)
            await coordinator.trigger()
            orphan = name(1, A1, 7)
            plant(world, orphan)
            await asyncio.sleep(60)
            world.leads = False
            lists = coordinator.statistics().calls["list"].count
            await asyncio.sleep(1000)
            assert orphan in world.names("")
            assert coordinator.statistics().calls["list"].count == lists
            world.leads = True
            await asyncio.sleep(60)
            assert orphan in world.names("")
            await asyncio.sleep(41)
            assert orphan not in world.names("")


async def test_orphans_of_earlier_leaders_stay_while_leadership_is_in_doubt() -> None:
    """A daemon starts, and loses leadership while it looks at the storage (F7, A11)."""
    world = World(orphan_grace=1e6, epoch=2)
    orphan = name(1, A1)
    plant(world, orphan)
    world.leads = False
    with capture_logs() as logs:
        async with world.coordinator:
            await asyncio.sleep(10)
    assert world.names("") == [orphan]
    assert [log["log_level"] for log in logs if log["event"].startswith("orphans are not deleted")] == ["warning"]
    world.leads = True
    world.coordinator = world.new_coordinator()
    async with world.coordinator:
        await asyncio.sleep(10)
        assert world.names("") == []


async def test_leadership_is_asked_for_again_before_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep of many files takes longer than leadership lasts (F7)."""
    monkeypatch.setattr(orphans, "BATCH", 2)
    world = World(orphan_grace=1e6, epoch=2)
    plant(world, *(name(1, A1, number) for number in range(5)))
    delete = world.storage.delete

    async def the_last_one(paths: Sequence[str], *, below: str | None = None) -> None:
        await delete(paths, below=below)
        world.leads = False

    monkeypatch.setattr(world.storage, "delete", the_last_one)
    with capture_logs():
        async with world.coordinator:
            await asyncio.sleep(10)
    assert len(world.names("")) == 3
