"""The job that the rows run: the windowed aggregate of the fault tests, as an endless stream."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

from tests.beside import beside
from tests.windows_job import WindowsJob


def streaming(
    job: WindowsJob, name: str, *, parallelism: int = 2, checkpoint_interval: str = "1 s", recovery: str = "restart"
) -> Path:
    """Write a job file; `job` says what it reads."""
    checkpointing = {"interval": checkpoint_interval}
    return job.write(name, mode="streaming", parallelism=parallelism, checkpointing=checkpointing, recovery=recovery)


@contextlib.asynccontextmanager
async def fed(job: WindowsJob, *, pace: float) -> AsyncIterator[None]:
    """Write an event file, which becomes one micro-batch, every `pace` seconds while the block runs."""

    async def feed() -> None:
        for i in itertools.count():
            await asyncio.to_thread(job.write_events, i, 1)
            await asyncio.sleep(pace)

    async with beside("feeder", feed()):
        yield
