"""Slots that a job holds and does not use: given back (R4), or kept for the version that will follow (H4)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler import reserving
from minflinkd.jobmaster.scheduler.machine import next_wakeup
from minflinkd.jobmaster.scheduler.placement import Bounds
from minflinkd.jobmaster.scheduler.slot_pool import Held
from minflinkd.runtime.ids import AllocationId, ResourceId
from tests.unit.jobmaster.wide_job import TM1, TM2, WideJob, of_kind


def test_idle_slots_are_given_back_to_each_taskmanager_when_their_own_time_is_over() -> None:
    """R4."""
    job = WideJob(a=2)
    offers = {TM1: ("own", "x"), TM2: ("y", "z")}
    job.offer(TM1, 2)
    job.deploy()
    job.come_up()
    held = dict(job.state.pool.held)
    for i, (resource, names) in enumerate(offers.items()):
        for j, name in enumerate(names):
            if name != "own":
                held[AllocationId(name)] = Held((10 * i + j + 2,), resource, f"taskmanager/{resource}")
    job.state = replace(job.state, pool=replace(job.state.pool, held=held))
    job.feed(ev.Tick())
    assert next_wakeup(job.state, job.now) == 50.0
    assert job.wait(49) == []
    assert job.wait(1) == [
        ev.FreeAllocations("taskmanager/tm-1", (AllocationId("x"),), job_ended=False),
        ev.FreeAllocations("taskmanager/tm-2", (AllocationId("y"), AllocationId("z")), job_ended=False),
    ]
    assert len(job.state.pool.held) == 1
    assert next_wakeup(job.state, job.now) is None


def test_slots_that_are_as_good_as_those_that_a_job_uses_are_given_back() -> None:
    """It does not move without a gain (R4, R20)."""
    job = WideJob(a=2, rigid=True)
    job.wait(30)
    job.offer(TM1, 1)
    job.deploy()
    job.come_up()
    job.wait(100)
    job.offer(TM1, 1)
    old = job.attempt("a")
    job.feed(ev.RescaleCheckpointDone(job.state.round))
    job.feed(ev.AttemptGone(old))
    job.deploy()
    job.come_up()
    assert len(job.state.placement["a"].allocations) == 2
    held = {**job.state.pool.held, AllocationId("as-good"): Held((0, 1), TM2, "taskmanager/tm-2")}
    job.state = replace(job.state, pool=replace(job.state.pool, held=held))
    assert job.feed(ev.Tick()) == []
    assert job.wait(49) == []
    assert job.wait(1) == [ev.FreeAllocations("taskmanager/tm-2", (AllocationId("as-good"),), job_ended=False)]


def test_slots_that_were_reserved_meanwhile_begin_to_be_idle_anew() -> None:
    """R4, H4."""
    job = WideJob(a=1)
    job.offer(TM1, 3, "wide")
    job.deploy()
    job.come_up()
    job.wait(40)
    job.feed(ev.SlotsReserved({"a": 3}))
    assert job.state.running is not None
    assert job.state.running.idle == {}
    assert job.wait(20) == []
    assert job.feed(ev.SlotsReserved()) == []
    assert job.wait(49) == []
    assert of_kind(ev.FreeAllocations, job.wait(1))


def test_slots_for_the_next_version_are_asked_for_beside_those_that_the_job_has() -> None:
    """H4."""
    job = WideJob(a=2, b=2)
    for group in "ab":
        job.offer(TM1, 2, job.needs[group].allocation_id)
    job.deploy()
    job.come_up()
    own = job.state.pool.groups
    job.feed(ev.SlotsReserved({"a": 3, "b": 2, "new": 5}))
    assert job.state.pool.groups == {"a": Bounds(3, 1), "b": Bounds(2, 1)}
    (need,) = job.needs.values()
    assert (need.group, need.slots, need.beside, need.held) == ("a", 3, TM1, 2)
    assert not reserving.has_reserved(job.state), "the slots of `b` are not for `a`"
    assert job.offer(TM1, 1) == []
    assert reserving.has_reserved(job.state)
    assert job.wait(1000) == [], "they are neither used nor given back"
    job.feed(ev.SlotsReserved({"b": 4}))
    assert (job.state.pool.groups, job.state.reserving) == ({"a": Bounds(2, 1), "b": Bounds(4, 1)}, own)
    assert not reserving.has_reserved(job.state)
    job.feed(ev.SlotsReserved())
    assert (job.state.pool.groups, job.state.reserving, job.needs) == (own, None, {})
    assert reserving.has_reserved(job.state)
    assert of_kind(ev.FreeAllocations, job.wait(50))
    job.feed(ev.SlotsReserved({"a": 2, "b": 1}))
    assert (job.state.pool.groups, job.state.reserving) == (own, None), "no more than the job has"


def test_slots_that_a_restarting_job_lacks_do_not_concern_the_next_version() -> None:
    """The next version may be what mends the job (H4)."""
    job = WideJob(a=2, b=2)
    for group, resource in (("a", TM1), ("b", TM2)):
        job.offer(resource, 2, job.needs[group].allocation_id)
    job.deploy()
    job.come_up()
    job.feed(ev.TaskManagerGone(TM1, "killed"))
    job.offer(ResourceId("tm-3"), 1, "a-small-one")
    job.feed(ev.SlotsReserved({"b": 3}))
    assert not reserving.has_reserved(job.state)
    job.offer(TM2, 1, job.needs["b"].allocation_id)
    assert reserving.has_reserved(job.state)


@pytest.mark.parametrize(("largest", "wider"), [(0, None), (4, ("a", 5)), (5, ("b", 6)), (6, None)])
def test_the_next_version_cannot_have_more_slots_than_the_largest_taskmanager(
    largest: int, wider: tuple[str, int] | None
) -> None:
    """0: others may register, so nobody knows."""
    job = WideJob(b=2, a=2)
    job.feed(ev.SlotsReserved({"a": 5, "b": 6}))
    job.feed(ev.NeedsAnswered({}, {}, largest))
    assert reserving.wider_than_any(job.state) == wider


def test_what_a_version_reserves_concerns_only_the_groups_that_it_widens() -> None:
    """Another group runs with fewer slots than it wants, more than any TaskManager has (H4, R20)."""
    job = WideJob(a=9, b=2)
    job.wait(30)
    needs = job.needs
    job.offer(TM1, 4, needs["a"].allocation_id)
    job.offer(TM2, 2, needs["b"].allocation_id)
    job.deploy()
    job.come_up()
    job.feed(ev.NeedsAnswered({}, {}, 4))
    job.feed(ev.SlotsReserved({"b": 5}))
    assert reserving.wider_than_any(job.state) == ("b", 5)
    job.feed(ev.SlotsReserved({"b": 3}))
    assert reserving.wider_than_any(job.state) is None
    assert not reserving.has_reserved(job.state)
    job.offer(TM2, 1, job.needs["b"].allocation_id)
    assert reserving.has_reserved(job.state)
