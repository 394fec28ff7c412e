"""How many records of Kafka wait for a query, asked of a real broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from minflinkd.rpc.messages import PendingRecords
from minflinkd.runtime.ids import AttemptId
from minflinkd.taskmanager.child import protocol as p
from tests.servers.apache_kafka import ApacheKafka, Record
from tests.servers.fixtures import running
from tests.spark.session_child import Child, job, parquet, source, sql, task

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]


@pytest.fixture
def child(connected: Child) -> Child:
    return connected


async def told(child: Child, attempt: AttemptId, wanted: Callable[[dict[str, PendingRecords]], bool]) -> None:
    """Wait for such figures among those that the attempt tells from now on."""
    child.notices.clear()
    await child.notice(p.BatchFinished, lambda one: one.attempt_id == attempt and wanted(one.metrics.pending), 90)


async def test_what_waits_in_a_topic_is_told_while_no_micro_batch_runs(
    child: Child, apache_kafka: ApacheKafka, tmp_path: Path
) -> None:
    """By partition, and with what has come since the last micro-batch was planned (K6)."""
    await apache_kafka.create_topic("waiting")
    records = [Record(str(number), partition=number % 2) for number in range(60)]
    apache_kafka.produce("waiting", records)
    connection = {"kafka.bootstrap.servers": apache_kafka.address, "subscribe": "waiting"}
    reads = source("messages", "kafka", startingOffsets="earliest", maxOffsetsPerTrigger="20", **connection)
    query = task(reads, sql("seen", "SELECT offset FROM messages", "messages"), parquet(tmp_path / "out", "seen"))
    attempt = await child.run(job(trigger_interval=3600.0), query)
    await child.batches(attempt, 0)
    wanted = {"messages": PendingRecords(records=40, parts={"waiting.0": 20, "waiting.1": 20})}
    await told(child, attempt, lambda pending: pending == wanted)
    apache_kafka.produce("waiting", [Record("late", partition=1)] * 3)
    more = {"messages": PendingRecords(records=43, parts={"waiting.0": 20, "waiting.1": 23})}
    await told(child, attempt, lambda pending: pending == more)
    await child.stop(attempt)


@pytest.mark.slow  # it takes a broker of its own
async def test_nothing_is_told_while_the_brokers_do_not_answer(child: Child, tmp_path: Path) -> None:
    """An old figure would be wrong. When the brokers are back, it is told again (K6)."""
    async with running(ApacheKafka, tmp_path / "kafka") as kafka:
        await kafka.create_topic("waiting", partitions=1)
        kafka.produce("waiting", [Record(str(number)) for number in range(9)])
        connection = {"kafka.bootstrap.servers": kafka.address, "subscribe": "waiting"}
        reads = source("messages", "kafka", startingOffsets="earliest", maxOffsetsPerTrigger="4", **connection)
        query = task(reads, sql("seen", "SELECT offset FROM messages", "messages"), parquet(tmp_path / "out", "seen"))
        attempt = await child.run(job(trigger_interval=3600.0), query)
        wanted = {"messages": PendingRecords(records=5, parts={"waiting.0": 5})}
        await told(child, attempt, lambda pending: pending == wanted)
        await kafka.kill()
        await told(child, attempt, lambda pending: not pending)
        await kafka.restart()
        await told(child, attempt, lambda pending: pending == wanted)
        await child.stop(attempt)
