"""What a JobMaster does with slots that have more or less than its groups want (R40)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler import reserving
from minflinkd.jobmaster.scheduler.placement import Bounds, place, total
from minflinkd.jobmaster.scheduler.sizing import groups_leaving
from minflinkd.rpc import messages as m
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.messages import SlotOffer, TaskState
from minflinkd.runtime.ids import AllocationId, ResourceId
from minflinkd.runtime.resource_profile import NO_PROFILE, ResourceProfile, parse_profile
from tests.unit.jobmaster.fed_core import JobMaster
from tests.unit.jobmaster.wide_job import BOOM, TM1, TM2, WideJob, of_kind

SMALL, LARGE = parse_profile({"memory": "1 GB"}), parse_profile({"memory": "4 GB"})
GPU = parse_profile({"gpu": 1})


def running(profile: ResourceProfile = SMALL, there: ResourceProfile = SMALL) -> WideJob:
    """A job that runs on two slots of TM1, which have this profile."""
    job = WideJob(a=2, profiles={"a": profile})
    job.offer(TM1, 2, profile=there)
    job.deploy()
    job.come_up()
    return job


def test_a_need_says_what_its_slots_must_have() -> None:
    """R40."""
    job = WideJob(a=2, b=1, profiles={"a": SMALL})
    assert {group: need.profile for group, need in job.needs.items()} == {"a": SMALL, "b": NO_PROFILE}


@pytest.mark.parametrize("there", [NO_PROFILE, SMALL, GPU], ids=["not known", "smaller", "another"])
def test_slots_that_have_less_than_was_asked_for_are_not_taken(there: ResourceProfile) -> None:
    """The TaskManager frees them, and the need stays (R40)."""
    job = WideJob(a=2, profiles={"a": LARGE})
    job.offer(TM1, 2, profile=there)
    assert job.state.pool.held == {}
    assert of_kind(ev.FindRestorePoint, job.offer(TM2, 2, profile=LARGE))
    assert {share.resource_id for share in job.deploy() and job.state.placement.values()} == {TM2}


def test_each_group_runs_where_the_slots_have_what_it_wants() -> None:
    """The group with demands has the large slots, whatever was offered for which of them, and in which order (R40)."""
    job = WideJob(a=2, b=2, profiles={"b": LARGE})
    a, b = job.needs["a"].allocation_id, job.needs["b"].allocation_id
    job.offer(TM1, 2, b, profile=LARGE)
    job.offer(TM2, 2, a, profile=SMALL)
    job.deploy()
    assert {group: share.resource_id for group, share in job.state.placement.items()} == {"a": TM2, "b": TM1}


def test_a_group_without_demands_leaves_the_large_slots_to_the_others() -> None:
    """It would be placed first by its name (R40)."""
    slots = {TM1: {AllocationId("x"): 2}, TM2: {AllocationId("y"): 2}}
    groups = {"a": Bounds(2, 2), "b": Bounds(2, 2)}
    found = place(groups, slots, present={}, barred={"b": {TM2}})
    assert {group: share.resource_id for group, share in found.items()} == {"a": TM2, "b": TM1}
    wider = {**slots, TM1: {AllocationId("x"): 3}}  # no allocation has exactly what a group wants
    found = place(groups, wider, present={}, barred={"b": {TM2}})
    assert {group: share.resource_id for group, share in found.items()} == {"a": TM2, "b": TM1}


def test_a_version_that_wants_larger_slots_has_them_before_the_running_one_stops() -> None:
    """The running version goes on meanwhile. Its own slots do not count (R40, H4)."""
    job = running()
    job.feed(ev.SlotsReserved({"a": 2}, (), {"a": LARGE}))
    (need,) = job.needs.values()
    assert (need.slots, need.beside, need.profile) == (2, None, LARGE)
    assert groups_leaving(job.state) == {"a"}
    job.offer(TM2, 2, profile=SMALL)
    assert not reserving.has_reserved(job.state)
    job.offer(TM2, 2, profile=LARGE)
    assert reserving.has_reserved(job.state)
    assert job.state.status is JobStatus.RUNNING
    assert job.wait(1_000) == []


def test_it_waits_for_a_new_allocation_if_it_asked_for_smaller_slots_before() -> None:
    """The ResourceManager may already have taken slots for the old one (R40)."""
    job = running()
    job.report("a", TaskState.FAILED, BOOM)
    job.feed(ev.SlotsGone((*job.state.pool.held,), "lost"))
    (before,) = job.needs.values()
    assert before.profile == SMALL
    job.feed(ev.SlotsReserved({"a": 3}, (), {"a": LARGE}))
    (after,) = job.needs.values()
    assert after.profile == LARGE
    assert after.allocation_id != before.allocation_id


@pytest.mark.parametrize("profiles", [{"a": SMALL}, {}, None], ids=["the same", "nothing", "not said"])
def test_a_version_whose_demands_the_slots_meet_stays_where_it_is(profiles: dict[str, ResourceProfile] | None) -> None:
    """It takes over the slots and the warm session (R40, H4)."""
    job = running()
    job.feed(ev.SlotsReserved({"a": 2}, (), profiles))
    assert job.needs == {}
    assert reserving.has_reserved(job.state)


def test_if_no_version_follows_the_larger_slots_are_given_back() -> None:
    """R4, R40."""
    job = running()
    job.feed(ev.SlotsReserved({"a": 2}, (), {"a": LARGE}))
    job.offer(TM2, 2, profile=LARGE)
    job.feed(ev.SlotsReserved())
    (free,) = of_kind(ev.FreeAllocations, job.wait(50))
    assert isinstance(free, ev.FreeAllocations)
    assert free.address == f"taskmanager/{TM2}"
    assert job.needs == {}
    assert job.state.next_profiles is None


def test_a_job_that_is_refused_says_what_its_slots_should_have_had() -> None:
    """R5, R40."""
    job = WideJob(a=2, profiles={"a": GPU})
    (need,) = job.state.pool.needs
    job.wait(30)
    job.feed(ev.NeedsAnswered({need: "gpu: 1 needed; TaskManagers here have none"}, {}, 4))
    error = job.state.failures[-1].record.error
    assert "slots for group 'a' with 1 gpu each" in error.message
    assert "resourcemanager.largest-taskmanager" in error.hint


def test_a_jobmaster_learns_from_offers_what_slots_have_and_says_what_a_hot_standby_must_have() -> None:
    """A hot standby has to serve any of its groups (R32, R40)."""
    job = JobMaster(profiles={"a": SMALL, "other": GPU})
    job.feed(ev.Started())
    (declared,) = job.asked(m.DeclareNeeds)
    assert isinstance(declared.request, m.DeclareNeeds)
    (need,) = declared.request.needs
    assert need.profile == SMALL
    assert declared.request.standby_profile == SMALL | GPU
    offers = (SlotOffer(allocation_id=need.allocation_id, slots=(0,)),)
    job.receive(m.OfferSlots(resource_id=TM1, address=f"taskmanager/{TM1}", offers=offers, slot_profile=LARGE))
    assert job.core.state.pool.held[need.allocation_id].profile == LARGE


@given(
    st.dictionaries(st.sampled_from("abc"), st.tuples(st.integers(1, 3), st.integers(0, 2)), min_size=1),
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2)), min_size=1, max_size=3),
    st.booleans(),
)
def test_no_group_is_placed_where_it_is_barred(
    groups: dict[str, tuple[int, int]], slots: list[tuple[int, int]], divide: bool
) -> None:
    """And none has fewer slots than it needs (R40)."""
    tms = {ResourceId(f"tm-{i}"): (number, size) for i, (number, size) in enumerate(slots)}
    bounds = {group: Bounds(wide, 1) for group, (wide, _) in groups.items()}
    barred = {g: {r for r, (_, size) in tms.items() if size < least} for g, (_, least) in groups.items()}
    holdings = {r: {AllocationId(r): number} for r, (number, _) in tms.items()}
    found = place(bounds, holdings, present={}, divide=divide, barred=barred)
    assert all(share.resource_id not in barred[group] for group, share in found.items())
    assert all(bounds[g].least <= share.parallelism <= bounds[g].desired for g, share in found.items())
    assert total(found) <= sum(number for number, _ in slots)
