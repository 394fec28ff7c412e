"""What each fault costs by itself (R10 - R15), on the real cores and without loss of messages."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from minflinkd.jobmaster.scheduler.events import CancelRequested, StandDown
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.network import RESOURCE_MANAGER
from minflinkd.runtime.ids import AttemptId, ResourceId
from minflinkd.taskmanager.slots.machine import NAMED_FOR
from tests.sim.planting import Planted
from tests.sim.protocol.job_master import JobMasterParty
from tests.sim.protocol.journal import Violation
from tests.sim.protocol.plan import JobPlan, Plan
from tests.sim.protocol.planted_job_master import tasks_of_another_version_are_adopted
from tests.sim.protocol.planted_task_manager import failures_are_worth_nothing
from tests.sim.protocol.rest import unserved
from tests.sim.protocol.task_manager import LIVE, TaskManagerParty, is_rigid
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


@pytest.mark.parametrize("connected", [False, True])
@pytest.mark.parametrize("lasts", [0.1, 1.0, HEARTBEAT_TIMEOUT + 1.0, 15.0])
def test_no_task_ends_when_its_job_master_crashes(lasts: float, connected: bool) -> None:
    """The next JobMaster adopts the attempts, however long it takes to come (A14, A14b)."""
    world = cluster(JobPlan(at=0.0, groups=(2, 1), connected=connected))
    before = attempts(world)
    world.crash_job_master(master(world), lasts=lasts)
    pass_time(world, lasts + 0.5)
    served(world, within=5.0)
    assert attempts(world) == before
    assert master(world).core.state.restarts == 0


@pytest.mark.parametrize("lasts", [0.1, 2.0, HEARTBEAT_TIMEOUT + 1.0, 15.0])
def test_no_task_ends_when_the_daemon_crashes(lasts: float) -> None:
    """ResourceManager and JobMasters are gone. The next ones find the tasks where they were (A14)."""
    world = cluster()
    before, there = attempts(world), processes(world)
    world.crash_daemon(lasts=lasts)
    pass_time(world, lasts + 1.0)
    served(world, within=10.0)
    assert attempts(world) == before
    assert processes(world) == there


def test_a_region_without_one_of_its_tasks_restarts_and_the_others_are_adopted() -> None:
    """What ran on a TaskManager that died with the JobMaster is made up for; the rest runs on (A14a, R16)."""
    world = cluster(JobPlan(at=0.0, groups=(3, 3)), slots_per_tm=4)
    before, victim = attempts(world), busy(world)
    survivors = {a for a, r in before.items() if r != victim.resource_id}
    assert survivors
    world.crash_job_master(master(world), lasts=2.0)
    world.kill(victim)
    pass_time(world, 3.0)
    served(world, within=30.0)
    now = attempts(world)
    assert survivors <= now.keys()
    assert not now.keys() & (before.keys() - survivors)


@pytest.mark.parametrize("planted", [nullcontext, tasks_of_another_version_are_adopted])
def test_tasks_of_the_version_before_are_not_adopted(planted: Planted) -> None:
    """They were cut off while the next version took over. Its JobMaster died before its tasks had taken a checkpoint.

    So the latest checkpoint is theirs, and only their version tells that they are not wanted (A14a).
    """
    slow = (4.0, 5.0)  # a TaskManager that starts comes too late for the job
    world = cluster(JobPlan(at=0.0, groups=(2,), narrows=True), unkillable=1.0, standby=1, start_time=slow)
    zombie, before, first = busy(world), attempts(world), master(world)
    zombie.stop()
    first.feed(StandDown())
    world.until(lambda: "" if next_deployed(world, first) else "the next version is not deployed", within=60.0)
    world.crash_job_master(master(world), lasts=0.5)
    for tm in world.task_managers():
        if tm is not zombie:
            world.kill(tm)
    world.go_on(zombie)
    with planted(), nullcontext() if planted is nullcontext else pytest.raises(Violation, match="of version"):
        pass_time(world, 2.0)
        served(world, within=60.0)
        assert not attempts(world).keys() & before.keys()


def next_deployed(world: World, before: JobMasterParty) -> bool:
    return any(m is not before and m.core.state.live for m in world.job_masters())


def test_tasks_wait_for_the_next_job_master_and_then_end() -> None:
    """`high-availability.orphan-timeout` is the limit. Then their slots fall free (A14)."""
    world = cluster()
    before = attempts(world)
    world.crash_job_master(master(world), lasts=1_000.0)
    pass_time(world, world.plan.orphan_timeout)
    assert attempts(world) == before
    pass_time(world, HEARTBEAT_TIMEOUT + world.plan.task_time + 1.0)
    assert attempts(world) == {}
    assert not any(tm.held() for tm in world.task_managers())


@pytest.mark.parametrize("planted", [nullcontext, failures_are_worth_nothing])
@pytest.mark.parametrize("late", [0.5, HEARTBEAT_TIMEOUT + 1.0])
def test_a_failure_is_counted_by_the_next_job_master_however_long_it_takes_to_come(
    late: float, planted: Planted
) -> None:
    """Also if the task fails before the silence is noticed, and the slots would be held only for a while (A14a)."""
    world = cluster(JobPlan(at=0.0, groups=(1,)), hold_timeout=4.0, orphan_timeout=30.0, registration_timeout=8.0)
    failing, before = busy(world), attempts(world)
    with planted():
        world.crash_job_master(master(world), lasts=HEARTBEAT_TIMEOUT + 4.0 + 10.0)
        pass_time(world, late)
        for attempt in list(failing.attempts.values()):
            failing.gate(failing._fails, attempt)
        pass_time(world, HEARTBEAT_TIMEOUT + 4.0 + 10.0 - late + 0.5)
        served(world, within=20.0)
    state = master(world).core.state
    told = [failure.record.error.message for failure in state.failures]
    lost = planted is not nullcontext and late < HEARTBEAT_TIMEOUT
    assert (told != [], state.streak.failures > 0) == (not lost, not lost)
    assert set(told) <= {"boom"}
    assert not attempts(world).keys() & before.keys()


def test_a_job_that_is_cancelled_while_nobody_leads_it_leaves_nothing() -> None:
    """Its next JobMaster adopts nothing: it tells the tasks to end."""
    world = cluster()
    job = master(world).job
    world.crash_job_master(master(world), lasts=3.0)
    world.end(job)
    world.until(lambda: "" if job.ended else "it does not end", within=30.0)
    assert attempts(world) == {}
    pass_time(world, 1.0)
    assert not any(tm.held() for tm in world.task_managers())


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
    pass_time(world, NAMED_FOR * HEARTBEAT_TIMEOUT + world.plan.task_time + 1.0)
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
    pass_time(world, HEARTBEAT_TIMEOUT + world.plan.orphan_timeout + world.plan.task_time)
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


@pytest.mark.parametrize("narrows", [True, False])
def test_a_version_that_wants_other_slots_goes_on_with_the_tasks_that_run(narrows: bool) -> None:
    """No attempt ends, and each has the slots that the version wants (R20)."""
    world = cluster(JobPlan(at=0.0, groups=(2, 2), runs_on=True, narrows=narrows))
    before = attempts(world)
    world.stand_down(master(world))
    pass_time(world, 5)
    if any(is_rigid(attempt_id) for attempt_id in before):
        raise AssertionError("choose another seed for this test: a task must stop for it")
    assert attempts(world) == before
    served(world, within=10)
    widths = {x.deployment.task.id: x.parallelism for tm in world.task_managers() for x in tm.attempts.values()}
    assert widths == {"t0": 1, "t1": 1, "t2": 1} if narrows else {"t0": 3, "t1": 3, "t2": 1}
