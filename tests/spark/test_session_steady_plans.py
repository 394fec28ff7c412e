"""What happens to the settings that every query depends on when user code changes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from minflinkd.jobgraph.model import Delivery
from minflinkd.taskmanager.session.spark.steady_plans import SETTINGS
from tests.spark.session_child import Child, job, python, rate, task
from tests.spark.test_session_sinks import sink
from tests.spark.test_session_snapshots import artifact

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

REUSE, EXCLUDED = SETTINGS

# Each prints what it has found, and then sets the opposite.
CODE = f"""
def change(spark, who):
    print("found", who, spark.conf.get({REUSE!r}), spark.conf.get({EXCLUDED!r}).count("Join"), flush=True)
    spark.conf.set({REUSE!r}, "true")
    spark.conf.set({EXCLUDED!r}, "mine.Rule")
def vertex(inputs, params):
    change(inputs["numbers"].sparkSession, "vertex")
    return inputs["numbers"].dropDuplicates(["value"])
def without_state(inputs, params):
    return inputs["numbers"]
def function(batch, epoch):
    change(batch.sparkSession, f"function {{epoch}}")
class Class:
    def __init__(self, context):
        from pyspark.sql import SparkSession
        change(SparkSession.getActiveSession(), "constructor")
    def stage(self, batch, epoch):
        change(batch.sparkSession, f"class {{epoch}}")
    def commit(self, checkpoint_id, tokens): pass
    def abort(self, tokens): pass
"""


@pytest.mark.parametrize("out", ["function", "class"])
async def test_a_setting_that_a_sink_changes_is_set_back_before_the_next_micro_batch(
    child: Child, tmp_path: Path, out: str
) -> None:
    """A plan that depends on the rows would lose state. Rules that the code itself excludes stay excluded."""
    files = artifact(tmp_path, "turned.py", CODE)
    delivery = Delivery.EXACTLY_ONCE if out == "class" else Delivery.AT_LEAST_ONCE
    named = sink("v", python=f"turned:{'Class' if out == 'class' else 'function'}", delivery=delivery)
    already = len(child.printed.read_text())
    query = task(rate(10), python("v", "turned:vertex", "numbers"), named)
    attempt = await child.run(job(), query, artifacts=files)
    await child.batches(attempt, 2)
    await child.stop(attempt)
    told = child.printed.read_text()[already:].splitlines()
    found = [line for line in told if line.startswith("found ")]
    for epoch in range(3):
        assert f"found {out} {epoch} false 3" in found


async def test_a_query_without_state_may_reuse_exchanges(child: Child, tmp_path: Path) -> None:
    """It has no state that could be lost, and a table that it joins twice is read once."""
    files = artifact(tmp_path, "turned.py", CODE)
    already = len(child.printed.read_text())
    query = task(rate(10), python("v", "turned:without_state", "numbers"), sink("v", python="turned:function"))
    attempt = await child.run(job(), query, artifacts=files)
    await child.batches(attempt, 1)
    await child.stop(attempt)
    assert "found function 0 true 3" in child.printed.read_text()[already:].splitlines()
