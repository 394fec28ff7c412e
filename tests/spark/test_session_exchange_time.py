"""Event time through exchanges (J8a): what holds it back, what releases it, and who passes it on."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.model import Input, JobGraph, OutputMode, RuntimeMode, Source, Vertex, Watermark
from minflinkd.runtime.ids import TaskId, VertexId
from minflinkd.runtime.units import Duration
from minflinkd.taskmanager.child import protocol as p
from tests.spark.deployment import Run
from tests.spark.session_child import Child, call, job, parquet
from tests.waiting import WaitedInVain, until

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
WINDOWS = """
SELECT unix_timestamp(window(time, '1 minute').start) AS start, count(*) AS n
FROM ({}) GROUP BY window(time, '1 minute')
"""
SINK = """
import json
def write(batch, epoch):
    rows = [list(r) for r in batch.collect()]
    with open(%r, "a") as out:
        out.write(json.dumps(rows) + "\\n")
"""


class Events:
    """A directory that a source reads. Rows are given by their second after `begin`."""

    def __init__(self, directory: Path, begin: datetime = NOON) -> None:
        self.directory, self._begin, self._files = directory, begin, 0
        directory.mkdir()

    def put(self, *seconds: int) -> None:
        """Write the rows into one file, atomically."""
        times = [self._begin + timedelta(seconds=second) for second in seconds]
        rows = [{"key": f"k{n}", "time": time.isoformat(), "value": n} for n, time in zip(seconds, times, strict=True)]
        self._files += 1
        new = self.directory / f".{self._files}"
        new.write_text("\n".join(map(json.dumps, rows)))
        os.utime(new, (1_700_000_000 + self._files,) * 2)
        new.rename(self.directory / f"{self._files:03d}.json")

    def vertex(self, name: str) -> Vertex:
        files = Source(format="json", path=str(self.directory), schema="key STRING, time TIMESTAMP, value LONG")
        return Vertex(id=VertexId(name), source=files, watermark=Watermark(column="time", delay="0 seconds"))


def exchange(name: str, **fields: Any) -> Input:
    return Input(id=VertexId(name), exchange=True, **fields)


class Fired:
    """The windows that fired, by the minute after `begin`."""

    def __init__(self, directory: Path, begin: datetime = NOON) -> None:
        self._out, self._begin = directory / "windows.jsonl", begin
        (directory / "time_sink.py").write_text(SINK % str(self._out))
        self.artifacts = {"time_sink.py": str(directory / "time_sink.py")}

    def windows(self) -> dict[int, int]:
        lines = self._out.read_text().splitlines() if self._out.exists() else []
        rows = [row for line in lines for row in json.loads(line)]
        found = {int(start - self._begin.timestamp()) // 60: n for start, n in rows}
        assert len(found) == len(rows), "a window fires once"
        return found

    async def are(self, windows: dict[int, int]) -> None:
        try:
            await until(lambda: self.windows() == windows)
        except WaitedInVain as error:
            error.add_note(f"there are {self.windows()}")
            raise


def union(a: Events, b: Events, **of_b: Any) -> JobGraph:
    both = "SELECT time FROM a UNION ALL SELECT time FROM b"
    return JobGraph(
        name="time",
        vertices=(
            a.vertex("a"),
            b.vertex("b"),
            Vertex(
                id=VertexId("windows"), inputs=(exchange("a", **of_b), exchange("b", **of_b)), sql=WINDOWS.format(both)
            ),
            call("time_sink:write", "windows", OutputMode.APPEND),
        ),
    )


async def started(child: Child, graph: JobGraph, fired: Fired, **fields: Any) -> Run:
    run = Run(child, job("time", **fields), chain(graph), fired.artifacts)
    await run.start()
    return run


async def test_an_idle_input_holds_the_watermark_back(child: Child, tmp_path: Path) -> None:
    """The input holds it back until it has rows again, also across a restore (J8a)."""
    a, b, fired = Events(tmp_path / "a"), Events(tmp_path / "b"), Fired(tmp_path)
    graph = union(a, b)
    run = await started(child, graph, fired)
    a.put(0, 1, 70)
    b.put(2)
    await run.batches("windows", 1)
    a.put(130, 190)
    done = (await run.batches("a", 1)).metrics.batch_id
    await run.batches("windows", 2)
    cuts = await run.checkpoint(1)
    assert cuts[TaskId("a")][0].batch_id >= done
    assert fired.windows() == {}
    await run.stop()
    run = Run(child, job("time"), chain(graph), fired.artifacts)
    await run.start(cuts)
    b.put(125)  # the other input has no more rows, but what it told before the restore still counts
    await fired.are({0: 3, 1: 1})
    await run.stop()


async def test_what_an_input_had_not_told_at_the_cut_it_tells_after_the_restore(child: Child, tmp_path: Path) -> None:
    """A task tells its watermark when it is idle, which it is not before its next trigger is due (J8a)."""
    a, b, fired = Events(tmp_path / "a"), Events(tmp_path / "b"), Fired(tmp_path)
    graph = union(a, b)
    run = await started(child, graph, fired, trigger_interval=3.0)
    a.put(0, 70)
    b.put(2)
    await run.batches("b", 0)
    await run.batches("a", 0)
    cuts = await run.checkpoint(1)
    await run.stop()
    run = Run(child, job("time"), chain(graph), fired.artifacts)
    await run.start(cuts)
    b.put(125)
    await fired.are({0: 2})
    await run.stop()


@pytest.mark.slow  # tests/shapes has idle inputs
async def test_an_idle_task_tells_its_watermark_while_it_waits_for_its_next_trigger(
    child: Child, tmp_path: Path
) -> None:
    """Spark says only for some 10 ms of each interval that it waits for data, which is easily missed (J8a)."""
    a, b, fired = Events(tmp_path / "a"), Events(tmp_path / "b"), Fired(tmp_path)
    a.put(0, 1, 130)
    b.put(2, 130)
    run = await started(child, union(a, b), fired, trigger_interval=10.0)
    await fired.are({0: 3})
    await run.stop()


async def test_a_restored_task_behind_exchanges_is_drained_with_what_was_open(child: Child, tmp_path: Path) -> None:
    """The task is drained whether or not rows came through exchanges since. Their end is a micro-batch (C24)."""
    a, b, fired = Events(tmp_path / "a"), Events(tmp_path / "b"), Fired(tmp_path)
    graph = union(a, b)
    run = await started(child, graph, fired)
    a.put(0, 1, 70)
    b.put(2)
    await run.batches("windows", 1)
    cuts = await run.checkpoint(1)
    await run.stop()
    assert fired.windows() == {}
    run = Run(child, job("time"), chain(graph), fired.artifacts)
    await run.start(cuts)
    for attempt in run.attempts.values():
        await child.ask(p.DrainAttempt(attempt_id=attempt))
    await fired.are({0: 3, 1: 1})
    await child.notice(p.InputEnded, lambda n: n.attempt_id == run.attempts[TaskId("windows")])
    await run.stop()


async def test_an_input_that_is_idle_for_too_long_lets_it_go(child: Child, tmp_path: Path) -> None:
    """The time alone suffices, without another row anywhere. The input still counts when it comes back (J8a)."""
    a, b, fired = Events(tmp_path / "a"), Events(tmp_path / "b"), Fired(tmp_path)
    run = await started(child, union(a, b, idle_timeout=Duration(2.0)), fired)
    a.put(0, 1, 70)
    await run.batches("windows", 0)
    a.put(130)
    await fired.are({0: 2, 1: 1})
    b.put(131, 132)
    await run.batches("b", 0)
    a.put(200)
    await fired.are({0: 2, 1: 1, 2: 3})
    await run.stop()


async def test_a_task_without_state_passes_watermarks_on(child: Child, tmp_path: Path) -> None:
    """Watermarks of the first minutes of 1970, which are small numbers, are passed on, too (J8a)."""
    begin = datetime(1970, 1, 1, tzinfo=UTC)
    a, fired = Events(tmp_path / "a", begin), Fired(tmp_path, begin)
    middle = "SELECT time, value * 2 AS value FROM a WHERE value >= 0"
    graph = JobGraph(
        name="through",
        vertices=(
            a.vertex("a"),
            Vertex(id=VertexId("middle"), inputs=(exchange("a"),), sql=middle),
            Vertex(id=VertexId("windows"), inputs=(exchange("middle"),), sql=WINDOWS.format("SELECT time FROM middle")),
            call("time_sink:write", "windows", OutputMode.APPEND),
        ),
    )
    run = await started(child, graph, fired)
    a.put(0, 1, 2, 61)
    await fired.are({0: 3})
    a.put(125)
    await fired.are({0: 3, 1: 1})
    await run.stop()


async def test_a_join_behind_two_exchanges_gives_up_waiting(child: Child, tmp_path: Path) -> None:
    """An outer join's rows without a partner come when the watermarks of both sides are past them (J8a)."""
    a, b = Events(tmp_path / "a"), Events(tmp_path / "b")
    for second in range(0, 600, 60):
        a.put(*(second + n for n in range(10)))
        b.put(*(second + n for n in range(0, 10, 2)))
    join = """
        SELECT a.value AS left, b.value AS right FROM a LEFT JOIN b
        ON a.value = b.value AND b.time BETWEEN a.time AND a.time + INTERVAL 1 MINUTE
    """
    graph = JobGraph(
        name="join",
        mode=RuntimeMode.BATCH,
        vertices=(
            a.vertex("a"),
            b.vertex("b"),
            Vertex(id=VertexId("join"), inputs=(exchange("a"), exchange("b")), sql=join),
            parquet(tmp_path / "out", "join"),
        ),
    )
    run = Run(child, job("join", mode=RuntimeMode.BATCH), chain(graph), {})
    await run.start()
    await child.notice(p.InputEnded, lambda n: n.attempt_id == run.attempts[TaskId("join")])
    cuts = await run.checkpoint(1)
    staged = [t for taken, _ in cuts.values() for t in taken.transactions]
    files = [tmp_path / "out" / file.staged for transaction in staged for file in transaction.files]
    rows = [row for file in files for row in pyarrow.parquet.read_table(file).to_pylist()]
    truth = {(s + n, s + n if n % 2 == 0 else None) for s in range(0, 600, 60) for n in range(10)}
    assert {(row["left"], row["right"]) for row in rows} == truth
    assert len(rows) == len(truth)
    await run.stop()


def joined_with_itself(a: Events) -> JobGraph:
    """The windows of `a` after an exchange, each joined with its own copy."""
    windows = WINDOWS.format("SELECT time FROM a").replace(
        "unix_timestamp(window(time, '1 minute').start) AS start", "window(time, '1 minute') AS w"
    )
    joined = "SELECT unix_timestamp(c.w.start) AS start, d.n FROM windows c JOIN windows d ON c.w = d.w"
    return JobGraph(
        name="twice",
        vertices=(
            a.vertex("a"),
            Vertex(id=VertexId("windows"), inputs=(exchange("a"),), sql=windows),
            Vertex(id=VertexId("joined"), inputs=(Input(id=VertexId("windows")),), sql=joined),
            call("time_sink:write", "joined", OutputMode.APPEND),
        ),
    )


@pytest.mark.slow  # tests/shapes has idle inputs
async def test_one_operator_that_is_read_twice_fires_by_an_idle_input(child: Child, tmp_path: Path) -> None:
    """Both copies fire with each watermark, whether rows come with it or not, and at the end (J8a)."""
    a, fired = Events(tmp_path / "a"), Fired(tmp_path)
    run = await started(child, joined_with_itself(a), fired)
    a.put(0, 1, 70)
    await fired.are({0: 2})
    a.put(130)
    await fired.are({0: 2, 1: 1})
    a.put(190)
    await fired.are({0: 2, 1: 1, 2: 1})
    await run.stop()


async def test_one_operator_that_is_read_twice_fires_at_the_end_of_an_exchange(child: Child, tmp_path: Path) -> None:
    """Nothing is left in either copy (J8a)."""
    a, fired = Events(tmp_path / "a"), Fired(tmp_path)
    a.put(0, 1, 70)
    a.put(130)
    run = await started(child, joined_with_itself(a), fired, mode=RuntimeMode.BATCH)
    await child.notice(p.InputEnded, lambda n: n.attempt_id == run.attempts[TaskId("windows")])
    assert fired.windows() == {0: 2, 1: 1, 2: 1}
    await run.stop()
