"""Checkpoints through exchanges that do not simply align: unaligned, at-least-once, aborted, stopped, rescaled."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.model import Checkpointing, CheckpointMode, Input, JobGraph, OutputMode, Vertex
from minflinkd.runtime.errors import RemoteError
from minflinkd.runtime.ids import TaskId, VertexId
from minflinkd.runtime.units import Duration
from tests.spark.deployment import Cuts, Run
from tests.spark.session_child import Child, call, job, source, sql
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

FAST, SLOW = 500, 100  # rows of a micro-batch
UNION = "SELECT 'fast' AS source, value FROM fast UNION ALL SELECT 'slow' AS source, value FROM slow"
SINK = """
import json, os, time
def write(batch, epoch):
    rows = [list(r) for r in batch.collect()]
    if os.path.exists(%(slow)r):
        time.sleep(2.5)
    with open(%(out)r, "a") as out:
        out.write(json.dumps([epoch, rows]) + "\\n")
"""


class Written:
    """What a python sink wrote. While it is `slow`, it takes its time."""

    def __init__(self, directory: Path) -> None:
        self._out, self._slow = directory / "rows.jsonl", directory / "slow"
        (directory / "cut_sink.py").write_text(SINK % {"out": str(self._out), "slow": str(self._slow)})
        self.artifacts = {"cut_sink.py": str(directory / "cut_sink.py")}
        self._before: list[Any] = []

    def rows(self, epoch: int = 2**31) -> list[list[Any]]:
        return [*self._before, *(row for done, rows in self._batches() if done <= epoch for row in rows)]

    def epochs(self) -> list[int]:
        return [done for done, _ in self._batches()]

    def _batches(self) -> list[Any]:
        if not self._out.exists():
            return []
        whole, _, _ = self._out.read_text().rpartition("\n")  # the last line may be being written
        return [*map(json.loads, whole.splitlines())]

    def keep(self, epoch: int) -> None:
        """Keep what a restore of this micro-batch keeps."""
        self._before = self.rows(epoch)
        self._out.unlink(missing_ok=True)

    @contextmanager
    def slow(self) -> Iterator[None]:
        self._slow.touch()
        try:
            yield
        finally:
            self._slow.unlink()


def exchange(name: str, **fields: Any) -> Input:
    return Input(id=VertexId(name), exchange=True, **fields)


def graph(text: str, mode: OutputMode = OutputMode.UPDATE, *, parallelism: int = 1) -> JobGraph:
    """Two sources, each a task of its own, and a task that reads both."""
    return JobGraph(
        name="cuts",
        parallelism=parallelism,
        vertices=(
            source("fast", "rate-micro-batch", rowsPerBatch=str(FAST), numPartitions="1"),
            source("slow", "rate-micro-batch", rowsPerBatch=str(SLOW), numPartitions="1"),
            Vertex(id=VertexId("both"), inputs=(exchange("fast"), exchange("slow")), sql=text),
            call("cut_sink:write", "both", mode),
        ),
    )


TOTALS = graph(f"SELECT source, count(*) AS n, sum(value) AS total FROM ({UNION}) GROUP BY source")


def totals(cuts: Cuts) -> dict[str, list[int]]:
    """Return the expected totals at a cut, by source."""
    rows = {"fast": (at(cuts, "fast") + 1) * FAST, "slow": (at(cuts, "slow") + 1) * SLOW}
    return {name: [n, n * (n - 1) // 2] for name, n in rows.items() if n}


def at(cuts: Cuts, task: str) -> int:
    return cuts[TaskId(task)][0].batch_id


def latest(written: Written, cuts: Cuts) -> dict[str, list[int]]:
    return {name: rest for name, *rest in written.rows(at(cuts, "both"))}


async def started(child: Child, what: JobGraph, written: Written, cuts: Cuts | None = None, **mode: Any) -> Run:
    # Sources without a pause would use the whole machine, and Spark gives up on Python workers that start slowly.
    context = msgspec.structs.replace(job("cuts", trigger_interval=0.25), checkpointing=Checkpointing(**mode))
    run = Run(child, context, chain(what), written.artifacts)
    await run.start(cuts)
    return run


async def test_a_checkpoint_that_aligns_too_long_takes_the_unread_entries_with_it(child: Child, tmp_path: Path) -> None:
    """The checkpoint completes while the task lags, says what it overtook, and is restored exactly (C5)."""
    written = Written(tmp_path)
    limit = Duration(1.0)
    run = await started(child, TOTALS, written, alignment_timeout=limit)
    await run.batches("both", 1)
    with written.slow():
        slow_from = (await run.batches("both", 1)).metrics.batch_id
        await run.batches("both", slow_from + 2)  # one has been slow from its beginning, so entries have piled up
        cuts = await run.checkpoint(1)
    taken = cuts[TaskId("both")][0]
    assert taken.unaligned
    assert taken.alignment_ms >= 1000
    assert taken.alignment_bytes > 0
    assert any(file.path.startswith("inputs/") for file in taken.files)
    assert latest(written, cuts) != totals(cuts), "what is unread is not in the state yet"
    await run.stop()
    written.keep(taken.batch_id)
    run = await started(child, TOTALS, written, cuts, alignment_timeout=Duration(60.0))
    await run.batches("both", taken.batch_id + 1)
    cuts = await run.checkpoint(2)
    assert not cuts[TaskId("both")][0].unaligned
    assert latest(written, cuts) == totals(cuts)
    await run.stop()


@pytest.mark.slow  # few jobs ask for at-least-once
async def test_at_least_once_loses_nothing(child: Child, tmp_path: Path) -> None:
    """No input is held back. Rows of the next epoch that are already in a cut are repeated (C3)."""
    written, rows = Written(tmp_path), graph(UNION, OutputMode.APPEND)
    mode = CheckpointMode.AT_LEAST_ONCE
    run = await started(child, rows, written, mode=mode)
    await run.batches("both", 2)
    cuts: Cuts = {}
    for number in (1, 2, 3):
        cuts = await run.checkpoint(number)
    await run.stop()
    written.keep(at(cuts, "both"))
    run = await started(child, rows, written, cuts, mode=mode)
    await run.batches("both", at(cuts, "both") + 2)
    cuts = await run.checkpoint(4)
    await run.stop()
    found = Counter((name, value) for name, value in written.rows())
    for name, count in (("fast", (at(cuts, "fast") + 1) * FAST), ("slow", (at(cuts, "slow") + 1) * SLOW)):
        assert {value for source, value in found if source == name} >= set(range(count))


@pytest.mark.slow  # few jobs ask for at-least-once
async def test_at_least_once_repeats_what_a_cut_holds_of_the_next_epoch(child: Child, tmp_path: Path) -> None:
    """An input that is not held back runs ahead of its barrier. A restore repeats those rows, and loses none (C3)."""
    written, rows, mode = Written(tmp_path), graph(UNION, OutputMode.APPEND), CheckpointMode.AT_LEAST_ONCE
    run = await started(child, rows, written, mode=mode)
    await run.batches("both", 1)
    waiting = asyncio.create_task(run.take("both", 1))
    fast = await run.take("fast", 1)
    ahead = range((fast[0].batch_id + 1) * FAST, (fast[0].batch_id + 2) * FAST)
    await until(lambda: ["fast", ahead[-1]] in written.rows())
    await run.batches("both", written.epochs()[-1])
    cuts = {TaskId("fast"): fast, TaskId("slow"): await run.take("slow", 1), TaskId("both"): await waiting}
    await run.stop()
    written.keep(at(cuts, "both"))
    run = await started(child, rows, written, cuts, mode=mode)
    await run.batches("both", at(cuts, "both") + 2)
    cuts = await run.checkpoint(2)
    await run.stop()
    found = Counter((name, value) for name, value in written.rows(at(cuts, "both")))
    for name, count in (("fast", (at(cuts, "fast") + 1) * FAST), ("slow", (at(cuts, "slow") + 1) * SLOW)):
        assert {value for source, value in found if source == name} >= set(range(count))
    again = {value for (name, value), times in found.items() if name == "fast" and times == 2}
    assert again >= set(ahead), "what was ahead of the barrier is there twice"
    assert max(found.values()) == 2


async def test_aborted_checkpoints_hold_nothing_up(child: Child, tmp_path: Path) -> None:
    """The abort comes before the barriers, after them, or is lost (C13)."""
    written = Written(tmp_path)
    run = await started(child, TOTALS, written)
    await run.batches("both", 0)
    waiting = asyncio.create_task(run.take("both", 1))
    await asyncio.wait([waiting], timeout=0.1)
    await run.abort("both", 1)
    with pytest.raises(RemoteError, match="checkpoint 1 was aborted"):
        await waiting
    await asyncio.gather(run.take("fast", 1), run.take("slow", 1))  # barriers that are late
    cuts = await run.checkpoint(2)
    assert latest(written, cuts) == totals(cuts)
    await run.take("fast", 3)  # its barrier holds one input
    await run.abort("both", 3)
    cuts = await run.checkpoint(4)
    assert latest(written, cuts) == totals(cuts)
    waiting = asyncio.create_task(run.take("both", 5))  # every message about the end of this one is lost
    await run.take("fast", 5)
    cuts = await run.checkpoint(6, oldest=6)
    with pytest.raises(RemoteError, match="checkpoint 5"):
        await waiting
    assert latest(written, cuts) == totals(cuts)
    await run.stop()


@pytest.mark.slow
async def test_nothing_is_published_behind_a_cut_that_the_job_stops_with(child: Child, tmp_path: Path) -> None:
    """Nothing is published until the checkpoint is aborted, since the job then continues (C24)."""
    written = Written(tmp_path)
    run = await started(child, TOTALS, written)
    await run.batches("both", 1)
    cuts = await run.checkpoint(1, stop=True)
    again = await run.checkpoint(2)
    for task in cuts:
        assert at(again, task) == at(cuts, task)
        assert again[task][0].output == (cuts[task][0].output + 1 if task != "both" else 0)
    for task in cuts:
        await run.abort(task, 1)
    await run.batches("both", at(cuts, "both") + 2)
    cuts = await run.checkpoint(3)
    assert latest(written, cuts) == totals(cuts)
    await run.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "times"),
    [
        (f"SELECT 'fast' AS source, value FROM fast UNION ALL {UNION}", 2),
        (
            "SELECT 'fast' AS source, l.value FROM fast l JOIN fast r ON l.value = r.value"
            " UNION ALL SELECT 'slow' AS source, value FROM slow",
            1,
        ),
    ],
    ids=["union", "join"],
)
async def test_one_exchange_may_be_read_twice(child: Child, tmp_path: Path, text: str, times: int) -> None:
    """Every place in the plan that reads it is at the barrier, before and after a restore (C2, C25)."""
    written, twice = Written(tmp_path), graph(text, OutputMode.APPEND)
    run = await started(child, twice, written)
    await run.batches("both", 2)
    cuts = await run.checkpoint(1)
    await run.stop()
    written.keep(at(cuts, "both"))
    run = await started(child, twice, written, cuts)
    await run.batches("both", at(cuts, "both") + 2)
    cuts = await run.checkpoint(2)
    found = Counter((name, value) for name, value in written.rows(at(cuts, "both")))
    truth = {("fast", value): times for value in range((at(cuts, "fast") + 1) * FAST)}
    truth |= {("slow", value): 1 for value in range((at(cuts, "slow") + 1) * SLOW)}
    assert found == truth
    await run.stop()


@pytest.mark.slow
async def test_a_task_that_reads_exchanges_is_rescaled(child: Child, tmp_path: Path) -> None:
    """The task's state is repartitioned. Its positions in the exchanges stay (R20)."""
    written = Written(tmp_path)
    run = await started(child, TOTALS, written)
    await run.batches("both", 1)
    cuts = await run.checkpoint(1)
    await run.stop()
    written.keep(at(cuts, "both"))
    wider = msgspec.structs.replace(TOTALS, parallelism=2)
    run = await started(child, wider, written, cuts)
    await run.batches("both", at(cuts, "both") + 3)
    cuts = await run.checkpoint(2)
    assert latest(written, cuts) == totals(cuts)
    await run.stop()


async def test_an_aggregate_reads_the_updates_of_another_one(child: Child, tmp_path: Path) -> None:
    """Data through an exchange has an output mode of its own (J8a)."""
    written = Written(tmp_path)
    chained = JobGraph(
        name="chained",
        vertices=(
            source("fast", "rate-micro-batch", rowsPerBatch=str(FAST), numPartitions="1"),
            sql("counts", "SELECT value % 5 AS key, count(*) AS n FROM fast GROUP BY 1", "fast"),
            Vertex(
                id=VertexId("both"),
                inputs=(exchange("counts", output_mode=OutputMode.UPDATE),),
                sql="SELECT key, max(n) AS n FROM counts GROUP BY key",
            ),
            call("cut_sink:write", "both", OutputMode.UPDATE),
        ),
    )
    run = await started(child, chained, written)
    await run.batches("both", 2)
    cuts = await run.checkpoint(1)
    rows = (at(cuts, "fast") + 1) * FAST
    assert dict(written.rows(at(cuts, "both"))) == dict.fromkeys(range(5), rows // 5)
    await run.stop()
