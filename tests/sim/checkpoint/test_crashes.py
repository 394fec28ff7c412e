"""The coordinator is killed between any two steps of a completion.

The next one continues from a consistent state (C22).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from minflinkd.checkpoint.metadata import CompletedCheckpoint, decode
from minflinkd.runtime.crash_points import CrashPoint, intercepted
from tests.sim.checkpoint.world import World
from tests.unit.checkpoint.builders import A1, A2, B1, B2, TASKS, A, B, name

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

# The points that the coordinator passes, and how often for one checkpoint. Two tasks are notified. An older checkpoint
# is dropped when a later one is confirmed, so SUBSUME and DELETED are reached first with the second checkpoint.
PASSED = {
    CrashPoint.METADATA: 1,
    CrashPoint.COMPLETE: 1,
    CrashPoint.NOTIFY: 2,
    CrashPoint.NOTIFIED: 2,
    CrashPoint.SUBSUME: 1,
    CrashPoint.DELETED: 1,
}
KILLS = [(point, time) for point, each in PASSED.items() for time in range(1, 3 * each + 1)]


async def killed_at(world: World, point: CrashPoint, time: int) -> None:
    """Take checkpoints every 10 s until the coordinator reaches the point for the `time`-th time.

    It is killed there.
    """
    reached, over = Counter[CrashPoint](), asyncio.Event()

    def strike(here: CrashPoint) -> None:
        reached[here] += 1
        if here is point and reached[here] == time:
            world.coordinator.crash(RuntimeError("killed"))
            over.set()
            raise asyncio.CancelledError  # the code that reached this point goes no further

    world.incremental = True
    world.publish_takes[B] = 12.0  # so it still owes an earlier checkpoint when the next one is complete
    with intercepted(strike), capture_logs():
        await world.coordinator.start()
        world.run(TASKS)
        async with asyncio.timeout(100):
            await over.wait()
        await world.coordinator.aclose()


def in_the_store(world: World) -> dict[int, CompletedCheckpoint]:
    found = [decode(data) for path, data in world.storage.objects.items() if path.endswith("/_metadata")]
    return {checkpoint.checkpoint_id: checkpoint for checkpoint in found}


def segments(world: World) -> set[str]:
    return {file for file in world.names("") if file.endswith(".seg")}


def referenced(world: World) -> set[str]:
    return {file for checkpoint in in_the_store(world).values() for file in checkpoint.physical_files()}


@pytest.mark.parametrize(("point", "time"), KILLS, ids=[f"{point}-{time}" for point, time in KILLS])
async def test_a_killed_coordinator_leaves_a_state_to_go_on_from(point: CrashPoint, time: int) -> None:
    """The latest complete checkpoint is restored whole, with everything that is still to be published (C22, J12).

    Nothing that was published lies beyond it. Once the next checkpoint is complete, only what is retained is left.
    """
    world = World(interval=10.0)
    await killed_at(world, point, time)
    stored = in_the_store(world)
    assert referenced(world) <= segments(world)

    world.options = replace(world.options, epoch=2)
    world.coordinator = world.new_coordinator()
    async with world.coordinator as successor:
        restored = await successor.restore_point()
        latest = max(stored, default=0)
        await asyncio.sleep(1)
        assert in_the_store(world).keys() == stored.keys()  # metadata proves what is owed, until that is published
        assert (restored.checkpoint_id if restored is not None else 0) == latest
        published = {number for _, number in world.published}
        assert max(published, default=0) <= latest
        for attempt, task in ((A1, A), (B1, B)):
            done = {number for known, number in world.published if known == attempt}
            tasks = restored.tasks if restored is not None else ()
            owed = {t.checkpoint_id for s in tasks if s.task_id == task for t in s.transactions}
            assert done | owed == set(range(1, latest + 1))

        world.publish_takes[B] = 0.0
        world.confirmed = {s.task_id: s.physical_files[0] for s in tasks}
        world.run({A: A2, B: B2})
        await asyncio.sleep(25)
        assert len(in_the_store(world)) == 1
        (newest,) = in_the_store(world)
        assert newest > max(latest, *published, 0)
        assert segments(world) == referenced(world)
        assert name(newest, A2) in segments(world)
    assert len([number for _, number in world.triggered]) == len({number for _, number in world.triggered})


async def test_every_kill_struck_at_another_moment() -> None:
    """The checkpoint does not exist, exists, was announced to one task or to both, or has replaced another one."""
    moments = set()
    for point, time in KILLS:
        world = World(interval=10.0)
        await killed_at(world, point, time)
        told = frozenset(Counter(number for _, number in world.published).items())
        moments.add((frozenset(in_the_store(world)), told, frozenset(segments(world))))
    assert len(moments) >= 12
