"""Time, injected (A7): components ask a Clock, never `time` or the loop, so that a simulation can own time."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds that never go back; for intervals and deadlines."""
        ...

    def epoch_ms(self) -> int:
        """Milliseconds since 1970, for people and files; may jump."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The clock of a real process. Under looptime `monotonic` and `sleep` are virtual, as they are the loop's."""

    def monotonic(self) -> float:
        try:
            return asyncio.get_running_loop().time()
        except RuntimeError:  # called from a thread without a loop
            return time.monotonic()

    def epoch_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
