"""An aggregate and another stateful operator by the same keys: no exchange between them, both in one Spark task."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyspark
import pytest

from minflinkd.jobgraph.model import RuntimeMode
from minflinkd.taskmanager.child import protocol as p
from tests.shortened import first
from tests.spark.session_child import Child, events, job, parquet, python, sql, task
from tests.spark.test_session_bounded import BY_WINDOW, rows_of, run_to_end, write_events
from tests.spark.test_session_transform import CODE as TRANSFORM

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

CODE = (
    TRANSFORM.replace('"update"', '"append"')
    + """
def distinct(inputs, params):
    found = inputs["c"].dropDuplicates(["w", "key"])
    return found.selectExpr("date_format(w.start, 'mm') AS minute", "key", "n")


def counted(inputs, params):
    return rows({"events": inputs["c"]}, params)


def counted_in_pandas(inputs, params):
    return pandas({"events": inputs["c"]}, params)
"""
)
BY_SESSION = """
SELECT session_window(time, '30 seconds') AS w, key, count(*) AS n FROM events
GROUP BY session_window(time, '30 seconds'), key
"""
AFTER = {  # function -> the aggregate before it
    "distinct": BY_WINDOW,
    "counted": BY_SESSION,
    "counted_in_pandas": BY_SESSION,
}


def owed(function: str, truth: Counter[tuple[str, str]]) -> Counter[tuple[Any, ...]]:
    """Return what the batch has, by hand. In three minutes each key has rows within any 30 seconds: one session."""
    if function.startswith("counted"):
        return Counter({(key, 1) for _, key in truth})
    return Counter((start[14:16], key, n) for (start, key), n in truth.items())


@pytest.mark.parametrize("function", first(AFTER))
async def test_a_stateful_operator_after_an_aggregate_by_the_same_keys_has_its_own_state(
    child: Child, tmp_path: Path, function: str
) -> None:
    """Spark passes a state store through the thread, and the operator must not take the aggregate's."""
    truth = write_events(tmp_path / "in", 3)
    assert await written(child, tmp_path, function) == owed(function, truth)


@pytest.mark.slow
async def test_the_same_holds_on_executors_that_are_processes_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The class that replaces Spark's is on their class path, before Spark's archives."""
    monkeypatch.setenv("SPARK_HOME", os.path.dirname(pyspark.__file__))
    loopback = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    (tmp_path / "child").mkdir()
    child = Child(tmp_path / "child")
    try:
        await child.start({"spark.master": "local-cluster[1,2,512]", "spark.executor.memory": "512m", **loopback})
        for function in ("distinct", "counted"):
            base = tmp_path / function
            base.mkdir()
            truth = write_events(base / "in", 3)
            assert await written(child, base, function) == owed(function, truth)
    finally:
        await child.aclose()


async def written(child: Child, base: Path, function: str) -> Counter[tuple[Any, ...]]:
    """Return what the job has written at the end of its input."""
    (base / "rows.py").write_text(CODE)
    query = task(
        events(base / "in", maxFilesPerTrigger="1"),
        sql("c", AFTER[function], "events"),
        python("last", f"rows:{function}", "c"),
        parquet(base / "out", "last"),
    )
    attempt = await child.run(job(mode=RuntimeMode.BATCH), query, artifacts={"rows.py": str(base / "rows.py")})
    await run_to_end(child, attempt)
    taken = await child.ask(p.TakeSnapshot(attempt_id=attempt, checkpoint_id=1, target_directory=str(base / "s")))
    assert (await child.ask(p.StopTask(attempt_id=attempt))).ended  # stores on executors are not closed from here
    return rows_of(base / "out", taken)
