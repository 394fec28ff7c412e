"""A TaskManager that has heard a daemon takes nothing from the daemons before it, whichever of their parties speaks."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from minflinkd.rpc import messages as m
from minflinkd.rpc.network import Fenced
from minflinkd.runtime.ids import IdSource, JobId, LeaderId, epoch_of
from minflinkd.taskmanager.slots.events import StartTask
from tests.unit.taskmanager.core_world import JOB, OTHER, A, B, CoreWorld, allocate, attempt, deploy, registered

FIRST = IdSource(epoch=1)
RM, JM, LATER_JM = FIRST.leader(), FIRST.leader(), FIRST.leader()
OF_THE_NEXT_DAEMON = IdSource(epoch=2).leader()


def beat(leader: LeaderId, job: JobId) -> m.HeartbeatFromJobMaster:
    return m.HeartbeatFromJobMaster(job_id=job, leader_id=leader, allocations=(A,) if job == JOB else ())


@pytest.fixture
def world() -> CoreWorld:
    """Registered with the ResourceManager of epoch 1. A JobMaster of this epoch has a slot."""
    world = CoreWorld(ready=False)
    world.core.session_changed(m.SessionPhase.READY, 1, aged=False, now=0.0)
    world.wait(0.0)
    world.answer(world.ask_of(m.RegisterTaskManager), replace(registered(), leader_id=RM))
    world.receive(replace(allocate(A, 0), job_leader_id=JM), RM)
    world.accept(A)
    return world


def test_a_leader_id_says_its_epoch() -> None:
    """And a text that is no such id says nothing (A11)."""
    assert [epoch_of(IdSource(epoch=n).leader()) for n in (0, 7, 300)] == [0, 7, 300]
    assert epoch_of(None) == epoch_of(LeaderId("jm")) == 0


def test_a_job_master_of_an_earlier_daemon_is_refused_before_the_job_s_next_one_speaks(world: CoreWorld) -> None:
    """A JobMaster of another job was heard, of a later epoch. From then on that one counts for all jobs (A11b)."""
    world.receive(beat(OF_THE_NEXT_DAEMON, OTHER), OF_THE_NEXT_DAEMON)
    with pytest.raises(Fenced):
        world.receive(replace(deploy(A, 1), job_leader_id=JM), JM)
    with pytest.raises(Fenced):
        world.receive(m.TriggerCheckpoint(job_id=JOB, attempt_id=attempt(1), checkpoint_id=1, epoch=1), JM)
    assert world.take(StartTask) == []


def test_a_job_master_of_an_earlier_daemon_is_refused_once_the_next_resource_manager_is_known(world: CoreWorld) -> None:
    """The TaskManager has registered with it, and has not heard of its JobMasters yet (A11b)."""
    world.wait(60.0, rm=False)  # the first daemon is silent
    world.answer(world.ask_of(m.RegisterTaskManager), replace(registered(2), leader_id=OF_THE_NEXT_DAEMON))
    with pytest.raises(Fenced):
        world.receive(replace(deploy(A, 1), job_leader_id=JM), JM)
    assert world.take(StartTask) == []


def test_the_resource_manager_of_an_earlier_daemon_gives_no_slots_any_more(world: CoreWorld) -> None:
    """Although the TaskManager is still registered with it (A11b)."""
    world.receive(beat(OF_THE_NEXT_DAEMON, OTHER), OF_THE_NEXT_DAEMON)
    with pytest.raises(Fenced):
        world.receive(replace(allocate(B, 1), job_leader_id=JM), RM)


def test_within_one_epoch_each_job_has_its_own_leaders(world: CoreWorld) -> None:
    """A later JobMaster of another job does not outdo this job's (R1, A11b)."""
    world.receive(beat(LATER_JM, OTHER), LATER_JM)
    world.receive(replace(deploy(A, 1), job_leader_id=JM), JM)
    assert [start.deployment.attempt_id for start in world.take(StartTask)] == [attempt(1)]
