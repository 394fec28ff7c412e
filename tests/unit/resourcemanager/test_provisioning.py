"""How many TaskManagers there should be: which start, which end, and which renew (R3, R6, R6a)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from msgspec.structs import replace as copy

from minflinkd.resourcemanager import events as ev
from minflinkd.resourcemanager.options import ResourceManagerOptions
from minflinkd.resourcemanager.provisioning import (
    CALM,
    LONELY,
    coming,
    hangs,
    is_coming,
    start_patience,
    starts_wanted,
    surplus,
    to_renew,
)
from minflinkd.resourcemanager.state import JobNeeds, Starts, Wish
from minflinkd.rpc.messages import Library, SessionPhase, SlotNeed
from minflinkd.runtime.ids import AllocationId, JobId, ResourceId
from tests.unit.resourcemanager.manager import (
    JOB1,
    JOB2,
    NO_STANDBY,
    READY,
    STARTING,
    TM1,
    TM2,
    TM3,
    B,
    C,
    Manager,
    leader,
)

OPTIONS = replace(NO_STANDBY, taskmanager_timeout=60.0)


@dataclass
class Has:
    """A TaskManager, idle for so many seconds unless JOB2 has a slot of it."""

    idle: float = 100.0
    in_use: bool = False
    aged: bool = False
    own: JobId | None = None
    standalone: bool = False
    session: SessionPhase = READY
    analysing: bool = False


def manager_with(*there: Has, now: float = 1000.0, **options: float) -> Manager:
    """Return a manager of these TaskManagers, tm-1, tm-2, ..."""
    manager = Manager(replace(OPTIONS, can_start=False))
    for number, has in enumerate(there, 1):
        tm = ResourceId(f"tm-{number}")
        held = {"s0": C} if has.in_use else {}
        report = manager.report_with(
            tm, has.session, session_aged=has.aged, dedicated_to=has.own, analysing=has.analysing, **held
        )
        manager.now = now - has.idle
        manager.register(tm, standalone=has.standalone, as_report=report)
    manager.now = now
    manager.options = replace(OPTIONS, **options)  # type: ignore[arg-type]
    return manager


def ends(manager: Manager) -> list[str]:
    return [tm.resource_id for tm, _ in surplus(manager.state, manager.options, manager.now)]


IDLE, USED, AGED = Has(), Has(in_use=True), Has(aged=True)


@pytest.mark.parametrize(
    ("there", "options", "end"),
    [
        ((Has(idle=60), Has(idle=59.9)), {}, ["tm-1"]),
        ((Has(idle=70), Has(idle=90), Has(idle=80)), {"standby": 1}, ["tm-2", "tm-3"]),  # the longest idle first
        ((IDLE, IDLE, IDLE), {"min": 2}, ["tm-1"]),
        ((IDLE, IDLE, IDLE), {"min": 1}, ["tm-1", "tm-2"]),
        ((IDLE, USED), {"min": 1}, ["tm-1"]),  # those in use count for the minimum
        ((IDLE, USED), {"min": 2}, []),
        ((IDLE, IDLE, USED), {"standby": 1}, ["tm-1"]),  # and not as standbys
        ((AGED, IDLE), {"standby": 1}, ["tm-1"]),  # nor do those with an aged session
        ((AGED, IDLE, IDLE), {"standby": 1}, ["tm-1", "tm-2"]),
        ((Has(standalone=True), IDLE), {"standby": 1}, ["tm-2"]),
        ((Has(own=JOB1, idle=LONELY), Has(idle=LONELY - 1)), {}, ["tm-1"]),
        ((Has(own=JOB1, idle=LONELY - 1),), {"taskmanager_timeout": 1.0}, []),
        ((Has(own=JOB1, analysing=True),), {}, []),
        ((Has(own=JOB1, idle=200), IDLE), {"min": 1}, ["tm-1"]),  # after it there is only the minimum left
        ((Has(own=JOB1, idle=200), IDLE, IDLE), {"min": 1}, ["tm-1", "tm-2"]),
        ((Has(own=JOB1, idle=200), IDLE, IDLE), {"standby": 1}, ["tm-1", "tm-2"]),
    ],
)
def test_idle_taskmanagers_end_that_nobody_needs(
    there: tuple[Has, ...], options: dict[str, float], end: list[str]
) -> None:
    """Those beyond `standby` and `min` after a while, and those of a job's own when it does not come back (R6, R24)."""
    assert ends(manager_with(*there, **options)) == end


def test_a_need_keeps_idle_taskmanagers_and_one_to_grow_does_not() -> None:
    """A need that waits may be served by them soon. A job that would only grow has what it needs (R6, R20)."""
    manager = manager_with(IDLE)
    manager.needs(a=SlotNeed(allocation_id=AllocationId("a"), slots=3))
    assert ends(manager) == []
    beside = SlotNeed(allocation_id=AllocationId("a"), slots=4, least=4, beside=ResourceId("tm-2"), held=1)
    manager.needs(version=2, a=beside)
    assert ends(manager) == ["tm-1"]


@pytest.mark.parametrize(("standby", "end"), [(0, ["tm-1", "tm-2"]), (1, ["tm-1", "tm-2"]), (2, ["tm-1"])])
def test_whoever_is_expected_soon_finds_one_taskmanager_at_least(standby: int, end: list[str]) -> None:
    """For example, an analysis is, or a job that has just lost a TaskManager (R6, R11)."""
    manager = manager_with(IDLE, IDLE, IDLE, standby=standby)
    manager.state = replace(manager.state, wishes={"session": Wish(0, until=2000.0)})
    assert ends(manager) == end


def test_a_standby_that_is_starting_counts_as_one() -> None:
    """Otherwise more TaskManagers than are wanted would be kept while it starts (R6)."""
    manager = manager_with(IDLE, standby=2)
    manager.started = 1
    assert manager.tick() == [ev.StartTaskManager(ResourceId("tm-2"))]
    manager.options = replace(manager.options, standby=1)
    assert ends(manager) == ["tm-1"]


@pytest.mark.parametrize("for_good", [True, False])
def test_a_jobs_own_taskmanager_ends_at_once_only_if_the_job_has_ended(for_good: bool) -> None:
    """A JobMaster that is only silent may have a successor (R13, R24)."""
    manager = manager_with(Has(own=JOB1, idle=1.0))
    manager.needs(held=(B,))
    manager.feed(ev.JobMasterGone(JOB1, leader(JOB1), for_good))
    assert ends(manager) == (["tm-1"] if for_good else [])


def renewed(manager: Manager) -> list[str]:
    return [tm.resource_id for tm in to_renew(manager.state, manager.options, manager.now)]


@pytest.mark.parametrize(
    ("there", "options", "expected"),
    [
        ((Has(aged=True, idle=CALM), Has(aged=True, idle=CALM - 1)), {"max_concurrent_starts": 9}, ["tm-1"]),
        ((AGED, AGED, AGED), {"max_concurrent_starts": 2}, ["tm-1", "tm-2"]),
        ((AGED, AGED, Has(session=STARTING)), {"max_concurrent_starts": 2}, ["tm-1"]),  # which counts as one of two
        ((AGED, Has(session=STARTING)), {}, []),
        ((AGED, USED), {"standby": 1, "max": 9}, []),  # nobody stands in
        ((AGED, Has(own=JOB2)), {"standby": 1, "max": 9}, []),
        ((AGED, Has(session=STARTING)), {"standby": 1, "max": 9, "max_concurrent_starts": 2}, []),
        ((AGED, IDLE), {"standby": 1, "max": 9}, ["tm-1"]),
        ((AGED, IDLE), {"standby": 2, "max": 9}, ["tm-1"]),  # one that stands in is enough
        ((AGED, USED), {"standby": 1, "max": 2}, ["tm-1"]),  # nobody can
        ((Has(aged=True, in_use=True), IDLE), {}, []),
        ((IDLE,), {}, []),
    ],
)
def test_idle_taskmanagers_with_aged_sessions_renew_them(
    there: tuple[Has, ...], options: dict[str, float], expected: list[str]
) -> None:
    """If a standby is kept, one must stand in, unless none can be had. No more renew at once than may start (R6a)."""
    assert renewed(manager_with(*there, **options)) == expected


def test_a_session_is_renewed_without_a_standby_while_starts_fail() -> None:
    """Otherwise it would never be renewed (R6a)."""
    manager = manager_with(AGED, standby=1, max=9)
    manager.state = replace(manager.state, starts=Starts(failed=1))
    assert renewed(manager) == ["tm-1"]


# --- starts ----------------------------------------------------------------------------------------------------------

FOUR = ResourceManagerOptions(slots_per_tm=4, standby=0, max=9, max_concurrent_starts=9)


def need(slots: int, least: int = 0) -> SlotNeed:
    return SlotNeed(allocation_id=AllocationId(f"{slots} or {least}"), slots=slots, least=least)


def wanted(manager: Manager, *needs: SlotNeed, exclusive: bool = False, libraries: tuple[Library, ...] = ()) -> int:
    """Return how many TaskManagers are started if JOB1 declares these needs. None is served meanwhile."""
    numbered = tuple(copy(one, allocation_id=AllocationId(f"a{i}")) for i, one in enumerate(needs))
    declaration = copy(manager.declaration(JOB1, 1, (), "", exclusive), needs=numbered, libraries=libraries)
    job = JobNeeds(declaration, since=manager.now, number=0)
    return len(starts_wanted(manager.state.with_job(JOB1, job), manager.options, manager.now))


@pytest.mark.parametrize(
    ("needs", "starts"),
    [
        ((), 0),
        ((4, 4, 4), 3),
        ((1, 3, 4), 2),  # the largest is placed first, and the tightest room that takes a need is used
        ((2, 1, 3, 2), 2),
        ((3, 2, 2, 1), 2),
        ((3, 3, 1, 1), 2),
        ((1, 1, 1, 1, 1), 2),
        ((5,), 0),  # none would have room
        ((5, 4), 1),
    ],
)
@pytest.mark.parametrize("exclusive", [False, True])
def test_as_many_are_started_as_the_needs_fill(needs: tuple[int, ...], starts: int, exclusive: bool) -> None:
    """Those of a job that wants TaskManagers of its own are placed in the same way (R3, R24)."""
    assert wanted(Manager(FOUR), *(need(slots) for slots in needs), exclusive=exclusive) == starts


def test_a_need_that_takes_fewer_slots_is_placed_as_large_as_a_taskmanager_is() -> None:
    """R20."""
    assert wanted(Manager(FOUR), need(9, least=4)) == 1
    assert wanted(Manager(FOUR), need(9, least=1), need(1)) == 2
    assert wanted(Manager(FOUR), need(9, least=5)) == 0


@pytest.mark.parametrize(
    ("options", "starts"),
    [
        ({"max": 1}, 1),
        ({"max_concurrent_starts": 2}, 2),
        ({"can_start": False}, 0),
        ({"standby": 2}, 5),
        ({"standby": 2, "max_concurrent_starts": 4}, 4),
        ({"standby": 2, "max": 4}, 4),
    ],
)
def test_needs_come_first_then_standbys_and_no_more_than_may_run_or_start(options: dict[str, int], starts: int) -> None:
    """R3, R6."""
    assert wanted(Manager(replace(FOUR, **options)), need(4), need(4), need(4)) == starts  # type: ignore[arg-type]


def test_nothing_is_started_in_the_pause_after_a_failure() -> None:
    """R5."""
    manager = Manager(FOUR)
    manager.state = replace(manager.state, starts=Starts(failed=1, not_before=10.0))
    manager.now = 9.9
    assert wanted(manager, need(1)) == 0
    manager.now = 10.0
    assert wanted(manager, need(1)) == 1


ONE, TWO = (Library("java:com/acme", "1"),), (Library("java:com/acme", "2"),)


@pytest.mark.parametrize(
    ("session", "more", "size", "starts"),
    [
        (READY, {}, 4, 0),
        (READY, {"s0": C}, 3, 0),
        (READY, {"s0": C}, 4, 1),
        (STARTING, {}, 4, 0),
        (STARTING, {"s0": C}, 3, 0),
        (READY, {"session_aged": True}, 4, 0),
        (READY, {"dedicated_to": JOB2}, 1, 1),
        (READY, {"libraries": ONE}, 4, 0),
        (READY, {"libraries": TWO}, 1, 1),
        (STARTING, {"libraries": TWO}, 1, 1),
    ],
)
def test_a_need_starts_nothing_if_there_is_room_or_will_be_soon(
    session: SessionPhase, more: dict[str, Any], size: int, starts: int
) -> None:
    """A TaskManager that has registered has room for the libraries of all but other versions (R3, B31)."""
    manager = Manager(FOUR)
    manager.register(TM1, as_report=manager.report_with(TM1, session, **more))
    assert wanted(manager, need(size), libraries=ONE) == starts
    if not starts:
        assert wanted(manager, need(size), need(size), libraries=ONE) == 1


def test_each_of_several_taskmanagers_has_its_room() -> None:
    """However large they are, and whether their sessions are ready (R3)."""
    for session in (READY, STARTING):
        manager = Manager(FOUR)
        manager.register(TM1, as_report=manager.report_with(TM1, session, dedicated_to=JOB2))
        manager.register(TM2, session, s0=C, s1=C)
        manager.register(TM3, session, slots=3, s0=C)
        assert wanted(manager, need(2), need(2)) == 0
        assert wanted(manager, need(2), need(2), need(2)) == 1
    manager = Manager(FOUR, now=100.0, started=1)
    manager.feed(ev.TaskManagersFound((TM1,)))
    manager.needs(JOB2, c=4)
    manager.now += manager.options.heartbeat_timeout
    manager.needs(JOB2, version=2, c=4, d=4)
    assert coming(manager.state, manager.options, manager.now) == 2
    manager.needs(JOB2, version=3)
    assert wanted(manager, need(4), need(4)) == 0
    assert wanted(manager, need(4), need(4), need(4)) == 1


def test_taskmanagers_that_run_count_for_the_number_that_may_run() -> None:
    """R6."""
    manager = Manager(replace(FOUR, max=3))
    manager.register(TM1, s0=C, s1=C, s2=C, s3=C)
    assert wanted(manager, need(4), need(4), need(4)) == 2


def test_only_one_start_is_under_way_however_late_it_is_by_the_clock() -> None:
    """R11."""
    manager = Manager(replace(FOUR, max_concurrent_starts=1), now=1000.0)
    assert manager.needs(a=4) == [ev.StartTaskManager(TM1)]
    assert manager.needs(version=2, a=4, b=4) == []


def test_a_room_holds_its_own_libraries_and_those_of_all_that_is_placed_in_it() -> None:
    """B31."""
    for libraries, starts in ((TWO, 1), (ONE, 0)):
        manager = Manager(FOUR)
        manager.register(TM1, as_report=manager.report_with(TM1, libraries=ONE))
        manager.state = replace(manager.state, wishes={"job": Wish(2, 9.0)})
        assert wanted(manager, need(1), libraries=libraries) == starts


def test_a_session_for_an_analysis_takes_no_slot_so_a_standby_can_lend_it() -> None:
    """R6."""
    session = {"session": Wish(0, 9.0)}
    manager = Manager(replace(FOUR, standby=1))
    manager.state = replace(manager.state, wishes=session)
    assert wanted(manager) == 1
    manager.register(TM1)
    manager.state = replace(manager.state, wishes=session)
    assert wanted(manager) == 0


def test_a_wish_larger_than_a_taskmanager_that_could_be_started_starts_none() -> None:
    """It was for a larger one, that somebody else started. Other needs are not kept from a start by it (R7)."""
    manager = Manager(FOUR)
    manager.state = replace(manager.state, wishes={"job": Wish(9, 9.0)})
    assert wanted(manager) == 0
    assert wanted(manager, need(1)) == 1


def test_libraries_of_two_needs_that_clash_take_two_taskmanagers() -> None:
    """A wish brings its libraries like a need (B31)."""
    manager = Manager(FOUR)
    for libraries, starts in ((ONE, 1), (TWO, 2)):
        manager.state = replace(manager.state, wishes={"session": Wish(0, 100.0, libraries=libraries)})
        assert wanted(manager, need(1), libraries=ONE) == starts


@pytest.mark.parametrize(("wish", "starts"), [(Wish(3, 9.0), 1), (Wish(2, 9.0), 1), (Wish(3, 9.0, exclusive=True), 2)])
def test_a_wish_is_placed_like_a_need(wish: Wish, starts: int) -> None:
    """R11, R20."""
    manager = Manager(FOUR)
    manager.state = replace(manager.state, wishes={"job": wish})
    assert wanted(manager) == 1
    assert wanted(manager, need(1)) == starts
    assert wanted(manager, need(2)) == (2 if wish.slots > 2 else 1)


def test_a_job_uses_what_is_left_of_its_own_taskmanagers_first() -> None:
    """Each room of its own is used as far as it goes, and the tightest first (R24)."""
    manager = Manager(FOUR)
    for tm, held in ((TM1, {"s0": B}), (TM2, {"s0": B, "s1": B})):
        manager.register(tm, as_report=manager.report_with(tm, dedicated_to=JOB1, **held))
    for needs, starts in (((3, 2), 0), ((2, 3), 0), ((2, 1, 1, 1), 0), ((2, 2), 0), ((3, 3), 1), ((2, 2, 2), 1)):
        assert wanted(manager, *(need(slots) for slots in needs), exclusive=True) == starts


def test_a_standby_is_whole_not_aged_and_nobodys_own() -> None:
    """It may be on its way (R6)."""
    options = replace(FOUR, standby=1)
    rows: list[tuple[SessionPhase, dict[str, Any], int]] = [
        (READY, {}, 0),
        (STARTING, {}, 0),
        (READY, {"s0": C}, 1),
        (READY, {"session_aged": True}, 1),
        (READY, {"dedicated_to": JOB2}, 1),
    ]
    for session, more, starts in rows:
        manager = Manager(FOUR)
        manager.register(TM1, as_report=manager.report_with(TM1, session, **more))
        assert len(starts_wanted(manager.state, options, 0.0)) == starts


# --- starts that hang ------------------------------------------------------------------------------------------------


def starting(**options: float) -> Manager:
    """TM1's process starts at 1000 s. Its session begins to start at 1010 s."""
    manager = Manager(replace(FOUR, start_timeout=100.0, **options))  # type: ignore[arg-type]
    manager.now = 1000.0
    manager.needs(a=1)
    manager.now = 1010.0
    manager.register(TM1, STARTING)
    return manager


def why_given_up(manager: Manager, now: float) -> str | None:
    return hangs(manager.state.task_managers[TM1], manager.state, manager.options, now)


def test_a_session_is_given_up_after_its_timeout_without_progress() -> None:
    """The time counts from its last step, if there was one (R5)."""
    manager = starting()
    assert why_given_up(manager, 1109.9) is None
    assert why_given_up(manager, 1110.0) == "its session was not ready for 100 s"
    manager.now = 1050.0
    manager.feed(ev.Reported(copy(manager.report(TM1, STARTING), session_steps=1)))
    assert why_given_up(manager, 1149.9) is None
    assert why_given_up(manager, 1150.0) == "its session was not ready for 140 s"


def test_a_session_is_not_given_up_while_it_is_ready_or_slots_are_taken() -> None:
    """Its jobs decide about slots that they hold (R5)."""
    manager = Manager(replace(FOUR, start_timeout=100.0))
    manager.register(TM1)
    assert why_given_up(manager, 5000.0) is None
    manager.now = 5000.0
    manager.feed(ev.Reported(manager.report(TM1, STARTING, s0=C)))
    assert why_given_up(manager, 9000.0) is None
    manager.feed(ev.Reported(manager.report(TM1, STARTING)))
    assert why_given_up(manager, 5099.9) is None
    assert why_given_up(manager, 5100.0) == "its session was not ready for 100 s"


def test_a_session_that_never_becomes_ready_is_given_up_in_the_end() -> None:
    """After ten timeouts, though it makes progress all the time (R5)."""
    manager = starting()
    for steps in range(1, 20):
        manager.now = 1010.0 + 50 * steps
        manager.feed(ev.Reported(copy(manager.report(TM1, STARTING), session_steps=steps)))
        assert why_given_up(manager, manager.now) is None
    assert why_given_up(manager, 2009.9) is None
    assert why_given_up(manager, 2010.0) == "its session was not ready for 1000 s"


def test_slots_of_a_starting_session_are_expected_for_its_timeout_and_no_longer() -> None:
    """Then another TaskManager is started for those who wait (R3)."""
    manager = starting()
    tm = manager.state.task_managers[TM1]
    for now, expected in ((1109.9, True), (1110.0, False)):
        assert is_coming(tm, manager.options, now) is expected
        assert coming(manager.state, manager.options, now) == int(expected)
        assert len(starts_wanted(manager.state, manager.options, now)) == int(not expected)


def test_a_start_that_takes_half_its_timeout_keeps_no_other_from_starting() -> None:
    """It may hang (R11)."""
    manager = starting(max_concurrent_starts=1)
    for now, starts in ((1059.9, 0), (1060.0, 1)):
        manager.now = now
        assert wanted(manager, need(4), need(4)) == starts


def test_a_session_that_was_ready_once_is_no_start() -> None:
    """It keeps no other from starting, however short it has been away (R11)."""
    manager = Manager(replace(FOUR, max_concurrent_starts=1))
    manager.register(TM1)
    manager.feed(ev.Reported(manager.report(TM1, STARTING)))
    assert wanted(manager, need(4), need(4)) == 1


def test_the_time_for_a_start_is_doubled_three_times_at_most() -> None:
    """R5."""
    manager = Manager(replace(FOUR, start_timeout=100.0))
    for failed, patience in enumerate((100.0, 200.0, 400.0, 800.0, 800.0)):
        assert start_patience(replace(manager.state, starts=Starts(failed)), manager.options) == patience
