"""What the jdbc sink does in MySQL alone, on a real MariaDB, by MySQL's own driver."""

from __future__ import annotations

from typing import Any

import pytest

from minflinkd.jobgraph.model import OutputMode
from minflinkd.taskmanager.child import protocol as p
from tests.databases import Tables
from tests.servers.mariadb import MariaDB
from tests.spark.session_child import Child, job, rate, sql, task
from tests.spark.test_session_sinks import sink
from tests.spark.test_session_snapshots import snapshot

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]


@pytest.fixture
def child(connected: Child) -> Child:
    return connected


@pytest.fixture
def tables(mariadb: MariaDB) -> Tables:
    return Tables.of_mysql(mariadb)


def by_its_own_driver(mariadb: MariaDB, more: str = "") -> Tables:
    url = f"{mariadb.url}&permitMysqlScheme{more}"
    return Tables.of_mysql(mariadb, url=url, driver="org.mariadb.jdbc.Driver")


# A value of each type, the longest that there are, and NULL.
VALUES = """
SELECT value, CAST(value AS INT) AS i, CAST(value / 4.0 AS DECIMAL(9, 2)) AS d,
       CAST(value AS DECIMAL(20, 6)) + 0.000001 AS dec,
       timestamp'2024-02-29 12:34:56.123456' AS at, timestamp_ntz'2024-02-29 12:34:56.654321' AS wall,
       date'2024-02-29' AS day, value % 2 = 0 AS even, repeat('ж😀', 40000) AS text, X'00FF' AS bytes,
       CAST(NULL AS STRING) AS nothing
FROM numbers
"""
SEEN = (
    "SELECT value, i, d, `dec`, date_format(wall, '%Y-%m-%d %H:%i:%s.%f'), microsecond(at), day, 0 + even, "
    "char_length(text), hex(bytes), nothing IS NULL"
)


async def test_values_of_each_type_arrive_as_they_are(child: Child, mariadb: MariaDB) -> None:
    """So they do in a table that the sink has made: no fraction of a second and no letter is lost (K4)."""
    tables = by_its_own_driver(mariadb)
    name = tables.name("types")
    attempt = await child.run(job(), task(rate(4), sql("typed", VALUES, "numbers"), sink("typed", **tables.sink(name))))
    await child.batches(attempt, 1)
    await snapshot(child, attempt, 1)
    await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=1))
    await child.stop(attempt)
    rows = await tables.ask(f"{SEEN} FROM {name} ORDER BY value LIMIT 4")
    common = "2024-02-29 12:34:56.654321|123456|2024-02-29"
    quarters = ("0.00", "0.25", "0.50", "0.75")
    assert rows == [f"{n}|{n}|{quarters[n]}|{n}.000001|{common}|{1 - n % 2}|80000|00FF|1" for n in range(4)]


async def test_the_types_of_a_table_that_is_there_count(child: Child, tables: Tables) -> None:
    """Rows wait in a table of the same types, so nothing is changed twice (K4)."""
    name = tables.name("typed")
    await tables.ask(
        f"CREATE TABLE {name} (n DECIMAL(30, 10), value BIGINT PRIMARY KEY, made DATETIME(3) DEFAULT now(3))"
    )
    numbers = sql("some", "SELECT value, CAST(value + 0.5 AS DECIMAL(30, 10)) AS n FROM numbers", "numbers")
    attempt = await child.run(job(), task(rate(4), numbers, sink("some", **tables.sink(name))))
    await child.batches(attempt, 1)
    taken, _ = await snapshot(child, attempt, 1)
    await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=1))
    await child.stop(attempt)
    rows = await tables.ask(f"SELECT value, n, made IS NULL FROM {name} ORDER BY value")
    assert rows == [f"{n}|{n}.5000000000|0" for n in range(4 * (taken.batch_id + 1))]


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        ("value BIGINT PRIMARY KEY) ENGINE=MyISAM", "has the engine MyISAM, which has no transactions"),
        ("value BIGINT, KEY (value)) ENGINE=InnoDB", "has no unique key of value"),
        ("value BIGINT, other INT, UNIQUE KEY (value, other)) ENGINE=InnoDB", "has no unique key of value"),
        ("value BIGINT, UNIQUE KEY (value)) ENGINE=InnoDB", "whose columns are NOT NULL"),
        ("value BIGINT NOT NULL, UNIQUE KEY (VALUE)) ENGINE=InnoDB", None),
    ],
)
async def test_a_table_without_transactions_or_a_unique_key_is_refused(
    child: Child, tables: Tables, made: str, problem: str | None
) -> None:
    """MySQL itself would append rows instead of replacing them, and keep half of a commit (J4, K4)."""
    name = tables.name("unfit")
    await tables.ask(f"CREATE TABLE {name} ({made}")
    vertex = sink("plain", OutputMode.UPDATE, **tables.sink(name, key="value"))
    query = task(rate(4), sql("plain", "SELECT value FROM numbers", "numbers"), vertex)
    found = (await child.ask(p.AnalyzeTasks(job=job(), tasks=(query,)))).faults
    assert len(found) == (0 if problem is None else 1), found
    assert all((problem or "") in fault.problem for fault in found), found


async def faults(child: Child, query: str, out: dict[str, Any]) -> list[str]:
    task_of = task(rate(4), sql("plain", query, "numbers"), sink("plain", **out))
    return [fault.problem for fault in (await child.ask(p.AnalyzeTasks(job=job(), tasks=(task_of,)))).faults]


async def test_a_server_that_cuts_values_off_silently_is_refused(child: Child, mariadb: MariaDB) -> None:
    """By MariaDB's driver: MySQL's own asks the server for strictness in any case (J4, K4)."""
    lax = by_its_own_driver(mariadb, "&sessionVariables=sql_mode=''")
    (problem,) = await faults(child, "SELECT CAST(value AS STRING) FROM numbers", lax.sink(lax.name("lax")))
    assert "sql_mode lets it cut off values" in problem


async def test_a_driver_that_cuts_off_fractions_of_seconds_is_refused(
    child: Child, tables: Tables, mariadb: MariaDB
) -> None:
    """MySQL's takes this MariaDB for a server that has none. It is good for rows without times (J4, K4)."""
    name, own = tables.name("times"), by_its_own_driver(mariadb)
    (problem,) = await faults(child, "SELECT timestamp FROM numbers", tables.sink(name))
    assert "cuts off the fractions of seconds" in problem
    assert await faults(child, "SELECT timestamp FROM numbers", own.sink(name)) == []
    assert await faults(child, "SELECT value FROM numbers", tables.sink(name)) == []


@pytest.mark.parametrize(
    ("key", "problem"),
    [("bytes", True), ("a, b, c, d", True), ("a, b, c", False), ("value, a", False)],
)
async def test_a_key_that_is_too_long_for_a_new_table_is_refused(
    child: Child, tables: Tables, key: str, problem: bool
) -> None:
    """Nobody could make the table then, and rows would wait for ever (J4, K4)."""
    texts = "'a' AS a, 'b' AS b, 'c' AS c, 'd' AS d, X'00' AS bytes"
    name = tables.name("keys")
    found = await faults(child, f"SELECT value, {texts} FROM numbers", tables.sink(name, key=key))
    assert ["cannot be made with this key" in fault for fault in found] == ([True] if problem else [])


async def test_a_text_may_be_the_key_of_a_table_that_the_sink_makes(child: Child, tables: Tables) -> None:
    """Such a column gets a length, without which MySQL makes no key (K4)."""
    name, letters = (
        tables.name("letters"),
        "SELECT concat('k', value % 3) AS letter, count(*) AS n FROM numbers GROUP BY 1",
    )
    out = sink("letters", OutputMode.UPDATE, **tables.sink(name, key="letter"))
    attempt = await child.run(job(), task(rate(9), sql("letters", letters, "numbers"), out))
    done = await child.batches(attempt, 3)
    await child.stop(attempt)
    assert done.metrics.batch_id >= 2
    rows = dict(line.split("|") for line in await tables.ask(f"SELECT letter, n FROM {name}"))
    assert sorted(rows) == ["k0", "k1", "k2"]
    assert len(set(rows.values())) == 1
