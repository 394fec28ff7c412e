"""Injected time (A7). Components ask a Clock, never `time` or the loop, so that a simulation can control time."""

from __future__ import annotations

import asyncio
import time
from typing import Final, Protocol


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


class WallTime:
    """Says at what time of day something happened that was noted by the monotonic clock.

    The same moment has the same time of day each time. If the clock of the machine is set, it moves with it.
    """

    SET: Final = 1000.0  # milliseconds by which the two clocks drift apart only if one was set

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = self._difference()

    def epoch_ms(self, at: float) -> int:
        """Return the time of day of a moment of the monotonic clock."""
        self._look()
        return round(self._ahead + at * 1000)

    def monotonic(self, epoch_ms: int) -> float:
        """Return the moment of the monotonic clock at a time of day."""
        self._look()
        return (epoch_ms - self._ahead) / 1000

    def _look(self) -> None:
        if abs((now := self._difference()) - self._ahead) > self.SET:
            self._ahead = now

    def _difference(self) -> float:
        return self._clock.epoch_ms() - self._clock.monotonic() * 1000
