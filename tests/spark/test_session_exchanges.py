"""Several queries joined by exchanges, in one session child: consistent cuts, event time, and the end of input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.model import Input, JobGraph, OutputMode, RuntimeMode, Vertex
from minflinkd.rpc.snapshot import RowCounts
from minflinkd.runtime.ids import TaskId, VertexId
from minflinkd.taskmanager.child import protocol as p
from minflinkd.taskmanager.exchange.log import mark_consumed, read_entry
from tests.spark.deployment import Run
from tests.spark.session_child import Child, call, events, job, parquet, source

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

FAST, SLOW, KEYS = 1000, 300, 7
SINK = """
import json
def write(batch, epoch):
    rows = {r.key: [r.n, r.total] for r in batch.collect()}
    with open(%r, "a") as out:
        out.write(json.dumps([epoch, rows]) + "\\n")
"""


def exchange(name: str) -> Input:
    return Input(id=VertexId(name), exchange=True)


def two_into_one() -> JobGraph:
    totals = "SELECT value % 7 AS key, count(*) AS n, sum(value) AS total FROM ({}) GROUP BY 1"
    union = "SELECT value FROM fast UNION ALL SELECT value FROM slow"
    return JobGraph(
        name="union",
        parallelism=2,
        vertices=(
            source("fast", "rate-micro-batch", rowsPerBatch=str(FAST), numPartitions="2"),
            source("slow", "rate-micro-batch", rowsPerBatch=str(SLOW), numPartitions="1"),
            Vertex(id=VertexId("totals"), inputs=(exchange("fast"), exchange("slow")), sql=totals.format(union)),
            call("exchange_sink:write", "totals", OutputMode.UPDATE),
        ),
    )


def truth(fast: int, slow: int) -> dict[str, list[int]]:
    """Return count and sum by key after these micro-batches of each source, numbered from 0."""
    found: dict[str, list[int]] = {}
    for batch, rows in ((fast, FAST), (slow, SLOW)):
        for value in range((batch + 1) * rows):
            n, total = found.get(str(value % KEYS), [0, 0])
            found[str(value % KEYS)] = [n + 1, total + value]
    return found


@pytest.mark.parametrize("crashes", [2, pytest.param(6, marks=pytest.mark.slow)])
async def test_cuts_through_three_running_queries_are_exact_through_crashes(
    child: Child, tmp_path: Path, crashes: int
) -> None:
    """Cuts are aligned while all queries run. A restore continues from exactly there (C1, C2, J8, J9)."""
    out = tmp_path / "totals.jsonl"
    (tmp_path / "exchange_sink.py").write_text(SINK % str(out))
    artifacts = {"exchange_sink.py": str(tmp_path / "exchange_sink.py")}
    context, tasks = job("union", trigger_interval=0.1), chain(two_into_one())
    assert [(task.id, task.readers) for task in tasks] == [("fast", ("totals",)), ("slow", ("totals",)), ("totals", ())]
    run = Run(child, context, tasks, artifacts)
    await run.start()
    await child.batches(run.attempts[TaskId("totals")], 3)
    number, known, passed = 0, dict[str, list[int]](), dict[str, int]()
    for _ in range(crashes):
        cuts = []
        for _ in range(2):
            number += 1
            cuts.append(await run.checkpoint(number))
        at = {task: taken for task, (taken, _) in cuts[-1].items()}
        own = at[TaskId("fast")].batch_id - passed.get("fast", -1)
        assert at[TaskId("fast")].rows == RowCounts({"fast": own * FAST}, {"fast": own * FAST})  # of the attempt
        passed = {"fast": at[TaskId("fast")].batch_id}
        epoch, before = at[TaskId("totals")].batch_id, known
        known = dict(before)
        for done, rows in map(json.loads, out.read_text().splitlines()):
            if done <= epoch:
                known |= rows
        assert known == truth(at[TaskId("fast")].batch_id, at[TaskId("slow")].batch_id)
        await run.stop()
        out.write_text("")
        run = Run(child, context, tasks, artifacts)
        await run.start(cuts[-1])
        await child.batches(run.attempts[TaskId("totals")], epoch + 2)
    await run.stop()


async def test_windows_behind_an_exchange_all_fire_at_the_end_of_input(child: Child, tmp_path: Path) -> None:
    """Watermarks travel, and at the end of bounded input they go to the end of time (J8a)."""
    (tmp_path / "in").mkdir()
    for number in range(4):
        rows = [{"key": f"k{i % 3}", "time": f"2024-01-01T00:{number * 10 + i:02d}:00Z", "value": i} for i in range(10)]
        (tmp_path / "in" / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))
    window = "window(time, '5 minutes')"
    windows = f"SELECT {window}.start AS start, key, count(*) AS n FROM events GROUP BY {window}, key"
    graph = JobGraph(
        name="windows",
        parallelism=2,
        mode=RuntimeMode.BATCH,
        vertices=(
            events(tmp_path / "in", maxFilesPerTrigger="1"),
            Vertex(id=VertexId("windows"), inputs=(exchange("events"),), sql=windows),
            parquet(tmp_path / "out", "windows"),
        ),
    )
    run = Run(child, job("windows", mode=RuntimeMode.BATCH), chain(graph), {})
    await run.start()
    ended = await child.notice(p.InputEnded, lambda n: n.attempt_id == run.attempts[TaskId("windows")])
    assert ended.metrics.rows_out == 24
    assert ended.metrics.rows == RowCounts(read={"events": 40}, written={"out": 24})
    fed = await child.notice(p.InputEnded, lambda n: n.attempt_id == run.attempts[TaskId("events")])
    assert fed.metrics.rows_out == 40  # into its exchange
    assert fed.metrics.rows == RowCounts(read={"events": 40}, written={"events": 40})
    await run.stop()


async def test_a_task_that_is_ahead_of_its_reader_is_held_back_and_says_so(child: Child) -> None:
    """No micro-batch begins beyond the bound. A task that is held back can be checkpointed and stopped (J10)."""
    task = next(task for task in chain(two_into_one()) if task.id == "fast")
    log = child.fresh_directory()
    output = p.OutputChannel(directory=str(log), readers=task.readers, max_backlog=1)
    attempt = await child.run(job("union", trigger_interval=0.1), task, output=output)

    def held(notice: p.BatchFinished) -> bool:
        return notice.attempt_id == attempt and notice.metrics.backpressured

    told = (await child.notice(p.BatchFinished, held)).metrics
    assert (told.batches, sorted(path.name for path in (log / "entries").iterdir())) == (1, [f"{0:012d}"])
    entry = read_entry(log, 0)
    assert entry is not None
    assert told.output_backlog == entry.size > 1
    target = child.fresh_directory()
    request = p.TakeSnapshot(attempt_id=attempt, checkpoint_id=1, target_directory=str(target))
    assert (await child.ask(request)).batch_id == 0

    mark_consumed(log, "totals", 2)
    after = (await child.batches(attempt, 1)).metrics
    assert after.backpressured_ms > 0
    assert not (log / "entries" / f"{0:012d}").exists()
    again = await child.notice(p.BatchFinished, lambda n: held(n) and n.metrics.batch_id == 1)
    assert again.metrics.backpressured_ms >= after.backpressured_ms
    await child.stop(attempt)
