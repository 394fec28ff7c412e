"""What the partitions of a running task have done, as Spark says it: the source of a vertex's subtasks (E1)."""

from __future__ import annotations

from pathlib import Path

import pytest

from minflinkd.rpc.messages import TaskPartitions
from minflinkd.runtime.ids import AttemptId
from minflinkd.taskmanager.child import protocol as p
from tests.spark.session_child import Child, job, parquet, rate, sql, task
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

# Eight of ten rows have one key, and each row costs time, after the rows were distributed by their keys.
KEYS = "SELECT value, if(value % 10 < 8, 0, value % 10) AS k FROM numbers"
SPREAD = f"SELECT /*+ REPARTITION(4, k) */ * FROM ({KEYS})"
COSTLY = "SELECT k, aggregate(sequence(1, 3000), 0L, (a, x) -> a + hash(x, value)) AS h FROM spread"


async def told(child: Child, attempt: AttemptId, batch_id: int) -> TaskPartitions:
    """Return what is told once this micro-batch, or a later one, is the last one."""
    found = TaskPartitions()

    async def is_there() -> bool:
        nonlocal found
        found = await child.ask(p.TellPartitions(attempt_id=attempt))
        return found.batch_id >= batch_id

    await until(is_there, f"the partitions of micro-batch {batch_id}")
    return found


async def test_a_skewed_key_makes_one_partition_long(child: Child, tmp_path: Path) -> None:
    """The deciding stage is the one with the costly rows, and all of its partitions are told, with the long one."""
    query = task(
        rate(1000),
        sql("spread", SPREAD, "numbers"),
        sql("costly", COSTLY, "spread"),
        parquet(tmp_path, "costly"),
        parallelism=4,
    )
    attempt = await child.run(job(), query)
    found = await told(child, attempt, 2)
    await child.stop(attempt)
    assert (found.partitions, [one.index for one in found.told]) == (4, [0, 1, 2, 3])
    longest, *others = sorted(found.told, key=lambda one: -one.total.ms)
    assert longest.last.rows_in >= 800
    assert sum(one.last.rows_in for one in found.told) == 1000
    assert longest.last.rows_out == longest.last.rows_in, "it writes what it reads into the sink's files"
    assert longest.last.bytes_in > max(one.last.bytes_in for one in others)
    assert longest.total.ms > 2 * max(one.total.ms for one in others)
    assert longest.total.rows_in >= 3 * 800
    assert {(one.status, one.attempt, one.executor) for one in found.told} == {("SUCCESS", 0, "driver")}
    assert all(one.started_ms > 1_600_000_000_000 for one in found.told)


async def test_a_stage_with_few_partitions_tells_those_that_it_has(child: Child, tmp_path: Path) -> None:
    """Without a shuffle, the partitions are those of the source, whatever the parallelism."""
    attempt = await child.run(job(), task(rate(10), parquet(tmp_path, "numbers"), parallelism=4))
    found = await told(child, attempt, 1)  # before, its first one may be under way
    await child.stop(attempt)
    assert [one.index for one in found.told] == [0, 1]
    assert [one.last.rows_out for one in found.told] == [5, 5]


async def test_queries_beside_each_other_are_told_apart(child: Child, tmp_path: Path) -> None:
    """A quick query does not make the session forget a slow one."""
    slow = await child.run(job(), task(rate(20), parquet(tmp_path / "slow", "numbers"), parallelism=2))
    quick = await child.run(job(), task(rate(2), parquet(tmp_path / "quick", "numbers"), parallelism=2))
    await told(child, quick, 3)
    found = await told(child, slow, 1), await told(child, quick, 1)
    await child.stop(slow)
    await child.stop(quick)
    assert [sum(one.last.rows_out for one in each.told) for each in found] == [20, 2]


async def test_an_attempt_that_does_not_run_is_refused(child: Child) -> None:
    with pytest.raises(Exception, match="does not run here"):
        await child.ask(p.TellPartitions(attempt_id=AttemptId("0" * 32)))
