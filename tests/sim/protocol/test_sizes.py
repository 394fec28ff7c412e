"""Slots of several sizes, without faults (R40)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minflinkd.runtime.resource_profile import NO_PROFILE
from tests.sim.protocol.plan import JobPlan
from tests.sim.protocol.profiles import PROFILES
from tests.sim.protocol.test_scenarios import cluster, master, pass_time, processes, served
from tests.sim.protocol.world import World

GPU = JobPlan(at=0.0, groups=(2,), profiles=("gpu",))


def profiles(world: World) -> list[str]:
    """Return the names of what the slots of each TaskManager have, with their number."""
    names = {profile: name for name, profile in PROFILES.items()}
    tms = world.task_managers()
    return sorted(f"{len(tm.core.slots.table.report())} {names.get(tm.profile, str(tm.profile))}".strip() for tm in tms)


def test_a_job_has_a_taskmanager_of_the_size_that_it_wants_beside_the_standby() -> None:
    """R40, R6."""
    world = cluster(GPU, standby=1, slots_per_tm=3, profile="small")
    assert profiles(world) == ["2 1 GB memory, 1 gpu", "3 small"]
    assert {held.profile for held in master(world).core.state.pool.held.values()} == {
        PROFILES["small"] | PROFILES["gpu"]
    }


def test_a_standby_makes_way_for_what_a_job_wants_and_is_back_after_it() -> None:
    """No more than one TaskManager may run (R40)."""
    world = cluster(replace(GPU, ends=30.0), max=1, standby=1, profile="small")
    assert profiles(world) == ["2 1 GB memory, 1 gpu"]
    world.universe.engine.run_until(60.0)
    assert profiles(world) == ["3 small"]


def test_a_version_that_wants_larger_slots_moves_to_them() -> None:
    """R40."""
    world = cluster(JobPlan(at=0.0, groups=(2,), profiles=("large",), enlarges=True))
    before = processes(world)
    world.stand_down(master(world))
    pass_time(world, 0.5)
    served(world, within=30.0)
    (held,) = master(world).core.state.pool.held.values()
    assert held.profile == PROFILES["all"]
    assert held.resource_id not in before


@pytest.mark.parametrize("wanted", ["", "large"])
def test_what_registers_by_itself_serves_what_its_slots_cover(wanted: str) -> None:
    """R7, R40."""
    job = JobPlan(at=0.0, groups=(1,), profiles=(wanted,))
    world = cluster(job, can_start=False, standalone=2, max=2, standalone_profiles=("", "large"))
    (held,) = master(world).core.state.pool.held.values()
    assert held.profile in ((NO_PROFILE, PROFILES["large"]) if not wanted else (PROFILES["large"],))
