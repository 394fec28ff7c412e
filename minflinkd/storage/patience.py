"""Decides when a failed request is tried again and when not, without a clock or an event loop (S4)."""

from __future__ import annotations

from minflinkd.storage.options import CommonOptions


class Patience:
    """The tries of one operation, or of one stream since its last progress. Times are seconds of one clock."""

    def __init__(self, options: CommonOptions, now: float) -> None:
        self._options = options
        self._began = now
        self._failures = 0

    @property
    def failures(self) -> int:
        return self._failures

    def elapsed(self, now: float) -> float:
        return now - self._began

    def progress(self, now: float) -> None:
        """Data has arrived: what follows has the full deadline and all retries again."""
        self._began = now
        self._failures = 0

    def rested(self, seconds: float) -> None:
        """Do not count these seconds: they were spent in steps with their own deadlines."""
        self._began += seconds

    def left(self, now: float) -> float:
        """Return the seconds until the deadline, never negative."""
        return max(0.0, self._began + self._options.deadline - now)

    def limit(self, now: float) -> float:
        """Return how long the next try may take, in seconds."""
        return min(self._options.request_timeout, self.left(now))

    def failed(self, now: float, chance: float) -> float | None:
        """Return the pause before the next try; None: there is no next try. `chance` in [0, 1) is the jitter.

        Pauses double. Each lasts between half and all of its length, so that clients that failed together do not retry
        together. A pause that would end after the deadline is not begun.
        """
        self._failures += 1
        if self._failures > self._options.retries:
            return None
        doubled = self._options.pause * 2.0 ** min(self._failures - 1, 60)
        pause = min(self._options.longest_pause, doubled) * (0.5 + chance / 2)
        return pause if pause < self.left(now) else None
