"""Jobs of an example that run to their end, and its own scripts: one writes the input, one compares with a batch."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from minflinkd.rest.schemas import JobInfo
from tests import plain_spark
from tests.cluster import Cluster
from tests.waiting import until

TIMEOUT = 600  # seconds


async def await_finished(cluster: Cluster, job_id: str, *, timeout: float = 240.0) -> JobInfo:
    """Wait until the job is FINISHED. Fail with the job's first failure, although the job would restart."""

    async def finished() -> JobInfo | None:
        job = await cluster.client.job(job_id)
        failure = (await cluster.client.exceptions(job_id)).root_exception
        assert failure is None, f"{job.name} failed: {failure}"
        assert job.state not in ("FAILED", "CANCELED"), f"{job.name} is {job.state}"
        return job if job.state == "FINISHED" else None

    return await until(finished, f"job {job_id} is FINISHED", timeout=timeout, pause=0.2)


async def generated(script: Path, directory: Path, *arguments: str) -> Path:
    """Return the directory, with what the script has written into it."""
    await _output(script, directory, *arguments)
    return directory


async def compared(script: Path, *arguments: str | Path) -> dict[str, Any]:
    """Return the JSON object that the script prints, whether or not all is equal."""
    found: dict[str, Any] = json.loads((await _output(script, *arguments)).splitlines()[-1])
    return found


async def _output(script: Path, *arguments: str | Path) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(script), *map(str, arguments)),
        env=plain_spark.environ(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(TIMEOUT):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert out, err.decode(errors="replace")[-3000:]
    return out.decode()
