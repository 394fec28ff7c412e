"""The ResourceManager and TaskManagers in their asyncio drivers, in virtual time."""

from __future__ import annotations

import asyncio
import random

import pytest

from minflinkd.rpc.faulty import Faults
from minflinkd.rpc.messages import SessionPhase
from minflinkd.rpc.network import RESOURCE_MANAGER, job_master, task_manager
from tests.sim.resourcemanager.world import World

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


def settled(world: World) -> bool:
    return world.served() and world.agreed()


def ready(world: World, number: int) -> bool:
    tms = world.launcher.living.values()
    return len(tms) == number and all(tm.phase is SessionPhase.READY for tm in tms)


async def test_a_job_is_served_from_the_standby_at_once_and_the_standby_is_replaced() -> None:
    """Warm slots are ready before the job comes, and again afterwards (R3, R6)."""
    async with World(1) as world:
        await world.within(20, lambda: ready(world, 1) and world.agreed())
        job = await world.submit(a=2, b=1)
        assert await world.within(5, lambda: job.complete) <= 0.2
        assert len({held.resource_id for held in job.pool.held.values()}) == 1
        await world.within(20, lambda: ready(world, 2) and settled(world))


async def test_a_killed_taskmanager_is_made_up_for_by_the_standby_and_replaced() -> None:
    """The job has slots again within two seconds, long before a new TaskManager is warm (R11)."""
    async with World(2) as world:
        job = await world.submit(a=3)
        await world.within(40, lambda: ready(world, 2) and settled(world))
        (held,) = job.pool.held.values()
        world.launcher.end(held.resource_id, "killed by SIGKILL")
        assert await world.within(5, lambda: not job.complete) <= 0.2
        assert await world.within(5, lambda: job.complete) <= 2
        await world.within(20, lambda: ready(world, 2) and settled(world))


async def test_a_taskmanager_that_falls_silent_is_lost_after_the_heartbeat_timeout() -> None:
    """The cause is a partition or a SIGSTOP, so no exit is seen (R10, R11)."""
    async with World(3) as world:
        job = await world.submit(a=3)
        await world.within(40, lambda: ready(world, 2) and settled(world))
        (held,) = job.pool.held.values()
        address = task_manager(held.resource_id)
        world.wire.faults.cut = {frozenset((address, p)) for p in (RESOURCE_MANAGER, job_master(job.job_id))}
        assert await world.within(20, lambda: held.resource_id not in world.launcher.living) <= 7
        await world.within(20, lambda: ready(world, 2) and settled(world))


async def test_idle_taskmanagers_beyond_the_standby_are_stopped() -> None:
    """Idle TaskManagers are stopped after `resourcemanager.taskmanager-timeout` (R6)."""
    async with World(4) as world:
        job = await world.submit(a=4, b=4)
        await world.within(60, lambda: ready(world, 3) and settled(world))
        del world.jobs[job.job_id]
        await job.end()
        await asyncio.sleep(15)
        assert len(world.launcher.living) == 3
        await world.within(15, lambda: len(world.launcher.living) == 1)
        await asyncio.sleep(60)
        assert len(world.launcher.living) == 1


async def test_a_new_resourcemanager_learns_who_holds_what_and_disturbs_nothing() -> None:
    """Jobs keep their slots, and no TaskManager is started in addition to those that exist (R7, R12)."""
    async with World(5, standby=2) as world:
        jobs = [await world.submit(a=2, b=2) for _ in range(3)]
        await world.within(120, lambda: settled(world) and ready(world, 5))
        before, started = [dict(job.pool.held) for job in jobs], world.launcher.started
        await world.restart_resource_manager()
        await world.within(20, lambda: settled(world))
        await asyncio.sleep(10)
        assert [dict(job.pool.held) for job in jobs] == before
        assert world.launcher.started == started


async def test_a_taskmanager_that_is_found_and_never_registers_is_replaced() -> None:
    """A TaskManager that hangs before it registers does not count for ever (R7)."""
    async with World(8) as world:
        await world.within(20, lambda: ready(world, 1) and world.agreed())
        (hanging,) = world.launcher.living.values()
        await world.resource_manager.aclose()
        await hanging.aclose()
        await world.restart_resource_manager()
        await world.within(45, lambda: ready(world, 1) and world.agreed())
        assert hanging.resource_id not in world.launcher.living


async def test_starts_that_fail_are_tried_again_and_say_why() -> None:
    """R5."""
    async with World(6) as world:
        world.launcher.failing = 1.0
        job = await world.submit(a=1)
        await asyncio.sleep(20)
        assert 3 <= world.launcher.started <= 10
        assert "out of memory" in world.resource_manager.snapshot().resources.starts.reason
        world.launcher.failing = 0.0
        await world.within(60, lambda: job.complete)


async def test_no_more_taskmanagers_than_allowed_and_who_waits_is_served_when_slots_fall_free() -> None:
    """Jobs wait while max-taskmanagers is reached (R5)."""
    async with World(7, max=2) as world:
        first = [await world.submit(a=4) for _ in range(2)]
        await world.within(60, lambda: settled(world))
        late = await world.submit(a=4)
        await asyncio.sleep(30)
        assert not late.complete
        del world.jobs[first[0].job_id]
        await first[0].end()
        assert await world.within(10, lambda: late.complete) < 3
        assert world.launcher.most == 2


async def misfortune(world: World, rng: random.Random) -> None:
    """Cause one fault, or end or begin a job."""
    living = sorted(world.launcher.living)
    match rng.randrange(9):
        case 0 if living:
            world.launcher.end(rng.choice(living), "killed by SIGKILL")
        case 1 if living:
            world.background(world.launcher.living[rng.choice(living)].new_session())
        case 2:
            await world.restart_resource_manager()
        case 3 if living:
            parties = [RESOURCE_MANAGER, *(job_master(job_id) for job_id in world.jobs)]
            world.wire.faults.cut.add(frozenset((task_manager(rng.choice(living)), rng.choice(parties))))
        case 4 if world.jobs:
            world.wire.faults.cut.add(frozenset((RESOURCE_MANAGER, job_master(rng.choice(sorted(world.jobs))))))
        case 5:
            world.wire.faults.cut.clear()
        case 6 if len(world.jobs) > 1:
            job = world.jobs.pop(rng.choice(sorted(world.jobs)))
            world.background(job.end())
        case 7 if len(world.jobs) < 4:
            await world.submit(**{name: rng.randint(1, 3) for name in "abc"[: rng.randint(1, 2)]})
        case 8:
            world.launcher.failing = rng.choice([0.0, 0.5])
        case _:
            pass


@pytest.mark.parametrize("seed", range(5))
async def test_after_any_faults_every_job_is_served_and_nothing_leaks(seed: int) -> None:
    """Messages are lost, doubled, late and out of order; there are partitions and crashes (R30).

    A failing seed repeats exactly.
    """
    rng = random.Random(seed)
    async with World(seed, max=10) as world:  # room for all: at most eight allocations at a time, and the standby
        world.wire.faults = Faults(drop=rng.choice([0, 0.1, 0.3]), double=rng.choice([0, 0.2]), most_delay=rng.random())
        for _ in range(3):
            await world.submit(a=rng.randint(1, 4), b=rng.randint(1, 3))
        for _ in range(rng.randint(5, 25)):
            await asyncio.sleep(rng.uniform(0, 6))
            await misfortune(world, rng)
        world.wire.faults = Faults(most_delay=0.05)
        world.launcher.failing = 0.0
        await world.within(150, lambda: settled(world))
        for job in world.jobs.values():
            await job.end()
        world.jobs.clear()
        await world.within(60, lambda: world.agreed() and len(world.launcher.living) == 1 and world.free_slots() == 4)
