"""`minflinkd check` with a Spark session of its own, compared with the answer of a daemon."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from tests.cluster import Cluster, lives, write_job
from tests.e2e.command import minflinkd
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

PYTHON = """\
def late(inputs, params):
    return inputs['clicks'].where('dely > 15')
"""


def faulty(directory: Path) -> Path:
    """Write a job with faults in the file, in SQL and in a function."""
    (directory / "clicks.py").write_text(PYTHON)
    events = directory / "events"
    events.mkdir()
    source = {"format": "json", "path": str(events), "schema": "user STRING, delay DOUBLE"}
    vertices = {
        "clicks": {"source": source},
        "late": {"inputs": ["clicks"], "python": "clicks:late"},
        "users": {"inputs": ["clicks"], "sql": "SELECT usr FROM clicks"},
        "out": {"inputs": ["late"], "sink": {"format": "parquet", "path": str(directory / "out")}},
        "other": {"inputs": ["users"], "sink": {"format": "parquet", "path": str(directory / "other")}},
    }
    return write_job(directory / "job.json", {"name": "clicks", "artifacts": ["clicks.py"], "vertices": vertices})


async def check(*arguments: str | Path, temporary: Path) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "minflinkd", "check", *map(str, arguments)),
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@pytest.mark.slow
async def test_a_check_finds_what_the_dry_run_of_a_daemon_finds(cluster: Cluster, tmp_path: Path) -> None:
    """A check and a dry run report the same faults in the same words. A check leaves nothing (Issue 15, 11)."""
    await cluster.await_ready(1)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    job = faulty(tmp_path)
    code, out, err = await check(job, "--json", temporary=temporary)
    assert (code, err) == (1, "")
    _, _, refused = await minflinkd(cluster, "run", str(job), "--dry-run", "--json")

    def faults(answer: str) -> list[tuple[str, str, str]]:
        return [(fault["path"], fault["problem"], fault.get("hint", "")) for fault in json.loads(answer)["faults"]]

    assert faults(out) == faults(refused)
    assert {path for path, _, _ in faults(out)} >= {"vertices.late.python", "vertices.users.sql"}
    assert list(temporary.iterdir()) == []


async def test_a_check_that_is_told_to_end_leaves_nothing(tmp_path: Path) -> None:
    """A cancelled CI run sends SIGTERM. No session and no directory may stay."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "minflinkd", "check", str(faulty(tmp_path))),
        env={**os.environ, "TMPDIR": str(temporary)},
        stderr=asyncio.subprocess.PIPE,
    )

    async def session() -> list[psutil.Process] | None:
        below = psutil.Process(process.pid).children(recursive=True)
        return below if len(below) >= 2 else None

    brood = await until(session, "the session child is started")
    process.send_signal(signal.SIGTERM)
    _, err = await process.communicate()
    assert (process.returncode, err) == (130, b"")
    assert not [left for left in brood if lives(left)]
    assert list(temporary.iterdir()) == []
