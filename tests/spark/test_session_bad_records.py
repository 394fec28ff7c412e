"""Bad records: those that a source cannot parse, and those that a vertex rejects."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from minflinkd.jobgraph.model import BadRecordSink, OnBadRecord, OutputMode, Sink, Source, Vertex
from minflinkd.rpc.snapshot import RowCounts
from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.child import protocol as p
from tests.databases import Tables
from tests.lakes import Delta, Iceberg, Lake
from tests.servers.kafka import Tansu
from tests.servers.postgres import Postgres
from tests.shortened import first
from tests.spark.session_child import Child, call, inputs, job, parquet, python, rate, sql, task
from tests.spark.test_session_kafka import from_topic
from tests.spark.test_session_snapshots import artifact, lay_out, snapshot

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]


@pytest.fixture
def child(connected: Child) -> Child:
    return connected


TO_BAD = BadRecordSink(to=VertexId("bad"))
SCHEMA = "id BIGINT, price DOUBLE, tags MAP<STRING, INT>"

CODE = """
import json
def _keep(name, batch, epoch):
    with open({root!r} + "/" + name, "a") as out:
        for row in batch.collect():
            out.write(json.dumps([epoch, row.asDict()], default=str) + "\\n")
def rows(batch, epoch):
    _keep("rows", batch, epoch)
def letters(batch, epoch):
    _keep("letters", batch, epoch)
def partly(batch, epoch):
    batch.take(1)
    _keep("rows", batch.coalesce(1), epoch)
def joined(hint, small):
    def join(inputs, params):
        rows = next(iter(inputs.values()))
        other = rows.sparkSession.range(20 if small else 3_000_000).withColumnRenamed("id", "value")
        return rows.hint(hint).join(other, "value") if hint else rows.repartition(3)
    return join
merged, broadcast, shuffled = joined("merge", False), joined("broadcast", False), joined("", True)
def halves(inputs, params):
    from pyspark.sql import functions as F
    def half(value):
        return None if value % 10 else "a multiple of ten"
    return inputs["numbers"].select("value", F.udf(half, "string")("value").alias("_error"))
"""

LINES = (
    '{"id": 1, "price": 1.5}',
    '{"id": 2, "price": "x4"}',
    '{"id": 3, "tags": {"a": "b"}}',
    "not JSON",
    '{"id": 4, "tags": {"a": 5}}',
    '{"id": 5',
)


def code(tmp_path: Path) -> dict[str, str]:
    return artifact(tmp_path, "kept.py", CODE.format(root=str(tmp_path)))


def files(path: Path, action: OnBadRecord | BadRecordSink, **fields: Any) -> Vertex:
    source = Source(**({"format": "json", "path": str(path), "schema": SCHEMA} | fields))
    return Vertex(id=VertexId("events"), source=source, on_bad_record=action)


def letters(**fields: Any) -> Vertex:
    return Vertex(id=VertexId("bad"), sink=Sink(**(fields or {"python": "kept:letters"})))


def kept(path: Path) -> list[dict[str, Any]]:
    return [row for _, row in map(json.loads, path.read_text().splitlines())] if path.exists() else []


def put(directory: Path, name: str, lines: Iterable[str]) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / f".{name}").write_text("".join(f"{line}\n" for line in lines))
    (directory / f".{name}").rename(directory / name)
    return directory / name


async def test_a_source_sends_what_it_cannot_parse_to_a_sink(child: Child, tmp_path: Path) -> None:
    """With the text of the record, what is wrong with it, and its file; also if nobody reads the wrong column (K7)."""
    file = put(tmp_path / "in", "1.json", LINES)
    good = sql("good", "SELECT id FROM events", "events")  # neither price nor tags are read
    query = task(files(tmp_path / "in", TO_BAD), good, call("kept:rows", "good"), letters())
    attempt = await child.run(job(), query, artifacts=code(tmp_path))
    rows = (await child.batches(attempt, 0)).metrics.rows
    await child.stop(attempt)
    assert sorted(row["id"] for row in kept(tmp_path / "rows")) == [1, 4]
    found = {row["record"]: row for row in kept(tmp_path / "letters")}
    assert found.keys() == {LINES[1], LINES[2], LINES[3], LINES[5]}
    assert {row["vertex"] for row in found.values()} == {"events"}
    assert {row["source"] for row in found.values()} == {f"file:{file}"}
    said = [row["error"] for row in found.values()]
    assert [word in error for word, error in zip(("'x4' of the field `price`", "schema", "'not'"), said, strict=False)]
    assert not any("FAILFAST" in error or "SQLSTATE" in error or "REDACTED" in error for error in said), said
    assert rows == RowCounts({"events": 6}, {"out": 2, "bad": 4}, {"events": 4})


async def test_a_csv_source_sends_lines_that_do_not_fit(child: Child, tmp_path: Path) -> None:
    """Too few columns, too many, or a value of another type (K7)."""
    put(tmp_path / "in", "1.csv", ("1,1.5", "2", "3,x", "4,5,6", "5,6"))
    source = files(tmp_path / "in", TO_BAD, format="csv", schema="id BIGINT, price DOUBLE")
    attempt = await child.run(job(), task(source, call("kept:rows", "events"), letters()), artifacts=code(tmp_path))
    await child.batches(attempt, 0)
    await child.stop(attempt)
    assert sorted(row["id"] for row in kept(tmp_path / "rows")) == [1, 5]
    assert sorted(row["record"] for row in kept(tmp_path / "letters")) == ["2", "3,x", "4,5,6"]


@pytest.mark.parametrize("with_state", [False, True], ids=["without state", "with state"])
async def test_a_vertex_sends_the_rows_that_it_rejects(child: Child, tmp_path: Path, with_state: bool) -> None:
    """Each row is once in what the job writes, or once at the sink, however many tasks Spark has for it (K7)."""
    halves = replace(python("halves", "kept:halves", "numbers"), on_bad_record=TO_BAD)
    odd = "SELECT value, IF(value % 10 = 7, concat(value, ' is a seven'), NULL) AS _error FROM halves"
    sevens = replace(sql("sevens", odd, "halves"), on_bad_record=TO_BAD)
    end = sql("sums", f"SELECT value{', count(*) AS n' if with_state else ''} FROM sevens GROUP BY value", "sevens")
    last = end if with_state else sql("sums", "SELECT value FROM sevens", "sevens")
    query = task(rate(100), halves, sevens, last, call("kept:rows", "sums"), letters())
    attempt = await child.run(job(), query, artifacts=code(tmp_path))
    found = (await child.batches(attempt, 2)).metrics
    await child.stop(attempt)
    batches = range(found.batch_id + 1)
    good = [row["value"] for row in kept(tmp_path / "rows")]
    bad = kept(tmp_path / "letters")
    assert set(good) >= {n for n in range(100 * len(batches)) if n % 10 not in (0, 7)}
    assert len(set(good)) == len(good)
    assert {json.loads(row["record"])["value"] % 10 for row in bad} == {0, 7}
    assert len({row["record"] for row in bad}) == len(bad) >= 20 * len(batches)
    assert {row["error"] for row in bad if row["vertex"] == "halves"} == {"a multiple of ten"}
    assert "7 is a seven" in {row["error"] for row in bad if row["vertex"] == "sevens"}
    assert found.rows.rejected == dict.fromkeys(("halves", "sevens"), 10 * len(batches))


async def test_dropped_records_are_counted(child: Child, tmp_path: Path) -> None:
    """Nothing else is left of them, but for a few in the log (K7)."""
    put(tmp_path / "in", "1.json", LINES * 50)
    query = task(files(tmp_path / "in", OnBadRecord.DROP), call("kept:rows", "events"))
    directory = child.fresh_directory()
    attempt = await child.run(job(), query, artifacts=code(tmp_path), directory=directory)
    found = (await child.batches(attempt, 0)).metrics.rows
    assert not list((directory / "bad-records").iterdir())
    await child.stop(attempt)
    assert (len(kept(tmp_path / "rows")), found.rejected) == (100, {"events": 200})


async def test_a_bad_record_fails_the_task_with_its_text(child: Child, tmp_path: Path) -> None:
    """The error names the record, its file and what is wrong, and the task can be tried again (K7)."""
    file = put(tmp_path / "in", "1.json", LINES[:2])
    query = task(files(tmp_path / "in", OnBadRecord.FAIL), call("kept:rows", "events"))
    attempt = await child.run(job(), query, artifacts=code(tmp_path))
    error = (await child.notice(p.TaskFailed, lambda notice: notice.attempt_id == attempt)).error
    await child.stop(attempt)
    assert error.code == "bad-record"
    assert error.message.startswith(f"events cannot parse a record of file:{file}: ")
    assert LINES[1] in error.message
    assert "or send them to a sink" in error.hint
    assert not kept(tmp_path / "rows")


async def test_a_restored_attempt_sends_bad_records_of_its_own_micro_batches_only(child: Child, tmp_path: Path) -> None:
    """What a checkpoint covers is staged with it, and counts once (K7, J12)."""
    (tmp_path / "bad").mkdir()
    odd = replace(sql("odd", "SELECT *, IF(value % 2 = 1, 'odd', NULL) AS _error FROM numbers", "numbers"))
    query = task(
        rate(10),
        replace(odd, on_bad_record=TO_BAD),
        parquet(tmp_path / "out", "odd"),
        letters(format="json", path=str(tmp_path / "bad")),
    )
    context = job()
    attempt = await child.run(context, query)
    await child.batches(attempt, 1)
    first, state = await snapshot(child, attempt, 1)
    await child.stop(attempt)
    what = p.Restored(checkpoint_id=1, batch_id=first.batch_id, transactions=())
    following = await child.run(context, query, restored=what, directory=lay_out(child, state))
    await child.batches(following, first.batch_id + 2)
    second, _ = await snapshot(child, following, 2)
    await child.stop(following)
    staged = [t for t in (*first.transactions, *second.transactions) if t.sink == "bad"]
    rows = [
        json.loads(json.loads(line)["record"])["value"]
        for transaction in staged
        for file in transaction.files
        for line in (tmp_path / "bad" / file.staged).read_text().splitlines()
    ]
    assert sorted(rows) == [n for n in range(10 * (second.batch_id + 1)) if n % 2]
    assert (first.rows + second.rows).rejected == {"odd": len(rows)}


async def test_what_cannot_be_is_reported_with_the_others(child: Child, tmp_path: Path) -> None:
    """A vertex without the column, and one that the task computes twice (K7, J4)."""
    silent = replace(sql("silent", "SELECT value FROM more", "more"), on_bad_record=OnBadRecord.DROP)
    twice = sql("both", "SELECT value FROM odd UNION ALL SELECT -value FROM odd", "odd")
    odd = sql("odd", "SELECT value, IF(value % 2 = 1, 'odd', NULL) AS _error FROM numbers", "numbers")
    collect = Vertex(id=VertexId("out"), inputs=inputs("both"), sink=Sink(format="collect"))
    other = Vertex(id=VertexId("other"), inputs=inputs("silent"), sink=Sink(format="collect"))
    tasks = (
        task(rate(), replace(odd, on_bad_record=TO_BAD), twice, collect, letters(format="console")),
        task(replace(rate(), id=VertexId("more")), silent, other),
    )
    found = await child.ask(p.AnalyzeTasks(job=job(), tasks=tasks, artifacts={}))
    said = {fault.path: fault.problem for fault in found.faults}
    assert "needs a column _error" in said["vertices.silent.on-bad-record"]
    assert "the task reads odd 2 times" in said["vertices.odd.on-bad-record"]


async def test_it_may_be_added_to_a_job_that_has_state(child: Child, tmp_path: Path) -> None:
    """The state keeps its meaning, and the source its place, as in a hot restart (K7, H2)."""
    put(tmp_path / "in", "1.json", LINES)
    sums = sql("sums", "SELECT id % 2 AS odd, count(*) AS n FROM events WHERE id > 0 GROUP BY 1", "events")
    end = (sums, call("kept:rows", "sums", OutputMode.UPDATE))
    context, source = job(), files(tmp_path / "in", TO_BAD)
    attempt = await child.run(context, task(replace(source, on_bad_record=None), *end), artifacts=code(tmp_path))
    await child.batches(attempt, 0)
    taken, state = await snapshot(child, attempt, 1)
    await child.stop(attempt)
    assert {row["odd"]: row["n"] for row in kept(tmp_path / "rows")} == {1: 2, 0: 2}  # 2 has a price of null
    put(tmp_path / "in", "2.json", ['{"id": 11, "price": "x"}', '{"id": 13}', '{"id": 12}'])
    what = p.Restored(
        checkpoint_id=1, batch_id=taken.batch_id, transactions=(), operators=taken.operators, same_meaning=True
    )
    fields = {"restored": what, "directory": lay_out(child, state), "artifacts": code(tmp_path)}
    following = await child.run(context, task(source, *end, letters()), **fields)
    await child.batches(following, taken.batch_id + 1)
    await child.stop(following)
    assert [(row["odd"], row["n"]) for row in kept(tmp_path / "rows")][2:] == [(1, 3), (0, 3)]
    assert [row["record"] for row in kept(tmp_path / "letters")] == ['{"id": 11, "price": "x"}']


async def test_bad_records_of_kafka_go_to_another_topic(child: Child, kafka: Tansu) -> None:
    """A vertex parses and rejects them; in the topic they are JSON, by vertex (K7)."""
    await kafka.create_topic("clicks", partitions=1)
    await kafka.create_topic("bad-clicks", partitions=1)
    for record in ({"user": 1}, "no click", {"user": 2}):
        kafka.produce("clicks", json.dumps({"value": record}))
    text = """SELECT c.user, offset, CAST(value AS STRING) AS text, IF(c.user IS NULL, 'no user', NULL) AS _error
        FROM (SELECT *, from_json(CAST(value AS STRING), 'user BIGINT') AS c FROM messages)"""
    options = {"kafka.bootstrap.servers": kafka.address, "topic": "bad-clicks"} | kafka.one_by_one
    query = task(
        from_topic(kafka, "clicks"),
        replace(sql("clicks", text, "messages"), on_bad_record=TO_BAD),
        Vertex(id=VertexId("out"), inputs=inputs("clicks"), sink=Sink(format="collect")),
        letters(format="kafka", options=options),
    )
    attempt = await child.run(job(), query)
    await child.batches(attempt, 0)
    good = await child.ask(p.TellCollected(attempt_id=attempt, vertex_id=VertexId("out")))
    await child.stop(attempt)
    assert [json.loads(row.row)["user"] for row in good.rows] == [1, 2]
    reads = task(
        from_topic(kafka, "bad-clicks"),
        sql("seen", "SELECT CAST(key AS STRING) AS key, CAST(value AS STRING) AS value FROM messages", "messages"),
        Vertex(id=VertexId("out"), inputs=inputs("seen"), sink=Sink(format="collect")),
    )
    attempt = await child.run(job(), reads)
    await child.batches(attempt, 0)
    found = await child.ask(p.TellCollected(attempt_id=attempt, vertex_id=VertexId("out")))
    await child.stop(attempt)
    [row] = [json.loads(row.row) for row in found.rows]
    letter = json.loads(row["value"])
    assert (row["key"], letter["vertex"], letter["error"]) == ("clicks", "clicks", "no user")
    assert json.loads(letter["record"]) == {"user": None, "offset": 1, "text": '"no click"'}


@pytest.mark.parametrize("how", first(["merged", "broadcast", "shuffled"]))
async def test_bad_records_are_kept_by_jobs_that_spark_runs_before_the_sinks(
    child: Child, tmp_path: Path, how: str
) -> None:
    """So are stages of an adaptive plan, and what it broadcasts (K7)."""
    sevens = "SELECT value, IF(value % 10 = 7, 'seven', NULL) AS _error FROM numbers"
    query = task(
        rate(100),
        replace(sql("sevens", sevens, "numbers"), on_bad_record=TO_BAD),
        python("more", f"kept:{how}", "sevens"),
        call("kept:rows", "more"),
        letters(),
    )
    attempt = await child.run(job(), query, artifacts=code(tmp_path))
    found = (await child.batches(attempt, 1)).metrics
    await child.stop(attempt)
    every = range(100 * (found.batch_id + 1))
    bad = [json.loads(row["record"])["value"] for row in kept(tmp_path / "letters")]
    assert sorted(bad)[: len(every) // 10] == [n for n in every if n % 10 == 7]
    assert len(set(bad)) == len(bad)
    good = [row["value"] for row in kept(tmp_path / "rows")]
    assert sorted(good)[: len(every) * 9 // 10] == [n for n in every if n % 10 != 7]
    assert found.rows.rejected == {"sevens": len(every) // 10}


async def test_a_sink_that_reads_in_parts_takes_no_bad_record_away(child: Child, tmp_path: Path) -> None:
    """It has Spark tasks of its own, which compute other partitions than those before (K7)."""
    sevens = "SELECT value, IF(value % 10 = 7, 'seven', NULL) AS _error FROM numbers"
    split = replace(sql("sevens", sevens, "numbers"), on_bad_record=TO_BAD)
    attempt = await child.run(
        job(), task(rate(100), split, call("kept:partly", "sevens"), letters()), artifacts=code(tmp_path)
    )
    found = (await child.batches(attempt, 1)).metrics
    await child.stop(attempt)
    bad = [json.loads(row["record"])["value"] for row in kept(tmp_path / "letters")]
    assert sorted(bad)[:20] == [n for n in range(200) if n % 10 == 7]
    assert found.rows.rejected == {"sevens": 10 * (found.batch_id + 1)}


ODD = (
    "no JSON, \u00fcml\u00e4ut \U0001f600",
    "null byte \0 within",
    '{"id": "' + "x" * 3_000 + '"}',
    "",
    '"; DROP TABLE bad; --',
)


async def sent(child: Child, tmp_path: Path, sink: Vertex) -> None:
    """Let a source send bad records, and publish them with a checkpoint."""
    put(tmp_path / "in", "1.json", [line for line in ODD if line])
    query = task(files(tmp_path / "in", TO_BAD), call("kept:rows", "events"), sink)
    attempt = await child.run(job(), query, artifacts=code(tmp_path))
    await child.batches(attempt, 0)
    await snapshot(child, attempt, 1)
    await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=1))
    await child.stop(attempt)


@pytest.mark.parametrize("kind", [Delta, Iceberg])
async def test_bad_records_go_into_a_table(child: Child, tmp_path: Path, kind: type[Lake]) -> None:
    """With the columns and types that the documentation names (K7, K2, K3)."""
    lake = kind(tmp_path / "lake")
    await sent(child, tmp_path, Vertex(id=VertexId("bad"), sink=lake.sink("bad")))
    rows = lake.rows("bad")
    assert sorted(row["record"] for row in rows) == sorted(filter(None, ODD))
    assert all(isinstance(row["time"], datetime) and row["error"] and row["source"] for row in rows)


async def test_bad_records_go_into_a_database(child: Child, tmp_path: Path, postgres: Postgres) -> None:
    """PostgreSQL has no texts with NUL: the job would fail at this record for ever (K7)."""
    tables = Tables.of_postgresql(postgres)
    await sent(child, tmp_path, Vertex(id=VertexId("bad"), sink=Sink(**tables.sink("bad"))))
    found = await tables.ask("SELECT record FROM bad")
    assert sorted(found) == sorted(line.replace("\0", "\ufffd") for line in ODD if line)


async def test_bad_records_go_into_lines_of_text(child: Child, tmp_path: Path) -> None:
    """Each is JSON on one line, with all its fields (K7)."""
    (tmp_path / "bad").mkdir()
    put(tmp_path / "in", "1.json", [line for line in ODD if line])
    query = task(
        files(tmp_path / "in", TO_BAD), call("kept:rows", "events"), letters(format="text", path=str(tmp_path / "bad"))
    )
    attempt = await child.run(job(), query, artifacts=code(tmp_path))
    await child.batches(attempt, 0)
    taken, _ = await snapshot(child, attempt, 1)
    await child.stop(attempt)
    staged = [file.staged for transaction in taken.transactions for file in transaction.files]
    rows = [json.loads(line) for file in staged for line in (tmp_path / "bad" / file).read_text("utf-8").splitlines()]
    assert sorted(row["record"] for row in rows) == sorted(filter(None, ODD))
    assert all(row.keys() == {"time", "vertex", "error", "record", "source"} for row in rows)


async def test_a_record_that_is_too_large_for_kafka_is_cut(child: Child, tmp_path: Path, kafka: Tansu) -> None:
    """Otherwise the job would fail at it for ever. What fits is whole (K7)."""
    await kafka.create_topic("cut", partitions=1)
    large, fits = '{"id": "' + "\u00fc" * 20_000 + '"}', '{"id": "' + "x" * 8_000 + '"}'
    put(tmp_path / "in", "1.json", [large, fits])
    options = {"kafka.bootstrap.servers": kafka.address, "topic": "cut", "kafka.max.request.size": "20000"}
    query = task(
        files(tmp_path / "in", TO_BAD),
        call("kept:rows", "events"),
        letters(format="kafka", options=options | kafka.one_by_one),
    )
    attempt = await child.run(job(), query, artifacts=code(tmp_path))
    await child.batches(attempt, 0)
    await child.stop(attempt)
    text = "SELECT CAST(value AS STRING) AS value FROM messages"
    reads = task(
        from_topic(kafka, "cut"),
        sql("seen", text, "messages"),
        Vertex(id=VertexId("out"), inputs=inputs("seen"), sink=Sink(format="collect")),
    )
    attempt = await child.run(job(), reads)
    await child.batches(attempt, 0)
    found = await child.ask(p.TellCollected(attempt_id=attempt, vertex_id=VertexId("out")))
    await child.stop(attempt)
    rows = [json.loads(json.loads(row.row)["value"]) for row in found.rows]
    whole, cut = sorted(rows, key=lambda row: "cut" in row["error"])
    assert whole["record"] == fits
    assert len(whole["error"]) < 600
    assert whole["error"].endswith('to target Spark data type "BIGINT"'), "Spark tells the whole value before that"
    assert large.startswith(cut["record"])
    assert cut["error"].startswith(f"(cut to {len(cut['record']):,} characters) ")
