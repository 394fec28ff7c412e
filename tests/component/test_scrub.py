"""The background scrub finds damage to retained checkpoints before they are needed, on a real disk (C29)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from minflinkd.checkpoint import layout
from minflinkd.checkpoint.coordinator import CheckpointCoordinator
from minflinkd.jobmaster.scrubbing import Scrubbing
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.storage.faulty import FaultyStorage
from minflinkd.storage.interface import Entry
from minflinkd_local import LocalStorage
from tests.component.damaged_world import TASK, World, own
from tests.unit.checkpoint.builders import A2, JOB
from tests.waiting import until

HOUR = 3600.0


class Scrubbed:
    """A job's coordinator with its scrub, and what users were told."""

    def __init__(self, coordinator: CheckpointCoordinator, turn: asyncio.Lock) -> None:
        self.coordinator = coordinator
        self.told: list[ErrorInfo] = []
        self.scrubbing = Scrubbing(
            JOB, coordinator=coordinator, turn=turn, clock=SystemClock(), on_damage=self.told.append
        )

    def damaged(self) -> list[int]:
        return [record.checkpoint_id for record in self.coordinator.statistics().damaged]


@asynccontextmanager
async def scrubbed(world: World, turn: asyncio.Lock | None = None) -> AsyncIterator[Scrubbed]:
    world.options = replace(world.options, scrub_interval=HOUR)
    async with world.job_master() as (_, _, coordinator):
        yield Scrubbed(coordinator, turn or asyncio.Lock())


@pytest.mark.parametrize("how", ["flipped", "truncated", "removed"])
@pytest.mark.parametrize("file", [own(2), layout.metadata_file(2)], ids=["segment", "metadata"])
async def test_damage_is_reported_once_and_shown_until_the_file_is_back(tmp_path: Path, file: str, how: str) -> None:
    """The job runs on. Its exceptions, statistics and log name the file (C29)."""
    world = World(tmp_path)
    async with scrubbed(world) as job:
        await job.scrubbing.scrub()
        assert (job.told, job.damaged()) == ([], [])
        assert job.coordinator.statistics().verified_ms > 0
        content = (world.stored.directory / file).read_bytes()
        world.damage(file, how)
        await job.scrubbing.scrub()
        await job.scrubbing.scrub()
        [told] = job.told
        assert told.code == "checkpoint-damaged"
        assert "checkpoint 2 is damaged" in told.message
        assert file in told.message
        assert job.damaged() == [2]
        (world.stored.directory / file).write_bytes(content)
        await job.scrubbing.scrub()
        assert job.damaged() == []


async def test_a_known_damage_is_no_reason_to_give_up_a_checkpoint(tmp_path: Path) -> None:
    """The tasks may have whole copies of it (C28, C29)."""
    world = World(tmp_path)
    world.damage(own(3))
    async with world.job_master() as (restoring, _, coordinator):
        job = Scrubbed(coordinator, asyncio.Lock())
        await job.scrubbing.scrub()
        assert job.damaged() == [3]
        assert (await restoring.prepare(world.tasks, frozenset(world.tasks))).checkpoint_id == 3


async def test_a_storage_that_does_not_answer_ends_a_round_and_reports_no_damage(tmp_path: Path) -> None:
    """The next round begins anew (C28, C29)."""
    world = World(tmp_path)
    world.damage(own(1))
    async with scrubbed(world) as job:
        world.storage.fail_at = world.storage.requests + 3
        await job.scrubbing.scrub()
        assert (job.told, job.coordinator.statistics().verified_ms) == ([], -1)
        await job.scrubbing.scrub()
        assert job.damaged() == [1]


class Deleting(FaultyStorage):
    """Lets a checkpoint be subsumed in the moment in which its file is looked at."""

    coordinator: CheckpointCoordinator | None = None
    path = ""

    async def stat(self, path: str) -> Entry:
        coordinator = self.coordinator
        if coordinator is not None and path.endswith(self.path):
            self.coordinator = None
            await coordinator.restore_point()
            coordinator.tasks_running({TASK: A2})
            await until(lambda: not Path(path).exists(), "the file is deleted with its checkpoint")
        return await super().stat(path)


async def test_a_checkpoint_that_is_deleted_meanwhile_is_not_damaged(tmp_path: Path) -> None:
    """Its files go while it is read (C29)."""
    world = World(tmp_path)
    storage = Deleting(LocalStorage())
    world.storages.add(storage)
    world.options = replace(world.options, num_retained=1)
    async with scrubbed(world) as job:
        storage.coordinator, storage.path = job.coordinator, own(2)
        await job.scrubbing.scrub()
        assert storage.coordinator is None, "it was asked"
        assert [c.checkpoint_id for c in job.coordinator.integrity.restorable()] == [3]
        assert (job.told, job.damaged()) == ([], [])


async def test_jobs_are_scrubbed_one_after_another_at_the_rate_that_is_set(tmp_path: Path) -> None:
    """A round of four bytes takes at least 0.4 s at 10 bytes a second. A scrub in progress ends at once (C29)."""
    turn = asyncio.Lock()
    worlds = [World(tmp_path / name) for name in ("one", "other")]
    now = asyncio.get_running_loop().time
    async with scrubbed(worlds[0], turn) as one, scrubbed(worlds[1], turn) as other:
        for job in (one, other):
            job.coordinator.options = replace(job.coordinator.options, scrub_interval=0.01, scrub_rate=10.0)
        began = now()
        runs = [asyncio.create_task(job.scrubbing.run()) for job in (one, other)]
        await until(lambda: one.coordinator.statistics().verified_ms > 0)
        assert now() - began > 0.4
        assert other.coordinator.statistics().verified_ms < 0
        await until(lambda: other.coordinator.statistics().verified_ms > 0)
        assert now() - began > 0.8
        for run in runs:
            run.cancel()
        await asyncio.wait(runs)
        assert now() - began < 60
    assert not turn.locked()
