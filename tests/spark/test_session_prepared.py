"""A task that starts from the plan that its analysis, or the preparation of a hot standby, has built."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from minflinkd.jobgraph.model import Delivery, Sink, Vertex
from minflinkd.rpc.messages import JobContext
from minflinkd.runtime.errors import RemoteError
from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.child import protocol as p
from tests.spark.session_child import Child, inputs, job, python, rate, sql, task

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

THREADS = 6
ZONE = "spark.sql.session.timeZone"
CODE = """
import sys, threading
from pyspark import SparkContext

meeting = sys.__dict__.setdefault("meeting", threading.Barrier({threads}))

def met(inputs, params):
    meeting.wait(60)
    return inputs["numbers"]

def active():  # pyspark's own idea of it is one for all threads
    return getattr(SparkContext._active_spark_context._jvm, "org.apache.spark.sql.classic.SparkSession").active()

class Telling:
    def __init__(self, *_):
        pass
    def stage(self, batch, epoch):
        return None
    def commit(self, checkpoint_id, tokens):
        pass
    def abort(self, tokens):
        if tokens is None:  # at the start of the attempt
            with open({told!r}, "w") as file:
                file.write(active().conf().get("spark.sql.session.timeZone"))
"""
IMPORTED = """
import pathlib
with pathlib.Path({times!r}).open("a") as file:
    file.write("imported\\n")
if pathlib.Path({wrong!r}).exists():
    raise ValueError("not this time")

def same(inputs, params):
    if pathlib.Path({wrong!r} + "-planned").exists():
        raise ValueError("nor that time")
    return inputs["numbers"]
"""


def telling(source: str) -> Vertex:
    sink = Sink(python="acme:Telling", delivery=Delivery.EXACTLY_ONCE)
    return Vertex(id=VertexId("out"), inputs=inputs(source), sink=sink)


def nowhere(directory: Path) -> Vertex:
    return Vertex(id=VertexId("out"), inputs=inputs("same"), sink=Sink(format="parquet", path=str(directory / "out")))


async def test_a_prepared_plan_starts_in_its_own_session_whatever_was_active_on_the_thread(
    child: Child, tmp_path: Path
) -> None:
    """When the task starts, every thread of the child has last built a plan of another job (J7)."""
    told = tmp_path / "told"
    (tmp_path / "acme.py").write_text(CODE.format(threads=THREADS, told=str(told)))
    artifacts = {"acme.py": str(tmp_path / "acme.py")}
    own, query = job(spark={ZONE: "GMT+1"}), task(rate(10), telling("numbers"))
    assert not (await child.ask(p.AnalyzeTasks(job=own, tasks=(query,), artifacts=artifacts))).faults
    meeting = task(rate(10), python("met", "acme:met", "numbers"), telling("met"))
    others = [job(spark={ZONE: f"GMT+{2 + number}"}) for number in range(THREADS)]
    analyses = [child.ask(p.AnalyzeTasks(job=other, tasks=(meeting,), artifacts=artifacts)) for other in others]
    assert [analysis.faults for analysis in await asyncio.gather(*analyses)] == [()] * THREADS
    attempt = await child.run(own, query, artifacts=artifacts)
    assert told.read_text() == "GMT+1"
    await child.batches(attempt, 0)
    await child.stop(attempt)


async def analyzed(child: Child, context: JobContext, directory: Path, *, prepared: bool = False) -> dict[str, str]:
    """Return artifacts of a job whose code is sound and is imported once, by its analysis or its preparation."""
    code = IMPORTED.format(times=str(directory / "times"), wrong=str(directory / "wrong"))
    (directory / "acme.py").write_text(code)
    artifacts = {"acme.py": str(directory / "acme.py")}
    query = task(rate(10), python("same", "acme:same", "numbers"), nowhere(directory))
    if prepared:
        await child.ask(p.PrepareTasks(job=context, tasks=(query,), artifacts=artifacts))
    else:
        assert not (await child.ask(p.AnalyzeTasks(job=context, tasks=(query,), artifacts=artifacts))).faults
    return artifacts


@pytest.mark.parametrize("prepared", [False, True])
async def test_the_code_of_a_prepared_plan_is_neither_imported_nor_called_again(
    child: Child, tmp_path: Path, prepared: bool
) -> None:
    """Code that would fail the second time is not run a second time (H3, R32)."""
    context = job()
    artifacts = await analyzed(child, context, tmp_path, prepared=prepared)
    for name in ("wrong", "wrong-planned"):
        (tmp_path / name).touch()
    query = task(rate(10), python("same", "acme:same", "numbers"), nowhere(tmp_path))
    attempt = await child.run(context, query, artifacts=artifacts)
    await child.batches(attempt, 0)
    await child.stop(attempt)
    assert (tmp_path / "times").read_text().splitlines() == ["imported"]


async def test_a_preparation_that_fails_leaves_nothing(child: Child, tmp_path: Path) -> None:
    """An attempt will report the fault; until then nobody asks (R32)."""
    context = job()
    code = IMPORTED.format(times=str(tmp_path / "times"), wrong=str(tmp_path / "wrong"))
    (tmp_path / "acme.py").write_text(code)
    (tmp_path / "wrong-planned").touch()
    artifacts = {"acme.py": str(tmp_path / "acme.py")}
    query = task(rate(10), python("same", "acme:same", "numbers"), nowhere(tmp_path))
    await child.ask(p.PrepareTasks(job=context, tasks=(query,), artifacts=artifacts))
    (tmp_path / "wrong-planned").unlink()
    attempt = await child.run(context, query, artifacts=artifacts)
    await child.batches(attempt, 0)
    await child.stop(attempt)
    assert (tmp_path / "times").read_text().splitlines() == ["imported"] * 2


@pytest.mark.parametrize(("when", "why"), [("wrong", "not this time"), ("wrong-planned", "nor that time")])
async def test_code_that_raises_only_at_the_deployment_fails_the_start_with_its_traceback(
    child: Child, tmp_path: Path, when: str, why: str
) -> None:
    """The task is narrower than the analysed one, so its code is imported and called once more (H7)."""
    context = job()
    artifacts = await analyzed(child, context, tmp_path)
    (tmp_path / when).touch()
    narrower = task(rate(10), python("same", "acme:same", "numbers"), nowhere(tmp_path), parallelism=1)
    other = task(rate(10), sql("same", "SELECT * FROM numbers", "numbers"), nowhere(tmp_path))
    assert not (await child.ask(p.AnalyzeTasks(job=context, tasks=(other,), artifacts={}))).faults  # lets the code go
    with pytest.raises(RemoteError) as caught:
        await child.run(context, narrower, artifacts=artifacts)
    assert why in caught.value.message
    assert "acme" in caught.value.info().traceback
    assert (await child.ask(p.Ping())).attempts == ()
