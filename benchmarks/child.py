"""A process that runs along with a measurement. It ends with its standard input and answers on its output."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

PATIENCE = 10.0  # seconds that it has to end before it is killed


@asynccontextmanager
async def child(*command: str, cwd: Path | None = None, stderr: int | None = None) -> AsyncIterator[Process]:
    """Run a process while the block runs."""
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=stderr, cwd=cwd)
    assert process.stdin is not None
    try:
        yield process
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(PATIENCE):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
