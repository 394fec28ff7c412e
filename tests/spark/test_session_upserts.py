"""Tables of Delta and Iceberg whose rows replace each other by key (K4)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from minflinkd.jobgraph.model import OutputMode
from minflinkd.taskmanager.child import protocol as p
from tests.lakes import Lake
from tests.spark.session_child import Child, job, rate, sql, task
from tests.spark.test_session_sinks import restored
from tests.spark.test_session_snapshots import snapshot
from tests.spark.test_session_table_sinks import KINDS, faults, out

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]


@pytest.fixture
def child(connected: Child) -> Child:
    return connected


COUNTS = "SELECT value % 5 AS k, count(*) AS n, max(value) AS latest FROM numbers GROUP BY 1"


@KINDS
async def test_rows_replace_those_with_the_same_key(child: Child, kind: type[Lake], tmp_path: Path) -> None:
    """An aggregation in update mode keeps a table current, across restores beside an attempt that runs on (K4)."""
    lake = kind(tmp_path / "lake")
    context = job()
    vertex = replace(out(lake.sink("counts", key="k", partition_by=["k"])), output_mode=OutputMode.UPDATE)
    query = task(rate(10), sql("rows", COUNTS, "numbers"), vertex)
    attempt = await child.run(context, query)
    for checkpoint_id in range(1, 4):
        await child.batches(attempt, 2)
        taken, files = await snapshot(child, attempt, checkpoint_id)
        assert any(path.path.startswith("sinks/out/") for path in taken.files)
        following = await child.run(context, query, **await restored(child, taken, files, checkpoint_id))
        await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=checkpoint_id))
        count = 10 * (taken.batch_id + 1)
        expected = [{"k": k, "n": count // 5, "latest": count - 5 + k} for k in range(5)]
        found = await asyncio.to_thread(lake.rows, "counts")
        assert sorted(found, key=lambda row: int(row["k"])) == expected
        await child.stop(attempt)
        attempt = following
    await child.stop(attempt)


@KINDS
async def test_a_key_that_is_null_fails_its_micro_batch(child: Child, kind: type[Lake], tmp_path: Path) -> None:
    """It would be inserted anew each time. A key that cannot be compared is refused at submission (K4)."""
    lake = kind(tmp_path / "lake")
    rows = sql("rows", "SELECT IF(value = 7, NULL, value) AS k, value / 2D AS half FROM numbers", "numbers")
    attempt = await child.run(job(), task(rate(10), rows, out(lake.sink("keyed", key="k"))))
    failed = await child.notice(p.TaskFailed, lambda notice: notice.attempt_id == attempt)
    assert "a row breaks the rule key k NOT NULL" in failed.error.message
    for key, problem in (("half", "cannot be known by half, which is double"), ("other", "there is no column other")):
        ((_, said),) = await faults(child, task(rate(10), rows, out(lake.sink("new", key=key))))
        assert problem in said
