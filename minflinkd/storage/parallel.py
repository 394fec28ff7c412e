"""Many requests at once, up to a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


async def for_each(items: Iterable[T], action: Callable[[T], Awaitable[R]], *, limit: int) -> list[R]:
    """Run `action` for every item, at most `limit` at a time, and return the answers in the order of the items.

    The first failure cancels the rest and is raised as is. Returns or raises only when no action runs any more. An
    action that uses a thread must wait for the thread when it is cancelled, since the thread goes on.
    """
    todo = list(items)
    answers: dict[int, R] = {}
    numbered = iter(enumerate(todo))

    async def work() -> None:
        for number, item in numbered:  # shared by all workers: each item is taken once
            answers[number] = await action(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(limit, len(todo))):
                group.create_task(work())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [answers[number] for number in range(len(todo))]
