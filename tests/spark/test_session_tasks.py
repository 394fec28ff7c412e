"""Tasks in a real session child."""

from __future__ import annotations

from pathlib import Path

import pytest

from minflinkd.taskmanager import session_protocol as p
from tests.spark.session_child import Child, job, parquet, rate, sql, task

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="module")]


async def test_a_stateless_task_stages_every_row_once(child: Child, tmp_path: Path) -> None:
    """J12: what micro-batches write is recorded file by file, below a name that readers skip."""
    attempt = await child.run(
        job(),
        task(rate(100), sql("even", "SELECT * FROM numbers WHERE value % 2 = 0", "numbers"), parquet(tmp_path, "even")),
    )
    await child.batches(attempt, 3)
    taken = await child.ask(
        p.TakeSnapshot(attempt_id=attempt, checkpoint_id=1, target_directory=str(tmp_path / "snap"))
    )
    stopped = await child.ask(p.StopTask(attempt_id=attempt))
    assert stopped == p.TaskStopped(ended=True, unloaded=True)
    print(taken, child.ready)
