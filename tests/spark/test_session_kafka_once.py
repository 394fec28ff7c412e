"""The kafka sink, exactly once, with a real broker: staged in the snapshot, and published in transactions (K1)."""

from __future__ import annotations

import asyncio

import pytest

from minflinkd.jobgraph.model import Delivery, Vertex
from minflinkd.runtime.errors import MinflinkError
from minflinkd.taskmanager.child import protocol as p
from tests.servers.apache_kafka import ApacheKafka, Read
from tests.spark.session_child import Child, job, rate, sql, task
from tests.spark.test_session_sinks import restored, restored_three_times, sink
from tests.spark.test_session_snapshots import snapshot

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

ROWS = """
SELECT CAST(value % 7 AS STRING) AS key, CAST(value AS STRING) AS value, CAST(value % 2 AS INT) AS partition,
       array(named_struct('key', 'source', 'value', CAST('rate' AS BINARY))) AS headers
FROM numbers
"""


@pytest.fixture
def child(connected: Child) -> Child:
    return connected


def to_topic(kafka: ApacheKafka, topic: str, **options: str) -> Vertex:
    options = {"kafka.bootstrap.servers": kafka.address, "topic": topic} | options
    return sink("rows", format="kafka", options=options, delivery=Delivery.EXACTLY_ONCE)


async def read(kafka: ApacheKafka, topic: str) -> list[Read]:
    return await asyncio.to_thread(kafka.records, topic)


async def values(kafka: ApacheKafka, topic: str) -> list[int]:
    return sorted(int(record.value) for record in await read(kafka, topic))


async def test_rows_appear_with_their_checkpoint_and_once(child: Child, apache_kafka: ApacheKafka) -> None:
    """Rows are part of each snapshot until a transaction has written them. A repeated commit changes nothing (K1)."""
    await apache_kafka.create_topic("once")
    query = task(rate(10), sql("rows", ROWS, "numbers"), to_topic(apache_kafka, "once"))
    attempt = await child.run(job(), query)
    await child.batches(attempt, 2)
    first, files = await snapshot(child, attempt, 1)
    staged = [file for each in first.transactions for token in each.tokens for file in token.files]
    assert len(staged) >= 3
    assert all((files / path).is_file() for path in staged)
    assert set(staged) <= {file.path for file in first.files}
    assert await values(apache_kafka, "once") == []
    for _ in range(2):
        await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=1))
    records = await read(apache_kafka, "once")
    assert sorted(int(record.value) for record in records) == list(range(10 * (first.batch_id + 1)))
    assert all(record.headers == (("source", b"rate"),) for record in records)
    assert all(
        (int(record.key or "x"), record.partition) == (int(record.value) % 7, int(record.value) % 2)
        for record in records
    )
    for partition in (0, 1):
        in_order = [int(record.value) for record in records if record.partition == partition]
        assert in_order == sorted(in_order)
    await child.batches(attempt, first.batch_id + 2)
    second, _ = await snapshot(child, attempt, 2)
    assert not {*staged} & {file.path for file in second.files}, "what is published is in no snapshot any more"
    await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=2))
    await child.batches(attempt, second.batch_id + 2)
    await child.stop(attempt)
    assert await values(apache_kafka, "once") == list(range(10 * (second.batch_id + 1)))


async def test_a_restore_publishes_what_it_owes_beside_an_attempt_that_runs_on(
    child: Child, apache_kafka: ApacheKafka
) -> None:
    """Neither an attempt that only seems dead nor a late commit writes a row twice: one fences the other (K1, J13)."""
    await apache_kafka.create_topic("restored")
    query = task(rate(10), sql("rows", ROWS, "numbers"), to_topic(apache_kafka, "restored"))
    await restored_three_times(child, query, lambda: values(apache_kafka, "restored"))


@pytest.mark.slow  # tests/unit/taskmanager/test_sink_marks.py has the parts
async def test_a_checkpoint_that_is_larger_than_a_transaction_is_published_in_several(
    child: Child, apache_kafka: ApacheKafka
) -> None:
    """Each transaction ends in the middle of a micro-batch, and the next one goes on there (K1)."""
    await apache_kafka.create_topic("large")
    query = task(rate(70_000), sql("rows", ROWS, "numbers"), to_topic(apache_kafka, "large"))
    attempt = await child.run(job(), query)
    await child.batches(attempt, 3)
    taken, _ = await snapshot(child, attempt, 1)
    await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=1))
    await child.stop(attempt)
    assert await values(apache_kafka, "large") == list(range(70_000 * (taken.batch_id + 1)))


@pytest.mark.slow  # a restore publishes rows that have waited, too
async def test_rows_wait_while_the_broker_is_away(child: Child, apache_kafka: ApacheKafka) -> None:
    """Micro-batches go on, and so do checkpoints. The rows of all of them are published when it is back (K1, S4)."""
    await apache_kafka.create_topic("away")
    patience = {"kafka.max.block.ms": "2000", "kafka.delivery.timeout.ms": "2000", "kafka.request.timeout.ms": "1000"}
    query = task(rate(10), sql("rows", ROWS, "numbers"), to_topic(apache_kafka, "away", **patience))
    attempt = await child.run(job(), query)
    await child.batches(attempt, 1)
    await snapshot(child, attempt, 1)
    await apache_kafka.kill()
    with pytest.raises(MinflinkError, match="Kafka did not take the rows of sink out: Timeout") as refused:
        await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=1))
    assert (refused.value.info().code, refused.value.info().consequence) == ("sink-kafka", "retryable")
    await child.batches(attempt, 4)
    taken, _ = await snapshot(child, attempt, 2)
    await apache_kafka.restart()
    await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=2))
    await child.stop(attempt)
    assert await values(apache_kafka, "away") == list(range(10 * (taken.batch_id + 1)))


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("value", "a kafka sink writes texts or bytes, but `value` is bigint"),
        ("CAST(value AS STRING) AS value, value AS key", "a kafka sink writes texts or bytes, but `key` is bigint"),
    ],
)
async def test_rows_that_are_no_records_are_a_fault_before_the_start(
    child: Child, apache_kafka: ApacheKafka, row: str, problem: str
) -> None:
    """Spark says it only when it writes them, and then with its own words (J4)."""
    query = task(rate(10), sql("rows", f"SELECT {row} FROM numbers", "numbers"), to_topic(apache_kafka, "never"))
    (fault,) = (await child.ask(p.AnalyzeTasks(job=job(), tasks=(query,)))).faults
    assert fault.problem == problem


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("CASE WHEN value < 15 THEN 'some' END AS topic", "a row for Kafka has no topic"),
        ("'some' AS topic, CAST(8 - value AS INT) AS partition", "a row for Kafka has a negative partition"),
        (
            "'some' AS topic, repeat('k', CAST(value * 80000 AS INT)) AS key",
            "a row for Kafka has more than 1047552 bytes",
        ),
        (
            "'some' AS topic, array(named_struct('key', nullif('h', 'h'), 'value', CAST('v' AS BINARY))) AS headers",
            "a row for Kafka has a header without a key",
        ),
    ],
    ids=["no topic", "a negative partition", "too large", "a header without a key"],
)
async def test_a_row_that_kafka_would_refuse_fails_before_anything_is_staged(
    child: Child, apache_kafka: ApacheKafka, row: str, problem: str
) -> None:
    """Found when it is published, it would keep back all rows after it (K1)."""
    query = f"SELECT CAST(value AS STRING) AS value, {row} FROM numbers"
    options = {"kafka.bootstrap.servers": apache_kafka.address}
    out = sink("rows", format="kafka", options=options, delivery=Delivery.EXACTLY_ONCE)
    attempt = await child.run(job(), task(rate(10), sql("rows", query, "numbers"), out))
    with pytest.raises(AssertionError, match=problem):
        await child.batches(attempt, 2)


@pytest.mark.slow  # half a minute, most of it waiting
async def test_a_task_can_be_stopped_while_it_waits_for_the_broker(child: Child, apache_kafka: ApacheKafka) -> None:
    """Otherwise its whole session would be ended, with the tasks of other jobs in it (B31, K1)."""
    await apache_kafka.create_topic("stopped")
    patience = {"kafka.max.block.ms": "60000", "kafka.delivery.timeout.ms": "100000"}
    query = task(rate(10), sql("rows", ROWS, "numbers"), to_topic(apache_kafka, "stopped", **patience))
    attempt = await child.run(job(), query)
    for checkpoint_id in (1, 2):
        await child.batches(attempt, 2 * checkpoint_id)
        taken, files = await snapshot(child, attempt, checkpoint_id)
        if checkpoint_id == 2:
            await apache_kafka.kill()
        committing = asyncio.create_task(
            child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=checkpoint_id)), name="commit"
        )
        if checkpoint_id == 1:
            await committing
    assert not (await asyncio.wait({committing}, timeout=1))[0], "it waits for the broker"
    await child.stop(attempt)
    with pytest.raises(MinflinkError, match="Kafka did not take the rows"):
        await committing
    await apache_kafka.restart()
    following = await child.run(job(), query, **await restored(child, taken, files, 2))
    await child.stop(following)
    assert await values(apache_kafka, "stopped") == list(range(10 * (taken.batch_id + 1)))


async def test_nobody_guesses_what_was_published_if_kafka_has_lost_the_mark(
    child: Child, apache_kafka: ApacheKafka
) -> None:
    """The offsets of an idle group expire after some days. The user says whether the rows are there (K1)."""
    await apache_kafka.create_topic("lost")
    context = job()
    query = task(rate(10), sql("rows", ROWS, "numbers"), to_topic(apache_kafka, "lost"))
    attempt = await child.run(context, query)
    done = 0
    for checkpoint_id in (1, 2, 3):  # rows of the third were staged after the first mark was known
        await child.batches(attempt, done + 2)
        taken, files = await snapshot(child, attempt, checkpoint_id)
        await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=checkpoint_id))
        done = taken.batch_id
    await child.stop(attempt)
    there = list(range(10 * (taken.batch_id + 1)))
    assert await values(apache_kafka, "lost") == there
    await asyncio.to_thread(apache_kafka.delete_group, f"minflinkd.{context.job_id}.out")
    with pytest.raises(MinflinkError, match="has lost its offsets, which say what sink out has published") as refused:
        await child.run(context, query, **await restored(child, taken, files, 3))
    assert (refused.value.info().code, refused.value.info().consequence) == ("sink-mark-lost", "fatal")
    skips, publishes = (
        task(rate(10), sql("rows", ROWS, "numbers"), to_topic(apache_kafka, "lost", **{"lost-mark": choice}))
        for choice in ("skip", "publish")
    )
    await child.stop(await child.run(context, skips, **await restored(child, taken, files, 3)))
    assert await values(apache_kafka, "lost") == there
    for _ in range(2):  # it is known again what is published
        await child.stop(await child.run(context, publishes, **await restored(child, taken, files, 3)))
    twice = await values(apache_kafka, "lost")
    assert sorted(set(twice)) == there
    assert len(there) < len(twice) < 2 * len(there), "only what the last checkpoint covers came again"
