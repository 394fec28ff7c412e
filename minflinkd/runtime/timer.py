"""The loop that passes time to a machine: it waits until something is due, and checks again after every change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from minflinkd.runtime.clock import Clock


class Timer:
    """Calls `tick` when something is due.

    `due` returns when, in monotonic seconds; None: not before the next change. `tick` gets a time no earlier than that.
    The owner of the machine runs `run` as a loop.
    """

    def __init__(self, clock: Clock, *, due: Callable[[], float | None], tick: Callable[[float], object]) -> None:
        self._clock = clock
        self._due = due
        self._tick = tick
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """The next due time may have changed."""
        self._changed.set()

    async def run(self) -> None:
        while True:
            self._changed.clear()
            due = self._due()
            try:
                async with asyncio.timeout(None if due is None else max(0.0, due - self._clock.monotonic())):
                    await self._changed.wait()
            except TimeoutError:
                # The timeout may fire slightly early. With a time before `due`, this loop would wait again and again.
                self._tick(max(due or 0.0, self._clock.monotonic()))
