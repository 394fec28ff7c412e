"""`minflinkd.testing` itself: what a job does under test, and what its author is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minflinkd.jobgraph.api import Job
from minflinkd.taskmanager.child.protocol import SessionLost
from minflinkd.testing import InvalidJobGraph, NotRunning, RemoteError, StartJob

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CODE = """
def events(spark, params):
    raise RuntimeError("this would ask a server")

def numbers(spark, params):
    return spark.readStream.format("rate").load().selectExpr("timestamp AS time", "value AS n")

def careful(inputs, params):
    from pyspark.sql.functions import udf

    def inverse(n):
        return 12 // n

    return inputs["numbers"].withColumn("inverse", udf(inverse, "long")("n"))

def quiet(inputs, params):
    import pandas as pd
    from pyspark.sql.streaming.state import GroupStateTimeout

    def by_key(key, batches, state):
        if state.hasTimedOut:
            state.remove()
            yield pd.DataFrame({"n": [key[0]]})
        else:
            for _ in batches:
                pass
            state.update((1,))
            state.setTimeoutDuration(60_000)

    timeout = GroupStateTimeout.ProcessingTimeTimeout
    return inputs["numbers"].groupBy("n").applyInPandasWithState(by_key, "n LONG", "seen LONG", "append", timeout)

def shown(batch, epoch):
    raise RuntimeError("a sink is never called")
"""


def job(tmp_path: Path, source: dict[str, Any] | None = None, sink: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a job that has a function divide by the numbers of its source."""
    (tmp_path / "inverting.py").write_text(CODE)
    return {
        "name": "inverses",
        "artifacts": [str(tmp_path / "inverting.py")],
        "vertices": {
            "numbers": {"source": source or {"format": "json", "path": "/nowhere", "schema": "n LONG"}},
            "inverses": {"inputs": ["numbers"], "python": "inverting:careful"},
            "out": {"inputs": ["inverses"], "sink": sink or {"format": "parquet", "path": "/nowhere"}},
        },
    }


def test_a_job_that_fails_says_why_and_goes_on_as_another_version(minflinkd_job: StartJob, tmp_path: Path) -> None:
    """The error has the traceback of the job's code. A version that survives the record reads it again."""
    document = job(tmp_path)
    under_test = minflinkd_job(document, inputs={"numbers": [{"n": 3}]}, views=["inverses"])
    under_test.checkpoint()
    under_test.feed("numbers", {"n": 0}, {"n": 4})
    with pytest.raises(RemoteError) as failed:
        under_test.process()
    assert failed.value.info().code == "user-code"
    assert "ZeroDivisionError" in failed.value.info().traceback
    with pytest.raises(NotRunning, match="it has failed"):
        under_test.process()
    assert [row["inverse"] for row in under_test.rows("out")] == [4]

    (tmp_path / "inverting.py").write_text(CODE.replace("12 // n", "12 // n if n else None"))
    under_test.hot_restart(document)
    under_test.assert_rows("out", [{"inverse": 4}, {"inverse": None}, {"inverse": 3}])
    under_test.assert_rows("inverses", [{"inverse": 4}, {"inverse": None}, {"inverse": 3}])


def test_a_lost_session_is_replaced(minflinkd_job: StartJob, tmp_path: Path) -> None:
    """A job may end the process that runs it. Its test fails, the others do not, and the job can be restored."""
    document = job(tmp_path)
    other = minflinkd_job(document, inputs={"numbers": [{"n": 3}]})
    other.checkpoint()
    ending = CODE.replace("from pyspark.sql.functions import udf", "import os; os._exit(7)")
    (tmp_path / "inverting.py").write_text(ending)
    with pytest.raises(SessionLost):
        minflinkd_job(document)
    (tmp_path / "inverting.py").write_text(CODE)
    other.restore()
    other.feed("numbers", {"n": 4})
    other.process()
    other.assert_rows("out", [{"inverse": 4}, {"inverse": 3}])


def test_timers_in_processing_time_fire_by_the_clock_of_the_test(minflinkd_job: StartJob, tmp_path: Path) -> None:
    """Spark never rests with such timers, so a step counts micro-batches without input."""
    document = job(tmp_path)
    document["vertices"]["inverses"]["python"] = "inverting:quiet"
    under_test = minflinkd_job(document, clock="2026-01-01T00:00", inputs={"numbers": [{"n": 7}]})
    under_test.advance_clock(by="50 s")
    under_test.feed("numbers", {"n": 8})
    under_test.process()
    assert under_test.rows("out") == []
    under_test.advance_clock(by="11 s")
    assert under_test.rows("out") == [{"n": 7}]
    under_test.checkpoint()
    under_test.restore()
    under_test.advance_clock(by="1 min")
    assert under_test.rows("out") == [{"n": 7}]  # as in production: a restored query waits for its next rows


def test_rows_of_a_sink_that_is_at_least_once_are_seen_again_after_a_restart(
    minflinkd_job: StartJob, tmp_path: Path
) -> None:
    """As they would be in Kafka: visible at once, and twice if no checkpoint covers them (J12)."""
    sink = {"python": "inverting:shown"}
    under_test = minflinkd_job(job(tmp_path, sink=sink), inputs={"numbers": [{"n": 1}]})
    under_test.checkpoint()
    under_test.feed("numbers", {"n": 2})
    under_test.process()
    assert [row["n"] for row in under_test.committed("out")] == [1, 2]
    under_test.restore()
    assert [row["n"] for row in under_test.committed("out")] == [1, 2, 2]


def test_a_python_source_is_asked_for_its_columns_or_they_are_given(minflinkd_job: StartJob, tmp_path: Path) -> None:
    asked = minflinkd_job(job(tmp_path, source={"python": "inverting:numbers"}))
    asked.feed("numbers", {"n": 6, "time": "2026-01-01T00:00"})
    asked.process()
    asked.assert_rows("out", [{"n": 6, "inverse": 2}])
    with pytest.raises(InvalidJobGraph) as refused:
        minflinkd_job(job(tmp_path, source={"python": "inverting:events"}))
    fault = refused.value.faults[0]
    assert fault.path == "vertices.numbers.source"
    assert "this would ask a server" in fault.problem
    assert "schemas={'numbers': ...}" in fault.hint
    given = minflinkd_job(job(tmp_path, source={"python": "inverting:events"}), schemas={"numbers": "n LONG"})
    given.feed("numbers", {"n": 12})
    given.process()
    given.assert_rows("out", [{"n": 12, "inverse": 1}])


def test_faults_of_spark_have_the_line_of_the_job_file(minflinkd_job: StartJob, tmp_path: Path) -> None:
    """An aggregate without a watermark fits no file sink: the fault is that of the job, not of its replaced ends."""
    file = tmp_path / "job.yaml"
    file.write_text(
        "name: wrong\n"
        "vertices:\n"
        "  numbers: {source: {format: json, path: /nowhere, schema: n LONG}}\n"
        "  sums: {inputs: [numbers], sql: 'SELECT n, count(*) AS c FROM numbers GROUP BY n'}\n"
        "  out: {inputs: [sums], sink: {format: parquet, path: /nowhere}}\n"
        "  other: {inputs: [more], sink: {format: parquet, path: /nowhere}}\n"
        "  more: {inputs: [numbers], sql: SELECT m FROM numbers}\n"
    )
    with pytest.raises(InvalidJobGraph) as refused:
        minflinkd_job(file)
    found = {(fault.path, fault.line) for fault in refused.value.faults}
    assert found == {("vertices.out", 5), ("vertices.more.sql", 7)}


def test_a_job_of_python_runs_as_one_of_a_file(minflinkd_job: StartJob) -> None:
    """Windows that a restored job closes without new rows, through an exchange, with a view that came late."""
    built = Job("sums")
    events = built.source(
        "events",
        format="kafka",
        options={"subscribe": "t", "kafka.bootstrap.servers": "h:1"},
        watermark=("timestamp", "1 minute"),
    )
    sums = built.sql(
        "sums",
        "SELECT window.start AS at, count(*) AS n FROM events GROUP BY window(timestamp, '1 minute')",
        inputs=[events],
    )
    built.add("out", {"inputs": [{"id": sums.id, "exchange": True}], "sink": {"format": "parquet", "path": "/nowhere"}})
    under_test = minflinkd_job(built, parallelism=2)
    under_test.feed("events", {"timestamp": "2026-01-01T00:00:10"}, {"timestamp": "2026-01-01T00:00:20"})
    under_test.checkpoint()
    under_test.restore()
    under_test.advance_watermark("2026-01-01T00:01:00")
    under_test.assert_rows("out", [{"at": "2026-01-01T00:00", "n": 2}])
    under_test.assert_rows("sums", [{"at": "2026-01-01T00:00", "n": 2}])
    with pytest.raises(AssertionError, match="- at=2026-01-01T00:00:00, n=3"):
        under_test.assert_rows("out", [{"at": "2026-01-01T00:00", "n": 3}])


def test_rows_that_a_vertex_rejects_are_at_their_sink(minflinkd_job: StartJob) -> None:
    """As in production, with what is wrong with them (K7)."""
    job = Job("prices")
    rows = job.source("rows", format="json", path="/nowhere", schema="price DOUBLE", on_bad_record={"to": "broken"})
    query = "SELECT *, IF(price < 0, 'negative', NULL) AS _error FROM rows"
    checked = job.sql("checked", query, inputs=[rows], on_bad_record={"to": "bad"})
    checked.sink("out", format="parquet", path="/nowhere/out")
    for name in ("bad", "broken"):
        job.add(name, {"sink": {"format": "json", "path": f"/nowhere/{name}"}})
    running = minflinkd_job(job)
    running.feed("rows", {"price": 1.0}, {"price": -2.0})
    running.checkpoint()
    running.assert_rows("out", [{"price": 1.0}])
    running.assert_rows("bad", [{"vertex": "checked", "error": "negative", "record": '{"price":-2.0}'}])
