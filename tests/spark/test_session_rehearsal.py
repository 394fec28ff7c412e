"""What Spark says of state before the query that is to continue with it starts (C25, H2)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from minflinkd.jobgraph.model import OutputMode, Task, Vertex
from minflinkd.runtime.errors import RemoteError
from minflinkd.taskmanager.child import protocol as p
from tests.files import files_below
from tests.shortened import first
from tests.spark.session_child import Child, call, job, python, rate, sql, task
from tests.spark.test_session_snapshots import artifact, lay_out, snapshot

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

CODE = """
def write(batch, epoch):
    batch.collect()
def dedup_value(inputs, params):
    return inputs["numbers"].dropDuplicates(["value"])
def dedup_text(inputs, params):
    return inputs["numbers"].selectExpr("CAST(value AS STRING) AS value").dropDuplicates(["value"])
def counted(key, frames, state):
    import pandas
    yield pandas.DataFrame({"n": [sum(map(len, frames))]})
def totals_of(schema):
    def build(inputs, params):
        return inputs["numbers"].groupBy("value").applyInPandasWithState(
            counted, "n LONG", schema, "update", "NoTimeout"
        )
    return build
longs, texts = totals_of("n LONG"), totals_of("n STRING")
"""
OPPOSITES = {  # before, after, and whether Spark accepts the state of the former for the latter
    "another function over other sums": ("avg(value) AS x", "stddev(value) AS x", False),
    "a function of another result": ("sum(value) AS x", "avg(value) AS x", False),
    "one more aggregate": ("sum(value) AS x", "sum(value) AS x, count(*) AS n", False),
    "another width of a number": ("sum(value) AS x", "sum(CAST(value AS INT)) AS x", True),
    "a column that is not of the state": (
        "sum(value) AS x",
        "'v2' AS version, sum(value) AS x, sum(value) / 2 AS h",
        True,
    ),
    "another order of columns": ("sum(value) AS x, k", "k, sum(value) AS x", True),
    "another name": ("sum(value) AS x", "sum(value) AS total", True),
    "nothing": ("sum(value) AS x", "sum(value) AS x", True),
}
_GROUPED = "(SELECT value, value % 3 AS k FROM numbers) GROUP BY k"


def grouped(columns: str) -> Task:
    return task(rate(10), sql("totals", f"SELECT {columns} FROM {_GROUPED}", "numbers"), update("totals"))


def update(source: str) -> Vertex:
    return call("acme:write", source, OutputMode.UPDATE)


class Before:
    """A version that has run, and Spark's descriptions of its state."""

    def __init__(self, child: Child, directory: Path) -> None:
        self.child = child
        self.directory = directory
        self.artifacts = artifact(directory, "acme.py", CODE)

    async def ran(self, version: Task) -> None:
        attempt = await self.child.run(job(), version, artifacts=self.artifacts)
        await self.child.batches(attempt, 0)
        self.taken, self.files = await snapshot(self.child, attempt, 1)
        await self.child.stop(attempt)

    def described(self) -> Path:
        target = self.child.fresh_directory() / "described"
        for path in self.files.rglob("schema"):
            to = target / path.relative_to(self.files)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to)
        return target

    async def verdicts(self, version: Task) -> dict[int, str]:
        directory = self.described()
        held = {version.id: p.DescribedState(operators=self.taken.operators, directory=str(directory))}
        question = p.AnalyzeTasks(job=job(), tasks=(version,), artifacts=self.artifacts, held=held)
        before = files_below(directory.parent)
        found = await self.child.ask(question)
        assert found.faults == ()
        assert files_below(directory.parent) == before, "a rehearsal leaves nothing, and changes nothing"
        return found.verdicts[version.id]

    async def starts(self, version: Task) -> bool:
        """Whether Spark in fact continues with the state."""
        restored = p.Restored(checkpoint_id=1, batch_id=self.taken.batch_id, operators=self.taken.operators)
        try:
            attempt = await self.child.run(
                job(),
                version,
                artifacts=self.artifacts,
                restored=restored,
                directory=lay_out(self.child, self.files),
            )
            await self.child.batches(attempt, self.taken.batch_id + 1)
        except AssertionError as error:
            if "SCHEMA_NOT_COMPATIBLE" not in str(error):
                raise
            return False
        await self.child.stop(attempt)
        return True


@pytest.mark.parametrize("what", first(OPPOSITES, 4))
async def test_what_is_said_of_state_beforehand_is_what_spark_does_with_it(
    child: Child, tmp_path: Path, what: str
) -> None:
    """The rehearsal refuses no more than Spark does, and no less (C25)."""
    columns, others, fits = OPPOSITES[what]
    before = Before(child, tmp_path)
    await before.ran(grouped(columns))
    verdicts = await before.verdicts(grouped(others))
    assert {number: not why for number, why in verdicts.items()} == {0: fits}, verdicts
    assert fits or verdicts[0].startswith("the schema of its values changes: ")
    assert len(verdicts[0]) < 300, "what Spark says of it has thousands of characters"
    assert await before.starts(grouped(others)) == fits


async def test_of_a_wide_schema_only_what_changes_is_told(child: Child, tmp_path: Path) -> None:
    """Also where the state has dozens of columns, as that of an approximate count (C25, H2)."""
    distinct = "approx_count_distinct(value) AS x"
    before = Before(child, tmp_path)
    await before.ran(grouped(distinct))
    verdicts = await before.verdicts(grouped(f"{distinct}, min(value) AS least"))
    assert verdicts == {0: "the schema of its values changes: min BIGINT would be new in it"}


async def test_each_kind_of_operator_is_looked_at_and_only_those_that_do_not_fit_are_named(
    child: Child, tmp_path: Path
) -> None:
    """Of two operators of one query, one has another key (C25)."""

    def union(dedup: str) -> Task:
        other = sql("totals", "SELECT value, count(*) AS n FROM numbers GROUP BY value", "numbers")
        text = "SELECT CAST(value AS STRING) AS value FROM d UNION ALL SELECT CAST(value AS STRING) FROM totals"
        return task(
            rate(10), python("d", f"acme:{dedup}", "numbers"), other, sql("all", text, "d", "totals"), update("all")
        )

    before = Before(child, tmp_path)
    await before.ran(union("dedup_value"))
    assert set((await before.verdicts(union("dedup_value"))).values()) == {""}
    nodes = {node.number: node.vertex for node in before.taken.operators if node.stateful}
    verdicts = await before.verdicts(union("dedup_text"))
    assert {nodes[number]: bool(why) for number, why in verdicts.items()} == {"d": True, "totals": False}


async def test_state_of_user_code_is_compared_too(child: Child, tmp_path: Path) -> None:
    """The state is that of applyInPandasWithState (C25)."""
    before = Before(child, tmp_path)

    def version(of: str) -> Task:
        return task(rate(10), python("totals", f"acme:{of}", "numbers"), update("totals"))

    await before.ran(version("longs"))
    assert await before.verdicts(version("longs")) == {0: ""}
    assert (await before.verdicts(version("texts")))[0]


async def test_a_column_that_a_join_now_keeps_is_seen(child: Child, tmp_path: Path) -> None:
    """The join keeps what is read after it, whatever its sides yield (C25)."""

    def version(columns: str) -> Task:
        left = sql("l", "SELECT value, timestamp AS at, 1 AS one FROM numbers", "numbers")
        right = sql("r", "SELECT value, 2 AS two FROM numbers", "numbers")
        joined = sql("j", f"SELECT {columns} FROM l JOIN r ON l.value = r.value", "l", "r")
        return task(rate(10), left, right, joined, call("acme:write", "j"))

    before = Before(child, tmp_path)
    await before.ran(version("l.value"))
    assert await before.verdicts(version("l.value + 1 AS v")) == {0: ""}
    assert (await before.verdicts(version("l.value, l.at")))[0]


async def test_a_join_of_other_sides_is_refused_though_spark_would_take_it(child: Child, tmp_path: Path) -> None:
    """Each side would continue with the rows of the other (C25)."""

    def version(left: str, right: str) -> Task:
        sides = [
            sql(name, f"SELECT value FROM numbers WHERE value % 2 = {n}", "numbers") for n, name in enumerate("lr")
        ]
        joined = sql("j", f"SELECT {left}.value FROM {left} JOIN {right} ON {left}.value = {right}.value + 1", "l", "r")
        return task(rate(10), *sides, joined, call("acme:write", "j"))

    before = Before(child, tmp_path)
    await before.ran(version("l", "r"))
    assert await before.verdicts(version("r", "l")) == {}, "what is refused anyway Spark is not asked"
    with pytest.raises(RemoteError, match="to another join"):
        await before.starts(version("r", "l"))
