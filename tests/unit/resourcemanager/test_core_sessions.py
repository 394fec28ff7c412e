"""The core of the ResourceManager: which session it lends, and what it shows of the TaskManagers."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from minflinkd.resourcemanager import events as ev
from minflinkd.resourcemanager.core import ResourceManagerCore
from minflinkd.rpc import messages as m
from minflinkd.rpc.network import task_manager
from minflinkd.runtime.ids import AllocationId, IdSource
from minflinkd.runtime.resource_profile import parse_profile
from tests.unit.resourcemanager.core_world import (
    JOB,
    OTHER,
    TM1,
    TM2,
    A,
    B,
    manager_with,
    need,
)


def test_a_session_is_lent_by_the_emptiest_taskmanager_that_is_no_jobs_own() -> None:
    """R24."""
    manager = manager_with(can_start=False)
    manager.register(TM1, (OTHER, B))
    registered = manager.register(TM2)
    found = m.FindSession()
    assert manager.receive(found).address == task_manager(TM2)
    own = msgspec.structs.replace(manager.report(TM2), dedicated_to=JOB)
    manager.beat(registered, own)
    assert manager.receive(found).address == task_manager(TM1)


def test_a_taskmanager_that_lends_its_session_is_in_use() -> None:
    """It does not end for idleness, and its session is not renewed meanwhile (R6, R6a)."""
    manager = manager_with(can_start=False)
    manager.register(TM1)
    manager.now = 5.0
    manager.receive(m.FindSession())
    assert manager.core.state.task_managers[TM1].idle_since == 5.0


def test_a_session_is_lent_by_a_taskmanager_that_runs_the_job_already() -> None:
    """What was built there need not be built again, even if the TaskManager is the job's own (H3, R24)."""
    manager = manager_with(can_start=False)
    registered = manager.register(TM1, (JOB, A))
    manager.beat(registered, msgspec.structs.replace(manager.report(TM1, (JOB, A)), dedicated_to=JOB))
    manager.register(TM2)
    assert manager.receive(m.FindSession(job_id=JOB)).address == task_manager(TM1)
    assert manager.receive(m.FindSession(job_id=OTHER)).address == task_manager(TM2)
    aged = msgspec.structs.replace(manager.report(TM1, (JOB, A)), session_aged=True)
    manager.beat(registered, aged)
    assert manager.receive(m.FindSession(job_id=JOB)).address == task_manager(TM2)


def test_a_job_of_its_own_is_analysed_where_no_other_job_is() -> None:
    """Its code runs during the analysis and may end the session (R24)."""
    manager = manager_with(can_start=False)
    manager.register(TM1, (OTHER, B))
    alone = m.FindSession(job_id=JOB, exclusive=True)
    waits = manager.receive(alone)
    assert waits.address is None
    assert "a TaskManager that no other job uses; " in waits.waiting
    registered = manager.register(TM2)
    assert manager.receive(alone).address == task_manager(TM2)
    manager.beat(registered, msgspec.structs.replace(manager.report(TM2), analysing=True))
    assert manager.receive(alone).address is None, "another job is analysed there"
    manager.beat(registered, msgspec.structs.replace(manager.report(TM2), dedicated_to=OTHER))
    assert manager.receive(alone).address is None
    manager.beat(registered, msgspec.structs.replace(manager.report(TM2), dedicated_to=JOB))
    assert manager.receive(alone).address == task_manager(TM2)


def test_a_taskmanager_is_started_to_analyse_a_job_of_its_own() -> None:
    """R3, R24."""
    manager = manager_with()
    manager.register(TM1, (OTHER, B))
    manager.commands()
    manager.receive(m.FindSession(job_id=JOB))
    assert not [c for c in manager.commands() if isinstance(c, ev.StartTaskManager)]
    manager.receive(m.FindSession(job_id=JOB, exclusive=True))
    assert len([c for c in manager.commands() if isinstance(c, ev.StartTaskManager)]) == 1


def test_a_session_is_lent_by_a_taskmanager_that_holds_the_jobs_libraries_already() -> None:
    """The idle one is kept for other versions. If all hold another version, the waiting job is told (B31)."""
    one, two = (m.Library("java:com/acme", "1"),), (m.Library("java:com/acme", "2"),)
    manager = manager_with(can_start=False)
    registered = manager.register(TM1, (OTHER, B))
    manager.beat(registered, msgspec.structs.replace(manager.report(TM1, (OTHER, B)), libraries=one))
    waits = manager.receive(m.FindSession(libraries=two))
    assert waits.address is None
    assert "1 of 2 slots free, 1 at most on one, 1 of them with other versions of the job's libraries" in waits.waiting
    manager.register(TM2)
    assert manager.receive(m.FindSession(libraries=one)).address == task_manager(TM1)
    assert manager.receive(m.FindSession(libraries=two)).address == task_manager(TM2)
    assert manager.receive(m.FindSession()).address == task_manager(TM2)


def test_a_session_that_has_not_aged_is_lent_and_of_those_the_one_with_the_most_free_slots() -> None:
    """R6a."""
    manager = manager_with(can_start=False)
    registered = manager.register(TM1)
    manager.register(TM2, (OTHER, B))
    assert manager.receive(m.FindSession()).address == task_manager(TM1)
    manager.beat(registered, msgspec.structs.replace(manager.report(TM1), session_aged=True))
    assert manager.receive(m.FindSession()).address == task_manager(TM2)


def test_a_job_is_analysed_elsewhere_if_its_own_taskmanager_holds_other_versions_of_its_libraries() -> None:
    """B31."""
    one, two = (m.Library("java:com/acme", "1"),), (m.Library("java:com/acme", "2"),)
    manager = manager_with(can_start=False)
    registered = manager.register(TM1, (JOB, A))
    manager.beat(registered, msgspec.structs.replace(manager.report(TM1, (JOB, A)), libraries=one))
    manager.register(TM2)
    for libraries, tm in ((one, TM1), (two, TM2), ((), TM1)):
        assert manager.receive(m.FindSession(job_id=JOB, libraries=libraries)).address == task_manager(tm)


def test_whoever_waits_for_a_session_learns_what_there_is_to_wait_for() -> None:
    """After three starts that have failed, it is refused (R5)."""
    manager = manager_with()
    assert manager.receive(m.FindSession()) == m.SessionFound(waiting="waiting for 1 TaskManager to become ready")
    for number in range(3):
        (start,) = (c for c in manager.commands() if isinstance(c, ev.StartTaskManager))
        assert manager.receive(m.FindSession()).waiting.startswith("waiting for 1 TaskManager")
        manager.core.start_failed(start.resource_id, f"no memory {number}", manager.now)
        manager.passes(2)
    why = "its process could not be started: no memory 2"
    refused = f"no TaskManager could be started: 3 starts in a row failed, the last: {why}"
    assert manager.receive(m.FindSession()).refused == refused


def test_a_wanted_session_outlives_the_pause_between_failed_starts() -> None:
    """Whoever asks only now and then still gets one in the end (R5)."""
    manager = manager_with()
    manager.receive(m.FindSession())
    for _ in range(7):
        (start,) = (c for c in manager.commands() if isinstance(c, ev.StartTaskManager))
        manager.core.start_failed(start.resource_id, "no memory", manager.now)
        manager.commands()
        assert "no memory" in (manager.receive(m.FindSession()).refused or "no memory")
        manager.passes(30)
    assert any(isinstance(c, ev.StartTaskManager) for c in manager.commands())


def test_times_are_shown_as_the_wall_clock_has_them() -> None:
    manager = manager_with()
    manager.now = 5.0
    registered = manager.register(TM1)
    manager.now = 7.5
    manager.beat(registered, manager.report(TM1))
    (info,) = manager.receive(m.ListTaskManagers())
    assert (info.registered_ms, info.last_heartbeat_ms) == (5000, 7500)


def test_a_taskmanager_is_shown_as_it_registered_and_as_it_last_reported() -> None:
    """A report that was overtaken by a later one is not shown (R8)."""
    manager = manager_with()
    assert manager.receive(m.ListTaskManagers()) == ()
    manager.now = 5.0
    registered = manager.register(TM1)
    early, late = manager.report(TM1), manager.report(TM1, (JOB, A))
    manager.versions[TM1] = 0
    manager.now = 7.5
    manager.beat(registered, late)
    manager.register(TM1)  # a repetition, which was sent before
    beat = m.HeartbeatFromTaskManager(instance_id=registered.instance_id, report=early, start_phases={"warm": 4.0})
    manager.receive(beat, fence=registered.leader_id)
    assert manager.receive(m.ListTaskManagers()) == (
        m.TaskManagerInfo(
            resource_id=TM1,
            instance_id=registered.instance_id,
            address=task_manager(TM1),
            pid=1,
            hardware=m.Hardware(cpu_cores=2, memory_bytes=1),
            registered_ms=5000,
            last_heartbeat_ms=7500,
            log_directory="",
            report=late,
            start_phases={"warm": 4.0},
            build="0.0.9",
        ),
    )


def test_a_report_of_the_same_version_is_shown_for_its_metrics() -> None:
    """Metrics change without anything that the version counts, and the ResourceManager decides nothing by them."""
    manager = manager_with()
    registered = manager.register(TM1)
    (info,) = manager.receive(m.ListTaskManagers())
    report = msgspec.structs.replace(info.report, metrics={"threads": 3.0})
    before = manager.core.state
    manager.beat(registered, report)
    assert manager.core.state is before
    (info,) = manager.receive(m.ListTaskManagers())
    assert info.report == report


def test_a_report_without_metrics_does_not_hide_those_of_the_same_session() -> None:
    """Free slots are told between two heartbeats, without metrics: counters would come and go (E17, E30)."""
    manager = manager_with()
    registered = manager.register(TM1)
    measured = msgspec.structs.replace(manager.report(TM1), metrics={"jvm.gc_share": 0.2})
    manager.beat(registered, measured)

    def shown_after(**changes: Any) -> dict[str, float]:
        notice = m.SlotsFree(report=msgspec.structs.replace(measured, metrics={}, **changes))
        manager.receive(notice, fence=registered.leader_id)
        (info,) = manager.receive(m.ListTaskManagers())
        return dict(info.report.metrics)

    assert shown_after() == {"jvm.gc_share": 0.2}
    assert shown_after(session_generation=measured.session_generation + 1) == {}


def test_the_overview_counts_taskmanagers_slots_and_needs() -> None:
    """One that was told to exit counts no more, and one that starts has no slots yet."""
    manager = manager_with(max_concurrent_starts=2, start_timeout=1e6, taskmanager_timeout=3.0)
    first = manager.register(TM1, (OTHER, B))
    manager.register(TM2)
    overview = manager.receive(m.GetResourceOverview())
    assert overview == m.ResourceOverview(task_managers=2, slots_total=4, slots_free=3)
    assert manager.receive(m.GetResourceOverview()) is overview  # until something changes (E4)
    manager.passes(3, lambda: manager.beat(first, manager.report(TM1, (OTHER, B))))
    manager.declare(need(A, 2), need(AllocationId("c"), 2), need(AllocationId("d"), 2))
    starting = tuple(
        m.StartingTaskManager(resource_id=command.resource_id, since_ms=3000)
        for command in manager.commands()
        if isinstance(command, ev.StartTaskManager)
    )
    assert len(starting) == 2
    overview = manager.receive(m.GetResourceOverview())
    assert overview == m.ResourceOverview(
        task_managers=1, slots_total=2, slots_free=1, starting=starting, pending_needs=3
    )
    manager.core.exited(TM1, "exit code 1", manager.now)
    manager.core.exited(TM2, "exit code 0", manager.now)
    assert manager.receive(m.GetResourceOverview()).lost == 1


def test_a_taskmanager_is_told_what_it_must_know_of_the_cluster() -> None:
    """A standalone TaskManager learns it from nowhere else (R7)."""
    for blobs in ({}, {"blob_url": "http://127.0.0.1:1", "blob_store": "file:///blobs"}):
        manager = manager_with()
        manager.core = ResourceManagerCore(
            ids=IdSource(random.Random(1)), options=manager.core._setting.options, **blobs
        )
        registered = manager.register(TM1, standalone=True)
        assert (registered.blob_url, registered.blob_store) == (blobs.get("blob_url", ""), blobs.get("blob_store", ""))
        assert (registered.leader_id, registered.heartbeat_interval) == (manager.core.leader_id, 1.0)
        assert registered.heartbeat_timeout == 5.0


def test_a_job_with_taskmanagers_of_its_own_is_not_analysed_where_it_could_not_run() -> None:
    """The TaskManager would be the job's own, and of no use to it. Others are analysed anywhere (R24, R40)."""
    manager = manager_with(can_start=False)
    manager.register(TM1)
    wanted = parse_profile({"gpu": 1})
    assert manager.receive(m.FindSession(job_id=JOB, exclusive=True, profile=wanted)).address is None
    assert manager.receive(m.FindSession(job_id=JOB, exclusive=True)).address == task_manager(TM1)
