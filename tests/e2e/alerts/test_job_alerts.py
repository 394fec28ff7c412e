"""What ails jobs: they fail, they are held back, nothing comes in, watermarks stand, state grows (E19b)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.beside import beside
from tests.cluster import Cluster, running_cluster
from tests.e2e.alerts.firing import fires, hurried
from tests.faults.test_diagnosis import LITTERING, NUMBERS, STEADY, job, through
from tests.servers.apache_kafka import ApacheKafka, Record
from tests.servers.install import KAFKA_CONNECTOR
from tests.servers.prometheus import Prometheus, needs_prometheus, prometheus

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), needs_prometheus]

SETTINGS: dict[str, Any] = {
    "resourcemanager.standby-taskmanagers": 1,
    "resourcemanager.max-taskmanagers": 1,
    "taskmanager.numberOfTaskSlots": 4,
    "taskmanager.exchange.max-backlog": 20_000,
    "execution.checkpointing.interval": "1 s",
}
COLLECT = {"sink": {"format": "collect"}}


@dataclass(frozen=True)
class Ward:
    """A cluster for ailing jobs, and who watches it."""

    cluster: Cluster
    server: Prometheus

    async def submit(self, base: Path, name: str, vertices: dict[str, Any], **more: Any) -> str:
        return await self.cluster.submit(job(base, name, vertices, **more))


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def warm(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ward]:
    base = tmp_path_factory.mktemp("jobs")
    jars = ",".join(str(jar) for jar in sorted(KAFKA_CONNECTOR.glob("*.jar")))
    settings = {**SETTINGS, "taskmanager.spark.conf": {"spark.jars": jars}}
    async with running_cluster(base / "cluster", **settings) as cluster:
        await cluster.await_ready(1)
        target, rules = cluster.url.removeprefix("http://"), hurried(base / "rules.yml")
        async with prometheus(base / "server", target, rules=rules, headers=cluster.headers) as server:
            yield Ward(cluster, server)


@pytest_asyncio.fixture(loop_scope="session")
async def ward(warm: Ward) -> AsyncIterator[Ward]:
    """The cluster, without jobs that another test has left."""
    yield warm
    await warm.cluster.cancel_all()


def files(path: Path, **more: Any) -> dict[str, Any]:
    path.mkdir(exist_ok=True)
    return {"source": {"format": "json", "path": str(path), "schema": "time TIMESTAMP"}, **more}


async def test_a_bug_is_told_while_the_job_restarts_and_when_it_has_failed(ward: Ward, tmp_path: Path) -> None:
    restarts = await ward.submit(tmp_path, "restarts", through("poison"))
    await ward.submit(tmp_path, "fails", through("poison"), **{"restart-strategy": {"kind": "none"}})
    await fires(ward.server, "MinflinkdJobFailed", severity="critical")
    await fires(ward.server, "MinflinkdJobRestarts", job=restarts, severity="warning", timeout=120)


async def test_what_stands_still_is_told(ward: Ward, tmp_path: Path) -> None:
    """A source that gives nothing, and a watermark that an input without rows holds back from the beginning."""
    silent = await ward.submit(
        tmp_path, "silent", {"lines": files(tmp_path / "empty"), "seen": {"inputs": ["lines"], **COLLECT}}
    )
    late = {"column": "time", "delay": "1 second"}
    held = {
        "clicks": {**NUMBERS, "watermark": {"column": "timestamp", "delay": "1 second"}},
        "refunds": files(tmp_path / "empty", watermark=late),
        "both": {
            "inputs": ["clicks", "refunds"],
            "sql": "SELECT window(time, '1 minute').start AS minute, count(*) AS n FROM "
            "(SELECT timestamp AS time FROM clicks UNION ALL SELECT time FROM refunds) "
            "GROUP BY window(time, '1 minute')",
        },
        "seen": {"inputs": ["both"], **COLLECT},
    }
    job_id = await ward.submit(tmp_path, "held", held)
    await fires(ward.server, "MinflinkdNoRows", job=silent, severity="info", timeout=120)
    await fires(ward.server, "MinflinkdWatermarkStands", job=job_id, severity="warning", timeout=120)


async def test_a_task_that_waits_for_a_slow_reader_is_told(ward: Ward, tmp_path: Path) -> None:
    vertices = {**through("slow", exchange=True), "numbers": STEADY}
    job_id = await ward.submit(tmp_path, "slow", vertices)
    [task] = [each for each in (await ward.cluster.client.job(job_id)).vertices if "numbers" in each.name]
    await fires(ward.server, "MinflinkdBackpressure", job=job_id, task=task.minflinkd.task_id, timeout=120)


async def test_bad_records_are_told(ward: Ward, tmp_path: Path) -> None:
    vertices = {
        "numbers": STEADY,
        "odd": {
            "inputs": ["numbers"],
            "sql": "SELECT value, IF(value % 2 = 1, 'odd', NULL) AS _error FROM numbers",
            "on-bad-record": "drop",
        },
        "seen": {"inputs": ["odd"], **COLLECT},
    }
    job_id = await ward.submit(tmp_path, "odd", vertices)
    await fires(ward.server, "MinflinkdBadRecords", job=job_id, vertex="odd", severity="warning", timeout=120)


async def test_a_jvm_that_stands_still_to_collect_garbage_is_told(ward: Ward, tmp_path: Path) -> None:
    job_id = await ward.submit(tmp_path, "litter", LITTERING)
    await ward.cluster.await_state(job_id, "RUNNING")
    runs_on = await ward.cluster.task_manager_of(job_id)
    await fires(ward.server, "MinflinkdGarbageCollection", taskmanager=runs_on.id, severity="warning", timeout=120)


async def test_a_source_that_falls_behind_is_told(ward: Ward, apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """A job that reads all there is from the same topic is left alone (K9)."""
    await apache_kafka.create_topic("more", partitions=1)
    options = {"kafka.bootstrap.servers": apache_kafka.address, "subscribe": "more", "startingOffsets": "earliest"}

    def reading(**limit: str) -> dict[str, Any]:
        return {
            "messages": {"source": {"format": "kafka", "options": options | limit}},
            "seen": {"inputs": ["messages"], **COLLECT},
        }

    slow = await ward.submit(tmp_path, "slow", reading(maxOffsetsPerTrigger="1"))
    keeps_up = await ward.submit(tmp_path, "quick", reading())

    async def feed() -> None:
        while True:
            await asyncio.to_thread(apache_kafka.produce, "more", [Record("1")] * 500)
            await asyncio.sleep(1)  # the pace of the input

    async with beside("feeder", feed()):
        await fires(ward.server, "MinflinkdSourceFallsBehind", job=slow, source="messages", timeout=240)
    assert keeps_up not in {each["job"] for each in (await ward.server.firing())["MinflinkdSourceFallsBehind"]}


async def test_state_without_an_end_is_told(ward: Ward, tmp_path: Path) -> None:
    """A job whose state grows as much, but has a watermark, is left alone."""
    numbers = {"source": {"format": "rate", "options": {"rowsPerSecond": 1000, "numPartitions": 1}}}
    forgetful = {
        "numbers": numbers,
        "each": {"inputs": ["numbers"], "sql": "SELECT value, count(*) AS n FROM numbers GROUP BY value"},
        "seen": {"inputs": ["each"], **COLLECT, "output-mode": "update"},
    }
    late = {
        **forgetful,
        "numbers": {**numbers, "watermark": {"column": "timestamp", "delay": "1 hour"}},
        "each": {"inputs": ["numbers"], "sql": "SELECT value, count(*) AS n FROM numbers GROUP BY value, timestamp"},
    }
    grows = await ward.submit(tmp_path, "forgetful", forgetful)
    with_watermark = await ward.submit(tmp_path, "late", late)
    await fires(ward.server, "MinflinkdStateGrows", job=grows, severity="warning", timeout=180)
    assert [each["job"] for each in (await ward.server.firing())["MinflinkdStateGrows"]] == [grows]
    [found] = await ward.server.query(f'minflinkd_task_state_rows{{job="{with_watermark}"}}')
    assert float(found["value"][1]) > 10_000
