"""What a JobMaster does with slots on a TaskManager that is drained (A15b)."""

from __future__ import annotations

from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler import reserving
from minflinkd.jobmaster.scheduler.sizing import groups_leaving
from minflinkd.rpc import messages as m
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.messages import SlotOffer, TaskState
from minflinkd.rpc.party import Answered
from minflinkd.runtime.ids import AllocationId
from tests.unit.jobmaster.fed_core import JobMaster
from tests.unit.jobmaster.wide_job import BOOM, TM1, TM2, WideJob, of_kind


def running_on_a_drained_one() -> WideJob:
    job = WideJob(a=2)
    job.offer(TM1, 2)
    job.deploy()
    job.come_up()
    job.feed(ev.Draining(TM1, True))
    return job


def test_a_job_that_runs_asks_for_nothing_until_it_is_to_leave() -> None:
    """One that cannot move would hold up others with its needs (A15b)."""
    job = running_on_a_drained_one()
    job.wait(100)
    assert job.needs == {}
    assert groups_leaving(job.state) == {"a"}
    assert of_kind(ev.FreeAllocations, job.wait(100)) == [], "it runs there"


def test_a_job_that_is_to_leave_asks_for_as_many_slots_elsewhere_while_it_runs() -> None:
    """Its slots on the drained TaskManager do not count, and it has all it wants when the others are there (A15b)."""
    job = running_on_a_drained_one()
    job.feed(ev.SlotsReserved({"a": 2}))
    (need,) = job.needs.values()
    assert (need.slots, need.least, need.beside, need.held) == (2, 0, None, 0)
    assert not reserving.has_reserved(job.state)
    job.offer(TM2, 2)
    assert reserving.has_reserved(job.state)
    assert job.state.status is JobStatus.RUNNING
    assert job.wait(1_000) == [], "reserved slots are not given back"


def test_a_job_with_fewer_slots_than_it_wants_takes_as_few_elsewhere() -> None:
    """It moves with as many as it runs with (A15b, R20)."""
    job = WideJob(a=4)
    job.wait(30)
    job.offer(TM1, 2)
    job.deploy()
    job.come_up()
    job.feed(ev.Draining(TM1, True))
    job.feed(ev.SlotsReserved({"a": 4}))
    assert job.needs["a"].least == 2
    job.offer(TM2, 2)
    assert reserving.has_reserved(job.state)


def test_a_job_that_does_not_leave_after_all_gives_the_other_slots_back() -> None:
    """It runs on where it is (A15b, R4)."""
    job = running_on_a_drained_one()
    job.feed(ev.SlotsReserved({"a": 2}))
    job.offer(TM2, 2)
    job.feed(ev.SlotsReserved())
    (free,) = of_kind(ev.FreeAllocations, job.wait(50))
    assert isinstance(free, ev.FreeAllocations)
    assert free.address == f"taskmanager/{TM2}"
    assert job.needs == {}


def test_it_is_told_at_once_that_no_taskmanager_will_ever_have_that_many() -> None:
    """The hot restart then fails without a wait (A15b)."""
    job = running_on_a_drained_one()
    job.feed(ev.SlotsReserved({"a": 2}))
    (need,) = job.state.pool.needs
    job.feed(ev.NeedsAnswered({need: "too many"}, {}, 1))
    assert reserving.wider_than_any(job.state) == ("a", 2)


def test_a_job_whose_slots_elsewhere_are_refused_runs_on_and_says_why() -> None:
    """No other TaskManager can be started, say for lack of memory. Whoever drains it must learn that (A15b)."""
    job = running_on_a_drained_one()
    job.feed(ev.SlotsReserved({"a": 2}))
    (need,) = job.state.pool.needs
    why = "no TaskManager could be started: 3 starts in a row failed"
    job.feed(ev.NeedsAnswered({need: why}, {}, 2))
    assert job.state.status is JobStatus.RUNNING
    assert job.state.waiting == {need: why}


def test_only_the_groups_on_it_leave() -> None:
    """The other group keeps its slots, and asks for none (A15b)."""
    job = WideJob(a=2, b=1)
    job.offer(TM1, 2, job.needs["a"].allocation_id)
    job.offer(TM2, 1, job.needs["b"].allocation_id)
    job.deploy()
    job.come_up()
    job.feed(ev.Draining(TM1, True))
    job.feed(ev.SlotsReserved({"a": 2, "b": 1}))
    assert set(job.needs) == {"a"}


def test_a_job_that_fails_comes_up_elsewhere() -> None:
    """Whatever restarts it, its slots on a drained TaskManager are not used, and given back when it runs (A15b)."""
    job = running_on_a_drained_one()
    failed = job.report("a", TaskState.FAILED, BOOM) + job.wait(1)
    assert of_kind(ev.FindRestorePoint, failed) == []
    assert job.needs["a"].slots == 2
    assert of_kind(ev.FindRestorePoint, job.offer(TM2, 2))
    job.deploy()
    job.come_up()
    assert {held.resource_id for held in job.state.pool.held.values()} == {TM2}


def test_a_job_that_waits_comes_up_on_it_if_that_is_undone() -> None:
    """It has never given the slots back (A15b)."""
    job = running_on_a_drained_one()
    job.report("a", TaskState.FAILED, BOOM)
    job.wait(1)
    assert of_kind(ev.FindRestorePoint, job.feed(ev.Draining(TM1, False)))


def test_an_offer_of_a_drained_taskmanager_is_refused() -> None:
    """So the version that follows does not take the old slots back, in whatever order offers arrive (A15b, R13)."""
    job = WideJob(a=2)
    old = SlotOffer(allocation_id=AllocationId("old"), slots=(0, 1))
    job.feed(ev.SlotsOffered(TM1, f"taskmanager/{TM1}", (old,), draining=True))
    assert job.state.pool.held == {}
    job.offer(TM2, 2)
    assert [held.resource_id for held in job.state.pool.held.values()] == [TM2]


def test_a_jobmaster_learns_from_heartbeats_and_offers() -> None:
    """It hears the truth from the TaskManager itself, whoever leads the ResourceManager (A15b)."""
    job = JobMaster()
    job.feed(ev.Started())
    job.offer(TM1)
    for draining in (True, False):
        job.tick(job.now + 1.0)
        (beat,) = job.asked(m.HeartbeatFromJobMaster)
        job.answer(beat, _told(job, draining=draining))
        assert (TM1 in job.core.state.pool.draining) is draining
    offer = m.OfferSlots(resource_id=TM2, address=f"taskmanager/{TM2}", offers=(), draining=True)
    job.receive(offer)
    assert job.core.state.pool.draining == {TM2}


def _told(job: JobMaster, *, draining: bool) -> Answered:
    return Answered(m.JobHeartbeatAnswer(allocations=job.held, tasks=(), draining=draining))
