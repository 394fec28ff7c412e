"""Runs a backend's stream in its own task, from its first step to its end.

So a stream that hangs can be abandoned, and resources that a client library ties to the starting task stay in that
task. The stream runs a few items ahead of its reader.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Generic, TypeVar

from minflinkd.storage.attempts import Requests, Scope, Tries, inside
from minflinkd.storage.interface import closable

T = TypeVar("T")


class Stream(Generic[T]):
    """Read it with `next`, close it with `aclose`. `tries` belong to the operation that reads it."""

    def __init__(self, requests: Requests, tries: Tries, items: AsyncIterator[T], *, ahead: int) -> None:
        self._requests = requests
        self._tries = tries
        self._items = items
        self._ahead = ahead
        self._ready: deque[T] = deque()
        self._taken = asyncio.Event()  # tells the task that there is room
        loop = asyncio.get_running_loop()
        self._arrival: asyncio.Future[None] = loop.create_future()
        self._scope = Scope(loop.time())
        with inside(self._scope):
            self._task = requests.start(tries.path, self._run(), f"{requests.failures.scheme} {tries.kind}")
        self._task.add_done_callback(lambda _: self._arrive())

    async def next(self) -> T | None:
        """Return the next item; None at the end. Raises the kinds of StorageError, also if no item arrives in time."""
        if not self._ready and not self._task.done():
            self._arrival = asyncio.get_running_loop().create_future()
            self._scope.restart()
            if not await self._tries.wait(self._arrival, self._scope):
                raise self._tries.timed_out()
        if not self._ready:
            self._tries.outcome(self._task)
            return None
        self._taken.set()
        return self._ready.popleft()

    async def aclose(self) -> None:
        if not self._task.done():
            await self._requests.stop(self._task)

    async def _run(self) -> None:
        async with aclosing(closable(self._items)) as items:
            while True:
                async with self._tries.room():
                    try:
                        item = await anext(items)
                    except StopAsyncIteration:
                        return
                self._ready.append(item)
                self._arrive()
                while len(self._ready) >= self._ahead:
                    self._taken.clear()
                    await self._taken.wait()

    def _arrive(self) -> None:
        if not self._arrival.done():
            self._arrival.set_result(None)
