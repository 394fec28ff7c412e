"""The state in a snapshot is read as rows, for every kind of operator, and compared with what the input says (E19c)."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minflinkd.jobgraph.model import OutputMode, Vertex, Watermark
from minflinkd.rpc.messages import StateQuestion
from minflinkd.runtime.errors import MinflinkError
from minflinkd.taskmanager.child import protocol as p
from tests.spark.session_child import Child, call, events, job, python, rate, sql, task
from tests.spark.state_questions import Snapshot, rows_of, snapshot_of, take, totals_of
from tests.spark.test_session_bounded import write_events

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

FILES = 3  # a micro-batch each
CODE = """
import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor


def ignore(batch, epoch):
    batch.collect()


def distinct(inputs, params):
    return inputs["events"].select("key").distinct()


def duplicates(inputs, params):
    return inputs["events"].dropDuplicates(["key"])


def duplicates_in_time(inputs, params):
    return inputs["events"].dropDuplicatesWithinWatermark(["key"])


def counted(key, frames, state):
    n = state.get[0] if state.exists else 0
    state.update((n + sum(len(frame) for frame in frames),))
    yield pd.DataFrame({"key": [key[0]], "n": [state.get[0]]})


def pandas(inputs, params):
    groups = inputs["events"].groupBy("key")
    return groups.applyInPandasWithState(counted, "key STRING, n BIGINT", "n BIGINT", "update", "NoTimeout")


class Several(StatefulProcessor):
    def init(self, handle):
        self.handle = handle
        self.total = handle.getValueState("total", "n BIGINT")
        self.firsts = handle.getListState("firsts", "value BIGINT")
        self.seen = handle.getMapState("seen", "value BIGINT", "times BIGINT")

    def handleInputRows(self, key, rows, timerValues):
        rows = sorted(row.value for row in rows)
        self.total.update(((self.total.get() or (0,))[0] + len(rows),))
        self.firsts.appendValue((rows[0],))
        for value in rows:
            before = self.seen.getValue((value,))
            self.seen.updateValue((value,), ((before[0] if before else 0) + 1,))
        self.handle.registerTimer(4102444800000)
        yield Row(key=key[0], n=len(rows))

    def close(self):
        pass


def several(inputs, params):
    groups = inputs["events"].groupBy("key")
    return groups.transformWithState(
        Several(), outputStructType="key STRING, n BIGINT", outputMode="update", timeMode="processingTime"
    )
"""


def rows_in(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(directory.glob("*.json")) for line in file.read_text().splitlines()]


class Input:
    """The events of some files, a query over them, and the rows as the oracle reads them."""

    def __init__(self, child: Child, base: Path) -> None:
        self.child, self.base = child, base
        write_events(base / "in", FILES)
        self.rows = rows_in(base / "in")
        (base / "kept.py").write_text(CODE)

    async def snapshot(self, *query: Vertex, mode: OutputMode = OutputMode.UPDATE, late: bool = False) -> Snapshot:
        source = events(self.base / "in", maxFilesPerTrigger="1")
        if late:  # nothing is dropped from the state for its age
            source = Vertex(id=source.id, source=source.source, watermark=Watermark(column="time", delay="1 day"))
        steps = task(source, *query, call("kept:ignore", query[-1].id, mode))
        artifacts = {"kept.py": str(self.base / "kept.py")}
        return await snapshot_of(self.child, steps, FILES - 1, self.base / "snapshot", artifacts=artifacts)

    def count(self, of: Callable[[dict[str, Any]], Any]) -> Counter[Any]:
        return Counter(map(of, self.rows))


@pytest.fixture
def given(child: Child, tmp_path: Path) -> Input:
    return Input(child, tmp_path)


async def test_totals_by_key_are_read_as_rows(given: Input) -> None:
    """Keys and values are those of the input; totals, sizes and the largest keys agree with the rows."""
    sums = sql("sums", "SELECT key, count(*) AS n, sum(value) AS s FROM events GROUP BY key", "events")
    snapshot = await given.snapshot(sums)
    found = await snapshot.read()
    counts = given.count(lambda row: row["key"])
    assert [(store.id, store.kind, store.vertex, store.unreadable) for store in found.stores] == [
        ("0", "Aggregate", "sums", "")
    ]
    assert {key["key"]: value["count"] for key, value in rows_of(found)} == counts
    sums_of = {key["key"]: value["sum"] for key, value in rows_of(found)}
    assert sums_of == {k: sum(row["value"] for row in given.rows if row["key"] == k) for k in counts}
    assert totals_of(found.stores[0]) == (len(counts), len(counts))
    totals = found.stores[0].totals
    assert totals is not None
    assert len(totals.partitions) == 2
    assert sum(row.bytes for row in found.rows) == totals.bytes == 48 * len(counts)
    assert len(totals.largest) == len(counts)
    one = await snapshot.read(key="k3", store="sums")
    assert rows_of(one) == [({"key": "k3"}, {"count": counts["k3"], "sum": sums_of["k3"]})]
    assert await snapshot.read(key='{"key": "k9"}', totals=False, limit=5) is not None
    few = await snapshot.read(limit=2, totals=False)
    assert (len(few.rows), few.truncated, few.stores[0].totals) == (2, True, None)


async def test_a_select_over_state_is_answered_and_others_are_refused(given: Input) -> None:
    """Files, tables, Java, the environment and what fills the memory are out of reach of a query."""
    windows = sql(
        "windows",
        "SELECT window(time, '1 minute') AS w, key, count(*) AS n FROM events GROUP BY window(time, '1 minute'), key",
        "events",
    )
    snapshot = await given.snapshot(windows, late=True)
    last = FILES - 1
    at = f"2024-01-01 00:0{last}:00"
    wanted = given.count(lambda row: (row["time"][11:16], row["key"]))
    answer = await snapshot.select(
        f"SELECT key.key, value.count AS n FROM state WHERE key.window.start = '{at}' ORDER BY 2 DESC, 1"
    )
    assert dict(answer) == {key: n for (minute, key), n in wanted.items() if minute == f"00:0{last}"}
    assert await snapshot.select("SELECT count(*), sum(value.count), sum(bytes) > 0 FROM state") == [
        [len(wanted), len(given.rows), True]
    ]
    shares = (
        "WITH t AS (SELECT key.key AS k, value.count AS n FROM state) SELECT k, sum(n) FROM t GROUP BY k ORDER BY k"
    )
    assert dict(await snapshot.select(shares)) == given.count(lambda row: row["key"])
    assert await snapshot.select("SELECT '${env:PATH}', '${spark.app.name}' FROM state LIMIT 1") == [
        ["${env:PATH}", "${spark.app.name}"]
    ]
    secret = given.base / "secret.json"
    secret.write_text('{"password": "hunter2"}')
    hostile = [
        f"SELECT * FROM json.`{secret}`",
        "SELECT * FROM text.`/etc/passwd`",
        f"SELECT *, (SELECT max(value) FROM text.`{secret}`) FROM state",
        f"SELECT * FROM state UNION ALL SELECT * FROM text.`{secret}`",
        f"WITH state AS (SELECT * FROM text.`{secret}`) SELECT * FROM state",
        "SELECT reflect('java.lang.System', 'getenv', 'PATH') FROM state",
        "SELECT java_method('java.lang.System', 'exit', 1) FROM state",
        "SELECT try_reflect('java.lang.System', 'exit', 1) FROM state",
        "SELECT `reflect`('java.lang.System', 'exit', 1) FROM state",
        "SELECT count(*) FILTER (WHERE reflect('java.lang.System', 'exit', 1) = '') FROM state",
        "SELECT sum(1) OVER (ORDER BY reflect('java.lang.System', 'exit', 1)) FROM state",
        "SELECT sum(1) OVER w FROM state WINDOW w AS (ORDER BY reflect('java.lang.System', 'exit', 1))",
        "SELECT * FROM state LATERAL VIEW explode(array(reflect('java.lang.System', 'exit', 1))) t AS x",
        "SELECT * FROM state ORDER BY reflect('java.lang.System', 'exit', 1)",
        "SELECT * FROM state LIMIT length(reflect('java.lang.System', 'exit', 1))",
        "SELECT * FROM state GROUP BY ALL HAVING reflect('java.lang.System', 'exit', 1) = ''",
        "SELECT * FROM range(1000000000000)",
        "SELECT * FROM state a JOIN state b",
        "SELECT * FROM state, state",
        "SELECT repeat('x', 2000000000) FROM state",
        "SELECT sequence(1, 1000000000) FROM state",
        "SELECT 'x' || key.key FROM state",
        "SELECT key.key RLIKE '(a*)*b' FROM state",
        "SELECT key.key LIKE '%a%a%a%a%a%b' FROM state",
        "SELECT key.key LIKE key.key FROM state",
        "SELECT transform(array(1), x -> x) FROM state",
        "SELECT session_user() FROM state",
        "SELECT * FROM IDENTIFIER('text.`/etc/passwd`')",
        "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t) SELECT * FROM t",
        "SHOW TABLES",
        "DROP VIEW state",
        "SET spark.sql.shuffle.partitions",
        "CREATE TABLE t AS SELECT * FROM state",
        f"INSERT OVERWRITE DIRECTORY '{given.base / 'out'}' USING json SELECT * FROM state",
        "CACHE TABLE x AS SELECT * FROM state",
        "ADD JAR '/tmp/x.jar'",
        "SELECT 1; SELECT 2",
        "BEGIN SELECT 1; END",
        "SELECT nothing FROM state",
        "SELECT * FROM other",
        "SELECT * FROM (WITH other AS (SELECT 1) SELECT * FROM other), other",
        "not a query",
        "",
    ]
    for query in filter(None, hostile):
        with pytest.raises(MinflinkError) as refused:
            await snapshot.select(query)
        assert refused.value.info().code == "state-query-refused", query
        assert "hunter2" not in str(refused.value)
    assert not (given.base / "out").exists()
    assert (await snapshot.child.ask(p.Ping())).state_stores == 0


async def test_growth_between_two_snapshots_names_the_keys(child: Child, tmp_path: Path) -> None:
    """Keys that came, went and grew are counted, and those that grew the most are listed with both sizes."""
    (tmp_path / "kept.py").write_text(CODE)
    write_events(tmp_path / "in", 1)
    lists = sql("lists", "SELECT key, collect_list(value) AS values FROM events GROUP BY key", "events")
    query = task(
        events(tmp_path / "in", maxFilesPerTrigger="1"), lists, call("kept:ignore", "lists", OutputMode.UPDATE)
    )
    attempt = await child.run(job(), query, artifacts={"kept.py": str(tmp_path / "kept.py")})
    await child.batches(attempt, 0)
    before = await take(child, attempt, tmp_path / "before")
    rows = [{"key": "new" if n % 2 else "k1", "time": "2024-01-01T00:10:00Z", "value": n} for n in range(100)]
    (tmp_path / "in" / ".x.json").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "in" / ".x.json").rename(tmp_path / "in" / "x.json")
    await child.notice(p.BatchFinished, lambda n: n.attempt_id == attempt and n.metrics.rows_in == 160)
    after = await take(child, attempt, tmp_path / "after", number=2)
    await child.stop(attempt)
    (growth,) = (await after.growth_since(before, largest=1)).stores
    assert (growth.keys_added, growth.keys_removed, growth.keys_changed) == (1, 0, 1)
    assert growth.before is not None
    assert growth.after is not None
    assert growth.after.rows == growth.before.rows + 1
    assert growth.after.bytes > growth.before.bytes
    (top,) = growth.grown
    assert (json.loads(top.key), top.rows_before, top.bytes_before) == ({"key": "new"}, 0, 0)
    (none,) = (await after.growth_since(after)).stores
    assert (none.keys_added, none.keys_removed, none.keys_changed, none.grown) == (0, 0, 0, ())


async def test_a_running_query_notices_nothing(child: Child, tmp_path: Path) -> None:
    """While its state is read, a query goes on; its files and its open state stores are not touched."""
    (tmp_path / "kept.py").write_text(CODE)
    sums = sql("sums", "SELECT value % 50 AS k, count(*) AS n FROM numbers GROUP BY 1", "numbers")
    query = task(rate(100), sums, call("kept:ignore", "sums", OutputMode.UPDATE))
    attempt = await child.run(job(), query, artifacts={"kept.py": str(tmp_path / "kept.py")})
    await child.batches(attempt, 1)
    snapshot = await take(child, attempt, tmp_path / "snapshot")
    stores = (await child.ask(p.Ping())).state_stores
    files = digests(snapshot.files)
    found = await snapshot.read()
    assert sum(value["count"] for _, value in rows_of(found)) == 100 * (snapshot.taken.batch_id + 1)
    assert digests(snapshot.files) == files
    assert (await child.ask(p.Ping())).state_stores == stores == 2
    now = [n.metrics.batch_id for n in child.notices if isinstance(n, p.BatchFinished) and n.attempt_id == attempt]
    await child.batches(attempt, max(now) + 2)
    with pytest.raises(MinflinkError) as late:
        await snapshot.read(timeout=0.001)
    assert late.value.info().code == "state-read-expired"
    await child.stop(attempt)


async def test_what_is_not_there_is_said(given: Input) -> None:
    """A store that the task has not, a key of another form, a task without a micro-batch."""
    snapshot = await given.snapshot(python("distinct", "kept:distinct", "events"), mode=OutputMode.APPEND)
    assert {key["key"] for key, _ in rows_of(await snapshot.read(limit=50))} == set(given.count(lambda r: r["key"]))
    for question, code in [
        ({"store": "7"}, "no-such-store"),
        ({"key": '{"other": 1}'}, "state-key-refused"),
        ({"key": '{"key": [1]}'}, "state-key-refused"),
    ]:
        with pytest.raises(MinflinkError) as refused:
            await snapshot.read(**question)
        assert refused.value.info().code == code, refused.value
    empty = p.LaidOut(directory=str(given.base), batch_id=-1)
    request = p.ReadStates(read_id="x", state=empty, question=StateQuestion(), timeout=60.0)
    assert (await given.child.ask(request)).stores == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["duplicates", "duplicates_in_time", "pandas", "several", "sessions", "join", "limit", "alike"]
)
async def test_every_kind_of_operator_is_read(given: Input, kind: str) -> None:
    """The rows are those that the input makes, whatever the operator keeps them in."""
    mode = OutputMode.UPDATE if kind in ("pandas", "several", "alike") else OutputMode.APPEND
    per_key = given.count(lambda row: row["key"])
    match kind:
        case "sessions":
            text = "SELECT key, count(*) AS n FROM events GROUP BY session_window(time, '1 hour'), key"
            query = [sql("sessions", text, "events")]
        case "join":
            right = sql("right", "SELECT key AS k, time AS t, value AS v FROM events WHERE value % 2 = 0", "events")
            both = "SELECT e.key, r.v FROM events e JOIN right r ON e.key = r.k AND e.value = r.v AND e.time = r.t"
            query = [right, sql("both", both, "events", "right")]
        case "alike":
            several = "max(value) AS x, max(-value) AS y, avg(value) AS a, count_if(value > 1) AS c"
            query = [sql("alike", f"SELECT key, count(*) AS n, {several} FROM events GROUP BY key", "events")]
        case "limit":
            query = [sql("first", "SELECT value FROM events LIMIT 100", "events")]
        case _:
            query = [python(kind, f"kept:{kind}", "events")]
    snapshot = await given.snapshot(*query, mode=mode, late=True)
    found = await snapshot.read(limit=1000)
    assert [store.unreadable for store in found.stores] == [""] * len(found.stores)
    stores = {store.id: totals_of(store) for store in found.stores}
    if kind in ("duplicates", "duplicates_in_time"):
        assert {key["key"] for key, _ in rows_of(found)} == set(per_key)
    elif kind == "pandas":
        assert {key["key"]: value["groupState"]["n"] for key, value in rows_of(found)} == per_key
    elif kind == "sessions":
        assert {key["key"]: value["count"] for key, value in rows_of(found)} == per_key
    elif kind == "join":
        even = sorted(row["value"] for row in given.rows if row["value"] % 2 == 0)  # Spark filters both sides by it
        assert sorted(value["value"] for _, value in rows_of(found)) == even
        assert {name: rows for name, (rows, _) in stores.items()} == {"0:left": len(even), "0:right": len(even)}
    elif kind == "alike":  # buffers of the same name
        over = given.count(lambda row: (row["key"], row["value"] > 1))
        values = {key: [row["value"] for row in given.rows if row["key"] == key] for key in per_key}
        sums = {key: sum(each) for key, each in values.items()}
        assert {key["key"]: value for key, value in rows_of(found)} == {
            key: {
                "count": n,
                "max": max(values[key]),
                "max_2": -min(values[key]),
                "sum": sums[key],
                "count_2": n,
                "count_3": over[key, True],
            }
            for key, n in per_key.items()
        }
        (row,) = await snapshot.select("SELECT value.count_3, value.max_2 FROM state WHERE key.key = 'k3'")
        assert row == [over["k3", True], -min(values["k3"])]
    elif kind == "limit":
        assert [value["value"] for _, value in rows_of(found)] == [100]
    else:
        forms = {store.id: store.form for store in found.stores}
        assert forms == {"0:total": "value", "0:firsts": "list", "0:seen": "map", "0:timers": "timers"}
        assert {key["key"]: value["n"] for key, value in rows_of(found)} == per_key
        firsts = await snapshot.read(store="firsts", limit=1000)
        assert Counter(key["key"] for key, _ in rows_of(firsts)) == Counter(dict.fromkeys(per_key, FILES))
        seen = await snapshot.read(store="seen", limit=1000)
        times = {(key["key"], value["map_key"]["value"]): value["map_value"]["times"] for key, value in rows_of(seen)}
        assert times == given.count(lambda row: (row["key"], row["value"]))
        timers = await snapshot.read(store="timers", limit=1000)
        assert {value["expiration_timestamp_ms"] for _, value in rows_of(timers)} == {4102444800000}


MEASURE = """
import json
from pyspark.sql import functions as fn
from minflinkd.taskmanager.session.inspection.sizes import row_bytes

SCHEMA = (
    "a STRING, b BIGINT, c INT, d BOOLEAN, e BINARY, f DECIMAL(10, 2), g DECIMAL(30, 3), h TIMESTAMP, "
    "i STRUCT<x: STRING, y: STRUCT<z: DATE>>, j ARRAY<BIGINT>, k ARRAY<STRING>, l ARRAY<TINYINT>, "
    "m MAP<STRING, INT>, n ARRAY<ARRAY<STRING>>, o ARRAY<BOOLEAN>, p DOUBLE, q ARRAY<STRUCT<s: STRING, t: FLOAT>>"
)
ROWS = [
    "'', 1, 1, true, X'', 1.5, 1.5, now(), struct('x', struct(current_date())), array(1L), array('a', 'bcd'), "
    "array(1Y, 2Y, 3Y), map('k', 1), array(array('a'), array()), array(true), 1.0D, array(struct('s', 1F))",
    "'12345678', 2, 2, false, X'0102030405060708090A', 2.5, NULL, NULL, struct(NULL, NULL), array(), "
    "array(NULL, ''), sequence(1Y, 70Y), map(), array(NULL, array('123456789')), array(), 0D, array()",
    "'ünïcode text', NULL, NULL, NULL, NULL, NULL, 12345678901234567890.123, now(), NULL, NULL, NULL, NULL, NULL, "
    "NULL, NULL, NULL, NULL",
    "NULL, 4, 4, true, X'FF', 0, 0, now(), struct('a long enough text', struct(NULL)), sequence(1L, 100L), "
    "array('x'), array(), map('some key', 1, 'another', NULL), array(), array(true, false), 0D, array(NULL)",
]


def measure(batch, epoch):
    spark = batch.sparkSession
    empty = spark.createDataFrame([], SCHEMA)
    own, said = [], []
    for row in ROWS:  # one at a time: Spark's rows of a partition share their memory
        frame = spark.sql(f"SELECT {row}").toDF(*empty.columns)
        columns = [fn.col(field.name).cast(field.dataType) for field in empty.schema]
        whole = frame.select(*columns).select(fn.struct(*empty.columns).alias("r"))
        (made,) = whole._jdf.queryExecution().toRdd().collect()
        own.append(int(made.getStruct(0, len(empty.columns)).getSizeInBytes()))
        said.append(int(whole.select(fn.expr(row_bytes(whole.schema["r"].dataType, "r"))).first()[0]))
    found = [own, said]
    with open(PLACE, "w") as out:
        json.dump(found, out)
"""


@pytest.mark.slow
async def test_the_size_of_a_row_is_that_of_sparks_own(child: Child, tmp_path: Path) -> None:
    """The figures that follow from types and values are those of the rows that Spark makes (E19c)."""
    place = tmp_path / "sizes.json"
    (tmp_path / "kept.py").write_text(f"PLACE = {str(place)!r}\n{MEASURE}")
    query = task(rate(1), call("kept:measure", "numbers"))
    attempt = await child.run(job(), query, artifacts={"kept.py": str(tmp_path / "kept.py")})
    await child.batches(attempt, 0)
    await child.stop(attempt)
    own, said = json.loads(place.read_text())
    assert said == own
    assert len(own) == 4


def digests(directory: Path) -> dict[Path, str]:
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.rglob("*") if path.is_file()}
