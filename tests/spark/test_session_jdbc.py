"""The jdbc sink on real databases: staged and committed with the checkpoint, upserted by key, appended."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
import pytest_asyncio

from minflinkd.jobgraph.model import Delivery, OutputMode
from minflinkd.runtime.errors import MinflinkError
from minflinkd.taskmanager.child import protocol as p
from tests.cluster import free_port
from tests.databases import Tables
from tests.servers.mariadb import MariaDB
from tests.servers.postgres import Postgres
from tests.shortened import first
from tests.spark.session_child import Child, job, rate, sql, task
from tests.spark.test_session_sinks import restored, restored_three_times, sink
from tests.spark.test_session_snapshots import snapshot
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]


@pytest.fixture
def child(connected: Child) -> Child:
    return connected


COUNTS = "SELECT value % 5 AS key, count(*) AS n FROM numbers GROUP BY 1"


@pytest.fixture(params=first(["postgresql", "mysql", "mysql by MariaDB's driver"], 2))
def reached(request: pytest.FixtureRequest) -> Tables:
    """A database, and by which driver."""
    if request.param == "postgresql":
        return Tables.of_postgresql(request.getfixturevalue("postgres"))
    mariadb: MariaDB = request.getfixturevalue("mariadb")
    if request.param == "mysql":
        return Tables.of_mysql(mariadb)
    return Tables.of_mysql(mariadb, url=f"{mariadb.url}&permitMysqlScheme", driver="org.mariadb.jdbc.Driver")


@pytest_asyncio.fixture(loop_scope="session")
async def database(reached: Tables) -> Tables:
    return await reached.as_found()


async def test_rows_appear_with_their_checkpoint_and_once(child: Child, database: Tables) -> None:
    """Rows are staged durably, moved in one transaction, and recorded. A repeated commit moves nothing (J13, K4)."""
    context, name = job(), database.name("once")
    attempt = await child.run(context, task(rate(10), sink("numbers", **database.sink(name))))
    await child.batches(attempt, 2)
    first, _ = await snapshot(child, attempt, 1)
    assert await database.values(name) == []
    for _ in range(2):
        await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=1))
    assert await database.values(name) == list(range(10 * (first.batch_id + 1)))
    await child.batches(attempt, first.batch_id + 2)
    second, _ = await snapshot(child, attempt, 2)
    await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=2))
    await child.batches(attempt, second.batch_id + 2)
    await child.stop(attempt)
    assert await database.values(name) == list(range(10 * (second.batch_id + 1)))
    recorded = await database.ask(f"SELECT sink, checkpoint FROM minflinkd_commits WHERE job = '{context.job_id}'")
    assert recorded == ["out|2"]
    assert await database.leftovers() == set()


async def test_a_restore_commits_what_it_owes_beside_an_attempt_that_runs_on(child: Child, database: Tables) -> None:
    """Neither an attempt that only seems dead nor a late commit duplicates a row (J13, K4)."""
    name = database.name("restored")
    query = task(rate(10), sink("numbers", **database.sink(f"{database.schema}.{name}")))
    await restored_three_times(child, query, lambda: database.values(name))
    assert await database.leftovers() == set()


async def test_a_row_takes_the_place_of_that_with_its_key(child: Child, database: Tables) -> None:
    """Updates of a running aggregate, repeated from an older snapshot, end in the right table (J8a, J13, K4)."""
    name = database.name("counts")
    out = sink("counts", OutputMode.UPDATE, **database.sink(name, key="key"))
    context, query = job(), task(rate(10), sql("counts", COUNTS, "numbers"), out)
    attempt = await child.run(context, query)
    await child.batches(attempt, 1)
    taken, files = await snapshot(child, attempt, 1)
    await child.batches(attempt, taken.batch_id + 2)
    await child.stop(attempt)
    following = await child.run(context, query, **await restored(child, taken, files, 1))
    finished = await child.batches(following, taken.batch_id + 4)
    await child.stop(following)
    rows = dict(line.split("|") for line in await database.ask(f"SELECT {database.quoted('key')}, n FROM {name}"))
    assert len(rows) == 5
    assert len(set(rows.values())) == 1
    assert int(rows["0"]) >= 2 * (finished.metrics.batch_id + 1)
    assert await database.leftovers() == set()


async def test_a_table_that_does_not_fit_is_a_fault_before_anything_starts(child: Child, database: Tables) -> None:
    """A column that is not there is one, and a key that is not unique, in the words of the database (J4, K4)."""
    name = database.name("unfit")
    await database.ask(f"CREATE TABLE {name} (n BIGINT, {database.quoted('key')} BIGINT NOT NULL)")
    plain = sql("plain", "SELECT value FROM numbers", "numbers")
    counts = sql("counts", COUNTS, "numbers")
    by_key = sink("counts", OutputMode.UPDATE, **database.sink(name, key="key"))
    new = sink("counts", OutputMode.UPDATE, **database.sink(database.name("new"), key="key"))
    for query, word in (
        ((plain, sink("plain", **database.sink(name))), "value"),
        ((counts, by_key), "unique"),
        ((counts, new), None),
    ):
        found = (await child.ask(p.AnalyzeTasks(job=job(), tasks=(task(rate(10), *query),)))).faults
        assert [fault.path for fault in found] == ([] if word is None else ["vertices.out.sink"]), found
        assert all((word or "") in fault.problem for fault in found), found
    await database.ask(f"CREATE UNIQUE INDEX {name}_key ON {name} ({database.quoted('key')})")
    assert (await child.ask(p.AnalyzeTasks(job=job(), tasks=(task(rate(10), counts, by_key),)))).faults == ()
    assert await database.ask(f"SELECT * FROM {name}") == []


async def test_two_attempts_that_commit_at_once_write_each_row_once(child: Child, database: Tables) -> None:
    """One is restored and commits what it owes, while the other one, which seemed dead, commits the same (J13, K8)."""
    context, name = job(), database.name("twice")
    query = task(rate(10), sink("numbers", **database.sink(name)))
    attempt = await child.run(context, query)
    for checkpoint_id in range(1, 5):
        await child.batches(attempt, 3)
        taken, files = await snapshot(child, attempt, checkpoint_id)
        late = child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=checkpoint_id))
        start = child.run(context, query, **await restored(child, taken, files, checkpoint_id))
        _, following = await asyncio.gather(late, start)
        assert await database.values(name) == list(range(10 * (taken.batch_id + 1)))
        await child.stop(attempt)
        attempt = following
    await child.stop(attempt)


ODD = ("select", "a b", "it's", "ü`x", 'say "so"', "q?", "per%cent")  # names of columns


@pytest.mark.parametrize("keyed", [False, True])
async def test_names_are_taken_as_they_are_written(child: Child, database: Tables, keyed: bool) -> None:
    """Names of tables and columns may need quotes. The table may be there, or be made (K4)."""
    columns = ", ".join(f"value + {n} AS `{name.replace('`', '``')}`" for n, name in enumerate(ODD))
    select = sql("odd", f"SELECT value % 3 AS `a.key`, {columns} FROM numbers", "numbers")
    table = f"{database.quoted(database.schema)}.{database.quoted(database.name('odd table. of'))}"
    options = {"key": "select, a b"} if keyed else {}
    query = task(rate(3), select, sink("odd", **database.sink(table, **options)))
    for _ in range(2):
        assert (await child.ask(p.AnalyzeTasks(job=job(), tasks=(query,)))).faults == ()
        attempt = await child.run(job(), query)
        await child.batches(attempt, 2)
        taken, _ = await snapshot(child, attempt, 1)
        await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=1))
        await child.stop(attempt)
        found = await database.ask(f"SELECT {database.quoted('q?')} - 5 FROM {table}")
        assert {int(line) for line in found} >= {*range(3 * (taken.batch_id + 1))}
        assert not keyed or len(found) == len(set(found)), "a row for each key"
    assert await database.leftovers() == set()


async def test_a_table_that_is_locked_holds_no_submission_up(child: Child, database: Tables) -> None:
    """Somebody makes an index for a while. It is no fault of the job (J4, K4)."""
    name = database.name("locked")
    await database.ask(f"CREATE TABLE {name} (value BIGINT)")
    held = asyncio.create_task(database.lock(name, seconds=20), name="holds the table")
    try:
        await until(lambda: database.is_locked(name), "the table is locked")
        plain = sql("plain", "SELECT value FROM numbers", "numbers")
        query = task(rate(10), plain, sink("plain", **database.sink(name)))
        assert (await child.ask(p.AnalyzeTasks(job=job(), tasks=(query,)))).faults == ()
        assert not held.done()
    finally:
        await database.let_go()
        await held


@pytest.mark.slow
async def test_a_driver_may_be_an_artifact_of_the_job(child: Child, postgres: Postgres, tmp_path: Path) -> None:
    """Rows are appended if the job asks only for at-least-once (B31, J2)."""
    plain = Child(tmp_path)
    await plain.start({})
    try:
        artifacts = {postgres.jar.name: str(postgres.jar)}
        tables = Tables.of_postgresql(postgres)
        append = sink("numbers", **tables.sink("appended"), delivery=Delivery.AT_LEAST_ONCE)
        staged = sink("numbers", **tables.sink("staged"))
        attempts = [await plain.run(job(), task(rate(10), out), artifacts=artifacts) for out in (append, staged)]
        for attempt in attempts:
            await plain.batches(attempt, 1)
        taken, _ = await snapshot(plain, attempts[1], 1)
        await plain.ask(p.ConfirmCheckpoint(attempt_id=attempts[1], checkpoint_id=1))
        for attempt in attempts:
            await plain.stop(attempt)
        assert await tables.values("staged") == list(range(10 * (taken.batch_id + 1)))
        assert set(await tables.values("appended")) >= set(range(20))
    finally:
        await plain.aclose()


async def test_a_database_that_is_away_is_said(child: Child, postgres: Postgres) -> None:
    """The error has the driver's words, and the job tries again (S4)."""
    away = Tables.of_postgresql(postgres).sink("x", url="jdbc:postgresql://127.0.0.1:1/postgres")
    with pytest.raises(MinflinkError, match=r"Connection to 127\.0\.0\.1:1 refused") as refused:
        await child.run(job(), task(rate(10), sink("numbers", **away)))
    assert (refused.value.info().code, refused.value.info().consequence) == ("sink-database", "retryable")


async def test_a_server_that_cannot_be_reached_is_a_fault_before_anything_starts(
    child: Child, postgres: Postgres
) -> None:
    """A server that does not know the user or the database is one, too. The sink's fault is a sentence (J4)."""
    gone = f"jdbc:postgresql://127.0.0.1:{free_port()}/postgres"
    wrong: tuple[dict[str, str], ...] = ({"url": gone}, {"url": postgres.url.replace("/postgres?", "/nowhere?")}, {})
    tables = await Tables.of_postgresql(postgres).as_found()
    for changes in wrong:
        options = tables.sink("never")["options"] | changes
        vertex = sink("numbers", format="jdbc", options=options)
        found = (await child.ask(p.AnalyzeTasks(job=job(), tasks=(task(rate(10), vertex),)))).faults
        assert [fault.path for fault in found] == ([f"vertices.{vertex.id}.sink"] if changes else [])
        assert all("no connection to the database" in fault.problem and "\n" not in fault.problem for fault in found)
        assert all("is the server up" in fault.hint for fault in found)
    assert await tables.leftovers() == set()


@pytest.mark.parametrize("more", [{}, {"loginTimeout": "0", "socketTimeout": "0"}])
async def test_a_server_that_never_answers_does_not_hold_a_submission_up(
    child: Child, postgres: Postgres, more: dict[str, str]
) -> None:
    """The submission goes on even if the driver itself would wait for ever, as most do (J4)."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"jdbc:postgresql://127.0.0.1:{silent.getsockname()[1]}/postgres"
        vertex = sink("numbers", **Tables.of_postgresql(postgres).sink("never", url=url, **more))
        found = (await child.ask(p.AnalyzeTasks(job=job(), tasks=(task(rate(10), vertex),)), timeout=30.0)).faults
    (fault,) = found
    assert fault.path == f"vertices.{vertex.id}.sink"
    assert "no connection to the database" in fault.problem
    assert "is the server up" in fault.hint
