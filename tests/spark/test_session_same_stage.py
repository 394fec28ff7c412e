"""An aggregate and another stateful operator by the same keys: no exchange between them, both in one Spark task."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from minflinkd.jobgraph.model import RuntimeMode
from minflinkd.taskmanager import session_protocol as p
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
"""
)
BY_SESSION = """
SELECT session_window(time, '30 seconds') AS w, key, count(*) AS n FROM events
GROUP BY session_window(time, '30 seconds'), key
"""
AFTER = {"distinct": BY_WINDOW, "counted": BY_SESSION}  # function -> the aggregate before it


def owed(function: str, truth: Counter[tuple[str, str]]) -> Counter[tuple[Any, ...]]:
    """Return the rows of the batch, by hand. In three minutes no key is silent for 30 seconds: one session."""
    if function == "distinct":
        return Counter((start[14:16], key, n) for (start, key), n in truth.items())
    return Counter({(key, 1) for _, key in truth})


@pytest.mark.parametrize("function", AFTER)
async def test_a_stateful_operator_after_an_aggregate_by_the_same_keys_has_its_own_state(
    child: Child, tmp_path: Path, function: str
) -> None:
    """Spark passes a state store through the thread. The operator must not take the aggregate's."""
    truth = write_events(tmp_path / "in", 3)
    (tmp_path / "rows.py").write_text(CODE)
    query = task(
        events(tmp_path / "in", maxFilesPerTrigger="1"),
        sql("c", AFTER[function], "events"),
        python("last", f"rows:{function}", "c"),
        parquet(tmp_path / "out", "last"),
    )
    attempt = await child.run(job(mode=RuntimeMode.BATCH), query, artifacts={"rows.py": str(tmp_path / "rows.py")})
    await run_to_end(child, attempt)
    taken = await child.ask(p.TakeSnapshot(attempt_id=attempt, checkpoint_id=1, target_directory=str(tmp_path / "s")))
    await child.stop(attempt)
    assert rows_of(tmp_path / "out", taken) == owed(function, truth)
