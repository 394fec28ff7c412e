"""Running tasks in a warm session child: start, figures, two at the same time, several sinks."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow.parquet
import pytest

from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.child import protocol as p
from tests.files import files_below
from tests.spark.session_child import Child, call, job, parquet, rate, sql, task

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

EVEN = sql("even", "SELECT * FROM numbers WHERE value % 2 = 0", "numbers")


async def test_a_warm_session_says_what_its_start_cost(child: Child) -> None:
    """Every phase of a start is measured, and the warm-up leaves nothing behind (R)."""
    assert child.ready is not None
    assert set(child.ready.phases) == {"import", "session", "first_job", "warm"}
    assert not list((child.directory / "work").glob("warm-up-*"))
    pong = await child.ask(p.Ping())
    assert (pong.attempts, pong.state_stores) == ((), 0)
    assert (child.directory / "log" / "session-jvm.log").exists()


async def test_a_task_tells_its_rows_and_batches(child: Child, tmp_path: Path) -> None:
    """Rows in, rows staged, micro-batches and the time of the first one are reported."""
    attempt = await child.run(job(), task(rate(100), EVEN, parquet(tmp_path, "even")))
    finished = await child.batches(attempt, 4)
    await child.stop(attempt)
    metrics = finished.metrics
    assert metrics.batches == metrics.batch_id + 1
    assert metrics.rows_in == 100 * metrics.batches
    assert metrics.rows_out >= 50 * metrics.batches
    assert metrics.batch_ms > 0
    assert metrics.first_batch_ms is not None


async def test_a_repeated_request_starts_nothing_twice(child: Child, tmp_path: Path) -> None:
    """A sender that did not see the answer may ask again. A stopped attempt is stopped once (A5)."""
    query, context, directory = task(rate(10), parquet(tmp_path, "numbers")), job(), child.fresh_directory()
    attempt = await child.run(context, query, directory=directory)
    again = p.RunTask(job=context, task=query, attempt_id=attempt, directory=str(directory))
    assert set((await child.ask(again)).phases) == {"code", "build", "prepare", "start"}
    assert (await child.ask(p.Ping())).attempts == (attempt,)
    for _ in range(2):
        await child.stop(attempt)
    with pytest.raises(MinflinkError, match="does not run here"):
        await child.ask(p.TakeSnapshot(attempt_id=attempt, checkpoint_id=1, target_directory=str(tmp_path / "s")))


async def test_two_tasks_have_views_of_the_same_name(child: Child, tmp_path: Path) -> None:
    """Each task runs in a session of its own, so that views and settings of two jobs never meet (J7)."""
    attempts = {}
    for factor in (2, 3):
        text = f"SELECT value * {factor} AS value FROM numbers"
        query = task(rate(10), sql("scaled", text, "numbers"), parquet(tmp_path / str(factor), "scaled"))
        settings = {"spark.sql.session.timeZone": f"GMT+{factor}"}
        attempts[factor] = await child.run(job(str(factor), spark=settings), query)
    for factor, attempt in attempts.items():
        await child.batches(attempt, 2)
        target = str(tmp_path / f"snapshot-{factor}")
        taken = await child.ask(p.TakeSnapshot(attempt_id=attempt, checkpoint_id=1, target_directory=target))
        await child.stop(attempt)
        files = [tmp_path / str(factor) / file.staged for file in taken.transactions[0].files]
        values = {value for file in files for value in pyarrow.parquet.read_table(file)["value"].to_pylist()}
        assert values
        assert all(value % factor == 0 for value in values)
        assert any(value % 6 for value in values), "of the other task's view"


async def test_several_sinks_see_the_same_rows(child: Child, tmp_path: Path) -> None:
    """A batch that feeds two sinks is computed once, even if one of them reads nothing of it (J5)."""
    (tmp_path / "lazy.py").write_text("def write(batch, epoch):\n    pass\n")
    random = sql("random", "SELECT value, rand() AS r FROM numbers", "numbers")
    left, right = (parquet(tmp_path / name, "random") for name in ("left", "right"))
    right = msgspec.structs.replace(right, id=VertexId("other"))
    lazy = msgspec.structs.replace(call("lazy:write", "random"), id=VertexId("lazy"))
    artifacts = {"lazy.py": str(tmp_path / "lazy.py")}
    attempt = await child.run(job(), task(rate(50), random, left, right, lazy), artifacts=artifacts)
    await child.batches(attempt, 2)
    target = str(tmp_path / "s")
    taken = await child.ask(p.TakeSnapshot(attempt_id=attempt, checkpoint_id=1, target_directory=target))
    await child.stop(attempt)
    seen = []
    for transaction, name in zip(taken.transactions, ("left", "right"), strict=True):
        tables = [pyarrow.parquet.read_table(tmp_path / name / file.staged) for file in transaction.files]
        seen.append({row["value"]: row["r"] for table in tables for row in table.to_pylist()})
    assert seen[0] == seen[1]
    assert len(seen[0]) == 50 * (taken.batch_id + 1)


async def test_empty_batches_write_nothing(child: Child, tmp_path: Path) -> None:
    """An idle or filtered sink does not get a file with each micro-batch (J12)."""
    nothing = sql("nothing", "SELECT * FROM numbers WHERE value < 0", "numbers")
    once = job(trigger_interval=1e6)  # no second micro-batch, which could be stopped while it writes
    attempt = await child.run(once, task(rate(10), nothing, parquet(tmp_path / "out", "nothing")))
    await child.batches(attempt, 0)
    target = str(tmp_path / "s")
    taken = await child.ask(p.TakeSnapshot(attempt_id=attempt, checkpoint_id=1, target_directory=target))
    await child.stop(attempt)
    assert (taken.batch_id, taken.transactions[0].files) == (0, ())
    assert files_below(tmp_path / "out") == []
