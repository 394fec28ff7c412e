"""Sinks that write records of Kafka with a Schema Registry; another library reads them."""

from __future__ import annotations

import asyncio
import struct
from datetime import UTC, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any

import pytest

from minflinkd.jobgraph.faults import GraphFault
from minflinkd.jobgraph.model import Delivery, JobGraph, RecordFormat, SchemaRegistry, Task, Vertex
from minflinkd.jobgraph.records import with_formats
from minflinkd.taskmanager.child import protocol as p
from tests.servers.apache_kafka import ApacheKafka
from tests.servers.schema_registry import Apicurio
from tests.shortened import first
from tests.spark.session_child import Child, job, rate, sql, task
from tests.spark.test_session_schema_registry import AVRO, MICROS, MONEY, record, topic_of
from tests.spark.test_session_sinks import sink
from tests.spark.test_session_snapshots import snapshot

fastavro = pytest.importorskip("fastavro", reason="pip install fastavro")
pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]


@pytest.fixture
def child(connected: Child) -> Child:
    return connected


PAID = record(
    "Paid",
    ("price", ["null", MONEY], None),
    ("at", MICROS),
    ("tags", {"type": "array", "items": "string"}),
    ("number", "long"),
)
ROWS = """
SELECT
  value AS key,
  IF(value % 5 = 4, NULL, named_struct(
    'number', value,
    'price', IF(value % 2 = 0, CAST(value / 4 AS DECIMAL(10, 2)), NULL),
    'at', timestamp_micros(value),
    'tags', array(CAST(value AS STRING), 'é')
  )) AS value
FROM numbers
"""


def to_topic(kafka: ApacheKafka, registry: str, topic: str, **fields: Any) -> Vertex:
    options = {"kafka.bootstrap.servers": kafka.address, "topic": topic}
    where = SchemaRegistry(url=registry)
    return sink("rows", format="kafka", options=options, schema_registry=where, **({"value": AVRO} | fields))


def read(data: str | None, schema: Any, id: int) -> Any:
    """Read a part of a record, in which each letter is a byte."""
    if data is None:
        return None
    written = data.encode("latin-1")
    assert written[:5] == struct.pack(">bI", 0, id)
    rest = BytesIO(written[5:])
    found = fastavro.schemaless_reader(rest, schema)
    assert not rest.read()
    return found


@pytest.mark.parametrize("delivery", first(Delivery, 1))
async def test_rows_are_written_with_the_schema_of_the_subject(
    child: Child, apache_kafka: ApacheKafka, schema_registry: Apicurio, delivery: Delivery
) -> None:
    """It is the one that the job was submitted with: only the submission asks for it. NULL deletes a key (K1, K10)."""
    topic = await topic_of(apache_kafka, 1)
    key, value = [
        await schema_registry.register(f"{topic}-{part}", schema) for part, schema in (("key", "long"), ("value", PAID))
    ]
    out = to_topic(apache_kafka, schema_registry.url, topic, key=AVRO, delivery=delivery)
    query = task(rate(10), sql("rows", ROWS, "numbers"), out)
    analysis = await child.ask(p.AnalyzeTasks(job=job(), tasks=(query,)))
    assert not analysis.faults
    assert f"out writes each value with version 1 of {topic}-value" in analysis.notes
    assert {part: found.id for part, found in analysis.record_formats["out"].items()} == {"key": key, "value": value}
    known = with_formats(JobGraph(name="j", vertices=query.vertices), analysis.record_formats)
    await schema_registry.register(f"{topic}-value", record("Paid", ("number", "long")))
    attempt = await child.run(job(), Task(id=query.id, vertices=known.vertices, parallelism=query.parallelism))
    await child.batches(attempt, 1)
    taken, _ = await snapshot(child, attempt, 1)
    await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=1))
    await child.stop(attempt)
    found = await asyncio.to_thread(apache_kafka.records, topic, 1, "latin-1")
    rows = {read(one.key, "long", key): read(one.value, PAID, value) for one in found}
    assert rows.keys() >= set(range(10 * (taken.batch_id + 1)))
    for number, row in rows.items():
        assert row == (
            None
            if number % 5 == 4
            else {
                "number": number,
                "price": None if number % 2 else Decimal(number) / 4,
                "at": datetime.fromtimestamp(0, UTC).replace(microsecond=number),
                "tags": [str(number), "é"],
            }
        )


async def fault_of(child: Child, rows: str, out: Vertex) -> GraphFault:
    query = task(rate(10), sql("rows", rows, "numbers"), out)
    (fault,) = (await child.ask(p.AnalyzeTasks(job=job(), tasks=(query,)))).faults
    assert fault.path == "vertices.out.sink"
    return fault


async def test_rows_that_do_not_fit_the_schema_are_refused(
    child: Child, apache_kafka: ApacheKafka, schema_registry: Apicurio
) -> None:
    """With what does not fit, before the job starts (J4)."""
    topic = await topic_of(apache_kafka, 1)
    out = to_topic(apache_kafka, schema_registry.url, topic)
    fault = await fault_of(child, ROWS.replace("value AS key,", ""), out)
    assert f"the latest version of {topic}-value" in fault.problem
    await schema_registry.register(f"{topic}-value", PAID)
    wrong = {
        "number": "SELECT named_struct('number', 'x', 'at', now(), 'tags', array('x')) AS value FROM numbers",
        "tags": "SELECT named_struct('number', value, 'at', now()) AS value FROM numbers",
        "more": "SELECT named_struct('more', 1) AS value FROM numbers",
        "Paid": "SELECT value FROM numbers",
    }
    for words, rows in wrong.items():
        fault = await fault_of(child, rows, out)
        assert "the column value does not fit its schema in the registry" in fault.problem
        assert words in fault.problem
    keyed = to_topic(
        apache_kafka, schema_registry.url, topic, key=RecordFormat(format="avro", subject=f"{topic}-value")
    )
    assert "no column key" in (await fault_of(child, ROWS.replace("value AS key,", ""), keyed)).problem


async def test_a_null_that_the_schema_does_not_take_fails_its_micro_batch(
    child: Child, apache_kafka: ApacheKafka, schema_registry: Apicurio
) -> None:
    """Nothing of it is written under another meaning (K10)."""
    topic = await topic_of(apache_kafka, 1)
    await schema_registry.register(f"{topic}-value", record("Row", ("number", "long")))
    rows = "SELECT named_struct('number', IF(value = 7, NULL, value)) AS value FROM numbers"
    query = task(rate(10), sql("rows", rows, "numbers"), to_topic(apache_kafka, schema_registry.url, topic))
    attempt = await child.run(job(), query)
    error = (await child.notice(p.TaskFailed, lambda notice: notice.attempt_id == attempt)).error
    await child.stop(attempt)
    assert "Cannot write null value for field `number`" in error.message
