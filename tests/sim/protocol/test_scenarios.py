"""What each fault costs by itself (R10 - R15), on the real cores and without loss of messages."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from minflinkd.jobmaster.scheduler.events import CancelRequested
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.network import RESOURCE_MANAGER
from minflinkd.runtime.ids import AttemptId, ResourceId
from tests.sim.protocol.job_master import JobMasterParty
from tests.sim.protocol.plan import JobPlan, Plan
from tests.sim.protocol.rest import unserved
from tests.sim.protocol.task_manager import LIVE, TaskManagerParty
from tests.sim.protocol.world import World

TWO_GROUPS = JobPlan(at=0.0, groups=(2, 2))
HEARTBEAT_TIMEOUT = 5.0


def cluster(*jobs: JobPlan, **changes: Any) -> World:
    """Return a world whose jobs run."""
    world = World(replace(Plan(seed=1, jobs=jobs or (TWO_GROUPS,), heartbeat_timeout=HEARTBEAT_TIMEOUT), **changes))
    world.begin()
    pass_time(world, 0.5)
    served(world, within=30.0)
    pass_time(world, 10)  # until standbys are ready
    return world


def pass_time(world: World, seconds: float) -> None:
    world.universe.engine.run_until(world.universe.now + seconds)


def attempts(world: World) -> dict[AttemptId, ResourceId]:
    return {a: tm.resource_id for tm in world.task_managers() for a, x in tm.attempts.items() if x.state in LIVE}


def busy(world: World) -> TaskManagerParty:
    return next(tm for tm in world.task_managers() if tm.attempts)


def master(world: World) -> JobMasterParty:
    (only,) = world.job_masters()
    return only


def processes(world: World) -> set[ResourceId]:
    return {tm.resource_id for tm in world.task_managers()}


def served(world: World, within: float) -> float:
    return world.until(partial(unserved, world), within)


def test_a_crash_of_the_resource_manager_interrupts_nothing() -> None:
    """Afterwards its view equals the slot tables, and nothing was started (R12)."""
    world = cluster(standby=1)
    before, there = attempts(world), processes(world)
    world.crash_resource_manager(lasts=8.0)
    pass_time(world, 9.0)
    served(world, within=5.0)
    assert attempts(world) == before
    assert processes(world) == there


def test_a_job_comes_back_on_its_warm_task_managers_when_its_job_master_crashes() -> None:
    """After a crash of its JobMaster, a job runs in the same processes as before, as new attempts (R13)."""
    world = cluster()
    before, there = attempts(world), processes(world)
    world.crash_job_master(master(world), lasts=1.0)
    pass_time(world, 1.5)
    served(world, within=5.0)
    assert processes(world) == there
    assert set(attempts(world).values()) == set(before.values())
    assert not attempts(world).keys() & before.keys()


def test_slots_wait_for_the_next_job_master_and_then_fall_free() -> None:
    """`jobmanager.slot-hold-timeout` is the limit (R13)."""
    world = cluster()
    world.crash_job_master(master(world), lasts=1_000.0)
    pass_time(world, HEARTBEAT_TIMEOUT + world.plan.task_time + 1.0)
    assert attempts(world) == {}
    assert any(tm.held() for tm in world.task_managers())
    pass_time(world, world.plan.hold_timeout)
    assert not any(tm.held() for tm in world.task_managers())


def test_resource_manager_and_job_master_crash_at_once() -> None:
    """The job runs again, and no TaskManager is started (R14)."""
    world = cluster()
    there = processes(world)
    world.crash_daemon(lasts=2.0)
    pass_time(world, 3.0)
    served(world, within=10.0)
    assert processes(world) == there


def test_a_killed_task_manager_is_made_up_for_by_the_standby() -> None:
    """The job runs again within two seconds, and a new standby follows (R11)."""
    world = cluster(JobPlan(at=0.0, groups=(3,)), standby=1)
    there = processes(world)
    victim = busy(world)
    world.kill(victim)
    assert world.until(lambda: "" if attempts(world) else "nothing runs", within=5.0) <= 2.0
    assert set(attempts(world).values()) <= there - {victim.resource_id}
    served(world, within=10.0)
    world.until(lambda: "" if len(processes(world)) == 2 else "no new standby", within=5.0)


def test_task_manager_and_resource_manager_crash_at_once() -> None:
    """The job runs again once there is a ResourceManager (R14)."""
    world = cluster()
    world.kill(busy(world))
    world.crash_resource_manager(lasts=2.0)
    pass_time(world, 3.0)
    served(world, within=20.0)


@pytest.mark.parametrize("unkillable", [0.0, 1.0])
def test_a_stopped_task_manager_does_no_harm_when_it_goes_on(unkillable: float) -> None:
    """By then its job runs elsewhere. If the launcher cannot kill it, it becomes idle and ends as such (R15)."""
    world = cluster(unkillable=unkillable)
    zombie = busy(world)
    zombie.stop()
    world.until(lambda: "" if runs_without(world, zombie) else "its job does not run elsewhere", within=30.0)
    elsewhere = {a: r for a, r in attempts(world).items() if r != zombie.resource_id}
    world.go_on(zombie)
    pass_time(world, HEARTBEAT_TIMEOUT + world.plan.task_time + 1.0)
    assert attempts(world) == elsewhere
    world.until(lambda: "the zombie is there" if zombie.alive else "", within=45.0)


def runs_without(world: World, tm: TaskManagerParty) -> bool:
    state = master(world).core.state
    return state.status is JobStatus.RUNNING and all(e.resource_id != tm.resource_id for e in state.live)


@pytest.mark.parametrize("noticed", [True, False])
def test_a_task_manager_that_is_cut_off_ends_its_tasks_and_comes_back_empty(noticed: bool) -> None:
    """Both the cluster and the TaskManager itself give its slots up, so it is empty when the cut heals (R15)."""
    world = cluster(unkillable=1.0, taskmanager_timeout=100.0)
    lost = busy(world)
    ways = [(lost.address, other) for other in (master(world).address, RESOURCE_MANAGER)]
    ways += [(there, here) for here, there in ways]
    for way in ways:
        world.universe.wire.cut(*way, noticed=noticed)
    world.until(lambda: "" if runs_without(world, lost) else "its job does not run elsewhere", within=30.0)
    pass_time(world, HEARTBEAT_TIMEOUT + world.plan.hold_timeout + world.plan.task_time)
    assert not lost.held()
    for way in ways:
        world.universe.wire.heal(*way, noticed=noticed)
    served(world, within=10.0)
    assert lost.alive


def test_idle_task_managers_are_kept_for_a_while_and_then_told_to_exit() -> None:
    """`min` of them stay, and so do those whose time is not over yet (R6)."""
    world = cluster(min=1)
    assert len(processes(world)) == 2
    master(world).feed(CancelRequested())
    pass_time(world, world.plan.taskmanager_timeout - 1.0)
    assert len(processes(world)) == 2
    pass_time(world, 5.0)
    assert len(processes(world)) == 1
