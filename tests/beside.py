"""Work that runs along with a block, such as feeding events to a job while it is measured, or watching for files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def beside(
    name: str, work: Coroutine[Any, Any, None], *, over: asyncio.Event | None = None
) -> AsyncIterator[None]:
    """Do `work` while the block runs.

    If the work fails, it ends the block and its owner sees the failure, because measuring without it makes no sense. At
    the end of the block the work is cancelled, or `over` tells it to finish.
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
