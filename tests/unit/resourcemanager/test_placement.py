"""Which TaskManager serves a need, and which needs wait for slots that the job's own TaskManagers will offer (R13)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace as copy

from minflinkd import __version__
from minflinkd.resourcemanager import events as ev
from minflinkd.resourcemanager.options import ResourceManagerOptions
from minflinkd.resourcemanager.placement import covered
from minflinkd.resourcemanager.slot_manager import REST
from minflinkd.rpc.messages import Library, SlotNeed
from minflinkd.runtime.ids import AllocationId, LeaderId, ResourceId
from tests.unit.resourcemanager.manager import (
    JOB1,
    JOB2,
    LOST,
    READY,
    STARTING,
    TM1,
    TM2,
    A,
    B,
    C,
    Manager,
)

ONE = (Library("java:com/acme", "1"),)
NO_START = ResourceManagerOptions(slots_per_tm=4, standby=0, can_start=False)
NEXT = LeaderId("leader of 1, the next")


@dataclass
class Seen:
    """A TaskManager as it registers. B is JOB1's and C is JOB2's."""

    at: float = 0.0
    size: int = 4
    held: tuple[AllocationId, ...] = ()
    aged: bool = False
    libraries: tuple[Library, ...] = ()
    build: str = ""

    def register(self, manager: Manager, tm: ResourceId) -> None:
        held = {f"s{i}": allocation for i, allocation in enumerate(self.held)}
        report = manager.report(tm, READY, self.size, **held)
        manager.now = self.at
        manager.register(tm, as_report=copy(report, session_aged=self.aged, libraries=self.libraries), build=self.build)


PREFERENCES = {
    "more of what is needed": (Seen(at=1), Seen(held=(B, C, C), libraries=ONE)),
    "the job is there already": (Seen(at=1, held=(B,), aged=True), Seen(held=(C, C), libraries=ONE)),
    "the job is there, and another of its kind is found first": (Seen(at=1, held=(B,)), Seen(held=(C,))),
    "it is of this version (A15b)": (
        Seen(at=1, aged=True, build=__version__),
        Seen(held=(C,), build="0.0.9", libraries=ONE),
    ),
    "it is of this version, and another of its kind is found first": (
        Seen(at=1, build=__version__),
        Seen(build="0.0.9"),
    ),
    "it came earlier, of a version that is not known": (
        Seen(size=3, held=(C,)),
        Seen(at=1, held=(C, C), build=__version__),
    ),
    "its session has not aged": (Seen(at=1), Seen(held=(C,), aged=True, libraries=ONE)),
    "it is in use": (Seen(at=1, held=(C,)), Seen(libraries=ONE)),
    "it has the job's libraries": (Seen(at=1, libraries=ONE), Seen(size=2)),
    "it is fuller": (Seen(at=1, held=(C, C)), Seen(held=(C,))),
    "it came earlier": (Seen(size=3, held=(C,)), Seen(at=1, held=(C, C))),
}


@pytest.mark.parametrize(("better", "worse"), PREFERENCES.values(), ids=PREFERENCES)
@pytest.mark.parametrize("first", ["better", "worse"])
def test_a_need_goes_where_the_first_preference_that_differs_is_met(better: Seen, worse: Seen, first: str) -> None:
    """Whatever the later preferences say, and whichever TaskManager registered first."""
    manager = Manager(NO_START)
    seen = [(TM2, better), (TM1, worse)]
    for tm, one in seen if first == "better" else reversed(seen):
        one.register(manager, tm)
    manager.now = 2.0
    manager.needs(JOB2, held=(C,))
    manager.needs(held=(B,), libraries=ONE, a=SlotNeed(allocation_id=A, slots=2, least=1))
    assert manager.state.holdings[JOB1][A] == (TM2,)


@pytest.mark.parametrize(
    "more",
    [
        {"session": STARTING},
        {"session": LOST, "s1": B, "s2": B, "s3": B},
        {"s1": B, "s2": B, "s3": B},
        {"dedicated_to": JOB2},
        {"libraries": (Library("java:com/acme", "2"),)},
        {"session": STARTING, "libraries": (Library("java:com/acme", "2"),)},
    ],
)
def test_where_the_job_is_already_it_gets_slots_only_if_anybody_would(more: dict[str, Any]) -> None:
    """The session is ready, a slot is free, and it is not another job's own nor holds another version (R24, B31)."""
    manager = Manager(NO_START)
    manager.register(TM1, s0=C)
    manager.register(TM2, as_report=manager.report_with(TM2, **{"s0": B} | more))
    manager.needs(JOB2, held=(C,))
    manager.needs(held=(B,), libraries=ONE, a=1)
    assert manager.state.holdings[JOB1][A] == (TM1,)


def test_where_the_job_is_already_it_asks_again_after_the_rest() -> None:
    """R2."""
    for now, tm in ((REST - 0.1, TM1), (REST, TM2)):
        manager = Manager(NO_START)
        manager.register(TM1, s0=C)
        manager.register(TM2, s0=B)
        manager.needs(JOB2, held=(C,))
        manager.feed(ev.AllocationAnswered(A, False, manager.report(TM2, s0=B)))
        manager.now = now
        manager.needs(held=(B,), a=1)
        assert manager.state.holdings[JOB1][A] == (tm,)


def test_of_equals_the_one_with_the_lowest_id_is_taken() -> None:
    """So the same events lead to the same placement, always."""
    manager = Manager(NO_START)
    Seen(size=3, held=(C,)).register(manager, TM2)
    Seen(held=(C, C)).register(manager, TM1)
    manager.needs(JOB2, held=(C,))
    manager.needs(a=2)
    assert manager.state.holdings[JOB1][A] == (TM1,)


def need(name: str, slots: int, least: int = 0) -> SlotNeed:
    return SlotNeed(allocation_id=AllocationId(name), slots=slots, least=least)


@pytest.mark.parametrize(
    ("sizes", "needs", "names"),
    [
        ((2, 2), (need("a", 2), need("b", 2)), "ab"),
        ((2,), (need("a", 2), need("b", 2)), "a"),  # one allocation is for one need
        ((2, 4), (need("a", 2), need("b", 4)), "ab"),  # the largest need chooses first
        ((4, 2), (need("a", 4), need("b", 2)), "ab"),
        ((2, 3), (need("a", 4),), ""),  # too small
        ((4,), (need("a", 2),), "a"),  # larger is enough
        ((4, 3), (need("a", 3), need("b", 3), need("c", 3)), "ab"),
        ((1, 3), (need("a", 2, 1), need("b", 2, 2)), "a"),  # one with all of its slots is taken before one with a part
        ((1, 2), (need("a", 3, 1), need("b", 2, 2)), "a"),  # the closest of those with a part
    ],
)
def test_slots_that_the_jobs_taskmanagers_will_offer_serve_one_need_each(
    sizes: tuple[int, ...], needs: tuple[SlotNeed, ...], names: str
) -> None:
    """Its new JobMaster does not know of them yet (R13)."""
    manager = Manager(NO_START)
    for number, size in enumerate(sizes):
        held = {f"s{i}": AllocationId(f"of the job's {number}") for i in range(size)}
        manager.register(ResourceId(f"tm-{number}"), as_report=manager.report(ResourceId(f"tm-{number}"), **held))
    manager.needs(by=NEXT, **{need.allocation_id: need for need in needs})
    assert covered(manager.state, JOB1, manager.options, manager.now) == set(names)
