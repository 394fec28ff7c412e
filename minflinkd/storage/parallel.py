"""Many requests at once, but not too many."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


async def for_each(items: Iterable[T], action: Callable[[T], Awaitable[R]], *, limit: int) -> list[R]:
    """`action` of every item, at most `limit` at a time; the answers in the order of the items.

    The first failure cancels the rest and is raised as it is. Returns or raises only when nothing runs any more.
    """
    room = asyncio.Semaphore(limit)

    async def run(item: T) -> R:
        async with room:
            return await action(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(item)) for item in items]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
