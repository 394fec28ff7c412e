"""A task that is restored with another parallelism than that of its snapshot."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from minflinkd.jobgraph.model import OutputMode, Vertex
from minflinkd.taskmanager.child import protocol as p
from minflinkd.taskmanager.session.restore.repartition import recorded_partitions
from minflinkd.taskmanager.session.state.snapshot import read_offsets
from tests.spark.session_child import Child, call, events, job, python, rate, sql, task

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

ROWS = 1000
SINK = """
import json
def write(batch, epoch):
    rows = sorted(list(row) for row in batch.collect())
    used = int(batch.sparkSession.conf.get("spark.sql.shuffle.partitions"))
    with open(%r, "a") as out:
        out.write(json.dumps([epoch, used, rows]) + "\\n")
def distinct(inputs, params):
    return inputs["numbers"].selectExpr("CAST(value / 37 AS INT) %% 997 AS k").dropDuplicates(["k"])
"""


@dataclass
class Chain:
    """One query that runs a few micro-batches, is snapshotted, and continues with another parallelism."""

    child: Child
    base: Path
    query: list[Vertex]
    mode: OutputMode = OutputMode.APPEND
    rows: list[Any] = field(default_factory=list)  # of all micro-batches that the snapshots cover, in order
    batches: list[tuple[int, int]] = field(default_factory=list)  # their ids and shuffle partitions
    partitions: list[int] = field(default_factory=list)  # of each snapshot
    seconds: list[float] = field(default_factory=list)  # that each restore took to prepare its state
    last: p.SnapshotTaken | None = None
    files: Path = Path()

    async def run(self, parallelism: int, batches: int = 4, *, partitions: int = 0) -> p.SnapshotTaken:
        out = self.base / f"{uuid4().hex}.jsonl"
        (self.base / "sink.py").write_text(SINK % str(out))
        directory, restored = self.child.fresh_directory(), None
        if self.last is not None:
            restored = p.Restored(checkpoint_id=1, batch_id=self.last.batch_id)
            # As a TaskManager lays out its own copy.
            shutil.copytree(self.files, directory / "checkpoint", copy_function=os.link)
        before = digests(self.files) if self.last else {}
        request = p.RunTask(
            job=job(),
            task=task(*self.query, call("sink:write", self.query[-1].id, self.mode), parallelism=parallelism),
            attempt_id=(attempt := uuid4().hex),  # type: ignore[arg-type]
            directory=str(directory),
            restored=restored,
            artifacts={"sink.py": str(self.base / "sink.py")},
            partitions=partitions,
        )
        running = await self.child.ask(request)
        self.seconds.append(running.phases["prepare"])
        await self.child.batches(attempt, (self.last.batch_id + 1 if self.last else 0) + batches)  # type: ignore[arg-type]
        target = self.child.directory / "snapshots" / attempt
        target.parent.mkdir(exist_ok=True)
        taken = await self.child.ask(
            p.TakeSnapshot(attempt_id=attempt, checkpoint_id=1, target_directory=str(target))  # type: ignore[arg-type]
        )
        await self.child.stop(attempt)  # type: ignore[arg-type]
        assert (await self.child.ask(p.Ping())).state_stores == 0
        assert (digests(self.files) if self.last else {}) == before, "an own copy of a snapshot was written to"
        for epoch, used, rows in map(json.loads, out.read_text().splitlines()):
            if epoch <= taken.batch_id:
                self.batches.append((epoch, used))
                self.rows.extend(rows)
        self.last, self.files = taken, target
        self.partitions.append(partitions_of(target, taken))
        keeps_state = any(node.stateful for node in taken.operators)
        assert running.partitions == (self.partitions[-1] if keeps_state else 0), "later snapshots would record another"
        return taken


def partitions_of(files: Path, taken: p.SnapshotTaken) -> int:
    return recorded_partitions(read_offsets(files, taken.batch_id))


def digests(directory: Path) -> dict[Path, str]:
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.rglob("*") if path.is_file()}


async def test_totals_stay_exact_from_4_over_2_to_3_partitions(child: Child, tmp_path: Path) -> None:
    """Spark rewrites the state before the query starts. A later snapshot restores like any other (R20)."""
    totals = sql("totals", "SELECT value % 10 AS k, count(*) AS n, sum(value) AS s FROM numbers GROUP BY 1", "numbers")
    chain = Chain(child, tmp_path, [rate(ROWS), totals], OutputMode.UPDATE)
    taken = [await chain.run(parallelism) for parallelism in (4, 2, 3, 3)]
    assert chain.partitions == [4, 2, 3, 3]
    assert {used for _, used in chain.batches} == {4, 2, 3}
    # A micro-batch reads ROWS rows. Each of the two rewritings takes the number of one and reads nothing.
    assert len(chain.batches) == taken[-1].batch_id + 1 - 2
    for batch in range(len(chain.batches)):
        end = ROWS * (batch + 1)
        exact = [[k, end // 10, sum(range(k, end, 10))] for k in range(10)]
        assert chain.rows[10 * batch : 10 * batch + 10] == exact, f"micro-batch {batch} of {chain.batches}"
    assert max(chain.seconds) < 30, chain.seconds
    assert json.loads(taken[-1].source_offsets["numbers"])["offset"] == ROWS * len(chain.batches)


async def test_a_restored_query_without_input_is_snapshotted_as_it_was_rewritten(child: Child, tmp_path: Path) -> None:
    """A checkpoint right after the rescaling holds the rewritten state, and a restore counts on from it (R20)."""
    (tmp_path / "in").mkdir()
    counts = sql("counts", "SELECT key, count(*) AS n FROM events GROUP BY key", "events")
    chain = Chain(child, tmp_path, [events(tmp_path / "in"), counts], OutputMode.UPDATE)
    write_events(tmp_path / "in", "1", range(50))
    await chain.run(3, batches=0)
    before = chain.last
    assert before is not None
    directory = child.fresh_directory()
    shutil.copytree(chain.files, directory / "checkpoint", copy_function=os.link)
    idle = await child.run(
        job(),
        task(*chain.query, call("sink:write", "counts", OutputMode.UPDATE), parallelism=2),
        artifacts={"sink.py": str(tmp_path / "sink.py")},
        restored=p.Restored(checkpoint_id=1, batch_id=before.batch_id),
        directory=directory,
    )
    files = child.directory / "snapshots" / uuid4().hex
    taken = await child.ask(p.TakeSnapshot(attempt_id=idle, checkpoint_id=2, target_directory=str(files)))
    await child.stop(idle)
    assert (taken.batch_id, partitions_of(files, taken)) == (before.batch_id + 1, 2)
    chain.last, chain.files, chain.rows = taken, files, []
    write_events(tmp_path / "in", "2", range(50))
    await chain.run(5, batches=1)
    assert chain.rows == sorted([f"k{n}", 2] for n in range(50))


async def test_a_query_without_state_follows_as_well(child: Child, tmp_path: Path) -> None:
    """Only the record in the offset log is rewritten. No row is lost or repeated (R20)."""
    even = sql("even", "SELECT value FROM numbers WHERE value % 100 = 0", "numbers")
    chain = Chain(child, tmp_path, [rate(ROWS), even])
    taken = [await chain.run(parallelism) for parallelism in (4, 2, 3)]
    assert chain.partitions == [4, 2, 3]
    assert [epoch for epoch, _ in chain.batches] == list(range(taken[-1].batch_id + 1))
    assert {used for _, used in chain.batches} == {4, 2, 3}
    assert chain.rows == [[value] for value in range(0, ROWS * len(chain.batches), 100)]


async def test_a_query_without_state_has_no_more_partitions_than_slots(child: Child, tmp_path: Path) -> None:
    """A max-parallelism is about state. Without it there is nothing that more partitions would save (J6)."""
    even = sql("even", "SELECT value FROM numbers WHERE value % 100 = 0", "numbers")
    chain = Chain(child, tmp_path, [rate(ROWS), even])
    for parallelism in (2, 3):
        await chain.run(parallelism, partitions=8)
    assert chain.partitions == [2, 3]
    assert chain.rows == [[value] for value in range(0, ROWS * len(chain.batches), 100)]


@pytest.mark.slow  # tests/shapes draws it
async def test_another_max_parallelism_rewrites_the_state(child: Child, tmp_path: Path) -> None:
    """The number of slots has nothing to do with it. Several partitions in one Spark task count exactly (R20, H6)."""
    totals = sql("totals", "SELECT value % 10 AS k, count(*) AS n, sum(value) AS s FROM numbers GROUP BY 1", "numbers")
    chain = Chain(child, tmp_path, [rate(ROWS), totals], OutputMode.UPDATE)
    for parallelism, partitions in ((2, 5), (1, 3), (2, 7)):
        await chain.run(parallelism, partitions=partitions)
    assert chain.partitions == [5, 3, 7]
    for batch in range(len(chain.batches)):
        end = ROWS * (batch + 1)
        exact = [[k, end // 10, sum(range(k, end, 10))] for k in range(10)]
        assert chain.rows[10 * batch : 10 * batch + 10] == exact, f"micro-batch {batch} of {chain.batches}"


@pytest.mark.slow  # the totals above show the same of another operator
async def test_duplicates_are_still_known(child: Child, tmp_path: Path) -> None:
    """dropDuplicates lets each key through once, whichever partition knows it (R20)."""
    chain = Chain(child, tmp_path, [rate(ROWS), python("distinct", "sink:distinct", "numbers")])
    for parallelism in (4, 2, 3):
        await chain.run(parallelism, batches=12)
    read = ROWS * len(chain.batches)
    assert read > 37 * 997 // 2, "most keys must come both before and after a rescaling"
    assert sorted(k for (k,) in chain.rows) == sorted({value // 37 % 997 for value in range(read)})


@pytest.mark.slow  # the totals above show the same of another operator
async def test_a_stream_stream_join_finds_rows_from_before(child: Child, tmp_path: Path) -> None:
    """Each side keeps its rows for the other (R20)."""
    left = rate(ROWS)
    right = sql("shifted", "SELECT value + 1500 AS value, timestamp FROM others", "others")
    joined = sql("joined", "SELECT l.value FROM numbers l JOIN shifted r ON l.value = r.value", "numbers", "shifted")
    other = Vertex(id="others", source=left.source)  # type: ignore[arg-type]
    chain = Chain(child, tmp_path, [left, other, right, joined])
    for parallelism in (4, 2, 3):
        await chain.run(parallelism)
    assert chain.rows == [[value] for value in range(1500, ROWS * len(chain.batches))]
    assert {used for _, used in chain.batches} == {4, 2, 3}


async def test_what_spark_cannot_rewrite_goes_on_with_its_partitions(child: Child, tmp_path: Path) -> None:
    """Spark refuses to rewrite a `limit`. The job neither fails nor loops, and its result is the same (R20)."""
    first = sql("first", "SELECT value FROM numbers LIMIT 7500", "numbers")
    chain = Chain(child, tmp_path, [rate(ROWS), first])
    for parallelism in (4, 2, 4):
        await chain.run(parallelism)
    assert chain.partitions == [4, 4, 4]
    values = [value for (value,) in chain.rows]
    assert values[:7000] == list(range(7000))
    assert (len(values), len(set(values))) == (7500, 7500), "of the last rows, any will do"
    log = (child.directory / "log" / "session-jvm.log").read_text()
    assert "repartitioning failed" in log


def write_events(directory: Path, name: str, keys: range) -> None:
    """Write one file, atomically."""
    rows = [{"key": f"k{n}", "time": "2024-01-01T00:00:00Z", "value": n} for n in keys]
    hidden = directory / f".{name}.json"
    hidden.write_text("\n".join(json.dumps(row) for row in rows))
    hidden.rename(directory / f"{name}.json")
