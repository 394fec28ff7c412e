"""Tasks in Spark's real-time mode, from a real broker to itself (T1 - T3)."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from minflinkd.jobgraph.model import Execution, OutputMode, Task, Vertex, Watermark
from minflinkd.rpc.messages import JobContext, RealTimeFigures
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import AttemptId
from minflinkd.taskmanager.child import protocol as p
from tests.servers.apache_kafka import ApacheKafka, Record
from tests.spark.session_child import Child, job, parquet, python, rate, source, sql, task
from tests.spark.test_session_sinks import sink
from tests.spark.test_session_snapshots import lay_out, snapshot
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

NUMBERS = "SELECT CAST(CAST(value AS STRING) AS BIGINT) AS n FROM events"
EVEN = "SELECT CAST(n AS STRING) AS value FROM numbers WHERE n % 2 = 0"
COUNTS = (
    "SELECT CAST(n % 5 AS STRING) AS key, CONCAT_WS(' ', n % 5, COUNT(*), MAX(n)) AS value FROM numbers GROUP BY n % 5"
)
CODE = """
def doubled(inputs, params):
    from pyspark.sql.functions import udf
    return inputs["numbers"].select(udf(lambda n: str(2 * n), "string")("n").alias("value"))
def once(inputs, params):
    return inputs["numbers"].selectExpr("n % 10 AS k", "'one' AS v").dropDuplicates(["k"])
"""


@pytest.fixture
def child(connected: Child) -> Child:
    return connected


class Pipeline:
    """A query in real-time mode with its topics. `text`: what its only vertex of SQL computes of `numbers`."""

    def __init__(self, child: Child, kafka: ApacheKafka, name: str, text: str, partitions: int = 2) -> None:
        self.child = child
        self.kafka = kafka
        self.name = name
        self.partitions = partitions
        self.text = text
        self.job_id = job().job_id

    async def make_topics(self) -> None:
        for topic in (f"{self.name}-in", f"{self.name}-out"):
            await self.kafka.create_topic(topic, self.partitions)

    def context(self, *, real_time: bool = True, **fields: Any) -> JobContext:
        mode = Execution.REAL_TIME if real_time else Execution.MICRO_BATCH
        return msgspec.structs.replace(job(job_id=self.job_id, **fields), execution=mode)

    def events(self, name: str = "events") -> Vertex:
        servers = {"kafka.bootstrap.servers": self.kafka.address}
        return source(name, "kafka", **servers, subscribe=f"{self.name}-in", startingOffsets="earliest")

    def task(self) -> Task:
        return task(self.events(), sql("numbers", NUMBERS, "events"), sql("rows", self.text, "numbers"), self.sink())

    def sink(self) -> Vertex:
        options = {"kafka.bootstrap.servers": self.kafka.address, "topic": f"{self.name}-out"}
        return sink("rows", format="kafka", options=options)

    async def start(self, before: tuple[p.SnapshotTaken, Path] | None = None, *, real_time: bool = True) -> AttemptId:
        fields: dict[str, Any] = {}
        if before is not None:
            taken, files = before
            what = p.Restored(checkpoint_id=1, batch_id=taken.batch_id, operators=taken.operators)
            fields = {"restored": what, "directory": lay_out(self.child, files)}
        return await self.child.run(self.context(real_time=real_time), self.task(), **fields)

    async def produce(self, numbers: range) -> None:
        records = [Record(str(n), n % self.partitions) for n in numbers]
        await asyncio.to_thread(self.kafka.produce, f"{self.name}-in", records)

    async def values(self) -> list[str]:
        found = await asyncio.to_thread(self.kafka.records, f"{self.name}-out", self.partitions)
        return [record.value for record in found]

    async def shows(self, expected: set[str], *, once: bool = False) -> None:
        """Wait until these values have been written, each once if so asked, and no others."""

        async def there() -> bool:
            found = await self.values()
            assert set(found) <= expected
            return set(found) == expected

        await until(there, f"the output of {self.name}")
        if once:
            assert max(Counter(await self.values()).values()) == 1

    async def stop(self, attempt: AttemptId) -> tuple[p.SnapshotTaken, Path]:
        """Stop with a last checkpoint, but keep what the attempt may leave to its successor."""
        target = self.child.directory / "snapshots" / f"{attempt}-1"
        target.parent.mkdir(exist_ok=True)
        request = p.TakeSnapshot(attempt_id=attempt, checkpoint_id=1, target_directory=str(target), stop=True)
        taken = await self.child.ask(request)
        assert (await self.child.ask(p.StopTask(attempt_id=attempt))).ended
        return taken, target


def even(end: int) -> set[str]:
    return {str(n) for n in range(0, end, 2)}


def counts(end: int) -> set[str]:
    """Every value that counting 0, 1, ... by n % 5 shows if each row is processed once, in order."""
    return {f"{n % 5} {n // 5 + 1} {n}" for n in range(end)}


async def pipeline(child: Child, kafka: ApacheKafka, name: str, text: str = EVEN, *, partitions: int = 2) -> Pipeline:
    made = Pipeline(child, kafka, name, text, partitions)
    await made.make_topics()
    return made


async def test_rows_appear_while_a_batch_runs_and_a_checkpoint_ends_it(child: Child, apache_kafka: ApacheKafka) -> None:
    """A batch takes a minute, and rows are there at once. A checkpoint has everything up to it (T1, T2).

    The topic has more partitions than the session has slots: all of them are read at once nevertheless.
    """
    line = await pipeline(child, apache_kafka, "at-once", partitions=5)
    attempt = await line.start()
    await line.produce(range(100))
    first = await child.batches(attempt, 0)
    assert first.metrics.rows_in > 0, "the first rows end their batch, so that it is known that there were some"
    await line.produce(range(100, 200))
    await line.shows(even(200), once=True)
    await child.notice(p.BatchFinished, lambda n: n.attempt_id == attempt and _timed(n.metrics.real_time))
    taken, files = await snapshot(child, attempt, 1)
    assert json.loads(taken.source_offsets["events"]) == {"at-once-in": {str(n): 40 for n in range(5)}}
    assert taken.rows.read == {"events": 200}
    assert taken.rows.written == {"out": 100}
    told = await child.notice(p.BatchFinished, lambda n: n.attempt_id == attempt and _paused(n.metrics.real_time))
    assert told.metrics.real_time.rows == 200, "rows are told of before their batch ends, and since the attempt began"
    again, _ = await snapshot(child, attempt, 2)
    assert again.source_offsets == taken.source_offsets, "a checkpoint without new rows is one, too"
    await child.stop(attempt)
    attempt = await line.start((taken, files))
    await line.produce(range(200, 300))
    await line.shows(even(300), once=True)
    await child.stop(attempt)


def _timed(told: RealTimeFigures | None) -> bool:
    return told is not None and told.rows == 200 and told.longest_ms is not None and told.longest_ms < 60_000


def _paused(told: RealTimeFigures | None) -> bool:
    return told is not None and told.rows == 200 and told.cut_pause_ms is not None and told.cut_pause_ms > 0


async def test_state_is_exact_after_a_stop_and_after_a_loss(child: Child, apache_kafka: ApacheKafka) -> None:
    """A stop checkpoint has all that was processed, so nothing is written twice. A loss repeats rows (T2, T3)."""
    line = await pipeline(child, apache_kafka, "counts", COUNTS, partitions=1)
    attempt = await line.start()
    await line.produce(range(50))
    await line.shows(counts(50), once=True)
    stopped = await line.stop(attempt)
    following = await line.start(stopped)
    assert (await child.ask(p.UnloadTask(attempt_id=attempt))).heir == following, "it goes on in the open stores"
    await line.produce(range(50, 100))
    await line.shows(counts(100), once=True)
    cut = await snapshot(child, following, 2)
    await line.produce(range(100, 120))
    await line.shows(counts(120), once=True)
    await child.stop(following)  # without a checkpoint, as if it had been killed
    last = await line.start(cut)
    await line.produce(range(120, 150))
    await line.shows(counts(150))
    written = Counter(await line.values())
    assert {value for value, times in written.items() if times > 1} == counts(120) - counts(100)
    await child.stop(last)


async def test_a_job_changes_between_micro_batches_and_real_time(child: Child, apache_kafka: ApacheKafka) -> None:
    """Both have the same state, so a version of a job may have another mode than the one before it (T2)."""
    line = await pipeline(child, apache_kafka, "both", COUNTS, partitions=1)
    end, before, stopped = 0, None, list[AttemptId]()
    for real_time in (False, True, False, True):
        attempt = await line.start(before, real_time=real_time)
        await line.produce(range(end, end + 20))
        end += 20

        async def counted(end: int = end) -> bool:
            last = {value.split()[0]: value for value in await line.values()}
            return {value for n, value in last.items()} == counts(end) - counts(end - 5)

        await until(counted)
        before = await line.stop(attempt)
        stopped.append(attempt)
    for attempt in stopped:
        assert (await child.ask(p.UnloadTask(attempt_id=attempt))).unloaded


async def test_a_stop_checkpoint_that_is_aborted_lets_the_query_go_on(child: Child, apache_kafka: ApacheKafka) -> None:
    """The query waits between two batches, and the next one begins (T2, C5)."""
    line = await pipeline(child, apache_kafka, "aborted")
    attempt = await line.start()
    await line.produce(range(10))
    await line.shows(even(10), once=True)
    target = child.directory / "snapshots" / f"{attempt}-1"
    target.parent.mkdir(exist_ok=True)
    await child.ask(p.TakeSnapshot(attempt_id=attempt, checkpoint_id=1, target_directory=str(target), stop=True))
    await line.produce(range(10, 20))
    await child.ask(p.AbortSnapshot(attempt_id=attempt, checkpoint_id=1))
    await line.shows(even(20), once=True)
    await child.stop(attempt)


async def test_two_sources_end_their_batch_together(child: Child, apache_kafka: ApacheKafka) -> None:
    """Each checkpoint ends the batches of all sources of a query (T2)."""
    line = await pipeline(child, apache_kafka, "union")
    other = await pipeline(child, apache_kafka, "other")
    text = " UNION ALL ".join(
        f"SELECT CONCAT('{name} ', CAST(value AS STRING)) AS value FROM {vertex}"
        for name, vertex in (("one", "events"), ("two", "others"))
    )
    query = task(line.events(), other.events("others"), sql("rows", text, "events", "others"), line.sink())
    attempt = await child.run(line.context(), query)
    await line.produce(range(10))
    await other.produce(range(5))
    expected = {f"one {n}" for n in range(10)} | {f"two {n}" for n in range(5)}
    await line.shows(expected, once=True)
    taken, _ = await snapshot(child, attempt, 1)
    offsets = {name: json.loads(text) for name, text in taken.source_offsets.items()}
    assert offsets == {"events": {"union-in": {"0": 5, "1": 5}}, "others": {"other-in": {"0": 3, "1": 2}}}
    await child.stop(attempt)


async def test_a_query_brings_its_own_threads_and_takes_none_from_others(
    child: Child, apache_kafka: ApacheKafka
) -> None:
    """Its tasks never end, and a query in micro-batches beside it goes on. Afterwards the threads are gone (T1)."""
    line = await pipeline(child, apache_kafka, "threads", COUNTS, partitions=4)
    attempts = [await line.start() for _ in range(2)]
    beside = await pipeline(child, apache_kafka, "beside")
    attempt = await beside.start(real_time=False)
    await line.produce(range(20))
    await beside.produce(range(20))
    await beside.shows(even(20), once=True)
    for one in (attempt, *attempts):
        await child.stop(one)


async def test_what_real_time_mode_does_not_have_is_told_when_the_job_is_analysed(
    child: Child, apache_kafka: ApacheKafka, tmp_path: Path
) -> None:
    """A Python function, a join and a sort, each with its vertex (T1)."""
    line = await pipeline(child, apache_kafka, "refused")
    (tmp_path / "acme.py").write_text(CODE)
    artifacts = {"acme.py": str(tmp_path / "acme.py")}

    async def faults(*vertices: Vertex) -> Mapping[str, str]:
        asked = p.AnalyzeTasks(job=line.context(), tasks=(task(*vertices, line.sink()),), artifacts=artifacts)
        found = await child.ask(asked)
        return {fault.path: fault.problem for fault in found.faults}

    numbers = (line.events(), sql("numbers", NUMBERS, "events"))
    assert await faults(*numbers, sql("rows", EVEN, "numbers")) == {}
    assert await faults(*numbers, sql("rows", COUNTS, "numbers")) == {}
    assert await faults(*numbers, python("rows", "acme:doubled", "numbers")) == {
        "vertices.rows.python": "Spark's real-time mode does not have ArrowEvalPython"
    }
    others = (line.events("others"), sql("more", NUMBERS.replace("events", "others"), "others"))
    joined = sql("rows", "SELECT CAST(n AS STRING) AS value FROM numbers JOIN more USING (n)", "numbers", "more")
    assert await faults(*numbers, *others, joined) == {
        "vertices.rows.sql": "Spark's real-time mode does not have StreamingSymmetricHashJoin"
    }
    twice = sql("rows", f"{EVEN} UNION ALL {EVEN}", "numbers")
    assert await faults(*numbers, twice) == {
        "vertices.events": "real-time mode reads a source once, and the task reads events 2 times"
    }
    counted = f"SELECT value FROM ({COUNTS}) UNION ALL SELECT CAST(n AS STRING) FROM more"
    found = await faults(*numbers, *others, sql("rows", counted, "numbers", "more"))
    assert "before a union" in found["vertices.rows"], "Spark's own words"


# What a query shows of the numbers 0 to 99, one every 10 s: its keys and values, and the same by Python.
SHAPES: dict[str, tuple[str, dict[Any, Any]]] = {
    "maximum of texts": (
        "SELECT n % 5 AS k, MAX(CAST(n AS STRING)) AS v FROM numbers GROUP BY n % 5",
        {k: max(str(n) for n in range(k, 100, 5)) for k in range(5)},
    ),
    "lists": (
        "SELECT n % 5 AS k, SORT_ARRAY(COLLECT_LIST(n)) AS v FROM numbers GROUP BY n % 5",
        {k: list(range(k, 100, 5)) for k in range(5)},
    ),
    "all rows": (
        "SELECT 'all' AS k, ARRAY(COUNT(*), SUM(n), MIN(n)) AS v FROM numbers",
        {"all": [100, sum(range(100)), 0]},
    ),
    "distinct": ("SELECT DISTINCT n % 7 AS k, 'seen' AS v FROM numbers", dict.fromkeys(range(7), "seen")),
    "dropDuplicates": ("TABLE once", dict.fromkeys(range(10), "one")),  # a function of CODE
    "exploded": (
        "SELECT k, COUNT(*) AS v FROM (SELECT EXPLODE(ARRAY(n % 3, n % 4)) AS k FROM numbers) GROUP BY k",
        dict(Counter([n % 3 for n in range(100)] + [n % 4 for n in range(100)])),
    ),
    "windows": (
        "SELECT UNIX_SECONDS(WINDOW(time, '1 minute').start) AS k, COUNT(*) AS v FROM numbers "
        "GROUP BY WINDOW(time, '1 minute')",
        dict(Counter(10 * n // 60 * 60 for n in range(100))),
    ),
    "filtered": (
        "SELECT n AS k, IF(n % 3 = 0, 'fizz', 'no') AS v FROM numbers WHERE n % 4 > 1",
        {n: "fizz" if n % 3 == 0 else "no" for n in range(100) if n % 4 > 1},
    ),
    "joined with a table": (
        "SELECT n AS k, name AS v FROM numbers JOIN (VALUES (0, 'even'), (1, 'odd')) t(m, name) ON n % 2 = m",
        {n: "odd" if n % 2 else "even" for n in range(100)},
    ),
    "having": (
        "SELECT n % 30 AS k, COUNT(*) AS v FROM numbers GROUP BY n % 30 HAVING COUNT(*) > 3",
        dict.fromkeys(range(10), 4),
    ),
}


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 4))])
async def test_queries_of_all_kinds_show_the_same_as_over_all_rows_in_whatever_mode_they_go_on(
    child: Child, apache_kafka: ApacheKafka, seed: int, tmp_path: Path
) -> None:
    """The last value of each key is what all rows together have (T1, T2).

    All queries run at once, each with its threads. After a checkpoint each runs on, or is restored in the same mode or
    in the other one.
    """
    chance = random.Random(seed)
    (tmp_path / "acme.py").write_text(CODE)
    artifacts = {"acme.py": str(tmp_path / "acme.py")}
    feed = await pipeline(child, apache_kafka, f"shapes-{seed}", partitions=1)
    numbers = f"SELECT n, TIMESTAMP_SECONDS(10 * n) AS time FROM ({NUMBERS})"
    watermark = Watermark(column="time", delay="1 hour")
    queries, attempts, stories = list[Task](), list[AttemptId](), list[str]()
    for number, (kind, (text, _)) in enumerate(SHAPES.items()):
        await apache_kafka.create_topic(f"shape-{seed}-{number}", 1)
        options = {"kafka.bootstrap.servers": apache_kafka.address, "topic": f"shape-{seed}-{number}"}
        shown = f"SELECT CAST(k AS STRING) AS key, TO_JSON(STRUCT(v)) AS value FROM ({text})"
        query = task(
            feed.events(),
            msgspec.structs.replace(sql("numbers", numbers, "events"), watermark=watermark),
            *([python("once", "acme:once", "numbers")] if "once" in text else []),
            sql("rows", shown, "once" if "once" in text else "numbers"),
            sink("rows", OutputMode.UPDATE, format="kafka", options=options),
        )
        first = chance.random() < 0.7
        found = await child.ask(p.AnalyzeTasks(job=feed.context(real_time=first), tasks=(query,), artifacts=artifacts))
        assert not found.faults, kind
        queries.append(query)
        attempts.append(await child.run(feed.context(real_time=first), query, artifacts=artifacts))
        stories.append(f"{kind}, real-time: {first}")
    await feed.produce(range(60))
    for number, attempt in enumerate(attempts):
        await child.batches(attempt, 0)
        taken, files = await snapshot(child, attempt, 1)
        if chance.random() < 0.3:
            continue
        await child.stop(attempt)
        then = chance.random() < 0.5
        what = p.Restored(checkpoint_id=1, batch_id=taken.batch_id, operators=taken.operators)
        context, directory = feed.context(real_time=then), lay_out(child, files)
        attempts[number] = await child.run(
            context, queries[number], artifacts=artifacts, restored=what, directory=directory
        )
        stories[number] += f", then {then}"
    await feed.produce(range(60, 100))
    for number, (_, values) in enumerate(SHAPES.values()):
        expected = {str(key): {"v": value} for key, value in values.items()}

        async def complete(number: int = number, expected: object = expected) -> bool:
            found = await asyncio.to_thread(apache_kafka.records, f"shape-{seed}-{number}", 1)
            return {record.key: json.loads(record.value) for record in found} == expected

        await until(complete, stories[number])
    for attempt in attempts:
        await child.stop(attempt)


async def test_other_jobs_have_as_many_partitions_as_before(
    child: Child, apache_kafka: ApacheKafka, tmp_path: Path
) -> None:
    """Spark's scheduler takes any number of tasks since a query in real-time mode ran, and makes no more of others."""
    (tmp_path / "told.py").write_text(
        "def told(inputs, params):\n"
        "    context = inputs['numbers'].sparkSession.sparkContext\n"
        "    open(params['file'], 'w').write(str(context.defaultParallelism))\n"
        "    return inputs['numbers']\n"
    )
    line = await pipeline(child, apache_kafka, "others")
    attempt = await line.start()
    await line.produce(range(20))
    await line.shows(even(20))
    await child.stop(attempt)
    (tmp_path / "out").mkdir()
    context = job(params={"file": str(tmp_path / "parallelism")})
    query = task(rate(10), python("rows", "told:told", "numbers"), parquet(tmp_path / "out", "rows"))
    attempt = await child.run(context, query, artifacts={"told.py": str(tmp_path / "told.py")})
    await child.batches(attempt, 1)
    await child.stop(attempt)
    assert (tmp_path / "parallelism").read_text() == "2"


async def test_auto_takes_real_time_mode_where_it_changes_nothing_but_the_time(
    child: Child, apache_kafka: ApacheKafka, tmp_path: Path
) -> None:
    """The analysis says which mode a task takes, and why (T1)."""
    line = await pipeline(child, apache_kafka, "auto", COUNTS, partitions=1)
    (tmp_path / "acme.py").write_text(CODE)
    artifacts = {"acme.py": str(tmp_path / "acme.py")}
    context = msgspec.structs.replace(line.context(), execution=Execution.AUTO)

    async def note(*vertices: Vertex, out: Vertex) -> str:
        found = await child.ask(p.AnalyzeTasks(job=context, tasks=(task(*vertices, out),), artifacts=artifacts))
        assert not found.faults
        (told,) = found.notes
        return told

    numbers = (line.events(), sql("numbers", NUMBERS, "events"))
    update = msgspec.structs.replace(line.sink(), output_mode=OutputMode.UPDATE)
    real_time, other = "task events runs in real-time mode", "task events runs in micro-batches: "
    assert await note(*numbers, sql("rows", EVEN, "numbers"), out=line.sink()) == real_time
    per_row = f"{other}vertices.rows: in real-time mode a result is written again for each row that changes it"
    assert await note(*numbers, sql("rows", COUNTS, "numbers"), out=line.sink()) == per_row
    assert await note(*numbers, sql("rows", COUNTS, "numbers"), out=update) == real_time
    now = sql("rows", "SELECT CAST(current_timestamp() AS STRING) AS value FROM numbers", "numbers")
    assert "the present time is when the batch began" in await note(*numbers, now, out=line.sink())
    doubled = await note(*numbers, python("rows", "acme:doubled", "numbers"), out=line.sink())
    assert doubled == f"{other}vertices.rows.python: Spark's real-time mode does not have ArrowEvalPython"
    timed = msgspec.structs.replace(
        sql("numbers", "SELECT *, timestamp AS time FROM events", "events"),
        watermark=Watermark(column="time", delay="1 minute"),
    )
    minutes = sql(
        "rows", "SELECT CAST(COUNT(*) AS STRING) AS value FROM numbers GROUP BY WINDOW(time, '1 minute')", "numbers"
    )
    assert await note(line.events(), timed, minutes, out=line.sink()) == per_row
    assert await note(line.events(), timed, minutes, out=update) == real_time
    attempt = await child.run(context, task(*numbers, sql("rows", COUNTS, "numbers"), update))
    await line.produce(range(20))
    await line.shows(counts(20))
    await child.notice(p.BatchFinished, lambda n: n.attempt_id == attempt and n.metrics.real_time is not None)
    with pytest.raises(MinflinkError, match="cannot run to the end of its input"):
        await child.ask(p.DrainAttempt(attempt_id=attempt))
    await child.stop(attempt)
