"""F11: whatever happens, every retained checkpoint restores byte for byte; once quiet, nothing else is left."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

import pytest
from structlog.testing import capture_logs

from minflinkd.checkpoint.causes import CheckpointKind
from tests.sim.checkpoint.merging import STORM, MergingWorld
from tests.sim.checkpoint.weather import CALM

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

SEEDS = int(os.environ.get("MINFLINKD_MERGING_SEEDS", "6"))
STEPS = 40


async def something_happens(world: MergingWorld, requests: set[asyncio.Task[None]]) -> None:
    async def nothing() -> None:
        pass

    async def a_storm() -> None:
        world.storage.weather = STORM

    async def calm() -> None:
        world.storage.weather = CALM

    async def a_task_fails() -> None:
        if not world.stopped.is_set():
            await world.restart()

    async def somebody_asks() -> None:
        requests.add(asyncio.create_task(world.request()))

    async def somebody_wants_a_savepoint() -> None:
        requests.add(asyncio.create_task(world.request(CheckpointKind.SAVEPOINT)))

    happenings: dict[Callable[[], Awaitable[None]], int] = {
        nothing: 8,
        a_storm: 3,
        calm: 5,
        a_task_fails: 3,
        world.coordinator_dies: 1,
        somebody_asks: 4,
        somebody_wants_a_savepoint: 1,
        world.sweep: 4,
    }
    [happening] = world.rng.choices(list(happenings), list(happenings.values()))
    await happening()


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_every_retained_checkpoint_restores_whatever_happens(seed: int) -> None:
    """F4 - F7, F11: checkpoints that overlap, complete out of order, abort, are subsumed; segments that are written

    again; restores; tasks and coordinators that die; a storage that fails, is slow, lists late; sweeps at any moment.
    """
    with capture_logs():
        world = MergingWorld(seed)
        requests: set[asyncio.Task[None]] = set()
        try:
            await world.start()
            for _ in range(STEPS):
                await something_happens(world, requests)
                await asyncio.sleep(world.rng.uniform(0, 5))
                if world.stopped.is_set():
                    await world.restart()
                world.check()
            await world.come_to_rest()
            world.check()
            retained = world.retained()
            assert retained
            named = frozenset[str]().union(*(checkpoint.physical_files() for checkpoint in retained))
            assert world.physical_files() == named
        finally:
            for request in requests:
                request.cancel()
            await world.close()
