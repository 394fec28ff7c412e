"""How many records of Kafka wait for a query, asked of a real broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from minflinkd.jobgraph.model import Task
from minflinkd.rpc.messages import PendingRecords
from minflinkd.runtime.ids import AttemptId
from minflinkd.taskmanager.child import protocol as p
from tests.servers.apache_kafka import ApacheKafka, Record
from tests.servers.fixtures import running
from tests.spark.session_child import Child, job, parquet, source, sql, task
from tests.spark.test_session_sinks import restored
from tests.spark.test_session_snapshots import snapshot

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

RARELY = 3600.0  # seconds between two micro-batches: only the first one comes


@pytest.fixture
def child(connected: Child) -> Child:
    return connected


def reading(kafka: ApacheKafka, out: Path, most: int) -> Task:
    """Return a task that reads the topic `waiting` from its beginning, `most` records in a micro-batch."""
    connection = {"kafka.bootstrap.servers": kafka.address, "subscribe": "waiting", "startingOffsets": "earliest"}
    reads = source("messages", "kafka", maxOffsetsPerTrigger=str(most), **connection)
    return task(reads, sql("seen", "SELECT offset FROM messages", "messages"), parquet(out, "seen"))


def waiting(*records: int) -> dict[str, PendingRecords]:
    parts = {f"waiting.{number}": count for number, count in enumerate(records)}
    return {"messages": PendingRecords(records=sum(records), partitions=len(records), parts=parts)}


async def told(child: Child, attempt: AttemptId, wanted: Callable[[dict[str, PendingRecords]], bool]) -> None:
    """Wait for such figures among those that the attempt has told since the notices were cleared."""
    await child.notice(p.BatchFinished, lambda one: one.attempt_id == attempt and wanted(one.metrics.pending), 120)


async def test_what_waits_in_a_topic_is_told_while_no_micro_batch_runs(
    child: Child, apache_kafka: ApacheKafka, tmp_path: Path
) -> None:
    """By partition, with what has come since the last micro-batch, and at once after a restore (K9)."""
    await apache_kafka.create_topic("waiting")
    apache_kafka.produce("waiting", [Record(str(number), partition=number % 2) for number in range(60)])
    query, context = reading(apache_kafka, tmp_path / "out", most=20), job(trigger_interval=RARELY)
    attempt = await child.run(context, query)
    await told(child, attempt, lambda pending: pending == waiting(20, 20))
    apache_kafka.produce("waiting", [Record("late", partition=number % 2) for number in range(6)])
    await told(child, attempt, lambda pending: pending == waiting(23, 23))
    taken, files = await snapshot(child, attempt, 1)
    await child.stop(attempt)
    following = await child.run(context, query, **await restored(child, taken, files, 1))
    await told(child, following, lambda pending: pending == waiting(13, 13))
    await child.stop(following)


@pytest.mark.slow  # it takes a broker of its own
async def test_nothing_is_told_while_the_brokers_do_not_answer(child: Child, tmp_path: Path) -> None:
    """An old figure would be wrong. When the brokers are back, it is told again (K9)."""
    async with running(ApacheKafka, tmp_path / "kafka") as kafka:
        await kafka.create_topic("waiting", partitions=1)
        kafka.produce("waiting", [Record(str(number)) for number in range(9)])
        attempt = await child.run(job(trigger_interval=RARELY), reading(kafka, tmp_path / "out", most=4))
        await told(child, attempt, lambda pending: pending == waiting(5))
        child.notices.clear()
        await kafka.kill()
        await told(child, attempt, lambda pending: not pending)
        child.notices.clear()
        await kafka.restart()
        await told(child, attempt, lambda pending: pending == waiting(5))
        await child.stop(attempt)
