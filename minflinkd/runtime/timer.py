"""The loop that lets time pass for a machine: it is told when something is due, and looks again after every change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from minflinkd.runtime.clock import Clock


class Timer:
    """`due` says when, in monotonic seconds, or None for not before a change; `tick` is called with a time that is at

    least that. `run` is a loop of whoever owns the machine.
    """

    def __init__(self, clock: Clock, *, due: Callable[[], float | None], tick: Callable[[float], object]) -> None:
        self._clock = clock
        self._due = due
        self._tick = tick
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """What is due may be due at another time now."""
        self._changed.set()

    async def run(self) -> None:
        while True:
            self._changed.clear()
            due = self._due()
            try:
                async with asyncio.timeout(None if due is None else max(0.0, due - self._clock.monotonic())):
                    await self._changed.wait()
            except TimeoutError:
                # It may fire a tick of its clock early: less than `due` would be waited for again, and again.
                self._tick(max(due or 0.0, self._clock.monotonic()))
