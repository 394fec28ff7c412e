"""Kafka as a sink and as a source, with a real broker."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet
import pytest

from minflinkd.jobgraph.model import Vertex
from minflinkd.taskmanager.child import protocol as p
from tests.servers.kafka import Tansu
from tests.spark.session_child import Child, job, parquet, rate, source, sql, task
from tests.spark.test_session_sinks import restored, sink
from tests.spark.test_session_snapshots import snapshot

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]


@pytest.fixture
def child(connected: Child) -> Child:
    return connected


ROWS = "SELECT CAST(value % 7 AS STRING) AS key, CAST(value AS STRING) AS value FROM numbers"
SEEN = "SELECT partition, offset, CAST(CAST(value AS STRING) AS LONG) AS value FROM messages"


def to_topic(kafka: Tansu, topic: str) -> Vertex:
    options = {"kafka.bootstrap.servers": kafka.address, "topic": topic} | kafka.one_by_one
    return sink("rows", format="kafka", options=options)


def from_topic(kafka: Tansu, topic: str) -> Vertex:
    options = {"kafka.bootstrap.servers": kafka.address, "subscribe": topic, "startingOffsets": "earliest"}
    return source("messages", "kafka", maxOffsetsPerTrigger="20", **options)


@pytest.mark.slow  # tests/spark/test_session_kafka_once.py and _offsets.py do both
async def test_from_files_to_kafka_and_from_kafka_to_files(child: Child, kafka: Tansu, tmp_path: Path) -> None:
    """At-least-once into the broker, also after a restore; exactly-once out of it, after several (C26, J13)."""
    await kafka.create_topic("numbers")
    context, writes = job(), task(rate(20), sql("rows", ROWS, "numbers"), to_topic(kafka, "numbers"))
    attempt = await child.run(context, writes)
    await child.batches(attempt, 2)
    taken, files = await snapshot(child, attempt, 1)
    await child.batches(attempt, taken.batch_id + 2)
    await child.stop(attempt)
    following = await child.run(context, writes, **await restored(child, taken, files, 1))
    finished = await child.batches(following, taken.batch_id + 2)
    await child.stop(following)
    least = set(range(20 * (finished.metrics.batch_id + 1)))

    out, context = tmp_path / "out", job()
    reads = task(from_topic(kafka, "numbers"), sql("seen", SEEN, "messages"), parquet(out, "seen"))
    attempt, staged = await child.run(context, reads), set[str]()
    for checkpoint_id in (1, 2):
        await child.batches(attempt, 1)
        taken, files = await snapshot(child, attempt, checkpoint_id)
        staged |= {file.staged for transaction in taken.transactions for file in transaction.files}
        await child.stop(attempt)
        attempt = await child.run(context, reads, **await restored(child, taken, files, checkpoint_id))
    await child.batches(attempt, taken.batch_id + 3)

    seen: list[tuple[int, int, int]] = []
    for checkpoint_id in range(3, 100):
        taken, _ = await snapshot(child, attempt, checkpoint_id)
        covered = staged | {file.staged for transaction in taken.transactions for file in transaction.files}
        tables = [pyarrow.parquet.read_table(out / name).to_pylist() for name in covered]
        seen = [(row["partition"], row["offset"], row["value"]) for rows in tables for row in rows]
        if {value for *_, value in seen} >= least:
            break
        await child.batches(attempt, taken.batch_id + 1)
    await child.stop(attempt)
    assert {value for *_, value in seen} >= least, "nothing is lost on the way in"
    places = sorted((partition, offset) for partition, offset, _ in seen)
    ends = {partition: sum(part == partition for part, _ in places) for partition in (0, 1)}
    assert places == [(partition, offset) for partition in (0, 1) for offset in range(ends[partition])], "each once"
    assert '"numbers"' in taken.source_offsets["messages"]


async def test_what_kafka_cannot_write_is_found_before_the_start(child: Child, kafka: Tansu) -> None:
    """The fault names the column that Kafka needs (J4)."""
    query = task(rate(10), sql("rows", "SELECT 1 AS n FROM numbers", "numbers"), to_topic(kafka, "numbers"))
    (fault,) = (await child.ask(p.AnalyzeTasks(job=job(), tasks=(query,)))).faults
    assert "writes a column `value`, but gets n" in fault.problem


@pytest.mark.slow
async def test_the_connector_may_be_artifacts_of_the_job(kafka: Tansu, tmp_path: Path) -> None:
    """The session was started without it (B31, J2)."""
    await kafka.create_topic("brought")
    plain = Child(tmp_path)
    await plain.start({})
    try:
        artifacts = {Path(jar).name: jar for jar in kafka.jars.split(",")}
        writes = task(rate(20), sql("rows", ROWS, "numbers"), to_topic(kafka, "brought"))
        reads = task(from_topic(kafka, "brought"), sql("seen", SEEN, "messages"), parquet(tmp_path / "out", "seen"))
        attempts = [await plain.run(job(), query, artifacts=artifacts) for query in (writes, reads)]
        for attempt in attempts:
            await plain.batches(attempt, 1)
            await plain.stop(attempt)
    finally:
        await plain.aclose()
