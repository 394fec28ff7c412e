"""A TaskManager is drained, on the real cores: nobody gets slots there, and it is left and ends (A15b)."""

from __future__ import annotations

from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler import reserving
from minflinkd.rpc import messages as m
from minflinkd.runtime.errors import Consequence, ErrorInfo
from minflinkd.runtime.ids import ResourceId
from tests.sim.protocol.plan import JobPlan
from tests.sim.protocol.task_manager import TaskManagerParty
from tests.sim.protocol.test_scenarios import attempts, busy, cluster, master, pass_time, processes, served
from tests.sim.protocol.world import World

BOOM = ErrorInfo(code="x", message="boom", consequence=Consequence.RETRYABLE)
ONE = JobPlan(at=0.0, groups=(2,))


def drain(world: World) -> TaskManagerParty:
    """Drain the TaskManager that runs the job, and wait until its JobMaster knows."""
    tm = busy(world)
    assert world.resource_manager is not None
    world.resource_manager.receive(m.DrainTaskManager(resource_id=tm.resource_id), None)
    pass_time(world, 3.0)
    assert tm.core.draining
    assert master(world).core.state.pool.draining == {tm.resource_id}
    return tm


def where(world: World) -> set[ResourceId]:
    return set(attempts(world).values())


def test_a_job_moves_from_a_drained_taskmanager_and_it_ends() -> None:
    """The slots elsewhere are there before the tasks stop, and the maximum may be exceeded (A15b)."""
    world = cluster(ONE, slots_per_tm=2, standby=0, max=1)
    before = attempts(world)
    tm = drain(world)
    leaving = master(world)
    leaving.feed(ev.SlotsReserved(dict.fromkeys(leaving.core.state.pool.groups, 2)))
    world.until(lambda: "" if reserving.has_reserved(leaving.core.state) else "no slots elsewhere", 30.0)
    assert attempts(world) == before, "its tasks have not stopped"
    world.stand_down(leaving)
    pass_time(world, 5.0)
    served(world, within=20.0)
    assert where(world) == processes(world)
    assert tm.resource_id not in processes(world)


def test_a_failed_job_leaves_a_drained_taskmanager_by_itself() -> None:
    """It comes up on another one (A15b)."""
    world = cluster(ONE, slots_per_tm=2, standby=0, max=1)
    tm = drain(world)
    master(world).feed(ev.CheckpointsFailed(BOOM))
    served(world, within=30.0)
    pass_time(world, 5.0)
    assert tm.resource_id not in where(world) | processes(world)


def test_what_is_drained_stays_so_under_the_next_daemon() -> None:
    """Its tasks are adopted and run on; no slot of it is given (A15b, A14)."""
    world = cluster(ONE, slots_per_tm=4, standby=0)
    before, tm = attempts(world), drain(world)
    world.crash_daemon(lasts=2.0)
    pass_time(world, 3.0)
    served(world, within=10.0)
    assert attempts(world) == before
    assert world.resource_manager is not None
    assert world.resource_manager.core.state.task_managers[tm.resource_id].draining
