"""Deletions delay no checkpoint. If they do not succeed, no more checkpoints are begun (F5, C20)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from minflinkd.checkpoint.causes import CheckpointRefused, Refusal
from minflinkd.checkpoint.machine.state import MAX_CLEANING
from minflinkd.storage.interface import StorageUnavailable
from tests.sim.checkpoint.merging import MergingWorld
from tests.sim.checkpoint.world import World
from tests.unit.checkpoint.builders import TASKS

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def test_a_storage_that_hangs_in_deletions_delays_no_checkpoint_but_stops_the_making_of_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Metadata is written while deletions are under way (F5). If there are too many, no checkpoint is begun (C20)."""
    world, go, asked = World(interval=10.0), asyncio.Event(), list[tuple[str, ...]]()
    delete = world.storage.delete

    async def hanging(paths: Sequence[str], *, below: str | None = None) -> None:
        asked.append(tuple(paths))
        await go.wait()
        await delete(paths, below=below)

    monkeypatch.setattr(world.storage, "delete", hanging)
    with capture_logs():
        async with world.coordinator as coordinator:
            world.run(TASKS)
            await asyncio.sleep(10.0 * (MAX_CLEANING + 5))
            shown = coordinator.statistics()
            assert shown.completed == MAX_CLEANING + 1
            assert shown.failed == 0
            assert shown.refused == {Refusal.TOO_MANY_TO_CLEAN: 3}
            assert [(record.duration_ms, record.metadata_ms) for record in shown.history] == [(500, 0.0)] * 10
            assert len(asked) == 3  # this many at a time
            go.set()
            await asyncio.sleep(14)
            assert coordinator.statistics().completed == MAX_CLEANING + 2
            assert len(world.names("chk-")) == 1
            latest = coordinator.latest()
            assert latest is not None
            assert set(world.names("1-")) == latest.physical_files()


async def test_files_that_cannot_be_deleted_hold_up_the_making_of_more_until_they_are_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then they are orphans, and checkpoints go on (C20, F7)."""
    world, tries = World(interval=1.0, orphan_grace=1e6), 0
    world.snapshot_takes = dict.fromkeys(TASKS, 0.1)
    delete = world.storage.delete

    async def failing(paths: Sequence[str], *, below: str | None = None) -> None:
        nonlocal tries
        if any(path.endswith(".seg") for path in paths):
            tries += 1
            raise StorageUnavailable("memory: not now")
        await delete(paths, below=below)

    monkeypatch.setattr(world.storage, "delete", failing)
    with capture_logs() as logs:
        async with world.coordinator as coordinator:
            world.run(TASKS)
            await asyncio.sleep(60)
            shown = coordinator.statistics()
            assert shown.completed > 20
            assert shown.refused.keys() <= {Refusal.TOO_MANY_TO_CLEAN}
            given_up = sum(log["event"] == "given up" for log in logs)
            assert given_up > 10
            assert tries >= 8 * given_up
            assert shown.files.deleting > 0
            assert shown.files_deleted == 0


async def test_a_request_is_refused_by_name_while_too_much_is_to_be_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal is `too-many-to-clean`, for whoever asks (C20)."""
    world = World()

    async def hanging(paths: Sequence[str], *, below: str | None = None) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(world.storage, "delete", hanging)
    async with world.coordinator as coordinator:
        world.run(TASKS)
        for _ in range(MAX_CLEANING + 1):
            await coordinator.trigger()
            await asyncio.sleep(1)
        with pytest.raises(CheckpointRefused, match="too-many-to-clean"):
            await coordinator.trigger(forced=True)


async def test_the_figures_are_those_of_the_files_that_lie_there() -> None:
    """A restarted coordinator has the right figures too: it counts again from metadata and a listing (F10, F4)."""
    with capture_logs():
        world = MergingWorld(seed=3)
        try:
            await world.start()
            await asyncio.sleep(60)
            await world.come_to_rest()
            shown = world.coordinator.statistics()
            retained = world.retained()
            handles = {file.handle for one in retained for task in one.tasks for file in task.files}
            assert shown.files.physical == len(world.physical_files())
            assert shown.files.logical == len(handles)
            assert shown.files.bytes_referenced == sum(handle.length for handle in handles)
            stored = sum(len(data) for path, data in world.storage.objects.items() if path.endswith(".seg"))
            assert shown.files.bytes_stored == stored
            assert shown.files.amplification == stored / shown.files.bytes_referenced
            assert shown.files.deleting == 0
            assert shown.files_deleted > 0
            assert shown.calls["metadata"].count >= shown.completed
            assert shown.calls["metadata"].ms > 0
            [last, *_] = [record for record in shown.history if record.files is not None]
            assert last.calls["metadata"].count == 1
            await world.coordinator_dies()
            assert world.coordinator.statistics().files == shown.files
        finally:
            await world.close()
