"""What an attempt reports of its input before it has had any, and with its first rows (H7)."""

from __future__ import annotations

from pathlib import Path

import pytest

from minflinkd.jobgraph.model import Source, Vertex
from minflinkd.rpc.messages import TaskMetrics
from minflinkd.runtime.ids import AttemptId, VertexId
from minflinkd.taskmanager.child import protocol as p
from tests.spark.session_child import Child, call, job, parquet, task

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

HELD_BACK = """
import os, time
def write(batch, epoch):
    batch.count()
    while not os.path.exists(%r):
        time.sleep(0.01)
"""


def files(directory: Path, name: str) -> Vertex:
    (directory / name).mkdir()
    read = Source(format="json", path=str(directory / name), schema="value LONG")
    return Vertex(id=VertexId(name), source=read)


def put(directory: Path, name: str, value: int) -> None:
    hidden = directory / f".{value}"
    hidden.write_text(f'{{"value": {value}}}\n')
    hidden.rename(directory / name / f"{value}.json")


async def told(child: Child, attempt: AttemptId, *, waited: bool) -> TaskMetrics:
    notice = await child.notice(
        p.BatchFinished, lambda n: n.attempt_id == attempt and n.metrics.waited is waited, timeout=90.0
    )
    assert isinstance(notice, p.BatchFinished)
    return notice.metrics


async def test_a_query_that_looks_for_rows_seldom_says_that_it_has_found_none(child: Child, tmp_path: Path) -> None:
    """The query looks at its start. Until its next look nobody could otherwise tell whether it hangs (H7)."""
    seldom = job(trigger_interval=1e6)
    attempt = await child.run(seldom, task(files(tmp_path, "f"), parquet(tmp_path / "out", "f")))
    metrics = await told(child, attempt, waited=True)
    await child.stop(attempt)
    assert (metrics.batches, metrics.advanced) == (0, False)


async def test_a_query_that_has_waited_says_when_it_processes_rows(child: Child, tmp_path: Path) -> None:
    """The query says so before it has finished with the rows, since it may never finish (H7)."""
    go_on = tmp_path / "go-on"
    (tmp_path / "held.py").write_text(HELD_BACK % str(go_on))
    context = job(trigger_interval=0.1)
    held = task(files(tmp_path, "f"), call("held:write", "f"))
    attempt = await child.run(context, held, artifacts={"held.py": str(tmp_path / "held.py")})
    await told(child, attempt, waited=True)
    put(tmp_path, "f", 1)
    assert (await told(child, attempt, waited=False)).batches == 0
    go_on.touch()
    metrics = (await child.batches(attempt, 0)).metrics
    await child.stop(attempt)
    assert (metrics.rows_in, metrics.advanced) == (1, True)
