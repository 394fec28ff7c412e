"""The example of a ported script: a deduplication, a Python function, a stream-stream join and two outputs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.comparison import await_finished, compared, generated

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

EXAMPLE = Path(__file__).parents[2] / "examples/clicks"
ORDER = "FROM unique c JOIN purchases p"
OTHER_ORDER = "FROM purchases p JOIN unique c"


@pytest.mark.slow
async def test_the_clicks_job_equals_its_batch_in_both_orders_of_the_join(cluster: Cluster, tmp_path: Path) -> None:
    """One table of the join comes through an exchange, the other from files, so either order must work."""
    source = await generated(EXAMPLE / "generate.py", tmp_path / "in")
    outputs = {tmp_path / "as_written": ORDER, tmp_path / "turned_around": OTHER_ORDER}
    jobs = []
    await cluster.await_ready(1)
    for output, order in outputs.items():
        shutil.copytree(EXAMPLE, output / "job")
        file = output / "job" / "clicks.yaml"
        text = file.read_text()
        assert text.count(ORDER) == 1
        file.write_text(text.replace(ORDER, order))
        jobs.append(await cluster.submit(file, input=str(source), output=str(output)))
    for job in jobs:
        await await_finished(cluster, job)

    found = await compared(EXAMPLE / "compare.py", source, *outputs)
    assert {name: [sink["equal"] for sink in sinks.values()] for name, sinks in found.items()} == {
        str(output): [True, True] for output in outputs
    }, found
    for sinks in found.values():
        assert sinks["per_minute"]["batch_rows"] > 100
        assert sinks["attributed"]["batch_rows"] > 100
