"""What the autoscaler of a job has decided, in each place where users look (R62)."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest
from msgspec.structs import replace

from minflinkd.rpc.autoscaler import AutoscalerStatus, GroupNeed
from minflinkd.rpc.jobs import HotRestart, Rescaled, RestartState
from minflinkd.runtime.ids import TaskId, VertexId
from tests.component.cli.conftest import Command, RunningDaemon
from tests.unit.rest.parties import RUNNING, details

WHY = "flights gets 1,800 rows/s of the 940 that its 2 could process: it needs 6.2 slots; it has 2, and max is 2"
STATUS = AutoscalerStatus(
    enabled=True,
    verdict="limited",
    why=WHY,
    decided_ms=1000,
    ready_ms=61_000,
    least=1,
    most=2,
    target=0.7,
    groups=(
        GroupNeed(
            group="default", slots=2, wanted=6.2, utilization=2.1, task=TaskId("flights"), rate=1800.0, capacity=940.0
        ),
    ),
    ups=1,
)
RESCALE = HotRestart(
    number=3,
    state=RestartState.COMPLETED,
    requested_ms=1000,
    rescaled=(Rescaled(VertexId("flights"), 1, 2),),
    reason="flights gets 900 rows/s: 1 -> 2 slots",
)


def scaled(daemon: RunningDaemon, status: AutoscalerStatus | None = STATUS) -> None:
    daemon.dispatcher.jobs[RUNNING] = replace(details(), autoscaler=status, hot_restarts=(RESCALE,))


def asked(daemon: RunningDaemon, path: str) -> str:
    with urllib.request.urlopen(f"{daemon.rest.url}{path}", timeout=30) as answer:
        return str(answer.read().decode())


def test_a_decision_and_its_reason_are_told_everywhere(daemon: RunningDaemon, command: Command) -> None:
    """By `info`, over HTTP, to Prometheus and in the diagnosis; a change is among the hot restarts."""
    scaled(daemon)
    shown = command("info", RUNNING).output
    assert f"Autoscaler: 1 to 2 slots, target 70%; limited: {WHY}\n" in shown
    assert "completed, for the autoscaler: flights gets 900 rows/s: 1 -> 2 slots;" in shown
    told = json.loads(asked(daemon, f"/jobs/{RUNNING}/autoscaler"))
    assert (told["verdict"], told["why"], told["max"], told["target-utilization"]) == ("limited", WHY, 2, 0.7)
    assert told["groups"][0]["wanted"] == 6.2
    assert told["changes"] == [
        {
            "number": 3,
            "requested": 1000,
            "state": "completed",
            "vertices": {"flights": [1, 2]},
            "why": "flights gets 900 rows/s: 1 -> 2 slots",
        }
    ]
    scraped = asked(daemon, "/metrics")
    assert f'minflinkd_job_autoscaler_limited{{job="{RUNNING}"}} 1.0' in scraped
    assert f'minflinkd_job_autoscaler_changes_total{{direction="up",job="{RUNNING}"}} 1.0' in scraped
    assert "autoscaler-limited" in asked(daemon, f"/jobs/{RUNNING}/diagnosis")


def test_a_job_without_one_has_no_such_path(daemon: RunningDaemon, command: Command) -> None:
    """The answer says how it gets one."""
    scaled(daemon, None)
    assert "Autoscaler" not in command("info", RUNNING).output
    with pytest.raises(urllib.error.HTTPError) as refused:
        asked(daemon, f"/jobs/{RUNNING}/autoscaler")
    assert refused.value.code == 404
    assert "has no autoscaler" in refused.value.read().decode()


def test_one_that_is_off_is_told_to_be_off(daemon: RunningDaemon, command: Command) -> None:
    """No figures are shown for it."""
    scaled(daemon, AutoscalerStatus(enabled=False))
    assert "Autoscaler: off\n" in command("info", RUNNING).output
    assert "minflinkd_job_autoscaler_slots{" not in asked(daemon, "/metrics")
