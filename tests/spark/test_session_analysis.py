"""What Spark and user code say of a job before anything of it starts (J4)."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from minflinkd.jobgraph.model import Delivery, OutputMode, Sink, Source, Vertex, Watermark
from minflinkd.rpc.messages import Analysis
from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.child import protocol as p
from minflinkd.taskmanager.session.analysis import physical_plan
from tests.files import files_below
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
def watermarked(inputs, params):
    return inputs["numbers"].withWatermark("timestamp", "5 seconds")
def means(inputs, params):
    import pandas
    from pyspark.sql.functions import pandas_udf
    def mean(values: pandas.Series) -> float:
        return values.mean()
    return inputs["numbers"].groupBy("value").agg(pandas_udf(mean, "double")("value").alias("mean"))
def counted(inputs, params):
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    class Counted(StatefulProcessor):
        def init(self, handle):
            self.count = handle.getValueState("count", "n BIGINT")
        def handleInputRows(self, key, rows, timerValues):
            yield Row(n=len(list(rows)))
        def close(self):
            pass
    grouped = next(iter(inputs.values())).groupBy("value")
    return grouped.transformWithState(Counted(), outputStructType="n BIGINT", outputMode="append", timeMode="none")
def registers(inputs, params):
    spark = inputs["numbers"].sparkSession
    spark.createDataFrame([(1, "one")], "value LONG, name STRING").createOrReplaceTempView("names")
    return inputs["numbers"]
"""


async def analyze(child: Child, tmp_path: Path, *vertices: Vertex) -> Analysis:
    (tmp_path / "acme.py").write_text(CODE)
    artifacts = {"acme.py": str(tmp_path / "acme.py")}
    context = job(params={"factor": 3})
    return await child.ask(p.AnalyzeTasks(job=context, tasks=(task(*vertices),), artifacts=artifacts))


async def test_a_sound_task_yields_schemas_and_operators(child: Child, tmp_path: Path) -> None:
    """Another query over the same source has other operators (C25, J4)."""
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


async def test_a_query_that_with_names_is_no_source_of_its_own(child: Child, tmp_path: Path) -> None:
    """The query is in the plan once, as are its sources. Each place that reads it has its own state (C25)."""
    named = (
        "WITH counted AS (SELECT value AS v, count(*) AS n FROM numbers GROUP BY 1), same AS (SELECT * FROM counted)"
    )
    found = await analyze(
        child,
        tmp_path,
        rate(),
        sql("twice", f"{named} SELECT v FROM same UNION ALL SELECT n FROM same", "numbers"),
        sql("all", "SELECT v FROM twice UNION ALL SELECT value FROM numbers", "twice", "numbers"),
        call("acme:sink", "all", OutputMode.UPDATE),
    )
    assert found.faults == ()
    operators = found.operators["numbers"]
    assert [(node.kind, node.number, node.vertex) for node in operators if node.stateful] == [
        ("Aggregate", 0, "twice"),
        ("Aggregate", 1, "twice"),
    ]
    lines = [node.offset_lines for node in operators if not node.stateful]
    assert [line for found in lines for line in found] == [0, 1]


async def test_every_fault_is_named_at_once(child: Child, tmp_path: Path) -> None:
    """Bad SQL, a missing column, a missing function and an exception are each reported at their place (J4)."""
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
    """Files hold rows for good, so an aggregate without a watermark cannot be written to them (J8a)."""
    count = sql("counted", "SELECT count(*) AS n FROM numbers", "numbers")
    found = await analyze(child, tmp_path, rate(), count, parquet(tmp_path / "out", "counted"))
    assert [fault.path for fault in found.faults] == ["vertices.out"]
    assert "watermark" in found.faults[0].problem
    assert "watermark" in found.faults[0].hint
    found = await analyze(child, tmp_path, rate(), call("acme:sink", "numbers", OutputMode.COMPLETE))
    assert [fault.path for fault in found.faults] == ["vertices.out.output-mode"]


async def test_a_wrong_source_is_a_fault(child: Child, tmp_path: Path) -> None:
    """A format that does not exist, and a watermark over a column that does not (J4)."""
    wrong = source("numbers", "kafkaa")
    found = await analyze(child, tmp_path, wrong, parquet(tmp_path / "out", "numbers"))
    assert [fault.path for fault in found.faults] == ["vertices.numbers.source"]
    assert "kafkaa" in found.faults[0].problem
    (tmp_path / "in").mkdir()
    late = events(tmp_path / "in", column="tiem")
    found = await analyze(child, tmp_path, late, parquet(tmp_path / "out", "events"))
    assert [fault.path for fault in found.faults] == ["vertices.events.watermark"]


async def test_a_connector_that_is_not_there_is_a_fault(child: Child) -> None:
    """pyspark does not include Kafka's connector (J4)."""
    out = Vertex(id=VertexId("out"), inputs=inputs("numbers"), sink=Sink(format="kafka", options={"topic": "x"}))
    (fault,) = (await child.ask(p.AnalyzeTasks(job=job(), tasks=(task(rate(1), out),)))).faults
    assert "Spark's Kafka connector is not installed" in fault.problem


async def test_a_plan_is_told_if_somebody_asks_for_it(child: Child) -> None:
    """`minflinkd explain`: Spark's physical plan of a micro-batch, bounded. A submission has no use for it."""
    counts = sql("counts", "SELECT value % 3 AS k, count(*) AS n FROM numbers GROUP BY 1", "numbers")
    console = Vertex(
        id=VertexId("out"),
        inputs=inputs("counts"),
        output_mode=OutputMode.UPDATE,
        sink=Sink(format="console", delivery=Delivery.AT_LEAST_ONCE),
    )
    writes = task(rate(), counts, console)
    for asked in (False, True):
        found = await child.ask(p.AnalyzeTasks(job=job(), tasks=(writes,), explain=asked))
        plans = list(found.plans.values())
        assert len(plans) == asked
    assert "StateStoreSave" in plans[0]
    assert "first-batch" not in plans[0]
    assert len(plans[0]) <= physical_plan.LONGEST


async def test_the_plan_of_a_task_that_passes_rows_on_names_their_columns(child: Child) -> None:
    """The source is alone in it."""
    console = Vertex(id=VertexId("out"), inputs=inputs("numbers"), sink=Sink(format="console"))
    found = await child.ask(p.AnalyzeTasks(job=job(), tasks=(task(rate(), console),), explain=True))
    (plan,) = found.plans.values()
    assert plan.startswith("StreamingRelation rate-micro-batch, [timestamp#")


async def test_what_was_analysed_is_not_built_again_when_it_is_deployed(child: Child, tmp_path: Path) -> None:
    """There is no time for it between two versions of a job. What differs in anything is built anew (H3)."""
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


# --- what Spark refuses, in a user's words -------------------------------------------------------------------------

TIMED = "SELECT timestamp, value FROM numbers"
WATERMARK = Watermark(column="timestamp", delay="5 seconds")


def timed(name: str = "numbers") -> Vertex:
    return msgspec.structs.replace(rate(10), id=VertexId(name), watermark=WATERMARK)


def watermarked(vertex: Vertex) -> Vertex:
    return msgspec.structs.replace(vertex, watermark=WATERMARK)


JOINED = "SELECT numbers.value FROM numbers JOIN others ON numbers.value {} others.value"
WHEN_PLANNED = {  # vertices; the place of the fault, and words of it
    "a second watermark after a first": (
        [timed(), watermarked(sql("later", TIMED, "numbers"))],
        ("vertices.later.watermark", "second watermark"),
    ),
    "a second watermark after an aggregate": (
        [
            timed(),
            sql(
                "counted",
                "SELECT window(timestamp, '5 seconds') AS w, count(*) AS n FROM numbers GROUP BY 1",
                "numbers",
            ),
            watermarked(sql("ends", "SELECT w.end AS timestamp, n FROM counted", "counted")),
        ],
        ("vertices.ends.watermark", "second watermark"),
    ),
    "a second watermark in a function": (
        [timed(), python("later", "acme:watermarked", "numbers"), sql("all", "SELECT * FROM later", "later")],
        ("vertices.later.python", "second watermark"),
    ),
    "a second watermark after a union": (
        [
            timed(),
            timed("others"),
            watermarked(sql("all", f"{TIMED} UNION ALL SELECT * FROM others", "numbers", "others")),
        ],
        ("vertices.all.watermark", "second watermark"),
    ),
    "a join of streams without an equality": (
        [timed(), timed("others"), sql("joined", JOINED.format("<"), "numbers", "others")],
        ("vertices.joined.sql", "equality"),
    ),
    "a cross join of streams, read by another vertex": (
        [
            timed(),
            timed("others"),
            sql("joined", "SELECT numbers.value FROM numbers CROSS JOIN others", "numbers", "others"),
            sql("all", "SELECT value FROM joined", "joined"),
        ],
        ("vertices.joined.sql", "equality"),
    ),
    "a pandas function that aggregates": (
        [timed(), python("means", "acme:means", "numbers")],
        ("vertices.means.python", "pandas function"),
    ),
    "state by a text with a collation": (
        [
            timed(),
            sql("named", "SELECT CAST(value AS STRING) COLLATE UTF8_LCASE AS name, timestamp FROM numbers", "numbers"),
            sql(
                "counted",
                "SELECT name, window(timestamp, '1 second') AS w, count(*) AS n FROM named GROUP BY 1, 2",
                "named",
            ),
        ],
        ("vertices.counted.sql", "collation"),
    ),
}


@pytest.mark.parametrize("what", WHEN_PLANNED)
async def test_what_spark_says_only_of_a_micro_batch_is_a_fault_of_its_vertex(
    child: Child, tmp_path: Path, what: str
) -> None:
    """If it were accepted, such a job would fail in each attempt. No file of the planned micro-batch is left (J4)."""
    vertices, (path, words) = WHEN_PLANNED[what]
    last = vertices[-1].id
    found = await analyze(child, tmp_path, *vertices, call("acme:sink", last))
    assert [fault.path for fault in found.faults] == [path], found.faults
    assert words in found.faults[0].problem
    assert found.faults[0].hint
    assert not [file for file in files_below(child.directory / "work") if "first-batch" in str(file)]


IN_TIME = (
    "ON numbers.value = others.value "
    "AND others.timestamp BETWEEN numbers.timestamp AND numbers.timestamp + INTERVAL 1 HOUR"
)
REFUSED = {  # SQL of a vertex `found`; words of the problem, words of the hint
    "SELECT window(timestamp, '5 seconds') AS w, count(DISTINCT value) AS n FROM numbers GROUP BY 1": (
        "DISTINCT",
        "approx_count_distinct",
    ),
    "SELECT row_number() OVER (PARTITION BY value ORDER BY timestamp) AS n FROM numbers": ("ROW_NUMBER", "max_by"),
    "SELECT * FROM numbers ORDER BY value": ("sorted", "ORDER BY"),
    "SELECT * FROM numbers WHERE value IN (SELECT value FROM others)": ("subquery", "LEFT SEMI JOIN"),
    "SELECT numbers.value FROM numbers LEFT JOIN others ON numbers.value = others.value": ("LeftOuter", "BETWEEN"),
    "SELECT numbers.value FROM numbers LEFT ANTI JOIN others ON numbers.value = others.value": ("LeftAnti", "IS NULL"),
    "SELECT numbers.value FROM numbers JOIN others "
    "ON window(numbers.timestamp, '1 minute').start = window(others.timestamp, '1 minute').start": (
        "window(...).start",
        "AS w",
    ),
    "SELECT * FROM numbers TABLESAMPLE (10 PERCENT)": ("Sampling", "rand()"),
    "SELECT window(timestamp, '1 second') AS a, window(timestamp, '9 seconds') AS b FROM numbers": ("window", "vertex"),
}


@pytest.mark.parametrize("text", REFUSED)
async def test_what_spark_refuses_is_told_in_a_sentence_with_an_example_at_its_vertex(
    child: Child, tmp_path: Path, text: str
) -> None:
    """The fault has no plan and no stack. It is at the faulty vertex, not at the last one (J4)."""
    problem, hint = REFUSED[text]
    vertices = [
        timed(),
        timed("others"),
        sql("found", text, "numbers", "others"),
        sql("end", "SELECT * FROM found", "found"),
    ]
    found = await analyze(child, tmp_path, *vertices, call("acme:sink", "end"))
    assert [fault.path for fault in found.faults] == ["vertices.found.sql"], found.faults
    assert problem in found.faults[0].problem
    assert hint in found.faults[0].hint
    assert "\n" not in found.faults[0].problem.strip()
    assert len(found.faults[0].problem) < 300


async def test_what_is_advised_instead_is_accepted(child: Child, tmp_path: Path) -> None:
    """An example that Spark refuses as well would not help (J4)."""
    advised = {
        "exact": "SELECT DISTINCT window(timestamp, '1 minute') AS w, value FROM numbers",
        "counted": "SELECT w, count(*) AS n FROM exact GROUP BY w",
        "about": "SELECT window(timestamp, '1 minute') AS w, approx_count_distinct(value) AS n FROM numbers GROUP BY 1",
        "semi": f"SELECT numbers.value FROM numbers LEFT SEMI JOIN others {IN_TIME}",
        "left": f"SELECT numbers.value FROM numbers LEFT JOIN others {IN_TIME}",
        "anti": f"SELECT numbers.value FROM numbers LEFT JOIN others {IN_TIME} WHERE others.value IS NULL",
        "inner": f"SELECT numbers.value FROM numbers JOIN others {IN_TIME}",
        "sample": "SELECT * FROM numbers WHERE rand() < 0.1",
        "named": "SELECT *, uuid() AS id FROM numbers",
        "latest": "SELECT window(timestamp, '1 hour') AS w, max_by(value, timestamp) AS latest FROM numbers GROUP BY 1",
        "folded": "SELECT lower(CAST(value AS STRING)), window(timestamp, '1 hour') AS w FROM numbers GROUP BY 1, 2",
    }
    for name, text in advised.items():
        above = [sql("exact", advised["exact"], "numbers")] if name == "counted" else []
        read = ["exact"] if above else ["numbers", "others"]
        vertices = [timed(), timed("others")] if not above else [timed(), *above]
        found = await analyze(child, tmp_path, *vertices, sql(name, text, *read), call("acme:sink", name))
        assert found.faults == (), (name, found.faults)


async def test_sql_that_reads_a_vertex_that_is_no_input_of_it_is_refused(child: Child, tmp_path: Path) -> None:
    """SQL does not see the views of other vertices of the task. The hint says what to write (J2)."""
    found = await analyze(
        child,
        tmp_path,
        timed(),
        sql("few", "SELECT * FROM numbers WHERE value < 5", "numbers"),
        sql("other", "SELECT few.value FROM few JOIN numbers ON few.value = numbers.value", "few"),
        sql("typo", "SELECT * FROM fwe", "few"),
        sql("nothing", "SELECT * FROM somewhere", "few"),
        sql("all", "SELECT value FROM other UNION ALL SELECT value FROM typo", "other", "typo"),
        call("acme:sink", "all"),
    )
    faults = {fault.path: fault for fault in found.faults}
    assert "reads numbers, which is not among its inputs" in faults["vertices.other.sql"].problem
    assert "inputs: [few, numbers]" in faults["vertices.other.sql"].hint
    assert faults["vertices.typo.sql"].hint == "did you mean few?"
    assert "neither a table nor among its inputs" in faults["vertices.nothing.sql"].problem
    assert len(faults) == 3


async def test_views_of_python_functions_stay(child: Child, tmp_path: Path) -> None:
    """What a function registers is its own business, and SQL after it may read it (J2)."""
    looked = "SELECT numbers.value, name FROM numbers JOIN names ON numbers.value = names.value"
    found = await analyze(
        child,
        tmp_path,
        timed(),
        python("registered", "acme:registers", "numbers"),
        sql("named", looked.replace("numbers", "registered"), "registered"),
        call("acme:sink", "named"),
    )
    assert found.faults == ()


async def test_what_is_wrong_after_a_missing_path_is_named_at_the_same_time(child: Child, tmp_path: Path) -> None:
    """All faults are reported together: the schema of a source is enough to know its columns (J4)."""
    gone = Vertex(id=VertexId("gone"), source=Source(format="json", path=str(tmp_path / "gone"), schema="k STRING"))
    found = await analyze(
        child, tmp_path, gone, sql("wrong", "SELECT kk FROM gone", "gone"), call("acme:sink", "wrong")
    )
    faults = {fault.path: fault for fault in found.faults}
    assert list(faults) == ["vertices.gone.source", "vertices.wrong.sql"]
    assert f"there is nothing at {tmp_path / 'gone'}" in faults["vertices.gone.source"].problem
    assert "`kk`" in faults["vertices.wrong.sql"].problem


async def test_an_unknown_format_is_a_sentence(child: Child, tmp_path: Path) -> None:
    """The fault shows nothing of Java's stack (J4)."""
    found = await analyze(child, tmp_path, source("numbers", "jsonl"), call("acme:sink", "numbers"))
    (fault,) = found.faults
    assert fault.path == "vertices.numbers.source"
    assert fault.problem == "there is no source format jsonl in this session"
    assert "json" in fault.hint


async def test_a_directory_that_cannot_be_written_is_a_fault_of_its_sink(child: Child, tmp_path: Path) -> None:
    """A missing directory is no fault, and is not made. Nothing is left in an existing one (J4)."""
    (tmp_path / "file").write_text("")
    (tmp_path / "there").mkdir()
    for path, words in (("file/out", "is not a directory"), ("file", "is not a directory")):
        found = await analyze(child, tmp_path, rate(), parquet(tmp_path / path, "numbers"))
        assert [fault.path for fault in found.faults] == ["vertices.out.sink.path"]
        assert words in found.faults[0].problem
        assert "file" in found.faults[0].problem
        assert found.faults[0].hint
    found = await analyze(child, tmp_path, rate(), parquet(Path("/proc/out"), "numbers"))
    assert "/proc/out cannot be made in /proc" in found.faults[0].problem, "also where root is refused"
    for path in ("new/out", "there"):
        assert (await analyze(child, tmp_path, rate(), parquet(tmp_path / path, "numbers"))).faults == ()
    assert not (tmp_path / "new").exists()
    assert list((tmp_path / "there").iterdir()) == []


async def test_a_database_without_its_driver_is_a_fault_of_its_sink(child: Child, tmp_path: Path) -> None:
    """pyspark includes drivers of some other databases only (J4)."""
    for url, name in (
        ("jdbc:postgresql://127.0.0.1:1/db", "org.postgresql.Driver"),
        ("jdbc:nosuch://x/db", "jdbc:nosuch"),
    ):
        sink = Sink(format="jdbc", options={"url": url, "dbtable": "t"}, delivery=Delivery.AT_LEAST_ONCE)
        out = Vertex(id=VertexId("out"), inputs=inputs("numbers"), sink=sink)
        (fault,) = (await analyze(child, tmp_path, rate(), out)).faults
        assert fault.path == "vertices.out.sink"
        assert "JDBC driver" in fault.problem
        assert name in fault.problem
        assert ".jar" in fault.hint


async def test_state_of_user_code_is_accepted_and_what_is_wrong_beside_it_is_a_fault(
    child: Child, tmp_path: Path
) -> None:
    """Nothing describes the state of `transformWithState` before the first micro-batch has run (J4)."""
    counted, out = python("counted", "acme:counted", "numbers"), parquet(tmp_path / "out", "counted")
    assert (await analyze(child, tmp_path, timed(), counted, out)).faults == ()
    twice = watermarked(sql("again", "SELECT * FROM numbers", "numbers"))
    counted = python("counted", "acme:counted", "again")
    found = await analyze(child, tmp_path, timed(), twice, counted, out)
    assert [fault.path for fault in found.faults] == ["vertices.again.watermark"]


async def test_a_fault_is_named_once_where_another_task_reads_the_vertex(child: Child, tmp_path: Path) -> None:
    """The task downstream has nothing to plan, and no fault of its own (J4)."""
    wrong = task(rate(), sql("wrong", "SELECT nothing FROM numbers", "numbers"))
    reads = task(sql("all", "SELECT * FROM wrong", "wrong"), parquet(tmp_path / "out", "all"))
    upstream = msgspec.structs.replace(wrong, readers=(reads.id,))
    found = await child.ask(p.AnalyzeTasks(job=job(), tasks=(upstream, reads)))
    assert [fault.path for fault in found.faults] == ["vertices.wrong.sql"]
