"""The core of the ResourceManager: how it answers messages, and which commands it gives."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec
import pytest
from structlog.testing import capture_logs

from minflinkd.resourcemanager import events as ev
from minflinkd.resourcemanager.core import AT_A_TIME, RETRY_PAUSE, ResourceManagerCore, UnknownTaskManager
from minflinkd.resourcemanager.options import ResourceManagerOptions
from minflinkd.resourcemanager.slot_manager import STOPPING_TIMEOUT
from minflinkd.resourcemanager.state import Resources
from minflinkd.resourcemanager.task_managers import SlotState, TaskManagerState
from minflinkd.rpc import messages as m
from minflinkd.rpc.network import Fenced, RpcTimeout, Unreachable, job_master, task_manager
from minflinkd.rpc.party import Answered, Refused, Tell, Unknown
from minflinkd.runtime.errors import Conflict
from minflinkd.runtime.ids import IdSource, LeaderId, ResourceId
from minflinkd.runtime.machine import InvariantViolated
from tests.unit.resourcemanager.core_world import (
    FIRST,
    JOB,
    OTHER,
    SECOND,
    TM1,
    A,
    B,
    asked_for,
    manager_with,
    need,
)

# --- slots ---


def test_a_need_becomes_a_request_to_the_taskmanager_and_its_answer_settles_it() -> None:
    """m1, m7, m8."""
    manager = manager_with()
    manager.register(TM1)
    assert manager.declare(need(A)) == m.NeedsAnswer()
    ask = asked_for(manager.commands())
    assert ask.request == m.AllocateSlots(
        job_id=JOB, allocation_id=A, slots=(0,), job_master=job_master(JOB), job_leader_id=FIRST
    )
    assert (ask.target, ask.fence, ask.after) == (task_manager(TM1), manager.core.leader_id, 0.0)
    assert ask.timeout == 5.0
    answer = m.SlotAnswer(allocated=True, report=manager.report(TM1, (JOB, A)))
    manager.core.answered(ask.about, Answered(answer), manager.now)
    assert manager.core.state.task_managers[TM1].slots[0].state is SlotState.ALLOCATED
    overview = manager.receive(m.GetResourceOverview())
    assert (overview.slots_total, overview.slots_free, overview.pending_needs) == (2, 1, 0)
    manager.declare(need(B), version=2, held=(A,))
    more = asked_for(manager.commands()).request
    assert isinstance(more, m.AllocateSlots)
    assert more.slots == (1,)


def test_a_refusal_ends_its_reservation_and_the_taskmanager_is_not_asked_again_at_once() -> None:
    """The report in the answer shows the facts (m8)."""
    manager = manager_with(can_start=False)
    manager.register(TM1)
    manager.declare(need(A))
    ask = asked_for(manager.commands())
    manager.core.answered(ask.about, Answered(m.SlotAnswer(allocated=False, report=manager.report(TM1))), manager.now)
    assert manager.core.state.task_managers[TM1].idle
    assert manager.commands() == []
    manager.passes(1)
    assert asked_for(manager.commands()).request == ask.request


@pytest.mark.parametrize("outcome", [Unknown(RpcTimeout("late")), Refused(Fenced("not registered yet"))])
def test_a_request_without_a_known_outcome_is_repeated_after_a_pause(outcome: Unknown | Refused) -> None:
    """The same slots are requested for the same allocation (m7)."""
    manager = manager_with()
    manager.register(TM1)
    manager.declare(need(A))
    first = asked_for(manager.commands())
    manager.core.answered(first.about, outcome, manager.now)
    again = asked_for(manager.commands())
    assert (again.request, again.after) == (first.request, RETRY_PAUSE)


def test_an_unchanged_declaration_or_heartbeat_decides_nothing() -> None:
    """R8, R31."""
    manager = manager_with()
    registered = manager.register(TM1, (JOB, A))
    manager.declare(held=(A,))
    before = manager.core.state
    manager.declare(held=(A,))
    manager.beat(registered, before.task_managers[TM1].report)  # type: ignore[arg-type]
    assert manager.core.state is before


@pytest.mark.parametrize(
    "news",
    [
        {"session": m.SessionPhase.LOST},
        {"session_aged": True},
        {"session_error": "no Java"},
        {"dedicated_to": JOB},
        {"libraries": (m.Library("java:com/acme", "1"),)},
        {"version": 9},
        {"session_steps": 1},
        {"analysing": True},
    ],
)
def test_a_heartbeat_with_news_is_decided_about(news: dict[str, object]) -> None:
    """A heartbeat says all of it, whether or not a notice about it was lost (R8)."""
    manager = manager_with(can_start=False)
    registered = manager.register(TM1)
    report = manager.core.state.task_managers[TM1].report
    assert report is not None
    told = msgspec.structs.replace(report, **news)
    manager.beat(registered, told)
    assert manager.core.state.task_managers[TM1].report == told


def test_a_slot_that_falls_free_serves_who_waits_for_it() -> None:
    """m11."""
    manager = manager_with(can_start=False)
    registered = manager.register(TM1, (OTHER, B), (OTHER, B))
    manager.declare(need(A))
    assert manager.commands() == []
    notice = m.SlotsFree(report=manager.report(TM1))
    manager.receive(notice, fence=registered.leader_id)
    assert isinstance(asked_for(manager.commands()).request, m.AllocateSlots)


def test_a_notice_of_an_earlier_process_of_the_taskmanager_changes_nothing() -> None:
    """The notice may arrive after the next process has registered. A notice without a process is taken (R9)."""
    manager = manager_with(can_start=False)
    earlier = manager.register(TM1, standalone=True, nonce="1")
    report = manager.report(TM1, (OTHER, B))
    registered = manager.register(TM1, standalone=True, nonce="2")
    report = msgspec.structs.replace(report, version=99)
    manager.receive(m.SlotsFree(report=report, instance_id=earlier.instance_id), fence=registered.leader_id)
    assert manager.core.state.task_managers[TM1].idle
    for instance_id in (registered.instance_id, None):
        manager.receive(m.SlotsFree(report=report, instance_id=instance_id), fence=registered.leader_id)
        assert not manager.core.state.task_managers[TM1].idle


# --- leaders ---


def test_messages_with_another_resourcemanagers_token_are_refused() -> None:
    """A message with another ResourceManager's token is refused (R1)."""
    manager = manager_with()
    registered = manager.register(TM1)
    with pytest.raises(Fenced, match="resourcemanager refuses HeartbeatFromTaskManager: its token an earlier one"):
        manager.beat(registered, manager.report(TM1), fence=LeaderId("an earlier one"))
    with pytest.raises(Fenced):
        manager.receive(m.SlotsFree(report=manager.report(TM1, (JOB, A))), fence=None)
    assert manager.core.state.task_managers[TM1].idle


def test_an_earlier_jobmaster_of_a_job_is_refused() -> None:
    """A replaced JobMaster learns of it in this way (R1)."""
    manager = manager_with()
    manager.declare(need(A), by=SECOND)
    with pytest.raises(Fenced, match=f"job {JOB} has another JobMaster than {FIRST}, or has ended"):
        manager.declare(need(B), by=FIRST, version=9)
    manager.receive(m.JobMasterEnded(job_id=JOB, leader_id=SECOND))
    with pytest.raises(Fenced):
        manager.declare(need(B), by=SECOND, version=9)


def test_taskmanagers_learn_of_a_new_jobmaster_at_once_and_with_every_heartbeat_and_registration() -> None:
    """R8, R13."""
    manager = manager_with()
    manager.declare(need(A), by=FIRST)
    manager.commands()
    registered = manager.register(TM1, (JOB, A))
    assert registered.job_masters == {JOB: FIRST}
    assert manager.beat(registered, manager.report(TM1, (JOB, A))).job_masters == {JOB: FIRST}
    manager.commands()
    manager.declare(by=SECOND, held=(A,))
    changed = m.JobMasterChanged(job_id=JOB, leader_id=SECOND)
    assert manager.commands() == [Tell(task_manager(TM1), changed, manager.core.leader_id)]
    assert manager.beat(registered, manager.report(TM1, (JOB, A))).job_masters == {JOB: SECOND}
    assert manager.beat(registered, manager.report(TM1)).job_masters == {}


def test_what_it_does_not_take_is_unreachable() -> None:
    with pytest.raises(Unreachable, match="resourcemanager does not take RenewSession"):
        manager_with().receive(m.RenewSession(reason=""))


# --- who is lost ---


def test_a_silent_taskmanager_is_lost_killed_and_told_to_its_jobs() -> None:
    """R10, R11."""
    manager = manager_with(can_start=False)
    manager.register(TM1, (JOB, A))
    manager.declare(held=(A,))
    manager.commands()
    manager.passes(4, lambda: manager.declare(held=(A,)))
    assert manager.commands() == []
    manager.passes(1)
    why = "no heartbeat for 5.0 s"
    lost = Tell(job_master(JOB), m.TaskManagerLost(resource_id=TM1, reason=why), FIRST)
    assert manager.commands() == [ev.StopTaskManager(TM1, why, kill=True), lost]


def test_a_slow_start_whose_progress_only_heartbeats_tell_is_not_given_up() -> None:
    """Nothing else changes in its reports for minutes, on a busy machine (R5)."""
    manager = manager_with()
    registered = manager.register(TM1)
    starting = msgspec.structs.replace(manager.report(TM1), session=m.SessionPhase.STARTING)
    for second in range(300):
        manager.beat(registered, msgspec.structs.replace(starting, session_steps=second // 30))
        manager.passes(1)
    assert [command for command in manager.commands() if isinstance(command, ev.StopTaskManager)] == []
    assert TM1 in manager.core.state.task_managers


def test_nobody_is_lost_because_the_resourcemanager_itself_was_held_up() -> None:
    """Messages that waited meanwhile are still read. Whoever is silent from then on is lost (A4, R10)."""
    manager = manager_with(can_start=False)
    manager.register(TM1)
    manager.declare(held=(A,))
    manager.passes(2)
    manager.now += 20
    manager.core.tick(manager.now)
    assert manager.commands() == []
    assert set(manager.core.state.jobs) == {JOB}
    manager.passes(6)
    assert [type(command) for command in manager.commands()] == [ev.StopTaskManager]
    manager.passes(5)
    assert manager.core.state.jobs == {}


def test_the_first_tick_is_never_late() -> None:
    """The clock may show any time when the ResourceManager starts (R10)."""
    manager = manager_with(standby=1)
    manager.core.tick(0.0)
    assert [type(command) for command in manager.commands()] == [ev.StartTaskManager]
    manager = manager_with(can_start=False)
    manager.now = 5000.0
    manager.register(TM1)
    manager.passes(5)
    assert manager.core.state.task_managers == {}


def test_a_taskmanager_whose_connection_ended_is_lost_after_two_intervals() -> None:
    """R10."""
    manager = manager_with(can_start=False, heartbeat_interval=3.0, heartbeat_timeout=20.0)
    manager.register(TM1)
    manager.passes(1)
    manager.core.disconnected(TM1, manager.now)
    manager.passes(5)
    assert TM1 in manager.core.state.task_managers
    manager.passes(1)
    assert TM1 not in manager.core.state.task_managers


def test_a_taskmanager_that_connects_again_is_not_lost() -> None:
    """R10, R15."""
    manager = manager_with(can_start=False)
    registered = manager.register(TM1)
    manager.core.disconnected(TM1, manager.now)
    manager.passes(10, lambda: manager.beat(registered, manager.report(TM1)))
    assert TM1 in manager.core.state.task_managers


def test_where_many_fall_silent_at_once_a_few_are_given_up_in_each_step() -> None:
    """A network may fail for all of them. One step for all would hold up the event loop for long (A4, R10)."""
    manager = manager_with()
    lost = [ResourceId(f"tm-{number}") for number in range(2 * AT_A_TIME + 1)]
    for resource_id in lost:
        manager.register(resource_id)
    for _ in range(4):
        manager.passes(1)
    left = []
    manager.now += 1.0
    while manager.core.next_wakeup() <= manager.now:
        manager.core.tick(manager.now)
        left.append(len(manager.core.state.task_managers))
    assert left == [AT_A_TIME + 1, 1, 0]


def test_the_needs_of_a_silent_jobmaster_are_dropped_and_its_token_is_not() -> None:
    """An earlier JobMaster stays fenced, and the silent one may come back (R10)."""
    manager = manager_with()
    manager.declare(need(A), by=SECOND)
    manager.passes(9)
    assert set(manager.core.state.jobs) == {JOB}
    manager.passes(1)
    assert manager.core.state.jobs == {}
    with pytest.raises(Fenced):
        manager.declare(need(A), by=FIRST)
    manager.declare(need(A), by=SECOND)
    assert JOB in manager.core.state.jobs


def test_whoever_is_not_registered_is_told_so_and_registers_again() -> None:
    """A TaskManager that is not registered is told so. It registers again, as a new instance (R9, R12)."""
    manager = manager_with(can_start=False)
    registered = manager.register(TM1)
    manager.core.exited(TM1, "killed", manager.now)
    assert manager.commands() == [ev.StopTaskManager(TM1, "killed", kill=True)]
    why = f"TaskManager {TM1} is not registered as {registered.instance_id}"
    with pytest.raises(UnknownTaskManager, match=why) as refused:
        manager.beat(registered, manager.report(TM1))
    assert refused.value.hint == "it must register again"
    assert manager.register(TM1).instance_id != registered.instance_id
    with pytest.raises(UnknownTaskManager, match=why):
        manager.beat(registered, manager.report(TM1))


def test_one_that_was_told_to_exit_is_not_registered() -> None:
    """It is not lost when it falls silent: it has some time to exit (R6, R10)."""
    manager = manager_with(taskmanager_timeout=3.0)
    registered = manager.register(TM1)
    manager.passes(3, lambda: manager.beat(registered, manager.report(TM1)))
    manager.commands()
    with pytest.raises(UnknownTaskManager):
        manager.beat(registered, manager.report(TM1))
    assert manager.receive(m.ListTaskManagers()) == ()
    manager.passes(STOPPING_TIMEOUT - 1)
    assert manager.commands() == []
    manager.passes(1)
    assert [type(command) for command in manager.commands()] == [ev.StopTaskManager]


def test_a_lost_standalone_taskmanager_is_not_registered_either() -> None:
    manager = manager_with(can_start=False)
    registered = manager.register(TM1, standalone=True)
    manager.core.exited(TM1, "killed", manager.now)
    with pytest.raises(UnknownTaskManager):
        manager.beat(registered, manager.report(TM1))


def test_nothing_is_remembered_of_a_lost_standalone_taskmanager() -> None:
    """Each restart may bring another resource id (R7)."""
    manager = manager_with(can_start=False)
    manager.register(TM1, standalone=True)
    manager.passes(5)
    assert manager.core.state.task_managers == {}
    assert manager.core._seen == {}


# --- starting and stopping ---


def test_a_start_that_fails_is_repeated_after_a_pause_and_its_reason_is_told() -> None:
    """R5."""
    manager = manager_with()
    manager.declare(need(A))
    (start,) = manager.commands()
    assert isinstance(start, ev.StartTaskManager)
    manager.core.start_failed(start.resource_id, "no such file: java", manager.now)
    assert "no such file: java" in manager.declare(need(A)).waiting[A]
    manager.commands()
    manager.passes(1)
    assert isinstance(manager.commands()[0], ev.StartTaskManager)


def test_an_idle_taskmanager_is_asked_to_exit_before_its_launcher_stops_it() -> None:
    """If it registers meanwhile, it is told again to exit (R6, m13)."""
    manager = manager_with(taskmanager_timeout=3.0)
    registered = manager.register(TM1)
    manager.passes(3, lambda: manager.beat(registered, manager.report(TM1)))
    ask = asked_for(manager.commands())
    assert isinstance(ask.request, m.ExitTaskManager)
    assert (ask.target, ask.fence, ask.after) == (task_manager(TM1), manager.core.leader_id, 0.0)
    with pytest.raises(Conflict, match=f"TaskManager {TM1} was told to exit") as refused:
        manager.register(TM1)
    assert refused.value.hint == "start one with another resource id"
    manager.core.answered(ask.about, Unknown(RpcTimeout("late")), manager.now)
    (stop,) = manager.commands()
    assert stop == ev.StopTaskManager(TM1, ask.request.reason, kill=False)
    manager.core.exited(TM1, "exit code 0", manager.now)
    assert manager.core.state.task_managers == {}


def test_an_aged_session_is_renewed_by_request() -> None:
    """Only the next report counts, not the answer (R6a)."""
    manager = manager_with(can_start=False)
    registered = manager.register(TM1)
    aged = msgspec.structs.replace(manager.report(TM1), session_aged=True)
    manager.passes(10, lambda: manager.beat(registered, aged))
    ask = asked_for(manager.commands())
    assert (ask.target, ask.request) == (task_manager(TM1), m.RenewSession(reason="its session has aged"))
    manager.core.answered(ask.about, Refused(Conflict("a slot is taken")), manager.now)
    assert manager.core.state.task_managers[TM1].state is TaskManagerState.REGISTERED


def test_taskmanagers_found_at_the_start_count_as_starting_and_are_started_no_second_time() -> None:
    """R7."""
    manager = manager_with(standby=1, start_timeout=30.0)
    manager.core.found((TM1,), manager.now)
    manager.passes(29)
    assert manager.commands() == []
    assert [s.resource_id for s in manager.receive(m.GetResourceOverview()).starting] == [TM1]
    manager.passes(1)
    stop, start = manager.commands()
    assert isinstance(stop, ev.StopTaskManager)
    assert isinstance(start, ev.StartTaskManager)


def test_other_options_count_from_the_next_step_on() -> None:
    manager = manager_with()
    manager.core.reconfigure(ResourceManagerOptions(slots_per_tm=2, standby=1))
    manager.passes(1)
    assert isinstance(manager.commands()[0], ev.StartTaskManager)


def test_without_a_check_of_every_step_the_state_is_checked_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A contradiction then stops the ResourceManager, which is replaced by one that asks everybody anew (R12)."""
    checked: list[float] = []
    manager = manager_with()

    def check(state: Resources) -> None:
        assert state is manager.core.state
        checked.append(manager.now)

    monkeypatch.setattr("minflinkd.resourcemanager.core.check_invariants", check)
    options = ResourceManagerOptions(slots_per_tm=2, standby=0)
    manager.core = ResourceManagerCore(ids=IdSource(random.Random(1)), options=options)
    manager.passes(200)
    assert checked == [60.0, 120.0, 180.0]


def test_every_step_is_checked_if_that_is_wanted() -> None:
    """In tests and in the simulation."""
    manager = manager_with()
    manager.register(TM1)
    bad = replace(manager.core.state, holdings={JOB: {A: (TM1,)}})
    manager.core._machine.state = bad
    with pytest.raises(InvariantViolated, match="resourcemanager: the holdings are"):
        manager.passes(1)


def test_the_log_tells_the_story_of_taskmanagers() -> None:
    """Each start and end with its reason, what was lost with it, and requests without an outcome."""
    no_answer = Unknown(RpcTimeout("late"))
    lost, idle, aged = manager_with(), manager_with(taskmanager_timeout=3.0), manager_with(can_start=False)
    with capture_logs() as logs:
        lost.declare(need(A))
        (start,) = lost.commands()
        assert isinstance(start, ev.StartTaskManager)
        registered = lost.register(start.resource_id)
        lost.core.answered(asked_for(lost.commands()).about, no_answer, 0.0)
        lost.beat(registered, lost.report(start.resource_id, (JOB, A)))
        lost.core.exited(start.resource_id, "exit code 1", 0.0)
        another = lost.commands()[-1]
        assert isinstance(another, ev.StartTaskManager)
        registered = idle.register(TM1)
        idle.passes(3, lambda: idle.beat(registered, idle.report(TM1)))
        idle.core.answered(asked_for(idle.commands()).about, no_answer, 3.0)
        registered = aged.register(TM1)
        aged.declare()
        report = msgspec.structs.replace(aged.report(TM1), session_aged=True)
        aged.passes(10, lambda: aged.beat(registered, report))
        aged.core.answered(asked_for(aged.commands()).about, no_answer, 10.0)
    tm, why = start.resource_id, "idle for 3 s, and not needed as a standby"
    assert [(line.pop("log_level"), line.pop("event"), line) for line in logs] == [
        ("info", "starting a TaskManager", {"resource": tm}),
        ("info", "an allocation has no outcome yet", {"allocation": A, "error": "late"}),
        ("info", "stopping a TaskManager", {"resource": tm, "reason": "exit code 1", "kill": True}),
        ("warning", "a TaskManager with slots of jobs is lost", {"resource": tm, "reason": "exit code 1"}),
        ("info", "starting a TaskManager", {"resource": another.resource_id}),
        ("info", "a TaskManager is told to exit", {"resource": TM1, "reason": why}),
        ("info", "a TaskManager did not say that it exits", {"resource": TM1, "error": "late"}),
        ("info", "stopping a TaskManager", {"resource": TM1, "reason": why, "kill": False}),
        ("warning", "a JobMaster is silent; its needs are dropped", {"job": JOB, "seconds": 10.0}),
        ("info", "a TaskManager is told to renew its session", {"resource": TM1, "reason": "its session has aged"}),
    ]
