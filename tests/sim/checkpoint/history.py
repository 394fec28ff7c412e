"""One history of a job whose state is in merged files, drawn from a seed, and what must hold in it (F11)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from structlog.testing import capture_logs

from minflinkd.checkpoint.causes import CheckpointKind
from minflinkd.runtime.crash_points import intercepted
from tests.sim.checkpoint.merging import STORM, MergingWorld
from tests.sim.checkpoint.weather import CALM

STEPS = 60


async def run(seed: int) -> None:
    """Run the history.

    Raises AssertionError if a retained checkpoint does not restore, or if the end leaves anything else.
    """
    with capture_logs():
        world = MergingWorld(seed)
        requests: set[asyncio.Task[None]] = set()
        try:
            with intercepted(world.reaches):
                await world.start()
                world.mortal = True
                for _ in range(STEPS):
                    await _something_happens(world, requests)
                    await asyncio.sleep(world.rng.uniform(0, 5))
                    world.check()
                    await world.go_on()
                    world.check()
                await world.come_to_rest()
            world.check()
            retained = world.retained()
            assert retained
            named = frozenset[str]().union(*(checkpoint.physical_files() for checkpoint in retained))
            assert world.physical_files() == named, world.physical_files() ^ named
        finally:
            for request in requests:
                request.cancel()
            await world.close()


async def _something_happens(world: MergingWorld, requests: set[asyncio.Task[None]]) -> None:
    async def nothing() -> None:
        pass

    async def a_storm() -> None:
        world.storage.weather = STORM

    async def calm() -> None:
        world.storage.weather = CALM

    async def the_tasks_fail() -> None:
        world.stopped.set()

    async def somebody_asks() -> None:
        requests.add(asyncio.create_task(world.request()))

    async def somebody_wants_a_savepoint() -> None:
        requests.add(asyncio.create_task(world.request(CheckpointKind.SAVEPOINT)))

    happenings: dict[Callable[[], Awaitable[None]], int] = {
        nothing: 8,
        a_storm: 3,
        calm: 5,
        the_tasks_fail: 1,
        world.a_taskmanager_dies: 2,
        world.coordinator_dies: 1,
        somebody_asks: 6,
        somebody_wants_a_savepoint: 1,
        world.sweep: 4,
    }
    [happening] = world.rng.choices(list(happenings), list(happenings.values()))
    await happening()
