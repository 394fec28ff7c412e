"""Injected time (A7). Components ask a Clock, never `time` or the loop, so that a simulation can control time."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Return seconds that never go back, for intervals and deadlines."""
        ...

    def epoch_ms(self) -> int:
        """Return milliseconds since 1970, for people and files. They may jump."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The clock of a real process. `monotonic` and `sleep` use the loop's time, so looptime makes them virtual."""

    def monotonic(self) -> float:
        try:
            return asyncio.get_running_loop().time()
        except RuntimeError:  # called from a thread without a loop
            return time.monotonic()

    def epoch_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
