"""The `minflinkd` command as a user runs it: in a process of its own."""

from __future__ import annotations

import asyncio
import sys

from tests.cluster import Cluster


async def minflinkd(cluster: Cluster, *arguments: str) -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "minflinkd", *arguments, "--url", cluster.client.url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()
