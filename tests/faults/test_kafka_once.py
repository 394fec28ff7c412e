"""Rows go into Kafka exactly once, while processes of the job and the broker die (K1, K8)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from minflinkd.runtime.crash_points import OF_SINKS, VARIABLE
from tests.cluster import running_cluster
from tests.faults.hot_restarts import ONE, restarted, running_versions
from tests.faults.test_rescale_in_place import rescaled
from tests.faults.test_sinks import CLUSTER, events
from tests.servers.apache_kafka import ApacheKafka
from tests.waiting import until
from tests.windows_job import SQL, WindowsJob

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

TOPIC = "minutes"


async def test_a_broker_gets_the_rows_of_the_batch_whatever_dies(
    apache_kafka: ApacheKafka, windows: WindowsJob, truth: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    """A session dies before and after a transaction is committed, then its TaskManager, then the broker (K1, K8)."""
    await apache_kafka.create_topic(TOPIC)
    armed = tmp_path / "armed"
    armed.mkdir()
    options = {"kafka.bootstrap.servers": apache_kafka.address, "topic": TOPIC}
    vertices = {
        "events": events(windows),
        "clean": {"inputs": ["events"], "python": "windows:clean"},
        "minutes": {"inputs": ["clean"], "sql": SQL},
        "records": {"inputs": ["minutes"], "sql": "SELECT k AS key, to_json(struct(*)) AS value FROM minutes"},
        "out": {"inputs": ["records"], "sink": {"format": "kafka", "options": options, "delivery": "exactly-once"}},
    }
    job = WindowsJob(tmp_path, pace="400 ms").write("kafka", vertices=vertices, params={})
    settings = CLUSTER | {"taskmanager.spark.conf": {"spark.jars": apache_kafka.jars}}
    environ = {**os.environ, VARIABLE: str(armed)}
    async with running_cluster(tmp_path / "cluster", environ=environ, **settings) as cluster:
        job_id = await cluster.submit(job)
        for point in OF_SINKS:
            place = armed / point.value
            place.touch()
            await until(lambda place=place: not place.exists(), f"a session died at {point}", timeout=60)
        completed = (await cluster.client.checkpoints(job_id)).counts.completed
        await cluster.await_checkpoints(job_id, completed + 1)
        os.kill((await cluster.task_manager_of(job_id)).minflinkd.pid, signal.SIGKILL)
        await apache_kafka.restart()
        finished = await cluster.await_state(job_id, "FINISHED", timeout=180)
        assert finished.minflinkd.restarts >= 3
    assert await rows_in(apache_kafka, TOPIC) == truth


async def test_a_job_through_its_versions_and_widths_publishes_each_row_once(
    apache_kafka: ApacheKafka, tmp_path: Path
) -> None:
    """A hot restart goes on in the directory of the attempt before it, and a wider one on other partitions (K1, H4)."""
    await apache_kafka.create_topic("versions")
    options = {"kafka.bootstrap.servers": apache_kafka.address, "topic": "versions"}
    also = {
        "records": {"inputs": ["minutes"], "sql": "SELECT k AS key, to_json(struct(*)) AS value FROM minutes"},
        "topic": {"inputs": ["records"], "sink": {"format": "kafka", "options": options, "delivery": "exactly-once"}},
    }
    settings = ONE | {"taskmanager.spark.conf": {"spark.jars": apache_kafka.jars}}
    async with running_cluster(tmp_path / "cluster", **settings) as cluster:
        async with running_versions(cluster, tmp_path, vertices=also) as versions:
            for tag in ("2", "3"):
                done = await restarted(cluster, versions.job_id, versions.write(tag, vertices=also))
                assert done.state == "completed"
                await versions.goes_on()
                assert (await rescaled(cluster, versions.job_id, 5 - int(tag))).state == "completed"
                await versions.goes_on()
        expected = versions.windows.expected()
    assert await rows_in(apache_kafka, "versions") == expected


async def rows_in(kafka: ApacheKafka, topic: str) -> list[tuple[Any, ...]]:
    """Return the rows of the windows job that are in a topic. Each has its key."""
    records = await asyncio.to_thread(kafka.records, topic)
    rows = [(record.key, json.loads(record.value)) for record in records]
    assert all(key == row["k"] for key, row in rows)
    return sorted((_seconds(row["minute"]), row["k"], row["n"], row["total"]) for _, row in rows)


def _seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())
