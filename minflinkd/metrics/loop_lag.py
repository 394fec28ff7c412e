"""How late the event loop is (A4): how long a timer that is due waits until it runs, whatever the cause."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Histogram

from minflinkd.runtime.clock import Clock
from minflinkd.runtime.component import Component

INTERVAL = 0.1  # seconds between two measurements
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class LoopLag(Component):
    def __init__(self, registry: CollectorRegistry, clock: Clock, *, interval: float = INTERVAL) -> None:
        super().__init__("loop lag")
        self._clock = clock
        self._interval = interval
        self._most: float | None = None
        self._histogram = Histogram(
            "minflinkd_event_loop_lag_seconds",
            "How late a due timer runs on the daemon's event loop.",
            buckets=BUCKETS,
            registry=registry,
        )

    def most(self) -> float | None:
        """Return the longest lag since the last call, in seconds; None: it was not measured."""
        most, self._most = self._most, None
        return most

    async def _start(self) -> None:
        self.tasks.loop("measure", self._measure)

    async def _measure(self) -> None:
        while True:
            due = self._clock.monotonic() + self._interval
            await self._clock.sleep(self._interval)
            lag = max(0.0, self._clock.monotonic() - due)
            self._histogram.observe(lag)
            self._most = max(lag, self._most or 0.0)
