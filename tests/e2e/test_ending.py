"""A daemon shuts down while somebody submits a job."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from minflinkd.cli.exits import ExitCode
from tests.cluster import running_cluster, write_job
from tests.e2e.command import minflinkd
from tests.waiting import until

pytestmark = pytest.mark.spark

SLOW = """\
import time
from pathlib import Path

def clean(inputs, params):
    Path(params["begun"]).touch()
    time.sleep(60)
    return inputs["s"]
"""


@pytest.mark.slow  # half a minute, most of it for a cluster of its own
async def test_a_job_that_is_being_analysed_is_refused_and_nothing_tells_of_a_bug(tmp_path: Path) -> None:
    """The submitter reads that the daemon is shutting down, and no log has a traceback (Issue 15, 9)."""
    (tmp_path / "clicks.py").write_text(SLOW)
    begun = tmp_path / "begun"
    vertices = {
        "s": {"source": {"format": "rate"}},
        "clean": {"inputs": ["s"], "python": "clicks:clean"},
        "out": {"inputs": ["clean"], "sink": {"format": "parquet", "path": str(tmp_path / "out")}},
    }
    document = {"name": "clicks", "artifacts": ["clicks.py"], "params": {"begun": str(begun)}, "vertices": vertices}
    job = write_job(tmp_path / "job.json", document)

    async def analysing() -> bool:
        return begun.exists()

    async with running_cluster(tmp_path / "cluster", **{"resourcemanager.max-taskmanagers": 1}) as cluster:
        await cluster.await_ready(1)
        submission = asyncio.create_task(minflinkd(cluster, "run", str(job)))
        await until(analysing, "Spark analyses the job")
        cluster.process.send_signal(signal.SIGTERM)
        code, out, err = await submission
        assert (code, out) == (ExitCode.UNREACHABLE, "")
        assert "The daemon is shutting down" in err
        assert "Traceback" not in err
        assert await asyncio.wait_for(cluster.process.wait(), 120) == 0
        assert "Traceback" not in cluster.log
        assert '"level": "error"' not in cluster.log
        assert list((cluster.state / "jobs").rglob("*.json")) == []
