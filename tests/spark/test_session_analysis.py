"""What Spark and user code say of a job before anything of it starts (J4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from minflinkd.jobgraph.model import OutputMode, Sink, Vertex
from minflinkd.rpc.messages import Analysis
from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager import session_protocol as p
from tests.spark.session_child import Child, call, events, inputs, job, parquet, python, rate, source, sql, task

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

CODE = """
def good(inputs, params):
    return inputs["numbers"].selectExpr("value * %s AS v" % params["factor"])
def raises(inputs, params):
    return 1 / 0
def nothing(inputs, params):
    pass
def sink(batch, epoch):
    pass
"""


async def analyze(child: Child, tmp_path: Path, *vertices: Vertex) -> Analysis:
    (tmp_path / "acme.py").write_text(CODE)
    artifacts = {"acme.py": str(tmp_path / "acme.py")}
    context = job(params={"factor": 3})
    return await child.ask(p.AnalyzeTasks(job=context, tasks=(task(*vertices),), artifacts=artifacts))


async def test_a_sound_task_yields_schemas_and_operators(child: Child, tmp_path: Path) -> None:
    """J4, C25."""
    found = await analyze(
        child,
        tmp_path,
        rate(),
        python("scaled", "acme:good", "numbers"),
        sql("totals", "SELECT v % ${factor} AS k, count(*) AS n FROM scaled GROUP BY 1", "scaled"),
        call("acme:sink", "totals"),
    )
    assert found.faults == ()
    assert found.schemas["totals"] == "struct<k:bigint,n:bigint>"
    assert [(node.kind, node.vertex) for node in found.operators["numbers"]] == [
        ("Aggregate", "totals"),
        ("rate-micro-batch", "numbers"),
    ]
    again = await analyze(
        child,
        tmp_path,
        rate(),
        sql("totals", "SELECT count(*) AS n FROM numbers", "numbers"),
        call("acme:sink", "totals"),
    )
    assert again.operators != found.operators


async def test_every_fault_is_named_at_once(child: Child, tmp_path: Path) -> None:
    """J4: bad SQL, a missing column, a missing function and an exception, each with its place."""
    found = await analyze(
        child,
        tmp_path,
        rate(),
        sql("typo", "SELEC value FROM numbers", "numbers"),
        sql("column", "SELECT valeu FROM numbers", "numbers"),
        sql("param", "SELECT ${nothing} FROM numbers", "numbers"),
        python("gone", "acme:god", "numbers"),
        python("nowhere", "cod:good", "numbers"),
        python("raises", "acme:raises", "numbers"),
        python("nothing", "acme:nothing", "numbers"),
        sql("below", "SELECT * FROM typo", "typo"),
        parquet(tmp_path / "out", "below"),
    )
    faults = {fault.path: fault for fault in found.faults}
    assert "Syntax error" in faults["vertices.typo.sql"].problem
    assert "pos 0" in faults["vertices.typo.sql"].problem
    assert "`valeu`" in faults["vertices.column.sql"].problem
    assert "value" in faults["vertices.column.sql"].problem
    assert "Project" not in faults["vertices.column.sql"].problem
    assert "has no value" in faults["vertices.param"].problem
    assert "no function 'god'" in faults["vertices.gone.python"].problem
    assert "good" in faults["vertices.gone.python"].hint
    assert "no module 'cod'" in faults["vertices.nowhere.python"].problem
    assert faults["vertices.raises.python"].problem == "ZeroDivisionError: division by zero"
    assert "return 1 / 0" in faults["vertices.raises.python"].traceback
    assert "plan.py" not in faults["vertices.raises.python"].traceback
    assert "None" in faults["vertices.nothing.python"].problem
    assert len(found.faults) == 7, [fault.path for fault in found.faults]


async def test_an_unsupported_output_mode_is_a_fault(child: Child, tmp_path: Path) -> None:
    """J8a: files hold rows for good, so an aggregate without a watermark cannot go there."""
    count = sql("counted", "SELECT count(*) AS n FROM numbers", "numbers")
    found = await analyze(child, tmp_path, rate(), count, parquet(tmp_path / "out", "counted"))
    assert [fault.path for fault in found.faults] == ["vertices.out"]
    assert "watermark" in found.faults[0].problem
    assert "watermark" in found.faults[0].hint
    found = await analyze(child, tmp_path, rate(), call("acme:sink", "numbers", OutputMode.COMPLETE))
    assert [fault.path for fault in found.faults] == ["vertices.out.output-mode"]


async def test_a_wrong_source_is_a_fault(child: Child, tmp_path: Path) -> None:
    """J4: a format that does not exist, and a watermark over a column that does not."""
    wrong = source("numbers", "kafkaa")
    found = await analyze(child, tmp_path, wrong, parquet(tmp_path / "out", "numbers"))
    assert [fault.path for fault in found.faults] == ["vertices.numbers.source"]
    assert "kafkaa" in found.faults[0].problem
    (tmp_path / "in").mkdir()
    late = events(tmp_path / "in", column="tiem")
    found = await analyze(child, tmp_path, late, parquet(tmp_path / "out", "events"))
    assert [fault.path for fault in found.faults] == ["vertices.events.watermark"]


async def test_a_connector_that_is_not_there_is_a_fault(child: Child) -> None:
    """J4: pyspark does not bring Kafka's."""
    out = Vertex(id=VertexId("out"), inputs=inputs("numbers"), sink=Sink(format="kafka", options={"topic": "x"}))
    (fault,) = (await child.ask(p.AnalyzeTasks(job=job(), tasks=(task(rate(1), out),)))).faults
    assert "Spark's Kafka connector is not there" in fault.problem


async def test_what_was_analysed_is_not_built_again_when_it_is_deployed(child: Child, tmp_path: Path) -> None:
    """H3: between two versions of a job there is no time for it. What differs in anything is built anew."""
    built = tmp_path / "built"
    code = f"def counted(inputs, params):\n    open({str(built)!r}, 'a').write('x')\n    return inputs['numbers']\n"
    (tmp_path / "counting.py").write_text(code + "def sink(batch, epoch):\n    batch.count()\n")
    artifacts = {"counting.py": str(tmp_path / "counting.py")}
    counting = task(rate(), python("counted", "counting:counted", "numbers"), call("counting:sink", "counted"))
    context = job(params={"factor": 3})
    assert (await child.ask(p.AnalyzeTasks(job=context, tasks=(counting,), artifacts=artifacts))).faults == ()
    for run_of, times in ((context, 1), (context, 2), (job(params={"factor": 4}), 3)):
        attempt = await child.run(run_of, counting, artifacts=artifacts)
        await child.batches(attempt, 1)
        await child.stop(attempt)
        assert len(built.read_text()) == times
