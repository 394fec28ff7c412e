"""The decisions of the ResourceManager, tested with lists of events."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec
import pytest

from minflinkd.resourcemanager import events as ev
from minflinkd.resourcemanager.provisioning import FAILED_STARTS, RECOVERY, no_start
from minflinkd.resourcemanager.reservations import RESERVATION_TIMEOUT
from minflinkd.resourcemanager.slot_manager import REST, WISH_TIMEOUT, step
from minflinkd.resourcemanager.state import Resources
from minflinkd.resourcemanager.step import Setting
from minflinkd.resourcemanager.task_managers import SlotState, TaskManagerState
from minflinkd.rpc.messages import SessionPhase
from minflinkd.runtime.ids import IdSource, LeaderId, ResourceId
from tests.unit.resourcemanager.manager import (
    JOB1,
    JOB2,
    LOST,
    NO_STANDBY,
    STARTING,
    TM1,
    TM2,
    TM3,
    A,
    B,
    C,
    Manager,
    allocate,
    leader,
)


def test_a_free_slot_is_marked_taken_and_then_asked_for() -> None:
    """R2, m7."""
    manager = Manager()
    manager.register(TM1)
    assert manager.needs(a=1) == [allocate(TM1, (0,), A)]
    assert manager.slot_states(TM1) == [SlotState.RESERVED, SlotState.FREE]
    assert manager.needs(JOB2, b=1) == [allocate(TM1, (1,), B, JOB2)]


def test_a_repeated_declaration_reserves_nothing_twice() -> None:
    """R8, m1."""
    manager = Manager()
    manager.register(TM1)
    manager.needs(a=1)
    assert manager.needs(a=1) == []
    assert manager.slot_states(TM1) == [SlotState.RESERVED, SlotState.FREE]


def test_a_starting_taskmanager_counts_for_the_slots_that_it_will_have() -> None:
    """Needs that fit it cause no second start; a need that does not fit causes one (R3)."""
    manager = Manager(replace(NO_STANDBY, max_concurrent_starts=5))
    assert manager.needs(a=1) == [ev.StartTaskManager(TM1)]
    assert manager.needs(JOB2, b=1) == []
    assert manager.needs(JOB2, version=2, b=1, c=1) == [ev.StartTaskManager(TM2)]


def test_starts_are_made_one_after_the_other() -> None:
    manager = Manager()
    assert manager.needs(a=2, b=2) == [ev.StartTaskManager(TM1)]
    assert manager.register(TM1, STARTING) == []
    assert manager.feed(ev.Reported(manager.report(TM1))) == [allocate(TM1, (0, 1), A), ev.StartTaskManager(TM2)]


@pytest.mark.parametrize("hanging", ["process", "session"])
def test_a_start_that_hangs_keeps_no_other_from_starting(hanging: str) -> None:
    """Lost TaskManagers are replaced before that start is given up, which is after 120 s (R11)."""
    manager = Manager()
    manager.register(TM3)
    manager.needs(a=2, b=2)
    if hanging == "session":
        manager.register(TM1, STARTING)
    manager.feed(ev.Reported(manager.report(TM3, s0=A, s1=A)))
    assert ev.StartTaskManager(TM2) not in manager.feed(ev.TaskManagerFailed(TM3, "killed"))
    assert manager.needs(version=2, b=2, c=2) == []
    assert manager.tick(59) == []
    assert manager.tick(1) == [ev.StartTaskManager(TM2)]


def test_only_a_ready_session_is_given_slots() -> None:
    """Only a session in SessionPhase READY has slots to offer."""
    manager = Manager()
    manager.needs(a=1)
    assert manager.register(TM1, STARTING) == []
    assert manager.feed(ev.Reported(manager.report(TM1))) == [allocate(TM1, (0,), A)]


def test_a_need_waits_for_a_session_that_comes_back_instead_of_a_start() -> None:
    manager = Manager()
    manager.register(TM1)
    manager.feed(ev.Reported(manager.report(TM1, LOST)))
    assert manager.needs(a=1) == []
    assert "waiting for 1 TaskManager " in manager.answer().waiting[A]


def test_a_session_that_stays_away_costs_its_taskmanager() -> None:
    manager = Manager()
    manager.register(TM1)
    manager.feed(ev.Reported(manager.report(TM1, LOST)))
    manager.needs(a=1)
    why = "its session was not ready for 120 s"
    assert manager.tick(120.0312) == [ev.StopTaskManager(TM1, why, kill=True), ev.StartTaskManager(ResourceId("tm-1"))]


def test_a_session_that_begins_again_and_again_without_becoming_ready_costs_its_taskmanager() -> None:
    """Every attempt changes the phase, but none makes progress (R6, R11)."""
    manager = Manager()
    manager.register(TM1)
    manager.feed(ev.Reported(manager.report(TM1, LOST)))
    manager.needs(a=1)
    for phase in (STARTING, LOST, STARTING, LOST):
        manager.now += 29
        assert manager.feed(ev.Reported(manager.report(TM1, phase))) == []
    assert manager.tick(4) == [
        ev.StopTaskManager(TM1, "its session was not ready for 120 s", kill=True),
        ev.StartTaskManager(ResourceId("tm-1")),
    ]


def test_a_job_is_packed_where_it_runs_already_and_standbys_stay_whole() -> None:
    """R6."""
    manager = Manager(replace(NO_STANDBY, slots_per_tm=4))
    for tm in (TM1, TM2, TM3):
        manager.register(tm)
    manager.needs(JOB2, b=1)
    manager.needs(JOB1, a=2)
    holders = {tm: manager.state.task_managers[tm].jobs for tm in (TM1, TM2, TM3)}
    assert holders == {TM1: (JOB1, JOB2), TM2: (), TM3: ()}


def test_the_report_is_the_truth_but_frees_no_younger_reservation() -> None:
    """A heartbeat that was sent before AllocateSlots arrived cannot know of it (m6)."""
    manager = Manager()
    manager.register(TM1)
    manager.needs(a=1)
    assert manager.feed(ev.Reported(manager.report(TM1))) == []
    assert manager.slot_states(TM1) == [SlotState.RESERVED, SlotState.FREE]
    manager.feed(ev.AllocationAnswered(A, True, manager.report(TM1, s0=A)))
    assert manager.slot_states(TM1) == [SlotState.ALLOCATED, SlotState.FREE]
    manager.needs(version=2, held=(A,))
    manager.feed(ev.Reported(manager.report(TM1)))
    assert manager.slot_states(TM1) == [SlotState.FREE, SlotState.FREE]


def test_a_slot_that_is_taken_is_looked_for_elsewhere() -> None:
    """The answer's report corrects the view, and another TaskManager is asked (m7)."""
    manager = Manager(replace(NO_STANDBY, slots_per_tm=1))
    manager.register(TM1)
    manager.register(TM2)
    manager.needs(a=1)
    answer = ev.AllocationAnswered(A, False, manager.report(TM1, s0=C))
    assert manager.feed(answer) == [allocate(TM2, (0,), A)]
    assert manager.slot_states(TM1) == [SlotState.ALLOCATED]


def test_a_reservation_of_which_another_holds_a_slot_is_void_and_made_elsewhere() -> None:
    """The slots of one allocation move together, and are on one TaskManager."""
    manager = Manager()
    manager.register(TM1)
    manager.register(TM2)
    manager.needs(a=2)
    assert manager.feed(ev.Reported(manager.report(TM1, s0=C))) == [allocate(TM2, (0, 1), A)]
    assert manager.slot_states(TM1) == [SlotState.ALLOCATED, SlotState.FREE]


def test_a_taskmanager_that_says_no_is_not_asked_again_at_once() -> None:
    manager = Manager(replace(NO_STANDBY, slots_per_tm=1))
    manager.register(TM1)
    manager.needs(a=1)
    assert manager.feed(ev.AllocationAnswered(A, False, manager.report(TM1))) == []
    assert manager.tick(REST) == [allocate(TM1, (0,), A)]


def test_an_allocation_without_a_known_outcome_is_repeated_on_the_same_slots() -> None:
    """m7."""
    manager = Manager()
    manager.register(TM1)
    manager.needs(a=2)
    assert manager.feed(ev.AllocationUnknown(TM1, A)) == [allocate(TM1, (0, 1), A, again=True)]


def test_a_cancelled_need_is_not_repeated_and_its_slots_fall_free() -> None:
    """The slots fall free when the TaskManager has answered, or the reservation has timed out (R2, R9)."""
    manager = Manager()
    manager.register(TM1)
    manager.needs(a=2)
    manager.needs(version=2)
    assert manager.slot_states(TM1) == [SlotState.RESERVED, SlotState.RESERVED]
    assert manager.feed(ev.AllocationUnknown(TM1, A)) == []
    manager.tick(RESERVATION_TIMEOUT)
    assert manager.slot_states(TM1) == [SlotState.FREE, SlotState.FREE]


def test_an_older_declaration_or_leader_changes_nothing() -> None:
    """R1, R8."""
    manager = Manager()
    manager.register(TM1)
    manager.needs(version=5, held=(A,))
    assert manager.needs(version=4, b=1) == []
    assert manager.needs(version=1, by="leader of 1, the next", c=1) != []
    assert manager.needs(version=9, b=1) == []
    manager.feed(ev.JobMasterGone(JOB1, LeaderId("leader of 1, the next"), for_good=True))
    assert manager.needs(version=2, by="leader of 1, the next", b=1) == []
    assert manager.state.jobs == {}


def test_an_older_report_changes_nothing() -> None:
    """R8."""
    manager = Manager()
    manager.register(TM1)
    late = manager.report(TM1)
    manager.feed(ev.Reported(manager.report(TM1, s0=A)))
    manager.feed(ev.Reported(late))
    assert manager.slot_states(TM1) == [SlotState.ALLOCATED, SlotState.FREE]


def test_a_repeated_registration_keeps_the_instance_and_one_of_another_process_replaces_it() -> None:
    """R9."""
    manager = Manager()
    manager.register(TM1)
    first = manager.state.task_managers[TM1].instance_id
    manager.now = 1.0
    manager.register(TM1)
    assert manager.state.task_managers[TM1].instance_id == first
    manager.register(TM1, pid=2)
    assert manager.state.task_managers[TM1].instance_id != first


def test_a_need_larger_than_a_taskmanager_is_refused_with_the_sizes() -> None:
    """R5."""
    manager = Manager()
    assert manager.needs(a=3) == []
    assert manager.answer().refused == {
        A: "3 slots of one TaskManager are needed; no TaskManager is registered; a TaskManager has 2 "
        "(taskmanager.numberOfTaskSlots)"
    }


def test_starts_are_repeated_with_growing_pauses_and_refused_after_three_failures() -> None:
    """The refusal names the last reason (R5)."""
    manager = Manager()
    manager.needs(a=1)
    for attempt in range(1, FAILED_STARTS + 1):
        assert manager.answer().refused == {}
        tm = ResourceId(f"tm-{attempt}")
        assert manager.feed(ev.TaskManagerFailed(tm, f"exit {attempt}")) == [
            ev.StopTaskManager(tm, f"exit {attempt}", True)
        ]
        assert manager.tick(0.4 * 2 ** (attempt - 1)) == []
        assert manager.tick(0.2 * 2 ** (attempt - 1)) == [ev.StartTaskManager(ResourceId(f"tm-{attempt + 1}"))]
    assert (
        manager.answer()
        .refused[A]
        .endswith("no TaskManager could be started: 3 starts in a row failed, the last: exit 3")
    )
    manager.register(ResourceId("tm-4"))
    assert no_start(manager.state) is None


def test_a_start_that_does_not_register_in_time_is_killed_and_repeated() -> None:
    """m3."""
    manager = Manager()
    manager.needs(a=1)
    why = "it did not register within 120 s"
    assert manager.tick(120) == [ev.StopTaskManager(TM1, why, kill=True)]
    assert manager.tick(0.5) == [ev.StartTaskManager(TM2)]


def test_a_start_that_is_given_up_says_what_it_waited_for() -> None:
    """What keeps it keeps the next one, too (m3, R50)."""
    manager = Manager()
    manager.needs(a=1)
    manager.feed(ev.StartWaits(TM1, "its Pod is not scheduled: no node"))
    why = "it did not register within 120 s: its Pod is not scheduled: no node"
    assert manager.tick(120) == [ev.StopTaskManager(TM1, why, kill=True)]


@pytest.mark.parametrize("hanging", ["process", "session"])
def test_the_start_after_one_that_failed_is_given_twice_the_time(hanging: str) -> None:
    """On a busy machine a time that was too short once may be enough the next time (R5, m3)."""
    manager = Manager()
    manager.needs(a=1)
    manager.tick(120)
    assert manager.tick(0.5) == [ev.StartTaskManager(TM2)]
    why = "it did not register within 240 s"
    if hanging == "session":
        manager.register(TM2, STARTING)
        why = "its session was not ready for 240 s"
    for seconds in (120, 119):  # the first would have been enough for the start before
        manager.tick(seconds)
        assert TM2 in manager.state.task_managers
    assert ev.StopTaskManager(TM2, why, kill=True) in manager.tick(1)


def test_a_standby_is_kept_beside_those_in_use() -> None:
    """R6."""
    manager = Manager(replace(NO_STANDBY, standby=1))
    assert manager.tick() == [ev.StartTaskManager(TM1)]
    manager.register(TM1)
    assert manager.needs(a=1) == [allocate(TM1, (0,), A), ev.StartTaskManager(TM2)]


def test_idle_taskmanagers_beyond_standby_and_minimum_are_stopped_after_their_time() -> None:
    """The one that is idle longest is stopped first (R6)."""
    manager = Manager(replace(NO_STANDBY, standby=1, taskmanager_timeout=60))
    manager.register(TM1)
    manager.now = 1.0
    manager.register(TM2)
    assert manager.tick(58.5) == []
    assert manager.tick(0.5) == [ev.SendExit(TM1, "idle for 60 s, and not needed as a standby")]
    assert manager.state.task_managers[TM1].state is TaskManagerState.STOPPING
    assert manager.register(TM1) == []
    manager.feed(ev.TaskManagerFailed(TM1, "exit code 0"))
    assert set(manager.state.task_managers) == {TM2}
    assert manager.state.lost == 0
    minimum = Manager(replace(NO_STANDBY, min=1, taskmanager_timeout=60))
    minimum.register(TM1)
    assert minimum.tick(100) == []


def test_no_option_but_standby_starts_taskmanagers_that_nobody_asked_for() -> None:
    """The minimum only keeps TaskManagers that exist (R6)."""
    assert Manager(replace(NO_STANDBY, min=3)).tick() == []
    manager = Manager(replace(NO_STANDBY, min=3, standby=1))
    assert manager.tick() == [ev.StartTaskManager(TM1)]
    assert manager.register(TM1) == []


def test_no_more_taskmanagers_start_than_may_run_and_the_need_is_told_so() -> None:
    """R5, R6."""
    manager = Manager(replace(NO_STANDBY, max=1))
    manager.register(TM1)
    manager.needs(a=2, b=1)
    assert "resourcemanager.max-taskmanagers" in manager.answer().waiting[B]
    assert list(manager.state.task_managers) == [TM1]


def test_a_lost_taskmanager_is_told_to_its_jobs_killed_and_replaced_at_once() -> None:
    """R11."""
    manager = Manager()
    manager.register(TM1)
    manager.needs(a=2)
    manager.feed(ev.AllocationAnswered(A, True, manager.report(TM1, s0=A, s1=A)))
    manager.needs(version=2, held=(A,))
    assert manager.feed(ev.TaskManagerFailed(TM1, "exit code -9")) == [
        ev.StopTaskManager(TM1, "exit code -9", kill=True),
        ev.NotifyLost(TM1, "exit code -9", ((f"jobmaster/{JOB1}", leader(JOB1)),)),
        ev.StartTaskManager(ResourceId("tm-1")),
    ]
    assert manager.needs(version=3, b=2) == []  # the replacement is on its way already


def test_nothing_is_started_for_a_job_that_has_noticed_the_loss_before_and_has_slots_elsewhere() -> None:
    """JobMaster and ResourceManager notice the loss of a TaskManager at different times (R3, R11)."""
    manager = Manager()
    manager.register(TM1)
    manager.needs(a=2)
    manager.feed(ev.AllocationAnswered(A, True, manager.report(TM1, s0=A, s1=A)))
    manager.needs(version=2, held=(A,))
    manager.register(TM2)
    manager.needs(version=3, b=2)
    manager.feed(ev.AllocationAnswered(B, True, manager.report(TM2, s0=B, s1=B)))
    manager.needs(version=4, held=(B,))
    commands = manager.feed(ev.TaskManagerFailed(TM1, "no heartbeat"))
    assert not any(isinstance(command, ev.StartTaskManager) for command in commands)
    assert manager.state.wishes == {}


def test_with_a_standby_the_job_moves_at_once_and_the_standby_is_replaced_a_little_later() -> None:
    """A start takes the processors of the whole machine, and the job needs them first (R11)."""
    manager = Manager(replace(NO_STANDBY, standby=1))
    manager.started = 2
    manager.register(TM1)
    manager.register(TM2)
    manager.needs(a=2)
    manager.feed(ev.AllocationAnswered(A, True, manager.report(TM1, s0=A, s1=A)))
    manager.needs(version=2, held=(A,))
    commands = manager.feed(ev.TaskManagerFailed(TM1, "killed"))
    assert not any(isinstance(command, ev.StartTaskManager) for command in commands)
    assert manager.needs(version=3, b=2) == [allocate(TM2, (0, 1), B)]
    assert ev.StartTaskManager(TM3) not in manager.tick(RECOVERY - 0.1)
    assert ev.StartTaskManager(TM3) in manager.tick(0.1)


def test_a_new_resourcemanager_learns_who_holds_what_and_starts_nothing_for_it() -> None:
    """The TaskManager is told who leads the job, and may know it already (R12, R13)."""
    told = ev.AnnounceJobMaster(JOB1, leader(JOB1), (TM1,))
    manager = Manager()
    manager.register(TM1, s0=A, s1=A)
    assert manager.needs(held=(A,)) == [told]
    assert manager.slot_states(TM1) == [SlotState.ALLOCATED] * 2
    manager = Manager()
    manager.register(TM1, s0=A)
    assert manager.needs(a=1) == [told]  # allocated, and not yet accepted by its JobMaster


def test_a_wanted_session_starts_one_taskmanager_and_is_forgotten_after_a_while() -> None:
    manager = Manager()
    assert manager.feed(ev.SessionWanted()) == [ev.StartTaskManager(TM1)]
    assert manager.feed(ev.SessionWanted()) == []
    manager.tick(WISH_TIMEOUT)
    assert manager.state.wishes == {}


@pytest.mark.parametrize("session", [STARTING, LOST])
def test_a_taskmanager_that_dies_before_it_was_ready_counts_as_a_failed_start(session: SessionPhase) -> None:
    """Counting it as a failed start slows a crash loop down (R5)."""
    manager = Manager()
    manager.needs(a=1)
    manager.register(TM1, session)
    assert manager.feed(ev.TaskManagerFailed(TM1, "exit code 1")) == [ev.StopTaskManager(TM1, "exit code 1", kill=True)]
    assert manager.state.starts.failed == 1


def test_ids_of_started_taskmanagers_come_from_the_injected_source() -> None:
    ids = IdSource(random.Random(1))
    _, commands = step(Setting(replace(NO_STANDBY, standby=1), ids.resource), Resources(), ev.Tick(), 0.0)
    assert commands == (ev.StartTaskManager(IdSource(random.Random(1)).resource()),)


def test_a_session_that_gets_on_is_waited_for_beyond_its_timeout() -> None:
    """On a busy machine a start takes many times as long. Killing it would only begin the same work anew (R5)."""
    manager = Manager()
    manager.needs(a=1)
    manager.register(TM1, STARTING)
    for steps in range(1, 8):
        manager.tick(100)
        manager.feed(ev.Reported(msgspec.structs.replace(manager.report_with(TM1, STARTING), session_steps=steps)))
        assert TM1 in manager.state.task_managers
    commands = manager.tick(120)
    assert any(isinstance(command, ev.StopTaskManager) for command in commands)
    assert "its session was not ready for 820 s" in manager.state.starts.reason


def test_a_session_that_fails_again_and_again_gets_no_more_time() -> None:
    """Progress in each start does not help it (R5)."""
    manager = Manager()
    manager.needs(a=1)
    manager.register(TM1, STARTING)
    manager.tick(100)
    report = manager.report_with(TM1, STARTING, session_error="no Java")
    manager.feed(ev.Reported(msgspec.structs.replace(report, session_steps=9)))
    assert any(isinstance(command, ev.StopTaskManager) for command in manager.tick(20))
