"""How many records of Kafka wait for a job, in each place where users look."""

from __future__ import annotations

import json
import urllib.request

from msgspec.structs import replace

from minflinkd.rest.flink.figures import of_task
from minflinkd.rpc.jobs import ExecutionState
from minflinkd.rpc.messages import PendingRecords
from tests.component.cli.conftest import Command, RunningDaemon
from tests.unit.rest.parties import RUNNING, details

PARTS = {f"flights.{number}": 100 * number for number in range(8)}


def behind(daemon: RunningDaemon, **pending: PendingRecords) -> None:
    job = details()
    first, *others = job.tasks
    reading = replace(first, metrics=replace(first.metrics, pending=pending))
    daemon.dispatcher.jobs[RUNNING] = replace(job, tasks=(reading, *others))


def asked(daemon: RunningDaemon, path: str) -> str:
    with urllib.request.urlopen(f"{daemon.rest.url}{path}", timeout=30) as answer:
        return str(answer.read().decode())


def test_records_that_wait_are_told_everywhere(daemon: RunningDaemon, command: Command) -> None:
    """By partition, those with most records first; by Flink's name; and for Prometheus (K9)."""
    behind(daemon, flights=PendingRecords(records=2800, partitions=8, parts=PARTS))
    (line,) = [line for line in command("info", RUNNING).output.splitlines() if line.startswith("Pending")]
    assert line == (
        "Pending: flights: 2,800 records wait in Kafka "
        "(flights.7 700, flights.6 600, flights.5 500, flights.4 400, flights.3 300, ...)"
    )
    assert "2.8k" in command("metrics", RUNNING).output
    figures = json.loads(command("metrics", RUNNING, "--json").output)
    assert (figures["pending-records"], [task["pending-records"] for task in figures["tasks"]]) == (2800, [2800, None])
    job = json.loads(asked(daemon, f"/jobs/{RUNNING}"))
    assert job["minflinkd"]["pending-records"] == 2800
    assert job["vertices"][0]["minflinkd"]["pending"] == {"flights": {"records": 2800, "partitions": 8, "parts": PARTS}}
    assert of_task(daemon.dispatcher.jobs[RUNNING].tasks[0], {})["pendingRecords"] == 2800
    scraped = asked(daemon, "/metrics")
    labels = f'job="{RUNNING}",source="flights",task="flights"'
    assert f"minflinkd_source_pending_records{{{labels}}} 2800.0" in scraped
    assert f'minflinkd_source_partition_pending_records{{job="{RUNNING}",part="flights.7"' in scraped


def test_partitions_without_records_are_not_named(daemon: RunningDaemon, command: Command) -> None:
    behind(daemon, flights=PendingRecords(records=1, partitions=8, parts=dict.fromkeys(PARTS, 0) | {"flights.3": 1}))
    assert "Pending: flights: 1 record waits in Kafka (flights.3 1)\n" in command("info", RUNNING).output


def test_nothing_is_told_of_a_job_that_does_not_run(daemon: RunningDaemon, command: Command) -> None:
    """What the brokers said of its last attempt is old (K9)."""
    behind(daemon, flights=PendingRecords(records=2800, partitions=8, parts=PARTS))
    job = daemon.dispatcher.jobs[RUNNING]
    tasks = tuple(replace(task, state=ExecutionState.CANCELED) for task in job.tasks)
    daemon.dispatcher.jobs[RUNNING] = replace(job, tasks=tasks)
    assert "Pending" not in command("info", RUNNING).output
    assert json.loads(asked(daemon, f"/jobs/{RUNNING}"))["minflinkd"]["pending-records"] is None
    assert "source_pending_records{" not in asked(daemon, "/metrics")


def test_of_very_many_partitions_only_the_sum_is_for_prometheus(daemon: RunningDaemon) -> None:
    """Those with most records are others each time, and each would be a series of its own."""
    behind(daemon, flights=PendingRecords(records=2800, partitions=65, parts=PARTS))
    scraped = asked(daemon, "/metrics")
    assert "source_pending_records{" in scraped
    assert "source_partition_pending_records{" not in scraped


def test_nothing_is_told_of_a_job_that_does_not_read_kafka(daemon: RunningDaemon, command: Command) -> None:
    behind(daemon)
    assert "Pending" not in command("info", RUNNING).output
    assert json.loads(command("metrics", RUNNING, "--json").output)["pending-records"] is None
    assert "source_pending_records{" not in asked(daemon, "/metrics")


def test_a_source_that_has_caught_up_has_none(daemon: RunningDaemon, command: Command) -> None:
    behind(daemon, flights=PendingRecords(records=0, partitions=1, parts={"flights.0": 0}))
    assert "Pending: flights: 0 records wait in Kafka\n" in command("info", RUNNING).output
