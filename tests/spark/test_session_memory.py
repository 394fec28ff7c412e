"""What a session says of its JVM's memory and garbage collection, and what its Python workers use (E17)."""

from __future__ import annotations

from pathlib import Path

import pytest

from minflinkd.rest.jvm import flink_metrics
from minflinkd.taskmanager.child import protocol as p
from minflinkd.taskmanager.child.figures import worker_metrics
from minflinkd.taskmanager.child.garbage import stopped_ms
from tests.spark.session_child import Child, call, job, python, rate, task

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

CODE = """
def doubled(inputs, params):
    def double(frames):
        for frame in frames:
            yield frame * 2

    return inputs["numbers"].select("value").mapInPandas(double, "value long")


def write(batch, epoch):
    batch.collect()
    batch.sparkSession._jvm.java.lang.System.gc()
"""


async def test_a_session_says_what_its_jvm_collects_and_what_its_python_workers_use(
    child: Child, tmp_path: Path
) -> None:
    """The figures are Java's own: a collection that somebody asks for is counted, with its time."""
    assert child.ready is not None
    before = (await child.ask(p.Ping())).jvm
    (tmp_path / "memory.py").write_text(CODE)
    query = task(rate(100), python("doubled", "memory:doubled", "numbers"), call("memory:write", "doubled"))
    attempt = await child.run(job(), query, artifacts={"memory.py": str(tmp_path / "memory.py")})
    await child.batches(attempt, 2)
    after = (await child.ask(p.Ping())).jvm
    workers = worker_metrics(child.ready.jvm_pid)
    assert workers["python_workers.processes"] >= 2, "Spark's process that forks them, and one of them"
    assert workers["python_workers.rss_bytes"] > 20e6
    was, stopped = stopped_ms(before), stopped_ms(after)
    assert was is not None
    assert stopped is not None
    assert stopped > was
    first, last = (flink_metrics({f"jvm.{name}": value for name, value in one.items()}) for one in (before, after))
    assert 0 < last.heap_used <= last.heap_committed <= last.heap_max
    assert last.non_heap_used > 50e6
    counted = {one.name: one.count for one in first.garbage_collectors}
    assert any(one.count >= counted[one.name] + 2 for one in last.garbage_collectors)
