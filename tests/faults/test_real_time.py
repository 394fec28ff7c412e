"""Jobs in real-time mode through their versions, widths and losses, with a real broker (T2, T3)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from minflinkd.runtime.errors import MinflinkError
from tests.cluster import Cluster, free_port, running_cluster
from tests.e2e.command import minflinkd
from tests.faults.hot_restarts import restarted
from tests.faults.test_rescale_in_place import rescaled
from tests.servers.apache_kafka import ApacheKafka, Record
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

KEYS = 5
CLUSTER: dict[str, Any] = {
    "resourcemanager.standby-taskmanagers": 1,
    "resourcemanager.max-taskmanagers": 2,
    "taskmanager.numberOfTaskSlots": 2,
    "execution.checkpointing.interval": "1 s",
    "heartbeat.timeout": "10 s",
}


class Counting:
    """A job that counts what a producer writes, by key, and writes each change. `name`: also of its topics."""

    def __init__(self, kafka: ApacheKafka, directory: Path, name: str) -> None:
        self.kafka = kafka
        self.directory = directory
        self.name = name
        self.produced = 0

    async def make_topics(self) -> None:
        """Each has one partition, so that the order of rows is the order in which they are processed."""
        for topic in (f"{self.name}-in", f"{self.name}-out"):
            await self.kafka.create_topic(topic, 1)

    def write(self, tag: str, **changes: Any) -> Path:
        servers = {"kafka.bootstrap.servers": self.kafka.address}
        count = (
            f"SELECT CONCAT_WS(' ', n % {KEYS}, COUNT(*), MAX(n), '{tag}') AS value FROM numbers GROUP BY n % {KEYS}"
        )
        document = {
            "name": self.name,
            "execution": "real-time",
            "vertices": {
                "events": {
                    "source": {
                        "format": "kafka",
                        "options": {**servers, "subscribe": f"{self.name}-in", "startingOffsets": "earliest"},
                    }
                },
                "numbers": {
                    "inputs": ["events"],
                    "sql": "SELECT CAST(CAST(value AS STRING) AS BIGINT) AS n FROM events",
                },
                "counts": {"inputs": ["numbers"], "sql": count},
                "out": {
                    "inputs": ["counts"],
                    "sink": {"format": "kafka", "options": {**servers, "topic": f"{self.name}-out"}},
                },
            },
        }
        file = self.directory / f"{self.name}-{tag}.json"
        file.write_text(json.dumps(document | changes))
        return file

    @asynccontextmanager
    async def fed(self) -> AsyncIterator[None]:
        """Write numbers meanwhile, some hundred a second."""

        over = asyncio.Event()

        async def feed() -> None:
            while not over.is_set():
                records = [Record(str(number), 0) for number in range(self.produced, self.produced + 20)]
                await asyncio.to_thread(self.kafka.produce, f"{self.name}-in", records)
                self.produced += len(records)
                await asyncio.sleep(0.05)  # the pace of the input, not a synchronisation

        task = asyncio.create_task(feed(), name=f"feed {self.name}")
        try:
            yield
        finally:
            over.set()
            await task

    async def written(self) -> list[tuple[str, str]]:
        """Return what has been written in its order, each with the tag of its version."""
        records = await asyncio.to_thread(self.kafka.records, f"{self.name}-out", 1)
        return [(value, tag) for value, _, tag in (record.value.rpartition(" ") for record in records)]

    async def goes_on(self, tag: str) -> None:
        """Wait until this version has written something that was produced after now."""
        since = self.produced

        async def written() -> bool:
            return any(t == tag and int(value.split()[2]) > since for value, t in (await self.written())[-200:])

        await until(written, f"new rows of {self.name} {tag}", timeout=120)

    async def catches_up(self) -> list[tuple[str, str]]:
        """Wait until all that was produced is counted. Return all that was written."""

        async def complete() -> list[tuple[str, str]] | None:
            found = await self.written()
            last = {value.split()[0]: int(value.split()[2]) for value, _ in found}
            return found if max(last.values(), default=-1) == self.produced - 1 else None

        return await until(complete, f"all rows of {self.name}", timeout=120)

    def counts(self) -> set[str]:
        """Return every value that counting shows if each number is counted once, in its order."""
        return {f"{n % KEYS} {n // KEYS + 1} {n}" for n in range(self.produced)}


async def counting(kafka: ApacheKafka, directory: Path, name: str) -> Counting:
    job = Counting(kafka, directory, name)
    await job.make_topics()
    return job


@asynccontextmanager
async def cluster_with(kafka: ApacheKafka, directory: Path) -> AsyncIterator[Cluster]:
    settings = CLUSTER | {"rest.port": free_port(), "taskmanager.spark.conf": {"spark.jars": kafka.jars}}
    async with running_cluster(directory / "cluster", **settings) as cluster:
        await cluster.await_ready(1)
        yield cluster


@pytest.mark.slow  # test_session_real_time has changes of the mode, test_hot_restart those of versions and widths
async def test_versions_and_widths_follow_each_other_and_write_each_row_once(
    apache_kafka: ApacheKafka, tmp_path: Path
) -> None:
    """A hot restart, a rescale, and a start from a savepoint: the last checkpoint of each has all that it wrote (T2).

    One version runs in micro-batches. To drain the job is refused, and it goes on.
    """
    job = await counting(apache_kafka, tmp_path, "versions")
    async with cluster_with(apache_kafka, tmp_path) as cluster, job.fed():
        job_id = await cluster.submit(job.write("v1"))
        await job.goes_on("v1")

        async def told() -> bool:
            (task,) = (await cluster.client.job(job_id)).vertices
            figures = task.minflinkd.real_time
            return figures is not None and figures.latency_p50 is not None and figures.cut_pause is not None

        await until(told, "latencies and the pause of a checkpoint")
        _, shown, _ = await minflinkd(cluster, "info", job_id)
        assert "Real-time: events -> numbers -> counts -> out: " in shown
        assert (await restarted(cluster, job_id, job.write("v2"))).state == "completed"
        await job.goes_on("v2")
        assert (await rescaled(cluster, job_id, 2)).state == "completed"
        await job.goes_on("v2")
        with pytest.raises(MinflinkError, match="real-time mode"):
            await cluster.client.stop(job_id, (tmp_path / "drained").as_uri(), drain=True)
        await job.goes_on("v2")
        slower = job.write("v3", execution="micro-batch", parallelism=2)
        assert (await restarted(cluster, job_id, slower)).state == "completed"
        await job.goes_on("v3")
        assert (await restarted(cluster, job_id, job.write("v4", parallelism=2))).state == "completed"
        await job.goes_on("v4")
        savepoint = await cluster.client.stop(job_id, (tmp_path / "savepoints").as_uri(), drain=False)
        await cluster.await_state(job_id, "FINISHED")
        await cluster.submit(job.write("v5", restore={"path": savepoint}))
        await job.goes_on("v5")
    found = await job.written()
    seen = Counter(value for value, tag in found if tag != "v3")
    assert set(seen) <= job.counts()
    assert max(seen.values()) == 1, "each row is written once"


async def test_state_is_exact_and_no_row_is_missing_whatever_dies(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """The session dies, then the TaskManager, then the daemon. Rows since the last checkpoint come twice (T2, T3)."""
    job = await counting(apache_kafka, tmp_path, "losses")
    async with cluster_with(apache_kafka, tmp_path) as cluster:
        async with job.fed():
            job_id = await cluster.submit(job.write("v1"))
            await job.goes_on("v1")
            for victim in ("session", "TaskManager", "daemon"):
                completed = (await cluster.client.checkpoints(job_id)).counts.completed
                await cluster.await_checkpoints(job_id, completed + 1)
                if victim == "daemon":
                    await cluster.kill()
                    await cluster.start_again()
                    await cluster.await_state(job_id, "RUNNING")
                else:
                    pid = (await cluster.task_manager_of(job_id)).minflinkd.pid
                    lost = psutil.Process(pid).children()[0].pid if victim == "session" else pid
                    os.kill(lost, signal.SIGKILL)
                await job.goes_on("v1")
        found = await job.catches_up()
        assert (await cluster.client.job(job_id)).minflinkd.restarts == 2, "the daemon's death stops no task"
    assert {value for value, _ in found} == job.counts()
