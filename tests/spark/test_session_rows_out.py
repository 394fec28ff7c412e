"""How many rows a task has written to sinks that do not count them, because Spark or user code takes the frame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from minflinkd.jobgraph.model import Delivery, OutputMode, Vertex
from minflinkd.runtime.ids import VertexId
from tests.databases import Tables
from tests.servers.kafka import Tansu
from tests.servers.postgres import Postgres
from tests.spark.session_child import Child, job, rate, sql, task
from tests.spark.test_session_kafka import ROWS, to_topic
from tests.spark.test_session_sinks import CLASS, LETTERS, restored, sink
from tests.spark.test_session_snapshots import artifact, snapshot

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

FUNCTIONS = """
def one(batch, epoch):
    batch.take(1)
def twice(batch, epoch):
    batch.collect()
    batch.where("value >= 0").collect()
def none(batch, epoch):
    pass
def unpersisted(batch, epoch):
    batch.unpersist()
    batch.take(1)
"""


@pytest.fixture
def child(connected: Child) -> Child:
    return connected


async def counted(child: Child, *vertices: Vertex, **fields: Any) -> tuple[int, int]:
    """Return the rows out and the micro-batches of an attempt that has finished at least three of them."""
    attempt = await child.run(job(**fields.pop("context", {})), task(*vertices), **fields)
    metrics = (await child.batches(attempt, 2)).metrics
    await child.stop(attempt)
    return metrics.rows_out, metrics.batches


@pytest.mark.parametrize("name", ["one", "twice", "none", "unpersisted"])
async def test_a_function_has_written_the_rows_that_it_was_given(child: Child, tmp_path: Path, name: str) -> None:
    """All rows count, however often or seldom it reads them: nobody else knows what it does with them."""
    files = artifact(tmp_path, "functions.py", FUNCTIONS)
    rows, batches = await counted(child, rate(10), sink("numbers", python=f"functions:{name}"), artifacts=files)
    assert rows == 10 * batches


async def test_a_console_has_written_also_the_rows_that_it_does_not_show(child: Child) -> None:
    """A console sink prints only the first `numRows` of each micro-batch."""
    out = sink("letters", OutputMode.UPDATE, format="console", options={"numRows": "1"})
    rows, batches = await counted(child, rate(30), sql("letters", LETTERS, "numbers"), out)
    assert rows == 3 * batches


async def test_a_class_has_written_what_it_has_staged_and_a_restored_attempt_goes_on_from_the_cut(
    child: Child, tmp_path: Path
) -> None:
    """Rows that a restore processes again count once: a checkpoint has the count of its cut."""
    (tmp_path / "root").mkdir()
    files, context = artifact(tmp_path, "staging.py", CLASS), job(params={"root": str(tmp_path / "root")})
    query = task(rate(10), sink("numbers", python="staging:Staging", delivery=Delivery.EXACTLY_ONCE))
    attempt = await child.run(context, query, artifacts=files)
    await child.batches(attempt, 1)
    first, state = await snapshot(child, attempt, 1)
    await child.batches(attempt, first.batch_id + 2)
    await child.stop(attempt)
    assert first.rows.written == {"out": 10 * (first.batch_id + 1)}
    following = await child.run(context, query, artifacts=files, **await restored(child, first, state, 1))
    await child.batches(following, first.batch_id + 2)
    second, _ = await snapshot(child, following, 2)
    await child.stop(following)
    assert (first.rows + second.rows).written == {"out": 10 * (second.batch_id + 1)}


async def test_rows_to_kafka_are_counted(child: Child, kafka: Tansu) -> None:
    """Kafka's writer looks at the frame twice."""
    await kafka.create_topic("counted")
    rows, batches = await counted(child, rate(20), sql("rows", ROWS, "numbers"), to_topic(kafka, "counted"))
    assert rows == 20 * batches


@pytest.mark.parametrize("delivery", [Delivery.AT_LEAST_ONCE, Delivery.EXACTLY_ONCE])
async def test_rows_to_a_database_are_counted(child: Child, postgres: Postgres, delivery: Delivery) -> None:
    """Staged rows count too, with the micro-batch that stages them."""
    name = "counted_" + delivery.name.lower()
    rows, batches = await counted(
        child, rate(10), sink("numbers", **Tables.of_postgresql(postgres).sink(name), delivery=delivery)
    )
    assert rows == 10 * batches


async def test_rows_are_counted_at_each_of_several_sinks(child: Child, tmp_path: Path) -> None:
    """The frame is computed once for all of them, and is counted for each."""
    files = artifact(tmp_path, "functions.py", FUNCTIONS)
    kept, called = sink("numbers", format="collect"), sink("numbers", python="functions:one")
    query = task(rate(10), kept, replace(called, id=VertexId("other")))
    attempt = await child.run(job(), query, artifacts=files)
    await child.batches(attempt, 1)
    taken, _ = await snapshot(child, attempt, 1)
    await child.stop(attempt)
    assert taken.rows.written == dict.fromkeys(("out", "other"), 10 * (taken.batch_id + 1))
