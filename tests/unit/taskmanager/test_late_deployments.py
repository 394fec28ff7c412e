"""Deployments that arrive after later messages (m12)."""

from __future__ import annotations

import pytest

from minflinkd.rpc import messages as m
from minflinkd.taskmanager.child.protocol import SessionLost
from minflinkd.taskmanager.slots.core import SlotNotBound
from minflinkd.taskmanager.slots.events import EndTasks, StartTask
from tests.unit.taskmanager.core_world import JOB, A, B, CoreWorld, allocate, attempt, deploy, leader


def _with_slots() -> CoreWorld:
    world = CoreWorld()
    world.rm(allocate(A, 0))
    world.accept(A)
    return world


def test_a_deployment_that_comes_behind_the_cancellation_of_its_attempt_is_refused() -> None:
    """The JobMaster was told that nothing of the attempt is left, and has deployed the next one (m12)."""
    world = _with_slots()
    assert world.jm(m.CancelTask(job_id=JOB, attempt_id=attempt(1))) == m.Done()
    with pytest.raises(SlotNotBound, match="was cancelled"):
        world.jm(deploy(A, 1))
    world.jm(deploy(A, 2))
    assert [start.deployment.attempt_id for start in world.take(StartTask)] == [attempt(2)]


def test_what_an_earlier_job_master_cancelled_says_nothing_of_a_later_ones_attempts() -> None:
    """A later JobMaster may deploy an attempt that an earlier one has cancelled (R13)."""
    world = _with_slots()
    world.jm(m.CancelTask(job_id=JOB, attempt_id=attempt(1)))
    world.beat(jm=2)
    world.accept(A)
    world.jm(deploy(A, 1, jm=2), 2)
    assert len(world.take(StartTask)) == 1


def test_a_second_copy_of_a_deployment_that_was_refused_is_refused_as_well() -> None:
    """The JobMaster has deployed the next attempt since (m12)."""
    world = CoreWorld()
    world.rm(allocate(A, 0))
    world.accept(A)
    world.core.session_changed(m.SessionPhase.LOST, 1, aged=False, now=world.now)
    with pytest.raises(SessionLost):
        world.jm(deploy(A, 1))
    world.core.session_changed(m.SessionPhase.READY, 2, aged=False, now=world.now)
    with pytest.raises(SlotNotBound, match="refused"):
        world.jm(deploy(A, 1))
    world.jm(deploy(A, 2))


def test_a_refused_deployment_of_the_next_job_master_still_has_the_slots_offered_to_it() -> None:
    """It is the first that the TaskManager hears of that JobMaster, and it follows it from then on (R13)."""
    world = _with_slots()
    world.jm(deploy(A, 1))
    world.take(object)
    with pytest.raises(SlotNotBound):
        world.jm(deploy(B, 2, jm=2), 2)
    assert world.take(EndTasks) == []
    assert A in world.offered()
    assert world.ask_of(m.OfferSlots).fence == leader(2)
