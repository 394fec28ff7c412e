"""Records of Kafka that are written with a Schema Registry, with a real broker and a real registry."""

from __future__ import annotations

import base64
import json
import pickle
import ssl
import struct
from datetime import UTC, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID, uuid4

import pyarrow.parquet
import pytest
import yaml
from msgspec.structs import replace

from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.faults import GraphFault
from minflinkd.jobgraph.model import (
    BadRecordSink,
    Execution,
    JobGraph,
    OutputMode,
    RecordFormat,
    SchemaRegistry,
    Sink,
    Source,
    Task,
    Vertex,
)
from minflinkd.jobgraph.records import with_formats
from minflinkd.jobgraph.validation import parse_job
from minflinkd.runtime.errors import Consequence, ErrorInfo
from minflinkd.runtime.ids import VertexId
from minflinkd.runtime.units import Duration
from minflinkd.taskmanager.child import protocol as p
from tests.servers.apache_kafka import ApacheKafka, Record
from tests.servers.gateway import Gateway
from tests.servers.schema_registry import Apicurio
from tests.shortened import first
from tests.spark import drawn_records
from tests.spark.session_child import Child, call, job, sql, task
from tests.spark.test_session_secrets import keep
from tests.spark.test_session_sinks import sink
from tests.spark.test_session_snapshots import artifact, lay_out, snapshot
from tests.tls import CaInTest
from tests.waiting import until

fastavro = pytest.importorskip("fastavro", reason="pip install fastavro")
pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]
SLOW = pytest.mark.slow  # each takes some 15 s; those without it show the same ways through Spark


@pytest.fixture
def child(connected: Child) -> Child:
    return connected


TO_BAD = BadRecordSink(to=VertexId("bad"))
AVRO = RecordFormat(format="avro")

CODE = """
import pickle
def _keep(name, batch, epoch):
    with open({root!r} + "/" + name, "ab") as out:
        for row in batch.collect():
            pickle.dump(row.asDict(recursive=True), out)
def rows(batch, epoch):
    _keep("rows", batch, epoch)
def letters(batch, epoch):
    _keep("letters", batch, epoch)
"""


def code(tmp_path: Path) -> dict[str, str]:
    return artifact(tmp_path, "kept.py", CODE.format(root=str(tmp_path)))


def kept(path: Path) -> list[dict[str, Any]]:
    data, found = BytesIO(path.read_bytes() if path.exists() else b""), []
    while data.tell() < len(data.getvalue()):
        found.append(pickle.load(data))
    return found


def written(schema: Any, value: Any, id: int) -> bytes:
    """A record as its format's documentation has it, by a library that is not ours."""
    data = BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(schema), value)
    return struct.pack(">bI", 0, id) + data.getvalue()


def views(
    kafka: ApacheKafka, registry: str, topic: str, action: Any = None, *, key: RecordFormat | None = None, **fields: Any
) -> Vertex:
    options = {"kafka.bootstrap.servers": kafka.address, "subscribe": topic, "startingOffsets": "earliest"}
    where = SchemaRegistry(url=registry)
    source = {"format": "kafka", "options": options, "value": AVRO, "key": key, "schema_registry": where} | fields
    return Vertex(id=VertexId("views"), source=Source(**source), on_bad_record=action)


def plain(value: Any) -> Any:
    """What Spark and fastavro have in different classes, in one form. Times of Spark are those of the zone here."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, bytearray):
        return bytes(value)
    return str(value) if isinstance(value, UUID) else value


def letters() -> Vertex:
    return Vertex(id=VertexId("bad"), sink=Sink(python="kept:letters"))


def record(name: str, *fields: tuple[Any, ...]) -> dict[str, Any]:
    """A schema of a record. Of each field: name, type, and default if it has one."""
    return {
        "type": "record",
        "name": name,
        "fields": [dict(zip(("name", "type", "default"), field, strict=False)) for field in fields],
    }


def blocks(page: str) -> list[str]:
    return [block.partition("```")[0] for block in page.split("```yaml\n")[1:]]


async def topic_of(kafka: ApacheKafka, partitions: int = 2) -> str:
    topic = f"views-{uuid4().hex[:8]}"
    await kafka.create_topic(topic, partitions)
    return topic


DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "connectors.md").read_text().partition("## Schema Registry")[2]
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
OLD = record("View", ("user", "long"), ("url", "string"))
NEW = record("View", ("url", "string"), ("user", "long"), ("country", ["null", "string"], None))


async def test_records_of_several_writers_have_the_columns_of_the_latest_schema(
    child: Child, apache_kafka: ApacheKafka, schema_registry: Apicurio, tmp_path: Path
) -> None:
    """Old ones get the defaults of new fields; what cannot be read goes to a sink with the reason (K10, K7)."""
    topic = await topic_of(apache_kafka)
    old = await schema_registry.register(f"{topic}-value", OLD)
    new = await schema_registry.register(f"{topic}-value", NEW)
    good = written(NEW, {"user": 3, "url": "/c", "country": "nz"}, new)
    records = [
        written(OLD, {"user": 1, "url": "/a"}, old),
        written(NEW, {"user": 2, "url": "/b"}, new),
        good,
        None,
        b"",
        b'{"user": 4}',
        good[:-1],
        good + b"x",
        struct.pack(">bI", 0, 9_999) + good[5:],
    ]
    apache_kafka.produce(topic, [Record(value) for value in records])
    source = views(apache_kafka, schema_registry.url, topic, TO_BAD)
    query = task(source, call("kept:rows", "views"), letters())
    analysis = await child.ask(p.AnalyzeTasks(job=job(), tasks=(query,), artifacts=code(tmp_path)))
    assert not analysis.faults
    known = analysis.record_formats["views"]["value"]
    assert json.loads(known.schema or "") == NEW
    assert analysis.notes == (f"views reads each value with version 2 of {topic}-value",)
    attempt = await child.run(job(), query, artifacts=code(tmp_path))
    rows = (await child.batches(attempt, 0)).metrics.rows
    await child.stop(attempt)
    found = {row["offset"]: row["value"] for row in kept(tmp_path / "rows")}
    assert found == {
        0: {"url": "/a", "user": 1, "country": None},
        1: {"url": "/b", "user": 2, "country": None},
        2: {"url": "/c", "user": 3, "country": "nz"},
        3: None,
    }
    bad = {row["source"]: row for row in kept(tmp_path / "letters")}
    assert bad.keys() == {f"{topic}.0@{offset}" for offset in range(4, 9)}
    said = [bad[f"{topic}.0@{offset}"]["error"] for offset in range(4, 9)]
    for error, words in zip(said, ("byte 0", "byte 0", "too early", "bytes are left", "9999"), strict=True):
        assert words in error, said
    assert json.loads(bad[f"{topic}.0@5"]["record"])["value"] == "eyJ1c2VyIjogNH0="
    assert rows.rejected == {"views": 5}


@pytest.mark.parametrize("seed", first(range(1, 7), 1))
async def test_drawn_records_are_read_as_another_library_reads_them(
    child: Child, apache_kafka: ApacheKafka, schema_registry: Apicurio, tmp_path: Path, seed: int
) -> None:
    """Schemas that evolve, several in a micro-batch; all of Avro's types, and records that are cut in between (K10)."""
    random, topic = Random(seed), await topic_of(apache_kafka)
    read = drawn_records.reader(random)
    writers = [read, *(drawn_records.writer(random, read) for _ in range(5))]
    ids = [await schema_registry.register(f"{topic}-{n}", one.schema()) for n, one in enumerate(writers)]
    records, expected = [], {}
    for number in range(200):
        which = random.randrange(len(writers))
        schema, value = writers[which].schema(), writers[which].draw(random)
        data = written(schema, value, ids[which])
        if random.random() < 0.1:
            data = data[: random.randrange(5)] if random.random() < 0.5 else data + b"\0"
        else:
            numbers = [drawn_records.times_as_numbers(one) for one in (schema, read.schema())]
            expected[number % 2, number // 2] = plain(fastavro.schemaless_reader(BytesIO(data[5:]), *numbers))
        records.append(Record(data, number % 2))
    apache_kafka.produce(topic, records)
    format = RecordFormat(format="avro", schema=json.dumps(read.schema()))
    source = views(apache_kafka, schema_registry.url, topic, TO_BAD, value=format)
    attempt = await child.run(job(), task(source, call("kept:rows", "views"), letters()), artifacts=code(tmp_path))
    await child.batches(attempt, 0)
    await child.stop(attempt)
    found = {(row["partition"], row["offset"]): plain(row["value"]) for row in kept(tmp_path / "rows")}
    bad = {row["source"]: row["error"] for row in kept(tmp_path / "letters")}
    assert found.keys() == expected.keys(), bad
    differing = [
        (place, name, found[place][name], value)
        for place, row in expected.items()
        for name, value in row.items()
        if found[place][name] != value
    ]
    assert not differing, differing[:5]
    assert found == expected
    assert len(bad) == 200 - len(expected) > 0


@SLOW
async def test_whatever_bytes_a_record_has_it_is_read_or_bad(
    child: Child, apache_kafka: ApacheKafka, schema_registry: Apicurio, tmp_path: Path
) -> None:
    """The session survives lengths of two billions, and each record is at one place (K10)."""
    random, topic = Random(7), await topic_of(apache_kafka, 1)
    read = drawn_records.reader(random)
    writer = drawn_records.writer(random, read)
    id = await schema_registry.register(f"{topic}-value", writer.schema())
    wrong = (b"\xff" * 9 + b"\x01", b"\xfe\xff\xff\xff\x0f", b"\x7f", b"\xc0\x80", b"")
    records = []
    for _ in range(300):
        data = written(writer.schema(), writer.draw(random), id)
        place = random.randrange(5, len(data))
        records.append(Record(data[:place] + random.choice(wrong) + data[place + random.randrange(3) :]))
    apache_kafka.produce(topic, records)
    format = RecordFormat(format="avro", schema=json.dumps(read.schema()))
    query = task(
        views(apache_kafka, schema_registry.url, topic, TO_BAD, value=format),
        sql("read", "SELECT offset, xxhash64(to_json(value)) AS h FROM views", "views"),
        call("kept:rows", "read"),
        letters(),
    )
    attempt = await child.run(job(), query, artifacts=code(tmp_path))
    await child.batches(attempt, 0)
    await child.stop(attempt)
    good = {row["offset"] for row in kept(tmp_path / "rows")}
    bad = {int(row["source"].partition("@")[2]): row["error"] for row in kept(tmp_path / "letters")}
    assert len(good) + len(bad) == 300
    assert good | bad.keys() == set(range(300))
    assert len(bad) > 100
    assert all(f"schema {id}" in error for error in bad.values()), bad


@SLOW
async def test_a_job_reads_on_with_the_schema_that_it_was_submitted_with(
    child: Child, apache_kafka: ApacheKafka, schema_registry: Apicurio, tmp_path: Path
) -> None:
    """Also after a newer version was registered, and after a restart, without asking for the subject again (K10)."""
    topic = await topic_of(apache_kafka, 1)
    subject = f"{topic}-value"
    old = await schema_registry.register(subject, OLD)
    query = task(views(apache_kafka, schema_registry.url, topic), call("kept:rows", "views"))
    found = (await child.ask(p.AnalyzeTasks(job=job(), tasks=(query,), artifacts=code(tmp_path)))).record_formats
    known = replace(query, vertices=with_formats(JobGraph(name="j", vertices=query.vertices), found).vertices)
    apache_kafka.produce(topic, [Record(written(OLD, {"user": 1, "url": "/a"}, old))])
    context = job()
    attempt = await child.run(context, known, artifacts=code(tmp_path))
    await child.batches(attempt, 0)
    taken, state = await snapshot(child, attempt, 1)
    new = await schema_registry.register(subject, NEW)
    apache_kafka.produce(topic, [Record(written(NEW, {"user": 2, "url": "/b", "country": "nz"}, new))])
    await child.batches(attempt, 1)
    await child.stop(attempt)
    what = p.Restored(checkpoint_id=1, batch_id=taken.batch_id, transactions=())
    async with Gateway(schema_registry.endpoint) as gateway:
        where = SchemaRegistry(url=gateway.endpoint + schema_registry.path)
        (source, *rest) = known.vertices
        moved = replace(source, source=replace(source.source, schema_registry=where))
        again = replace(known, vertices=(moved, *rest))
        attempt = await child.run(
            context, again, restored=what, directory=lay_out(child, state), artifacts=code(tmp_path)
        )
        await child.batches(attempt, 1)
        await child.stop(attempt)
        assert not [request for request in gateway.requests if subject in request]
    rows = [row["value"] for row in kept(tmp_path / "rows")]
    assert rows == [{"user": 1, "url": "/a"}, *[{"user": 2, "url": "/b"}] * 2]


PLACE = record("Place", ("lsn", ["null", "long"], None))


def envelope(source: Any) -> dict[str, Any]:
    """As Debezium writes it for a table."""
    at = {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}
    row = record("Value", ("id", "long"), ("name", ["null", "string"]), ("price", ["null", MONEY]), ("at", at))
    before, after = ("before", ["null", row], None), ("after", ["null", "Value"], None)
    return record("Envelope", before, after, ("source", source), ("op", "string"))


@SLOW
async def test_a_count_goes_on_when_the_job_reads_with_a_newer_schema(
    child: Child, apache_kafka: ApacheKafka, schema_registry: Apicurio, tmp_path: Path
) -> None:
    """The state means the same (C25, K10)."""
    topic = await topic_of(apache_kafka, 1)
    ids = [await schema_registry.register(f"{topic}-value", schema) for schema in (OLD, NEW)]
    counted = sql("counted", "SELECT value.user, count(*) AS n FROM views GROUP BY value.user", "views")

    def version(schema: Any) -> Task:
        format = RecordFormat(format="avro", schema=json.dumps(schema))
        return task(
            views(apache_kafka, schema_registry.url, topic, value=format),
            counted,
            replace(call("kept:rows", "counted"), output_mode=OutputMode.UPDATE),
        )

    context = job()
    meant = [
        [node.meaning for node in found.operators[version(OLD).id] if node.stateful]
        for found in [
            await child.ask(p.AnalyzeTasks(job=context, tasks=(version(schema),), artifacts=code(tmp_path)))
            for schema in (OLD, NEW)
        ]
    ]
    assert meant[0] == meant[1] != []
    apache_kafka.produce(topic, [Record(written(OLD, {"user": 1, "url": "/a"}, ids[0]))])
    attempt = await child.run(context, version(OLD), artifacts=code(tmp_path))
    await child.batches(attempt, 0)
    taken, state = await snapshot(child, attempt, 1)
    await child.stop(attempt)
    apache_kafka.produce(topic, [Record(written(NEW, {"user": 1, "url": "/b", "country": "nz"}, ids[1]))])
    what = p.Restored(checkpoint_id=1, batch_id=taken.batch_id, transactions=())
    attempt = await child.run(
        context, version(NEW), restored=what, directory=lay_out(child, state), artifacts=code(tmp_path)
    )
    await child.batches(attempt, 1)
    await child.stop(attempt)
    assert kept(tmp_path / "rows") == [{"user": 1, "n": 1}, {"user": 1, "n": 2}]


@SLOW
async def test_real_time_mode_reads_such_records_too(
    child: Child, apache_kafka: ApacheKafka, schema_registry: Apicurio, tmp_path: Path
) -> None:
    """A bad one fails the task: in this mode it has no other way (T1, K10)."""
    topic, out = await topic_of(apache_kafka, 1), await topic_of(apache_kafka, 1)
    id = await schema_registry.register(f"{topic}-value", OLD)
    options = {"kafka.bootstrap.servers": apache_kafka.address, "topic": out}
    query = task(
        views(apache_kafka, schema_registry.url, topic),
        sql("urls", "SELECT value.url AS value FROM views", "views"),
        sink("urls", format="kafka", options=options),
    )
    context = replace(job(), execution=Execution.REAL_TIME)
    assert not (await child.ask(p.AnalyzeTasks(job=context, tasks=(query,)))).faults
    attempt = await child.run(context, query)
    apache_kafka.produce(topic, [Record(written(OLD, {"user": 7, "url": "/a"}, id))])
    await until(lambda: [read.value for read in apache_kafka.records(out, 1)] == ["/a"], "the row is there")
    apache_kafka.produce(topic, [Record(b"{}")])
    error = (await child.notice(p.TaskFailed, lambda notice: notice.attempt_id == attempt)).error
    await child.stop(attempt)
    assert error.code == "bad-record"


CDC = (DOCS / "cdc.md").read_text().partition("## Debezium's Avro")[2]
CHANGES = yaml.safe_load(blocks(CDC)[0])["vertices"]["latest"]["sql"].replace("value.after.region", "value.after.price")


@SLOW
async def test_changes_of_debezium_in_avro_are_those_of_the_table(
    child: Child, apache_kafka: ApacheKafka, schema_registry: Apicurio, tmp_path: Path
) -> None:
    """As documented: keys have schemas, too; a delete is a record and a tombstone; schemas refer to others (K10)."""
    topic = await topic_of(apache_kafka, 1)
    key_of_row = record("Key", ("id", "long"))
    key = await schema_registry.register(f"{topic}-key", key_of_row)
    await schema_registry.register(f"{topic}-source", PLACE)
    refers = [{"name": "Place", "subject": f"{topic}-source", "version": 1}]
    value = await schema_registry.register(f"{topic}-value", envelope("Place"), refers)

    def change(id: int, op: str, name: str | None = None) -> Record:
        after = None if op == "d" else {"id": id, "name": name, "price": Decimal(id), "at": 1}
        data = written(envelope(PLACE), {"before": None, "after": after, "op": op, "source": {"lsn": 5}}, value)
        return Record(data, key=written(key_of_row, {"id": id}, key))

    gone = Record(None, key=written(key_of_row, {"id": 1}, key))
    apache_kafka.produce(topic, [change(1, "c", "a"), change(2, "c", "b"), change(2, "u", "c"), change(1, "d"), gone])
    changes = replace(views(apache_kafka, schema_registry.url, topic, key=AVRO), id=VertexId("changes"))
    attempt = await child.run(
        job(), task(changes, sql("latest", CHANGES, "changes"), call("kept:rows", "latest")), artifacts=code(tmp_path)
    )
    await child.batches(attempt, 0)
    await child.stop(attempt)
    assert [tuple(row.values()) for row in kept(tmp_path / "rows")] == [
        (1, "a", Decimal(1), False, 0),
        (2, "b", Decimal(2), False, 1),
        (2, "c", Decimal(2), False, 2),
        (1, None, None, True, 3),
        (1, None, None, True, 4),
    ]


async def test_the_documented_job_runs(
    child: Child, apache_kafka: ApacheKafka, schema_registry: Apicurio, tmp_path: Path
) -> None:
    """Only where it reads and writes is another here (K10)."""
    topic = await topic_of(apache_kafka, 1)
    id = await schema_registry.register(f"{topic}-value", OLD)
    apache_kafka.produce(topic, [Record(written(OLD, {"user": 7, "url": "/a"}, id)), Record(b"{}")])
    keep(child, "registry", "geheim")
    document = yaml.safe_load(blocks(PAGE)[0])
    vertices = document["vertices"]
    vertices["views"]["source"]["options"] |= {"kafka.bootstrap.servers": apache_kafka.address, "subscribe": topic}
    vertices["views"]["source"]["schema-registry"]["url"] = schema_registry.url
    for name in ("out", "bad"):
        vertices[name]["sink"]["path"] = str(tmp_path / name)
        (tmp_path / name).mkdir()
    (query,) = chain(parse_job(document))
    attempt = await child.run(job(), query)
    await child.batches(attempt, 0)
    taken, _ = await snapshot(child, attempt, 1)
    await child.stop(attempt)
    staged = {one.sink: [tmp_path / one.sink / file.staged for file in one.files] for one in taken.transactions}
    (row,) = [row for file in staged["out"] for row in pyarrow.parquet.read_table(file).to_pylist()]
    assert (row["user"], row["url"]) == (7, "/a")
    (letter,) = [json.loads(line) for file in staged["bad"] for line in file.read_text().splitlines()]
    assert letter["source"] == f"{topic}.0@1"


async def ended(child: Child, query: Task, tmp_path: Path) -> ErrorInfo:
    """Run a task that fails. Return why."""
    attempt = await child.run(job(), query, artifacts=code(tmp_path))
    error = (await child.notice(p.TaskFailed, lambda notice: notice.attempt_id == attempt)).error
    await child.stop(attempt)
    assert isinstance(error, ErrorInfo)
    return error


async def test_without_a_rule_for_bad_records_one_fails_the_task(
    child: Child, apache_kafka: ApacheKafka, schema_registry: Apicurio, tmp_path: Path
) -> None:
    """Also if nobody reads the part that is wrong: it never becomes null (K10, K7)."""
    topic = await topic_of(apache_kafka)
    await schema_registry.register(f"{topic}-value", OLD)
    apache_kafka.produce(topic, [Record(b"\0\0\0")])
    offsets = sql("offsets", "SELECT offset FROM views", "views")
    query = task(views(apache_kafka, schema_registry.url, topic), offsets, call("kept:rows", "offsets"))
    error = await ended(child, query, tmp_path)
    assert error.code == "bad-record"
    assert error.message.startswith(f"views cannot parse a record of {topic}.0@0: its value: it does not begin with")
    assert not kept(tmp_path / "rows")


MILLIS, MICROS = ({"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("millis", "micros"))
PAID = record("Paid", ("price", MONEY), ("at", ["null", MILLIS], None), ("colour", "string", "red"))


# What another writer has, and what is said of it.
UNFIT: tuple[tuple[Any, Any, str], ...] = (
    (record("Paid", ("price", MONEY | {"scale": 4})), {"price": Decimal("1.2345")}, "decimal(10,4), and read as"),
    (record("Paid", ("price", "bytes")), {"price": b"1"}, "price is written as bytes, and read as decimal(10,2)"),
    (record("Paid", ("price", MONEY), ("at", MICROS)), {"price": Decimal(1), "at": 1}, "written as timestamp-micros"),
    (record("Paid", ("price", "string")), {"price": "1"}, "price is written as string"),
    (record("Paid", ("price", "double")), {"price": 1.0}, "found double, expecting"),
    (record("Paid", ("colour", "string")), {"colour": "blue"}, "missing required field price"),
)


@SLOW
async def test_a_record_whose_schema_does_not_fit_is_bad(
    child: Child, apache_kafka: ApacheKafka, schema_registry: Apicurio, tmp_path: Path
) -> None:
    """Avro's library alone would read cents as hundredths of cents, and microseconds as milliseconds (K10)."""
    topic = await topic_of(apache_kafka, 1)
    reader = await schema_registry.register(f"{topic}-value", PAID)
    writers = [await schema_registry.register(f"{topic}-{n}", unfit[0]) for n, unfit in enumerate(UNFIT)]
    at = datetime(2026, 1, 2, tzinfo=UTC)
    good = written(PAID, {"price": Decimal("1.50"), "at": at, "colour": "blue"}, reader)
    for (schema, value, _), writer in zip(UNFIT, writers, strict=True):
        apache_kafka.produce(topic, [Record(written(schema, value, writer)), Record(good)])
    query = task(views(apache_kafka, schema_registry.url, topic, TO_BAD), call("kept:rows", "views"), letters())
    attempt = await child.run(job(), query, artifacts=code(tmp_path))
    await child.batches(attempt, 0)
    await child.stop(attempt)
    found = [plain(row["value"]) for row in kept(tmp_path / "rows")]
    assert found == [plain({"price": Decimal("1.50"), "at": at, "colour": "blue"})] * len(UNFIT)
    by_offset = {int(letter["source"].partition("@")[2]): letter["error"] for letter in kept(tmp_path / "letters")}
    said = [error for _, error in sorted(by_offset.items())]
    for (_, _, words), writer, error in zip(UNFIT, writers, said, strict=True):
        assert words.lower() in error.lower(), said
        assert f"schema {writer}" in error


@SLOW
async def test_a_registry_that_is_away_holds_back_only_what_it_has_not_told(
    child: Child, apache_kafka: ApacheKafka, schema_registry: Apicurio, tmp_path: Path
) -> None:
    """The task fails with a code of its own then, loses no record, and goes on when the registry is back (K10)."""
    topic = await topic_of(apache_kafka, 1)
    old = await schema_registry.register(f"{topic}-value", OLD)
    new = await schema_registry.register(f"{topic}-value", NEW)
    async with Gateway(schema_registry.endpoint) as gateway:
        where = SchemaRegistry(url=gateway.endpoint + schema_registry.path, timeout=Duration(1.0))
        source = views(
            apache_kafka, "", topic, schema_registry=where, value=RecordFormat(format="avro", schema=json.dumps(NEW))
        )
        query = task(source, call("kept:rows", "views"))
        apache_kafka.produce(topic, [Record(written(OLD, {"user": 1, "url": "/a"}, old))])
        attempt = await child.run(job(), query, artifacts=code(tmp_path))
        await child.batches(attempt, 0)
        away = gateway.fault(lambda request: True, times=1_000, status=503)
        apache_kafka.produce(topic, [Record(written(OLD, {"user": 2, "url": "/a"}, old))])
        await child.batches(attempt, 1)
        assert not away.met, "what is known is not asked for again"
        apache_kafka.produce(topic, [Record(written(NEW, {"user": 3, "url": "/a"}, new))])
        error = (await child.notice(p.TaskFailed, lambda notice: notice.attempt_id == attempt)).error
        await child.stop(attempt)
        assert error.code == "schema-registry-away"
        assert error.consequence is Consequence.RETRYABLE
        assert "answers 503" in error.message
        assert [row["value"]["user"] for row in kept(tmp_path / "rows")] == [1, 2]
        away.times = 0
        attempt = await child.run(job(), query, artifacts=code(tmp_path))
        await child.batches(attempt, 0)
        await child.stop(attempt)
        assert [row["value"]["user"] for row in kept(tmp_path / "rows")][2:] == [1, 2, 3]


@SLOW
async def test_a_registry_that_fails_now_and_then_is_asked_again(
    child: Child, apache_kafka: ApacheKafka, schema_registry: Apicurio, tmp_path: Path
) -> None:
    """One micro-batch waits (K10)."""
    topic = await topic_of(apache_kafka, 1)
    id = await schema_registry.register(f"{topic}-value", OLD)
    apache_kafka.produce(topic, [Record(written(OLD, {"user": 1, "url": "/a"}, id))])
    async with Gateway(schema_registry.endpoint) as gateway:
        source = views(
            apache_kafka,
            gateway.endpoint + schema_registry.path,
            topic,
            value=RecordFormat(format="avro", schema=json.dumps(OLD)),
        )
        faults = [gateway.fault(lambda request: True, status=status) for status in (500, 429)]
        faults.append(gateway.fault(lambda request: True, lost=True))
        attempt = await child.run(job(), task(source, call("kept:rows", "views")), artifacts=code(tmp_path))
        await child.batches(attempt, 0)
        await child.stop(attempt)
        assert [fault.met for fault in faults] == [1, 1, 1]
    assert [row["value"]["user"] for row in kept(tmp_path / "rows")] == [1]


async def faults_of(child: Child, source: Vertex, tmp_path: Path) -> GraphFault:
    query = task(source, call("kept:rows", "views"))
    (fault,) = (await child.ask(p.AnalyzeTasks(job=job(), tasks=(query,), artifacts=code(tmp_path)))).faults
    assert fault.path == "vertices.views.source"
    return fault


async def test_what_the_registry_does_not_have_is_a_fault_of_the_job(
    child: Child, apache_kafka: ApacheKafka, schema_registry: Apicurio, tmp_path: Path
) -> None:
    """An unknown subject or version, a type without an equivalent in Spark, no registry, and none that answers (J4)."""
    topic, url = await topic_of(apache_kafka), schema_registry.url
    fault = await faults_of(child, views(apache_kafka, url, topic), tmp_path)
    assert f"the latest version of {topic}-value: " in fault.problem
    assert "answers 404" in fault.problem
    assert "register the schema of a writer first" in fault.hint
    await schema_registry.register(f"{topic}-value", record("Node", ("next", ["null", "Node"], None)))
    fault = await faults_of(child, views(apache_kafka, url, topic), tmp_path)
    assert "Spark cannot read a value with its schema" in fault.problem
    missing = views(apache_kafka, url, topic, value=RecordFormat(format="avro", version=7))
    assert "the 7 version" in (await faults_of(child, missing, tmp_path)).problem
    fault = await faults_of(child, views(apache_kafka, f"{schema_registry.endpoint}/nothing", topic), tmp_path)
    assert "answers 404" in fault.problem
    assert "the whole url of the API" in fault.hint
    async with Gateway(schema_registry.endpoint) as gateway:
        gone = gateway.endpoint
    fault = await faults_of(child, views(apache_kafka, gone, topic), tmp_path)
    assert fault.problem.startswith(f"the Schema Registry does not answer: {gone}")


@SLOW
async def test_the_registry_gets_the_secret_and_nobody_sees_it(
    child: Child, apache_kafka: ApacheKafka, schema_registry: Apicurio, tmp_path: Path
) -> None:
    """Over TLS, with a CA of the job's own; wrong credentials are told without them (E44, K10)."""
    topic, ca = await topic_of(apache_kafka, 1), CaInTest(tmp_path / "ca")
    id = await schema_registry.register(f"{topic}-value", OLD)
    apache_kafka.produce(topic, [Record(written(OLD, {"user": 1, "url": "/a"}, id)), Record(b"none")])
    secret = f"geheim-{uuid4().hex}"
    keep(child, "registry", secret)
    files = ca.files()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(files.certificate, files.key)
    wanted = "Basic " + base64.b64encode(f"reader:{secret}".encode()).decode()
    async with Gateway(schema_registry.endpoint, tls=tls) as gateway:
        gateway.fault(lambda request: request.headers.get("Authorization") != wanted, times=1_000, status=401)
        where = SchemaRegistry(
            url=gateway.endpoint + schema_registry.path, user="reader", password="${secret:registry}", ca=str(ca.ca)
        )
        fault = await faults_of(
            child, views(apache_kafka, "", topic, schema_registry=replace(where, ca=None)), tmp_path
        )
        assert "PKIX" in fault.problem
        fault = await faults_of(
            child, views(apache_kafka, "", topic, schema_registry=replace(where, user="writer")), tmp_path
        )
        assert "answers 401" in fault.problem
        query = task(
            views(apache_kafka, "", topic, TO_BAD, schema_registry=where), call("kept:rows", "views"), letters()
        )
        analysis = await child.ask(p.AnalyzeTasks(job=job(), tasks=(query,), artifacts=code(tmp_path), explain=True))
        assert not analysis.faults
        attempt = await child.run(job(), query, artifacts=code(tmp_path))
        await child.batches(attempt, 0)
        await child.stop(attempt)
    assert [row["value"]["user"] for row in kept(tmp_path / "rows")] == [1]
    said = str((analysis, fault, child.notices, kept(tmp_path / "letters")))
    logs = [child.printed, *(file for file in (child.directory / "log").rglob("*") if file.is_file())]
    said += "".join(file.read_text(errors="replace") for file in logs)
    for text in (secret, wanted.removeprefix("Basic ")):
        assert text not in said
    async with Gateway(schema_registry.endpoint) as gateway:
        gateway.fault(lambda request: True, times=1_000, status=403)
        other = replace(where, url=gateway.endpoint + schema_registry.path)
        query = task(
            views(
                apache_kafka,
                "",
                topic,
                schema_registry=other,
                value=RecordFormat(format="avro", schema=json.dumps(OLD)),
            ),
            call("kept:rows", "views"),
        )
        error = await ended(child, query, tmp_path)
    assert (error.code, error.consequence) == ("schema-registry-refused", Consequence.RETRYABLE)
