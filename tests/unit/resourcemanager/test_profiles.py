"""Who gets slots of which size, and TaskManagers of which size are started (R40)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as copy

from minflinkd.resourcemanager import events as ev
from minflinkd.resourcemanager.options import ResourceManagerOptions
from minflinkd.resourcemanager.provisioning import FAILED_STARTS
from minflinkd.resourcemanager.sizes import LEAST_HEAP, TaskManagerSize, size_for
from minflinkd.rpc.messages import SlotNeed
from minflinkd.runtime.ids import AllocationId, JobId, ResourceId
from minflinkd.runtime.resource_profile import NO_PROFILE, ResourceProfile, parse_profile
from tests.unit.resourcemanager.manager import JOB1, JOB2, STARTING, TM1, TM2, TM3, A, B, C, Manager, allocate

JOB3 = JobId("3" * 32)
DEFAULT = parse_profile({"cpu": 1, "memory": "1 GiB"})
LARGE = parse_profile({"memory": "4 GiB"})
LARGER = parse_profile({"memory": "8 GiB"})
GPU = parse_profile({"gpu": 1})
MOST = parse_profile({"cpu": 4, "memory": "16 GiB", "gpu": 2})
OPTIONS = ResourceManagerOptions(slots_per_tm=2, standby=0, profile=DEFAULT, largest=MOST, max_concurrent_starts=4)
FIXED = replace(OPTIONS, can_start=False, profile=NO_PROFILE, largest=None)
FULL = replace(OPTIONS, max=1)
WITH_GPU = DEFAULT | GPU
WITH_LARGE = DEFAULT | LARGE


def need(allocation: AllocationId, slots: int, profile: ResourceProfile, least: int = 0) -> SlotNeed:
    return SlotNeed(allocation_id=allocation, slots=slots, least=least, profile=profile)


def start(number: int, slots: int, profile: ResourceProfile) -> ev.StartTaskManager:
    return ev.StartTaskManager(ResourceId(f"tm-{number}"), TaskManagerSize(slots, profile))


def on(commands: list[ev.Command]) -> list[ResourceId]:
    return [command.resource_id for command in commands if isinstance(command, ev.SendAllocate)]


# --- which TaskManager -----------------------------------------------------------------------------------------------


def test_a_need_gets_no_slots_that_have_less_than_it_wants() -> None:
    """R40."""
    manager = Manager(FIXED)
    manager.register(TM1, profile=DEFAULT)
    manager.register(TM2)
    assert manager.needs(a=need(A, 1, LARGE)) == []
    assert manager.register(TM3, profile=LARGE) == [allocate(TM3, (0,), A)]


def test_a_need_gets_the_slots_that_fit_best() -> None:
    """Of several that serve it, those with the least more than it wants (R40)."""
    manager = Manager(FIXED)
    for tm, profile in ((TM1, LARGER | GPU), (TM2, LARGER), (TM3, LARGE | GPU)):
        manager.register(tm, profile=profile)
    assert on(manager.needs(a=need(A, 1, LARGE))) == [TM2]


def test_the_number_of_slots_counts_more_than_the_fit() -> None:
    """R3, R40."""
    manager = Manager(FIXED)
    manager.register(TM1, slots=1, profile=LARGE)
    manager.register(TM2, slots=2, profile=LARGER)
    assert on(manager.needs(a=need(A, 2, LARGE, least=1))) == [TM2]


def test_of_one_job_the_group_with_the_largest_demands_is_served_first() -> None:
    """Otherwise the other group would take the only slot that serves it (R40)."""
    manager = Manager(FIXED)
    manager.register(TM1, slots=1, profile=LARGER)
    assert manager.needs(a=need(A, 1, NO_PROFILE), b=need(B, 1, LARGE)) == [allocate(TM1, (0,), B)]


def test_a_job_that_wants_nothing_special_leaves_special_slots_alone_while_another_can_start() -> None:
    """The slots are there for others as soon as these come (R40)."""
    manager = Manager(OPTIONS, started=1)
    manager.register(TM1, profile=WITH_GPU)
    assert manager.needs(a=2) == [ev.StartTaskManager(TM2)]
    assert on(manager.needs(JOB2, c=need(C, 1, GPU))) == [TM1]


def test_a_job_that_wants_nothing_special_takes_special_slots_if_there_are_no_others() -> None:
    """No other TaskManager can start, and nobody else waits for them (R40)."""
    manager = Manager(FULL)
    manager.register(TM1, profile=WITH_GPU)
    assert on(manager.needs(a=1)) == [TM1]


def test_cores_and_disk_of_another_host_make_no_slots_special() -> None:
    """An earlier leader, on a larger host, may have started the TaskManager, and any job may have its slots (R40)."""
    manager = Manager(OPTIONS, started=1)
    manager.register(TM1, profile=DEFAULT | parse_profile({"cpu": 4, "disk": "1 TB"}))
    assert on(manager.needs(a=2)) == [TM1]


def test_it_waits_for_a_taskmanager_that_comes_instead() -> None:
    """As many TaskManagers as there may be are there or start, one of them for this job (R40)."""
    manager = Manager(replace(OPTIONS, max=2))
    manager.register(TM2, profile=WITH_GPU)
    assert manager.needs(a=1) == [ev.StartTaskManager(TM1)]
    assert manager.tick(1.0) == []
    assert on(manager.register(TM1, profile=DEFAULT)) == [TM1]


def test_a_host_with_more_memory_that_registers_by_itself_is_for_anybody_but_its_gpus_are_not() -> None:
    """Standalone TaskManagers count like others, as always (R7, R40)."""
    manager = Manager(OPTIONS)
    manager.register(TM2, profile=LARGER, standalone=True)
    assert on(manager.needs(a=1)) == [TM2]
    manager.register(TM3, profile=WITH_GPU, standalone=True)
    assert on(manager.needs(JOB2, b=need(B, 2, NO_PROFILE))) == []
    assert on(manager.needs(JOB3, c=need(C, 1, GPU))) == [TM3]


# --- who does not starve ---------------------------------------------------------------------------------------------


def test_slots_are_kept_for_an_older_need_that_nothing_smaller_serves() -> None:
    """Two slots with a GPU are wanted. Jobs that need one slot each would take each of them as it falls free (R40)."""
    manager = Manager(FIXED)
    manager.register(TM1, profile=GPU, s0=A)
    manager.register(TM2, profile=NO_PROFILE, s0=A, s1=A)
    manager.needs(JOB2, c=need(C, 2, GPU))
    assert on(manager.needs(JOB3, b=1)) == [], "the second slot is kept, though it is free"
    assert on(manager.feed(ev.Reported(manager.report(TM1)))) == [TM1]
    assert manager.state.task_managers[TM1].jobs == (JOB2,)


def test_a_need_that_came_before_is_not_kept_waiting() -> None:
    """It takes the slot, although a later job waits for it (R40)."""
    manager = Manager(FIXED)
    manager.register(TM1, profile=GPU, s0=A, s1=A)
    manager.register(TM2, profile=NO_PROFILE, s0=A, s1=A)
    manager.needs(JOB3, b=1)
    manager.needs(JOB2, c=need(C, 2, GPU))
    assert manager.feed(ev.Reported(manager.report(TM1, s0=A)))[0] == allocate(TM1, (1,), B, JOB3)


def test_a_need_for_which_a_taskmanager_can_start_leaves_slots_to_a_later_one_that_needs_them() -> None:
    """Both are open when the slots become free. The GPU is on a host of its own, and none can be started (R40)."""
    manager = Manager(replace(OPTIONS, largest=parse_profile({"cpu": 9, "memory": "64 GiB"})))
    manager.register(TM2, profile=LARGER | GPU, standalone=True, s0=A, s1=A)
    assert manager.needs(JOB3, b=need(B, 1, LARGE)) == [start(1, 1, WITH_LARGE)]
    manager.needs(JOB2, c=need(C, 2, GPU))
    assert on(manager.feed(ev.Reported(manager.report(TM2, s0=A)))) == []
    assert on(manager.feed(ev.Reported(manager.report(TM2)))) == [TM2]
    assert manager.state.task_managers[TM2].jobs == (JOB2,)


def test_demands_that_every_taskmanager_meets_keep_nothing_from_others() -> None:
    """Slots go to whom they always went: a wide need waits for the number, not for the size (R40)."""
    for options in (FIXED, replace(OPTIONS, max=1)):
        manager = Manager(options)
        manager.register(TM1, profile=DEFAULT, s0=A)
        manager.needs(JOB2, c=need(C, 2, DEFAULT))
        assert on(manager.needs(JOB3, b=1)) == [TM1]


def test_growth_takes_no_slots_that_somebody_waits_for() -> None:
    """R20, R40."""
    manager = Manager(replace(FIXED, slots_per_tm=4))
    manager.register(TM1, profile=GPU, s0=A)
    manager.register(TM2, profile=NO_PROFILE, s0=C, s1=C, s2=C, s3=C)
    grows = SlotNeed(allocation_id=B, slots=2, least=2, beside=TM1, held=1)
    manager.needs(JOB2, d=need(AllocationId("d"), 4, GPU))
    manager.now = 10.0  # by now a JobMaster of JOB2 was offered everything that the job may hold
    assert on(manager.needs(JOB1, held=(A,), b=grows)) == []
    assert on(manager.needs(JOB2, version=2)) == [TM1]


# --- what is started -------------------------------------------------------------------------------------------------


def test_what_is_started_has_what_the_need_wants_and_no_less_than_by_default() -> None:
    """It has as many slots as are wanted, and not more than a TaskManager has (R40)."""
    manager = Manager(OPTIONS)
    assert manager.needs(a=need(A, 1, LARGE)) == [start(1, 1, WITH_LARGE)]
    assert manager.needs(JOB2, c=need(C, 5, GPU, least=1)) == [start(2, 2, WITH_GPU)]


def test_demands_that_the_default_meets_start_a_default_taskmanager() -> None:
    """R40."""
    manager = Manager(OPTIONS)
    assert manager.needs(a=need(A, 1, DEFAULT)) == [ev.StartTaskManager(TM1)]


def test_a_starting_taskmanager_counts_for_what_it_will_be() -> None:
    """It is started once, and serves the need when it is there (R3, R40)."""
    manager = Manager(OPTIONS)
    manager.needs(a=need(A, 2, LARGE))
    assert manager.tick(1.0) == []
    assert manager.needs(JOB2, c=2) == [ev.StartTaskManager(TM2)], "a job with no demands waits for no special one"
    assert manager.register(TM1, STARTING, profile=WITH_LARGE) == []
    assert on(manager.feed(ev.Reported(manager.report(TM1)))) == [TM1]
    assert manager.state.task_managers[TM1].jobs == (JOB1,)


def test_a_taskmanager_of_an_earlier_daemon_may_have_what_is_wanted_until_it_says_what_it_has() -> None:
    """The job that needs it most often has it already. Otherwise one would be started at each restart (R7, R40)."""
    manager = Manager(OPTIONS)
    manager.feed(ev.TaskManagersFound((TM3,)))
    assert manager.needs(a=need(A, 1, GPU)) == []
    assert manager.register(TM3, profile=DEFAULT) == [start(1, 1, WITH_GPU)]


def test_slots_that_are_too_small_are_not_waited_for_when_a_job_wants_larger_ones() -> None:
    """Its earlier version has them. They will be offered, and not taken (R13, R40)."""
    manager = Manager(FIXED)
    manager.register(TM1, profile=DEFAULT, s0=A)
    manager.register(TM2, profile=LARGE)
    assert on(manager.needs(b=need(B, 1, LARGE))) == [TM2]
    assert on(manager.needs(version=2, b=need(AllocationId("d"), 1, DEFAULT))) == []


def test_it_has_fewer_slots_if_it_would_be_too_large_otherwise() -> None:
    """As long as these are enough for the need (R40)."""
    assert size_for(OPTIONS, parse_profile({"cpu": 3}), 2, 1) == TaskManagerSize(1, parse_profile({"cpu": 3}) | DEFAULT)
    assert size_for(OPTIONS, parse_profile({"cpu": 3}), 2, 2) is None
    assert size_for(OPTIONS, parse_profile({"fpga": 1}), 1, 1) is None
    assert size_for(replace(OPTIONS, largest=None), parse_profile({"fpga": 1}), 1, 1) is not None


def test_a_session_has_a_heap_that_it_can_start_with() -> None:
    """The share of one slot may be too small for that (R40)."""
    options = replace(OPTIONS, slots_per_tm=8, profile=parse_profile({"memory": "128 MiB"}))
    size = size_for(options, GPU, 1, 1)
    assert size is not None
    assert (size.slots, size.profile.memory) == (1, LEAST_HEAP)


def test_standbys_have_the_default_size_and_a_special_one_is_none() -> None:
    """R6, R40."""
    manager = Manager(replace(OPTIONS, standby=1, taskmanager_timeout=10.0))
    assert manager.tick() == [ev.StartTaskManager(TM1)]
    manager.register(TM1, profile=DEFAULT)
    manager.register(TM2, profile=WITH_GPU)
    (exits,) = manager.tick(11.0)
    assert isinstance(exits, ev.SendExit)
    assert exits.resource_id == TM2


def test_a_job_that_loses_special_slots_has_such_a_taskmanager_started_at_once() -> None:
    """Before it asks for one (R11, R40)."""
    manager = Manager(OPTIONS)
    manager.needs(a=need(A, 1, GPU))
    manager.register(TM1, profile=WITH_GPU, slots=1, s0=A)
    manager.needs(version=2, held=(A,))
    commands = manager.feed(ev.TaskManagerFailed(TM1, "killed"))
    assert [c for c in commands if isinstance(c, ev.StartTaskManager)] == [start(2, 1, WITH_GPU)]


def test_one_that_has_less_than_it_was_started_with_is_a_failed_start() -> None:
    """Otherwise others would be started in its place without end (R5, R40)."""
    manager = Manager(OPTIONS)
    manager.needs(a=need(A, 1, GPU))
    for attempt in range(1, FAILED_STARTS + 1):
        commands = manager.register(ResourceId(f"tm-{attempt}"), STARTING, slots=1, profile=DEFAULT)
        assert any(isinstance(command, ev.StopTaskManager) for command in commands)
        manager.tick(30.0)
    assert "it was started with 1 slot with 1 cpu, 1 GiB memory, 1 gpu each, and has" in manager.answer().refused[A]


# --- making way ------------------------------------------------------------------------------------------------------


def test_an_idle_taskmanager_makes_way_for_one_of_the_size_that_is_missing() -> None:
    """There are as many as there may be. Even a standby ends (R40)."""
    manager = Manager(replace(FULL, standby=1))
    manager.register(TM2, profile=DEFAULT)
    exits, starts = manager.needs(a=need(A, 1, GPU))
    assert exits == ev.SendExit(TM2, "it makes way for a TaskManager of 1 slot with 1 cpu, 1 GiB memory, 1 gpu each")
    assert starts == start(1, 1, WITH_GPU)
    assert manager.tick(1.0) == []


@pytest.mark.parametrize("held", ["a slot", "an analysis", "standalone", "nobody may start", "used by who waits"])
def test_one_that_somebody_uses_or_will_use_does_not_make_way(held: str) -> None:
    """R40."""
    manager = Manager(replace(FULL, can_start=False) if held == "nobody may start" else FULL)
    report = manager.report(TM2, **({"s0": C} if held == "a slot" else {}))
    if held == "an analysis":
        report = manager.report_with(TM2, analysing=True)
    if held == "used by who waits":
        report = manager.report(TM2, STARTING)
    manager.register(TM2, profile=DEFAULT, as_report=report, standalone=held == "standalone")
    if held == "used by who waits":
        manager.needs(JOB2, c=1)
    assert not any(isinstance(command, ev.SendExit) for command in manager.needs(a=need(A, 1, GPU)))


def test_the_longest_idle_one_makes_way_and_only_one() -> None:
    """R40."""
    manager = Manager(replace(OPTIONS, max=2, taskmanager_timeout=1e6))
    manager.register(TM2, profile=DEFAULT)
    manager.now = 5.0
    manager.register(TM3, profile=WITH_LARGE)
    commands = manager.needs(a=need(A, 2, GPU))
    assert [c.resource_id for c in commands if isinstance(c, ev.SendExit)] == [TM2]


def test_a_job_with_taskmanagers_of_its_own_has_a_larger_one_in_place_of_that_which_analysed_it() -> None:
    """R24, R40."""
    manager = Manager(FULL)
    own = manager.report_with(TM2, dedicated_to=JOB1)
    manager.register(TM2, profile=DEFAULT, as_report=own)
    exits, starts = manager.needs(exclusive=True, a=need(A, 1, GPU))
    assert isinstance(exits, ev.SendExit)
    assert starts == start(1, 1, WITH_GPU)


def test_a_job_is_analysed_on_a_taskmanager_that_can_be_its_own() -> None:
    """With `isolation: job` the one that analyses it is its own from then on (R24, R40)."""
    manager = Manager(replace(OPTIONS, largest=parse_profile({"cpu": 9, "memory": "64 GiB", "gpu": 1})))
    manager.register(TM2, profile=DEFAULT)
    assert manager.feed(ev.SessionWanted(exclusive=True, profile=GPU)) == [start(1, 1, WITH_GPU)]
    assert manager.feed(ev.SessionWanted(exclusive=True)) == [], "any idle one"


def test_a_hot_standby_has_what_the_job_wants() -> None:
    """Otherwise what is prepared there would be for nothing (R32, R40)."""
    manager = Manager(FIXED)
    manager.register(TM1, profile=GPU, s0=A)
    manager.register(TM2, profile=DEFAULT)
    declaration = copy(manager.declaration(JOB1, 1, (A,), "", False), hot_standby=True, standby_profile=GPU)
    manager.feed(ev.NeedsDeclared(declaration))
    assert manager.answer().hot_standby is None
    manager.register(TM3, profile=GPU)
    assert manager.answer().hot_standby == TM3


# --- what is said ----------------------------------------------------------------------------------------------------


def test_who_wants_what_no_taskmanager_could_have_is_refused_with_its_name() -> None:
    """R5, R40."""
    manager = Manager(replace(OPTIONS, largest=parse_profile({"cpu": 4, "memory": "16 GiB"})))
    manager.register(TM1, profile=DEFAULT)
    manager.needs(a=need(A, 1, GPU), b=need(B, 2, parse_profile({"cpu": 3})))
    refused = manager.answer().refused
    assert refused[A].startswith("1 slot of one TaskManager with 1 gpu is needed; 1 TaskManager is registered")
    assert refused[A].endswith(
        "gpu: 1 needed; slots here have none; gpu: 1 needed; TaskManagers here have none "
        "(resourcemanager.largest-taskmanager)"
    )
    assert "cpu: 6 needed; TaskManagers here have at most 4 for 2 slots" in refused[B]


def test_who_waits_is_told_what_is_missing_where_nothing_is_started() -> None:
    """Another TaskManager may register, so nothing is refused (R5, R7, R40)."""
    manager = Manager(FIXED)
    manager.register(TM1, profile=DEFAULT)
    manager.register(TM2, profile=LARGE, s0=C, s1=C)
    manager.needs(a=need(A, 1, GPU), b=need(B, 1, LARGE))
    answer = manager.answer()
    assert answer.refused == {}
    assert "gpu: 1 needed; slots here have none; none is started here" in answer.waiting[A]
    assert "1 of them with smaller slots; none is started here" in answer.waiting[B]
