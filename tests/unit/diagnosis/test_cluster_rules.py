"""What the rules say of the cluster as a whole, on frozen facts (E19a)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from minflinkd.diagnosis.cluster import diagnose
from minflinkd.diagnosis.facts import ClusterFacts, Disk, History
from minflinkd.diagnosis.findings import Finding, Severity
from minflinkd.rpc.messages import SessionPhase, StartingTaskManager, TaskManagerLoss
from minflinkd.runtime.ids import ResourceId
from tests.unit.diagnosis.facts import JOB, NOW, TM, resources, task_manager


def only(**changes: Any) -> Finding:
    found = diagnose(cluster(**changes))
    assert len(found) == 1, [each.code for each in found]
    return found[0]


def cluster(**changes: Any) -> ClusterFacts:
    known: dict[str, Any] = {"now": NOW, "resources": resources(), "task_managers": (task_manager(),)}
    return ClusterFacts(**(known | changes))


def test_a_healthy_cluster_has_no_finding() -> None:
    disk = Disk("/var/lib/minflinkd", 50 * 2**30, 100 * 2**30)
    history = History(5_000, {"loop_lag": [0.001] * 60})
    assert diagnose(cluster(disks=(disk,), history=history)) == ()
    assert diagnose(ClusterFacts(now=NOW)) == ()


def test_needs_without_any_taskmanager_are_critical() -> None:
    found = only(resources=resources(task_managers=0, slots_total=0, slots_free=0, pending_needs=2), task_managers=())
    assert (found.code, found.severity) == ("no-taskmanager", Severity.CRITICAL)


def test_needs_that_wait_are_told_with_the_free_slots() -> None:
    found = only(resources=resources(pending_needs=1, slots_free=0))
    assert (found.code, found.figure) == ("too-few-slots", "0 of 4 free")


@pytest.mark.parametrize("count", [1, 3])
def test_losses_are_news_for_a_quarter_of_an_hour(count: int) -> None:
    losses = tuple(
        TaskManagerLoss(resource_id=ResourceId(f"tm-{i}"), at_ms=NOW - 60_000 * (i + 1), reason="killed by signal 9")
        for i in range(count)
    )
    found = only(resources=resources(losses=losses))
    assert (found.code, found.task_manager, found.since_ms) == ("taskmanager-lost", "tm-0", NOW - 60_000)
    assert found.sentence.endswith("killed by signal 9")
    old = tuple(replace(loss, at_ms=NOW - 3_600_000) for loss in losses)
    assert diagnose(cluster(resources=resources(losses=old))) == ()


def test_a_session_that_does_not_start_shows_its_error() -> None:
    ill = task_manager(session=SessionPhase.LOST, session_error="no Java was found")
    found = only(task_managers=(ill,))
    assert (found.code, found.severity) == ("session-does-not-start", Severity.CRITICAL)
    assert "no Java was found" in found.sentence


def test_a_taskmanager_that_never_registers_is_found() -> None:
    starting = StartingTaskManager(resource_id=ResourceId("tm-new"), since_ms=NOW - 300_000)
    assert only(resources=resources(starting=(starting,))).code == "taskmanager-starts-slowly"


def test_a_drain_that_waits_names_the_job() -> None:
    held = replace(task_manager(), drained=True, held_by={JOB: "no other slots are free"})
    found = only(task_managers=(held,))
    assert (found.code, found.job, found.severity) == ("drain-held", JOB, Severity.INFO)


@pytest.mark.parametrize(
    ("free", "severity"), [(3 * 2**30, Severity.WARNING), (2**28, Severity.CRITICAL), (30 * 2**30, None)]
)
def test_a_disk_that_is_nearly_full_is_found(free: int, severity: Severity | None) -> None:
    found = diagnose(cluster(disks=(Disk("/var/lib/minflinkd", free, 100 * 2**30),)))
    assert [each.severity for each in found] == ([] if severity is None else [severity])


def test_a_full_disk_of_a_taskmanager_is_found_by_its_metrics() -> None:
    full = task_manager(metrics={"disk.free_bytes": 2.0**28, "disk.total_bytes": 2.0**40})
    found = only(task_managers=(full,))
    assert (found.code, found.task_manager) == ("disk-full", TM)


def test_a_daemon_whose_event_loop_is_late_says_so() -> None:
    assert only(history=History(5_000, {"loop_lag": [0.4] * 60})).code == "daemon-busy"
