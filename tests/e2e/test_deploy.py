"""The script of docs/deploy.md, with a repository of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.cluster import Cluster, write_job

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

SCRIPT = Path(__file__).parents[2] / "examples/deploy.sh"
NOBODY = {f"GIT_{who}_{what}": "nobody@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


async def run(directory: Path, *command: str, url: str = "") -> tuple[int, str]:
    """Return the exit code and the output."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=directory,
        env={**os.environ, **NOBODY, "PATH": path, "MINFLINKD_URL": url},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode()


def job(output: Path, sql: str) -> dict[str, object]:
    vertices = {
        "numbers": {"source": {"format": "rate", "options": {"rowsPerSecond": 10}}},
        "rows": {"inputs": ["numbers"], "sql": sql},
        "out": {"inputs": ["rows"], "sink": {"format": "json", "path": str(output)}},
    }
    return {"name": "deployed", "checkpointing": {"interval": "1 s"}, "vertices": vertices}


@pytest.mark.slow  # hot restarts are shown above
async def test_the_script_starts_a_job_then_restarts_it_and_lets_no_faulty_version_through(
    cluster: Cluster, tmp_path: Path
) -> None:
    """What is pushed runs. If it has faults, the version before it continues."""
    await cluster.await_ready(1)
    author, checkout, url = tmp_path / "author", tmp_path / "checkout", cluster.client.url
    for command in (
        ("git", "init", "--quiet", "--initial-branch=main", "author"),
        ("git", "-C", "author", "commit", "--quiet", "--allow-empty", "-m", "begin"),
        ("git", "clone", "--quiet", "author", "checkout"),
    ):
        assert await run(tmp_path, *command) == (0, "")

    async def deployed(sql: str) -> tuple[int, str]:
        write_job(author / "job.json", job(tmp_path / "out", sql))
        await run(author, "git", "add", "job.json")
        assert await run(author, "git", "commit", "--quiet", "-m", "a version") == (0, "")
        return await run(checkout, str(SCRIPT), "deployed", "job.json", url=url)

    code, said = await deployed("SELECT value FROM numbers")
    assert code == 0, said
    (found,) = [job for job in (await cluster.client.jobs()).jobs if job.name == "deployed"]
    cluster.jobs.append(found.jid)

    code, said = await deployed("SELECT value, value * 2 AS twice FROM numbers")
    assert code == 0, said
    restarts = (await cluster.client.job(found.jid)).minflinkd.hot_restarts
    assert len(restarts) == 1

    code, said = await deployed("SELECT no_such_column FROM numbers")
    assert code == 2, said
    assert "no_such_column" in said
    info = await cluster.client.job(found.jid)
    assert (info.state, len(info.minflinkd.hot_restarts)) == ("RUNNING", 1)
    await cluster.cancel(found.jid)
