"""Work beside a block: events that are fed to a job while it is measured, files that are looked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def beside(
    name: str, work: Coroutine[Any, Any, None], *, over: asyncio.Event | None = None
) -> AsyncIterator[None]:
    """Do `work` while the block runs. Where it fails it ends the block, whose owner sees the failure: what was measured

    without it is not what was meant. It is cancelled at the end of the block, or told by `over` to come to its own.
    """
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(work, name=name)
            yield
            if over is None:
                task.cancel()
            else:
                over.set()
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
