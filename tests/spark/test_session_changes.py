"""Sinks that follow the changes of a database, as Debezium tells them: what a seed draws, beside a dict."""

from __future__ import annotations

import asyncio
import json
import random
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.model import RuntimeMode
from minflinkd.jobgraph.validation import parse_job
from minflinkd.taskmanager.child import protocol as p
from tests.lakes import Delta, Iceberg, Lake
from tests.servers.apache_kafka import ApacheKafka, Record
from tests.servers.postgres import Postgres
from tests.shortened import first
from tests.spark.databases import Tables
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
    """A table's log, and what is in the table after it. `partitioned`: the target is, by a column that changes."""

    records: tuple[Record, ...]
    users: tuple[User, ...]
    partitioned: bool
    made: bool  # the target is there before, and takes no NULL

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
            texts = [json.dumps(told), None] if gone else [json.dumps(told)]  # after a delete comes a tombstone
            records += [Record(text, user[0] % 2) for text in texts]
            there.pop(user[0], None)
            if not gone:
                there[user[0]] = user
        return cls(tuple(records), tuple(sorted(there.values())), rng.random() < 0.5, rng.random() < 0.5)


def _row(user: User | None) -> dict[str, Any] | None:
    return None if user is None else {"id": user[0], "name": user[1], "region": user[2]}


class Target:
    """A table that is kept current. Which kind, a test says; what it is like, a seed."""

    def __init__(self, kind: str, request: pytest.FixtureRequest, directory: Path, drawn: Drawn) -> None:
        self._lake: Lake | None = None
        self._drawn = drawn
        if kind in LAKES:
            self._lake = LAKES[kind](directory)
        else:
            server: Any = request.getfixturevalue("postgres" if kind == "postgresql" else "mariadb")
            self._tables = Tables.of_postgresql(server) if kind == "postgresql" else Tables.of_mysql(server)
            self._name = self._tables.name("users")

    async def sink(self) -> dict[str, Any]:
        if self._lake is not None:
            described = self._lake.described("users")
            described["options"] = described.get("options", {}) | OPTIONS
            return described | ({"partition-by": ["region"]} if self._drawn.partitioned else {})
        if self._drawn.made:
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

    async def leftovers(self) -> list[str]:
        return [] if self._lake is not None else await self._tables.leftovers()


CASES = [(kind, seed) for seed in range(5) for kind in ("delta", "iceberg", "postgresql", "mysql")]


@pytest.mark.parametrize(("kind", "seed"), first(CASES, 4))
async def test_a_table_follows_the_log_of_another_one(
    child: Child, request: pytest.FixtureRequest, apache_kafka: ApacheKafka, tmp_path: Path, kind: str, seed: int
) -> None:
    """Rows change several times in a micro-batch, go, and come again. An attempt that seems dead runs on (K4, K6)."""
    drawn, topic = Drawn.of(seed), f"changes-{kind}-{seed}"
    target = Target(kind, request, tmp_path, drawn)
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
        finished = await child.batches(attempt, 2 * checkpoint_id)
        taken, files = await snapshot(child, attempt, checkpoint_id)
        following = await child.run(context, query, **await restored(child, taken, files, checkpoint_id))
        await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=checkpoint_id))
        assert finished.metrics.rows_out, "each change counts"
        await child.stop(attempt)
        attempt = following
    await run_to_end(child, attempt)
    await snapshot(child, attempt, 3)
    await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=3))
    await child.stop(attempt)
    assert await target.users() == list(drawn.users)
    assert await target.leftovers() == []


async def test_columns_that_cannot_say_what_changes_are_faults(child: Child, tmp_path: Path) -> None:
    """Before anything starts, and with what to do (J4)."""
    lake = Delta(tmp_path / "lake")
    select = "SELECT value AS id, value AS n, map(value, 1) AS many, value % 2 = 0 AS even FROM numbers"

    async def found(**options: str) -> list[str]:
        sinks = (sql("rows", select, "numbers"), sink("rows", format="delta", path=lake.root("x"), options=options))
        return [problem for _, problem in await faults(child, task(rate(10), *sinks))]

    assert await found(key="id", deleted="even", **{"newest-by": "n"}) == []
    assert await found(key="id", deleted="even", **{"newest-by": "offset"}) == ["there is no column offset"]
    assert await found(key="id", deleted="n", **{"newest-by": "n, id"}) == [
        "deleted names n, which is bigint, not boolean"
    ]
    assert await found(key="id", **{"newest-by": "n, many"}) == ["rows have no order by many, which is map<bigint,int>"]


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
