"""Tasks of a job that ended while nobody could tell their TaskManager (R12, A14), on the real cores."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest

from minflinkd.rpc.network import RESOURCE_MANAGER, Address
from tests.sim.protocol.plan import JobPlan
from tests.sim.protocol.test_scenarios import HEARTBEAT_TIMEOUT, attempts, busy, cluster, pass_time
from tests.sim.protocol.world import World

CRASHES: dict[str, Callable[[World], None]] = {
    "nothing crashes": lambda world: None,
    "its ResourceManager crashes": lambda world: world.crash_resource_manager(lasts=1.0),
    "its daemon crashes": lambda world: world.crash_daemon(lasts=1.0),
}


@pytest.mark.parametrize("crash", CRASHES)
def test_tasks_whose_job_ended_without_their_task_manager_end_soon_and_those_of_other_jobs_stay(crash: str) -> None:
    """A ResourceManager that knew the job tells of its end. A new one asks the Dispatcher first (R12, A14)."""
    jobs = JobPlan(at=0.0, groups=(2,)), JobPlan(at=0.2, groups=(1,))
    world = cluster(*jobs, slots_per_tm=3, max=1, orphan_timeout=1_000.0)
    ended, other = world.jobs.values()
    assert ended.master is not None
    tm = busy(world)
    stay = {a for a, attempt in tm.attempts.items() if attempt.deployment.job.job_id == other.job_id}
    cut(world, tm.address, ended.master.address)
    world.end(ended)
    world.until(lambda: "" if ended.ended else "it does not end", within=60.0)
    cut(world, tm.address, RESOURCE_MANAGER)
    world.until(lambda: "" if ended.job_id in world.dispatcher.core.told else "its end is not told", within=5.0)
    assert attempts(world).keys() > stay
    CRASHES[crash](world)
    heal(world, tm.address, RESOURCE_MANAGER)
    pass_time(world, 2 * HEARTBEAT_TIMEOUT + world.plan.task_time)
    assert attempts(world).keys() == stay
    assert len(tm.held()) == 1


def cut(world: World, *between: Address) -> None:
    for one, another in permutations(between):
        world.universe.wire.cut(one, another, noticed=False)


def heal(world: World, *between: Address) -> None:
    for one, another in permutations(between):
        world.universe.wire.heal(one, another, noticed=False)
