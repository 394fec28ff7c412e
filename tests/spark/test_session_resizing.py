"""A running query that gets another number of slots (R20)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minflinkd.jobgraph.model import OutputMode
from minflinkd.runtime.errors import RemoteError
from minflinkd.runtime.ids import AttemptId
from minflinkd.taskmanager.child import protocol as p
from tests.spark.session_child import Child, call, job, rate, sql, task

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

ROWS = 1000
SINK = """
import json
def write(batch, epoch):
    tasks = batch.rdd.getNumPartitions()
    rows = sorted(list(row) for row in batch.collect())
    with open(%r, "a") as out:
        out.write(json.dumps([epoch, tasks, rows]) + "\\n")
"""


class Written:
    """What the sink has written: of each micro-batch, how many Spark tasks computed it, and its rows."""

    def __init__(self, base: Path) -> None:
        self.file = base / "written.jsonl"
        self.code = base / "sink.py"
        self.code.write_text(SINK % str(self.file))

    def batches(self) -> dict[int, tuple[int, list[list[int]]]]:
        lines = map(json.loads, self.file.read_text().splitlines())
        return {epoch: (tasks, rows) for epoch, tasks, rows in lines}


async def test_a_query_computes_as_many_partitions_at_a_time_as_it_has_slots(child: Child, tmp_path: Path) -> None:
    """More slots, then fewer than ever, while the query runs. Its counts are exact, and its stores stay open."""
    totals = sql("totals", "SELECT value % 10 AS k, count(*) AS n, sum(value) AS s FROM numbers GROUP BY 1", "numbers")
    written = Written(tmp_path)
    query = task(rate(ROWS), totals, call("sink:write", "totals", OutputMode.UPDATE), parallelism=2)
    attempt = await child.run(job(), query, artifacts={"sink.py": str(written.code)}, partitions=8)
    last = (await child.batches(attempt, 2)).metrics.batch_id
    for slots in (4, 4, 1, 8):
        await child.ask(p.ResizeAttempt(attempt_id=attempt, slots=slots))
        # The micro-batch under way may have begun with the slots before.
        last = (await child.batches(attempt, last + 4)).metrics.batch_id
        assert written.batches()[last][0] == slots
    assert (await child.ask(p.Ping())).state_stores == 8
    await child.stop(attempt)
    batches = written.batches()
    assert {tasks for tasks, _ in batches.values()} == {1, 2, 4, 8}
    assert list(batches) == list(range(len(batches))), "no micro-batch is missing, and none was repeated"
    for epoch, (_, rows) in batches.items():
        end = ROWS * (epoch + 1)
        assert rows == [[k, end // 10, sum(range(k, end, 10))] for k in range(10)]


@pytest.mark.parametrize(("select", "refused"), [("SELECT", False), ("SELECT /*+ REPARTITION(value) */", True)])
async def test_a_query_without_state_keeps_the_partitions_of_its_shuffle(
    child: Child, tmp_path: Path, select: str, refused: bool
) -> None:
    """Its plan was made for its slots. Without a shuffle, its partitions are those of its sources."""
    even = sql("even", f"{select} value FROM numbers WHERE value % 100 = 0", "numbers")
    written = Written(tmp_path)
    query = task(rate(ROWS), even, call("sink:write", "even"), parallelism=2)
    attempt = await child.run(job(), query, artifacts={"sink.py": str(written.code)})
    last = (await child.batches(attempt, 1)).metrics.batch_id
    resize = p.ResizeAttempt(attempt_id=attempt, slots=4)
    if refused:
        with pytest.raises(RemoteError) as caught:
            await child.ask(resize)
        assert caught.value.info().code == "not-resizable"
    else:
        await child.ask(resize)
    await child.batches(attempt, last + 2)
    await child.stop(attempt)


async def test_an_unknown_attempt_is_not_resized(child: Child) -> None:
    with pytest.raises(RemoteError) as caught:
        await child.ask(p.ResizeAttempt(attempt_id=AttemptId("f" * 32), slots=4))
    assert caught.value.info().code == "unknown-attempt"
