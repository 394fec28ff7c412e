"""What a JobMaster does if the next version of its job does not fit into its sessions, for its libraries (B31)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler import reserving
from minflinkd.jobmaster.scheduler.sizing import libraries_wanted
from minflinkd.rpc import messages as m
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.libraries import clash, together
from minflinkd.rpc.messages import Library, TaskState
from minflinkd.runtime.ids import ResourceId
from tests.unit.jobmaster.fed_core import JobMaster
from tests.unit.jobmaster.wide_job import BOOM, TM1, TM2, WideJob, of_kind

ONE, TWO = (Library("java:com/acme", "1"),), (Library("java:com/acme", "2"),)
OTHER = (Library("java:org/other", "1"),)


def running(libraries: tuple[Library, ...] = ONE, held: tuple[Library, ...] = ONE) -> WideJob:
    """A job that runs on TM1, in a session that held these libraries when it offered its slots."""
    job = WideJob(a=2, libraries=libraries)
    job.offer(TM1, 2, libraries=held)
    job.deploy()
    job.come_up()
    return job


@pytest.mark.parametrize("held", [ONE, ()], ids=["offered with them", "loaded since"])
def test_a_version_with_another_jar_has_its_slots_elsewhere_before_the_running_one_stops(
    held: tuple[Library, ...],
) -> None:
    """The running version goes on meanwhile, and slots in sessions with its own jar do not count (B31, H4)."""
    job = running(held=held)
    job.feed(ev.SlotsReserved({"a": 2}, TWO))
    (need,) = job.needs.values()
    assert (need.slots, need.beside, libraries_wanted(job.state)) == (2, None, TWO)
    assert not reserving.has_reserved(job.state)
    job.offer(TM2, 2, libraries=TWO)
    assert reserving.has_reserved(job.state)
    assert job.state.status is JobStatus.RUNNING
    assert job.wait(1_000) == []


@pytest.mark.parametrize("libraries", [ONE, OTHER, ONE + OTHER, ()], ids=["the same", "others", "more", "none"])
def test_a_version_whose_jars_fit_stays_where_it_is(libraries: tuple[Library, ...]) -> None:
    """It takes over the slots and the warm session (H4)."""
    job = running()
    job.feed(ev.SlotsReserved({"a": 2}, libraries))
    assert (job.needs, libraries_wanted(job.state)) == ({}, ONE)
    assert reserving.has_reserved(job.state)


def test_a_jar_of_another_job_in_the_session_keeps_the_next_version_out_too() -> None:
    """The running version has no such jar (B31)."""
    job = running(libraries=(), held=ONE)
    job.feed(ev.SlotsReserved({"a": 2}, TWO))
    assert job.needs["a"].slots == 2
    job.offer(TM2, 2, libraries=TWO)
    assert reserving.has_reserved(job.state)


def test_if_no_version_follows_the_slots_elsewhere_are_given_back() -> None:
    """R4."""
    job = running()
    job.feed(ev.SlotsReserved({"a": 2}, TWO))
    job.offer(TM2, 2, libraries=TWO)
    job.feed(ev.SlotsReserved())
    (free,) = of_kind(ev.FreeAllocations, job.wait(50))
    assert isinstance(free, ev.FreeAllocations)
    assert (free.address, job.needs, libraries_wanted(job.state)) == (f"taskmanager/{TM2}", {}, ONE)


def test_a_version_that_fails_while_slots_are_reserved_comes_up_in_its_own_session() -> None:
    """The reserved slots are in a session that cannot hold its jar, and its own session can (B31, R16)."""
    job = running()
    job.feed(ev.SlotsReserved({"a": 2}, TWO))
    job.offer(TM2, 2, libraries=TWO)
    commands = job.report("a", TaskState.FAILED, BOOM) + job.wait(1)
    assert of_kind(ev.FindRestorePoint, commands)
    assert libraries_wanted(job.state) == ONE
    job.deploy()
    job.come_up()
    assert job.state.placement["a"].resource_id == TM1


def test_the_next_version_refuses_the_slots_that_it_cannot_use() -> None:
    """Its JobMaster is offered the slots of both sessions, in any order (B31, R13)."""
    job = WideJob(a=2, libraries=TWO)
    job.offer(TM1, 2, "old", libraries=ONE)
    assert job.state.pool.held == {}
    job.offer(TM2, 2, "new", libraries=TWO)
    assert [held.resource_id for held in job.state.pool.held.values()] == [TM2]


def test_slots_are_declared_for_the_libraries_of_the_version_that_will_use_them() -> None:
    """The ResourceManager would otherwise give slots in a session that cannot hold them (B31, m1)."""
    job = JobMaster(libraries=ONE).run()
    job.asked(m.DeclareNeeds)
    job.feed(ev.SlotsReserved({"a": 1}, TWO))
    (declared,) = job.asked(m.DeclareNeeds)
    assert isinstance(declared.request, m.DeclareNeeds)
    assert (declared.request.libraries, len(declared.request.needs)) == (TWO, 1)
    job.feed(ev.SlotsReserved())
    (declared,) = job.asked(m.DeclareNeeds)
    assert isinstance(declared.request, m.DeclareNeeds)
    assert (declared.request.libraries, declared.request.needs) == (ONE, ())


ANY_LIBRARIES = st.dictionaries(st.sampled_from(["java:a", "java:b", "native:c"]), st.sampled_from("12")).map(
    lambda found: tuple(sorted(Library(unit, digest) for unit, digest in found.items()))
)


@given(
    own=ANY_LIBRARIES,
    wanted=ANY_LIBRARIES,
    sessions=st.lists(ANY_LIBRARIES, max_size=3),
    widths=st.lists(st.integers(1, 3), min_size=1, max_size=3),
)
def test_whatever_the_libraries_are_the_next_version_can_use_what_was_reserved_for_it(
    own: tuple[Library, ...],
    wanted: tuple[Library, ...],
    sessions: list[tuple[Library, ...]],
    widths: list[int],
) -> None:
    """It is offered all slots of the job, and brings up each of its groups on those that it accepts (B31, H4)."""
    groups = {f"g{number}": width for number, width in enumerate(widths)}
    job = WideJob(libraries=own, **groups)
    held: list[tuple[ResourceId, int, tuple[Library, ...]]] = []

    def serve(resource: ResourceId, libraries: tuple[Library, ...]) -> None:
        for need in list(job.needs.values()):
            job.offer(resource, need.slots, need.allocation_id, libraries)
            held.append((resource, need.slots, libraries))

    serve(TM1, own)
    job.deploy()
    job.come_up()
    job.feed(ev.SlotsReserved(groups, wanted))
    for number, loaded in enumerate(sessions):
        if not clash(loaded, libraries_wanted(job.state)):  # the ResourceManager gives no others
            serve(ResourceId(f"tm-{number + 2}"), together(loaded, libraries_wanted(job.state)))
    assert job.state.status is JobStatus.RUNNING
    if not reserving.has_reserved(job.state):
        assert clash(own, wanted), "slots elsewhere are needed only then"
        return
    following = WideJob(libraries=wanted, **groups)
    for number, (resource, slots, libraries) in enumerate(held):
        following.offer(resource, slots, f"held-{number}", libraries)
    assert following.needs == {}
    assert not any(clash(h.libraries, wanted) for h in following.state.pool.held.values())
