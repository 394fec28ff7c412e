"""Sinks that follow the changes of a database, as Debezium tells them: what a seed draws, beside a dict."""

from __future__ import annotations

import asyncio
import json
import random
import re
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
import yaml

from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.model import RuntimeMode, Sink
from minflinkd.jobgraph.validation import parse_job
from minflinkd.taskmanager.child import protocol as p
from tests.databases import Tables
from tests.lakes import Delta, Iceberg, Lake
from tests.servers.apache_kafka import ApacheKafka, Record
from tests.servers.postgres import Postgres
from tests.shortened import first
from tests.spark.session_child import Child, job, rate, sql, task
from tests.spark.test_session_bounded import run_to_end
from tests.spark.test_session_sinks import restored, sink
from tests.spark.test_session_snapshots import snapshot
from tests.spark.test_session_table_sinks import faults

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

# The job of the documentation. Only where it reads and writes is another here.
PAGE = (Path(__file__).parents[2] / "docs/cdc.md").read_text()
DOCUMENTED = yaml.safe_load(PAGE.split("```yaml\n")[1].split("```")[0])
OPTIONS = DOCUMENTED["vertices"]["out"]["sink"]["options"]
LAKES: dict[str, type[Lake]] = {"delta": Delta, "iceberg": Iceberg}
User = tuple[int, str, str]


@pytest.fixture
def child(connected: Child) -> Child:
    return connected


@dataclass(frozen=True)
class Drawn:
    """A table's log, and what is in the table after it.

    `partitioned`: the target is, by a column that changes. `made`: it is there before, and takes no NULL.
    """

    records: tuple[Record, ...]
    users: tuple[User, ...]
    partitioned: bool
    made: bool

    @classmethod
    def of(cls, seed: int) -> Drawn:
        rng = random.Random(seed)
        there = dict[int, User]()
        records = list[Record]()
        for number in range(240):
            user = (rng.randrange(12), f"n{number}", rng.choice("abc"))
            before = there.get(user[0])
            gone = before is not None and rng.random() < 0.4
            op = "d" if gone else "u" if before else "r" if number < 20 else "c"
            told = {"op": op, "before": _row(before), "after": None if gone else _row(user), "ts_ms": number}
            # After a delete comes a tombstone. Of some the topic has kept nothing else.
            texts = [json.dumps(told), None][rng.randrange(2) :] if gone else [json.dumps(told)]
            records += [Record(text, user[0] % 2, key=json.dumps({"id": user[0]})) for text in texts]
            there.pop(user[0], None)
            if not gone:
                there[user[0]] = user
        return cls(tuple(records), tuple(sorted(there.values())), partitioned=seed % 2 == 0, made=seed % 2 == 1)


def _row(user: User | None) -> dict[str, Any] | None:
    return None if user is None else {"id": user[0], "name": user[1], "region": user[2]}


class Target:
    """A table that is kept current. Which kind, a test says; what it is like, a seed."""

    def __init__(self, kind: str, request: pytest.FixtureRequest, directory: Path, drawn: Drawn) -> None:
        self._lake: Lake | None = None
        self.drawn = drawn
        if kind in LAKES:
            self._lake = LAKES[kind](directory)
        else:
            self._tables = _tables(kind, request)
            self._name = self._tables.name("users")

    async def sink(self) -> dict[str, Any]:
        """Return the sink, and make its table if the user has."""
        if self._lake is not None:
            described = self._lake.described("users")
            described["options"] = described.get("options", {}) | OPTIONS
            return described | ({"partition-by": ["region"]} if self.drawn.partitioned else {})
        self._tables = await self._tables.as_found()
        if self.drawn.made:
            columns = "id BIGINT PRIMARY KEY, name VARCHAR(20) NOT NULL, region CHAR(1) NOT NULL"
            await self._tables.ask(f"CREATE TABLE {self._name} ({columns})")
        return self._tables.sink(self._name, **OPTIONS)

    async def users(self) -> list[User]:
        if self._lake is not None:
            rows = await asyncio.to_thread(self._lake.rows, "users")
            assert all(row.keys() == {"id", "name", "region"} for row in rows)
            return sorted((row["id"], row["name"], row["region"]) for row in rows)
        lines = [line.split("|") for line in await self._tables.ask(f"SELECT * FROM {self._name}")]
        return sorted((int(number), name, region) for number, name, region in lines)

    async def leftovers(self) -> set[str]:
        return set() if self._lake is not None else await self._tables.leftovers()


def _tables(kind: str, request: pytest.FixtureRequest) -> Tables:
    if kind == "postgresql":
        return Tables.of_postgresql(request.getfixturevalue("postgres"))
    return Tables.of_mysql(request.getfixturevalue("mariadb"))


@pytest.fixture(params=first(["postgresql", "mysql"]))
def reached(request: pytest.FixtureRequest) -> Tables:
    return _tables(request.param, request)


@pytest_asyncio.fixture(loop_scope="session")
async def tables(reached: Tables) -> Tables:
    return await reached.as_found()


KINDS = ("delta", "iceberg", "postgresql", "mysql")
CASES = [(kind, (place + turn) % 4) for turn in range(4) for place, kind in enumerate(KINDS)]


@pytest.fixture(params=first(CASES, 4), ids=lambda case: f"{case[0]}-{case[1]}")
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    kind, seed = request.param
    return Target(kind, request, tmp_path, Drawn.of(seed))


async def test_a_table_follows_the_log_of_another_one(child: Child, target: Target, apache_kafka: ApacheKafka) -> None:
    """Rows change several times in a micro-batch, go, and come again. An attempt that seems dead runs on (K4, K6)."""
    drawn, topic = target.drawn, f"changes-{uuid4()}"
    await apache_kafka.create_topic(topic, 2)
    await asyncio.to_thread(apache_kafka.produce, topic, drawn.records)
    document = deepcopy(DOCUMENTED) | {"mode": "batch"}
    options = {"kafka.bootstrap.servers": apache_kafka.address, "subscribe": topic, "maxOffsetsPerTrigger": "30"}
    document["vertices"]["changes"]["source"]["options"] |= options
    document["vertices"]["out"]["sink"] = await target.sink()
    (query,) = chain(parse_job(document))
    context = job(mode=RuntimeMode.BATCH)
    assert (await child.ask(p.AnalyzeTasks(job=context, tasks=(query,)))).faults == ()
    attempt = await child.run(context, query)
    for checkpoint_id in (1, 2):
        await child.batches(attempt, 2 * checkpoint_id)
        taken, files = await snapshot(child, attempt, checkpoint_id)
        following = await child.run(context, query, **await restored(child, taken, files, checkpoint_id))
        await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=checkpoint_id))
        await child.stop(attempt)
        attempt = following
    await run_to_end(child, attempt)
    await snapshot(child, attempt, 3)
    await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=3))
    await child.stop(attempt)
    assert await target.users() == list(drawn.users)
    assert await target.leftovers() == set()


async def test_columns_that_cannot_say_what_changes_are_faults(child: Child, tmp_path: Path) -> None:
    """Before anything starts, and with what to do. What params fill in is looked at, too (J4)."""
    lake = Delta(tmp_path / "lake")
    select = "SELECT value AS id, value AS n, map(value, 1) AS many, value % 2 = 0 AS even FROM numbers"

    async def found(**options: str) -> list[str]:
        sinks = (sql("rows", select, "numbers"), sink("rows", format="delta", path=lake.root("x"), options=options))
        return [problem for _, problem in await faults(child, task(rate(10), *sinks))]

    assert await found(key="id", deleted="even", **{"newest-by": "n"}) == []
    assert await found(key="id", deleted="even", **{"newest-by": "offset"}) == ["there is no column offset"]
    (problem,) = await found(key="id", deleted="n", **{"newest-by": "n, id"})
    assert '"n" is in newest-by, too' in problem
    assert await found(key="id", deleted="n", **{"newest-by": "even"}) == [
        "deleted names n, which is bigint, not boolean"
    ]
    (problem,) = await found(key="id", **{"newest-by": "n, many"})
    assert "cannot find the newest row of each key by n (bigint), many (map<bigint,int>)" in problem
    assert await found(key="id", deleted="even", **{"newest-by": ""}) == ["newest-by: it names no column"]


ODD = "SELECT value % 3 AS `change`, value DIV 3 AS `a.b`, CAST(NULL AS INT) AS `c``d`, value AS minflinkd FROM numbers"


@pytest.mark.parametrize("name", ["change", "minflinkd_newest"])
async def test_vertices_and_columns_may_have_any_names(child: Child, tmp_path: Path, name: str) -> None:
    """Spark also knows the rows by the vertex that they come from (K4, K6)."""
    lake = Delta(tmp_path / "lake")
    out = sink(name, **_described(lake.sink("odd", key="change", **{"newest-by": "minflinkd, c`d"})))
    attempt = await child.run(job(), task(rate(30), sql(name, ODD, "numbers"), out))
    await child.batches(attempt, 2)
    taken, _ = await snapshot(child, attempt, 1)
    await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=1))
    await child.stop(attempt)
    last = 10 * (taken.batch_id + 1) - 1
    rows = await asyncio.to_thread(lake.rows, "odd")
    assert sorted(rows, key=lambda row: int(row["change"])) == [{"change": k, "a.b": last} for k in range(3)]


def _described(sink: Sink) -> dict[str, Any]:
    return {"format": sink.format, "path": sink.path, "options": sink.options}


async def test_keys_are_compared_as_the_target_has_them(child: Child, tables: Tables) -> None:
    """Rows that its unique key would replace are those that are deleted: padded texts, rounded times (K6)."""
    name = tables.name("odd")
    columns = "a CHAR(6), at TIMESTAMP(0), price NUMERIC(8, 2), n BIGINT, PRIMARY KEY (a, at, price)"
    await tables.ask(f"CREATE TABLE {name} ({columns})")
    select = """
        SELECT IF(value % 2 = 0, 'x', 'y  ') AS a, TIMESTAMP'2026-03-01 00:00:00.25' AS at,
               CAST(1.234 AS DECIMAL(10, 3)) AS price, value AS n, value AS version, value % 2 = 0 AND value > 9 AS gone
        FROM numbers
    """
    options = {"key": "a, at, price", "newest-by": "version", "deleted": "gone"}
    attempt = await child.run(
        job(), task(rate(10), sql("rows", select, "numbers"), sink("rows", **tables.sink(name, **options)))
    )
    await child.batches(attempt, 0)
    await child.batches(attempt, 2)
    await child.stop(attempt)
    assert [line.split("|")[0].strip() for line in await tables.ask(f"SELECT a, n FROM {name}")] == ["y"]


async def test_an_attempt_that_was_believed_dead_brings_no_row_back(child: Child, tables: Tables) -> None:
    """Once the next one has written, it is refused, or finds its staging table gone (K4, K8)."""
    context = job()
    name = tables.name("taken_over")
    select = sql("rows", "SELECT value % 5 AS id, value AS n FROM numbers", "numbers")
    query = task(rate(10), select, sink("rows", **tables.sink(name, key="id", **{"newest-by": "n"})))
    attempt = await child.run(context, query)
    await child.batches(attempt, 1)
    following = await child.run(context, query)
    await child.batches(following, 0)
    failed = await child.notice(p.TaskFailed, lambda notice: notice.attempt_id == attempt)
    assert re.search(r"another attempt of sink out writes to|minflinkd_staged_", failed.error.message)
    await child.batches(following, 2)
    for each in (attempt, following):
        await child.stop(each)
    assert await tables.leftovers() == set()


async def test_a_change_without_a_key_fails_its_micro_batch(child: Child, tables: Tables) -> None:
    """It would delete nothing, or be added as a row that nobody finds again (K6)."""
    select = "SELECT IF(value = 7, NULL, value) AS id, value AS n, value = 7 AS gone FROM numbers"
    out = sink("rows", **tables.sink(tables.name("keyless"), key="id", **{"newest-by": "n", "deleted": "gone"}))
    attempt = await child.run(job(), task(rate(10), sql("rows", select, "numbers"), out))
    failed = await child.notice(p.TaskFailed, lambda notice: notice.attempt_id == attempt)
    assert "a row breaks the rule key id NOT NULL of the table keyless" in failed.error.message


async def test_a_user_who_may_not_delete_is_told_before(child: Child, postgres: Postgres) -> None:
    """Otherwise the job would run until the first row goes, and then fail for ever (J4)."""
    tables = Tables.of_postgresql(postgres)
    name, user = tables.name("kept"), tables.name("writer")
    await tables.ask(f"CREATE TABLE {name} (id BIGINT PRIMARY KEY)")
    await tables.ask(f"CREATE ROLE {user} LOGIN")
    await tables.ask(f"GRANT SELECT, INSERT, UPDATE ON {name} TO {user}")
    select = sql("rows", "SELECT value AS id, value AS n, value % 2 = 0 AS gone FROM numbers", "numbers")
    options = {"key": "id", "newest-by": "n", "deleted": "gone"}
    url = postgres.url.partition("?")[0]
    for more, problem in ((options, "permission denied"), ({"key": "id"}, None)):
        rows = select if more is options else sql("rows", "SELECT value AS id FROM numbers", "numbers")
        query = task(rate(10), rows, sink("rows", **tables.sink(name, url=url, user=user, **more)))
        told = [text for _, text in await faults(child, query)]
        assert [problem in text for text in told] == ([True] if problem else []), told
