"""The meaning of state is read from the plans that Spark makes of jobs (C25, H2)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from minflinkd.checkpoint.state_meaning import change
from minflinkd.jobgraph.model import OutputMode, Task
from minflinkd.rpc.snapshot import PlanNode
from minflinkd.runtime.errors import RemoteError
from minflinkd.taskmanager.child import protocol as p
from tests.spark.session_child import Child, call, job, python, rate, sql, task
from tests.spark.test_session_snapshots import artifact, lay_out, snapshot

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

CODE = """
from pyspark.sql import functions as f
def write(batch, epoch):
    batch.collect()
def by_k(inputs, params):
    return inputs["events"].dropDuplicates(["k", "time"]).select("k")
def by_v(inputs, params):
    return inputs["events"].dropDuplicates(["other", "time"]).select("k")
def totals(inputs, params):
    return inputs["events"].groupBy(f.col("k").alias("kk")).agg(f.sum("v").alias("s"))
def counted(key, frames, state):
    yield from ()
def of(column):
    def build(inputs, params):
        grouped = inputs["events"].groupBy(column)
        return grouped.applyInPandasWithState(counted, "n LONG", "n LONG", "update", "NoTimeout")
    return build
in_code_k, in_code_other = of("k"), of("other")
"""
EVENTS = """
SELECT timestamp AS time, value AS v, unix_micros(timestamp) AS w, CAST(value AS STRING) AS k, 'x' AS other FROM numbers
"""
GROUPED = "SELECT k, count(*) AS n, sum(v) AS s, sum(w) AS t FROM events GROUP BY k, window(time, '1 minute')"
MINUTES = "SELECT k, count(*) AS n, sum(v) AS s, sum(w) AS t FROM events GROUP BY k, window(time, '2 minutes')"
JOINED = "SELECT a.v FROM events a JOIN events b ON a.k = b.k AND a.time BETWEEN b.time AND b.time + INTERVAL 1 HOUR"

SAME = {
    "other names": (GROUPED, GROUPED.replace("AS n", "AS x").replace("AS s", "AS y")),
    "a projection and a filter in front": (
        GROUPED,
        GROUPED.replace("FROM events", "FROM (SELECT k, time, v, w, v + 7 AS more FROM events WHERE v > 5)"),
    ),
    "other names in a projection in front": (
        "SELECT k, sum(v) AS s FROM events GROUP BY k",
        "SELECT name, sum(amount) AS total FROM (SELECT k AS name, v AS amount FROM events) GROUP BY name",
    ),
    "what is computed of the state": (GROUPED, GROUPED.replace("sum(v) AS s", "sum(v) / count(*) AS s")),
    "another addend": (GROUPED, GROUPED.replace("sum(v)", "sum(v * 2)")),
    "another condition of an aggregate": (
        "SELECT k, sum(v) FILTER (WHERE v > 1) AS s FROM events GROUP BY k",
        "SELECT k, sum(v) FILTER (WHERE v > 2) AS s FROM events GROUP BY k",
    ),
    "a longer window": (GROUPED, MINUTES),
    "a union in front": (
        "SELECT k, count(*) AS n FROM events GROUP BY k",
        "SELECT k, count(*) AS n FROM (SELECT k FROM events UNION ALL SELECT other FROM events) GROUP BY k",
    ),
    "a literal in a projection": (
        "SELECT p, count(*) AS n FROM (SELECT substr(k, 1, 3) AS p FROM events) GROUP BY p",
        "SELECT p, count(*) AS n FROM (SELECT substr(k, 1, 4) AS p FROM events) GROUP BY p",
    ),
    "a wider range of a join": (JOINED, JOINED.replace("1 HOUR", "2 HOURS")),
}
OTHER = {
    "another function": (
        GROUPED,
        GROUPED.replace("sum(v)", "max(v)"),
        "holds sum(v), and would be read as max(v)",
    ),
    "another column": (
        GROUPED,
        GROUPED.replace("sum(v)", "sum(w + 1)"),
        "holds sum(v), and would be read as sum((w +",
    ),
    "another order": (GROUPED, GROUPED.replace("sum(v) AS s, sum(w) AS t", "sum(w) AS t, sum(v) AS s"), "order alone"),
    "another key": (
        GROUPED,
        GROUPED.replace("GROUP BY k", "GROUP BY upper(k)").replace("SELECT k", "SELECT 1"),
        "was kept by k, and is now kept by upper(k)",
    ),
    "another key by a projection": (
        GROUPED,
        GROUPED.replace("FROM events", "FROM (SELECT upper(k) AS k, time, v, w FROM events)"),
        "is now kept by upper(",
    ),
    "another part of the time": (
        "SELECT count(*) AS n FROM events GROUP BY date_trunc('hour', time)",
        "SELECT count(*) AS n FROM events GROUP BY date_trunc('day', time)",
        "'day'",
    ),
    "another equality of a join": (JOINED, JOINED.replace("a.k = b.k", "a.k = b.other"), "now finds rows by k = other"),
    "others that are distinct": (
        "SELECT DISTINCT k FROM events",
        "SELECT DISTINCT other FROM events",
        "now knows rows by",
    ),
}


def version(text: str) -> Task:
    mode = OutputMode.APPEND if "JOIN" in text else OutputMode.UPDATE
    return task(rate(10), sql("events", EVENTS, "numbers"), sql("w", text, "events"), call("acme:write", "w", mode))


def coded(name: str) -> Task:
    return task(
        rate(10),
        sql("events", EVENTS, "numbers"),
        python("w", f"acme:{name}", "events"),
        call("acme:write", "w", OutputMode.UPDATE),
    )


async def operator(child: Child, directory: Path, wanted: Task) -> PlanNode:
    """Return the operator that keeps state, as Spark plans it."""
    question = p.AnalyzeTasks(job=job(), tasks=(wanted,), artifacts=artifact(directory, "acme.py", CODE))
    found = await child.ask(question)
    assert found.faults == ()
    (node,) = (node for node in found.operators[wanted.id] if node.stateful)
    assert node.meaning, "it is known"
    return node


async def changed(child: Child, directory: Path, old: Task, new: Task) -> str:
    before, after = await operator(child, directory, old), await operator(child, directory, new)
    assert len(before.meaning) == len(after.meaning)
    return change(after.kind, before.meaning, after.meaning)


@pytest.mark.parametrize("what", SAME)
async def test_a_version_that_computes_the_same_state_otherwise_changes_no_meaning(
    child: Child, tmp_path: Path, what: str
) -> None:
    """A hot restart is for exactly this (H2)."""
    old, new = SAME[what]
    assert await changed(child, tmp_path, version(old), version(new)) == ""


@pytest.mark.parametrize("what", OTHER)
async def test_a_version_that_would_read_the_state_as_something_else_is_told_so(
    child: Child, tmp_path: Path, what: str
) -> None:
    """Spark itself accepts the state, since the types are the same (H2)."""
    old, new, told = OTHER[what]
    assert told in await changed(child, tmp_path, version(old), version(new))


async def test_what_code_keeps_state_by_is_compared_too(child: Child, tmp_path: Path) -> None:
    """Deduplication and functions of the user are compared. The same state in SQL and in Python is the same (H2)."""
    assert "now knows rows by" in await changed(child, tmp_path, coded("by_k"), coded("by_v"))
    assert "is now kept by" in await changed(child, tmp_path, coded("in_code_k"), coded("in_code_other"))
    same = "SELECT k, sum(v) AS s FROM events GROUP BY k"
    assert await changed(child, tmp_path, version(same), coded("totals")) == ""


async def test_a_checkpoint_says_what_its_state_means(child: Child, tmp_path: Path) -> None:
    """With that, a start from a savepoint is compared as a hot restart is (C25)."""
    wanted = version(GROUPED)
    attempt = await child.run(job(), wanted, artifacts=artifact(tmp_path, "acme.py", CODE))
    await child.batches(attempt, 0)
    taken, _ = await snapshot(child, attempt, 1)
    await child.stop(attempt)
    (node,) = (node for node in taken.operators if node.stateful)
    assert [meant.text for meant in node.meaning] == ["k", "window", "count(*)", "sum(v)", "sum(w)"]


@pytest.mark.parametrize("same_meaning", [True, False])
async def test_a_version_does_not_start_with_state_of_something_else_unless_that_is_allowed(
    child: Child, tmp_path: Path, same_meaning: bool
) -> None:
    """If there was no checkpoint when the version was compared, only its restore can tell (H2)."""
    old, new, told = OTHER["another function"]
    files = artifact(tmp_path, "acme.py", CODE)
    first = await child.run(job(), version(old), artifacts=files)
    await child.batches(first, 0)
    taken, directory = await snapshot(child, first, 1)
    await child.stop(first)
    point = p.Restored(checkpoint_id=1, batch_id=taken.batch_id, operators=taken.operators, same_meaning=same_meaning)
    again = {"artifacts": files, "restored": point, "directory": lay_out(child, directory)}
    if same_meaning:
        with pytest.raises(RemoteError, match=re.escape(told)) as caught:
            await child.run(job(), version(new), **again)
        assert caught.value.info().code == "state-meaning-changed"
        assert "--allow-changed-state" in caught.value.hint
        return
    second = await child.run(job(), version(new), **again)
    await child.batches(second, taken.batch_id + 1)
    await child.stop(second)
