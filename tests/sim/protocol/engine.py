"""Virtual time: a heap of events. Events at one instant happen in the order in which they were added."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any


class Engine:
    """The clock. `now` is in seconds, from 0."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0  # number of events so far
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()

    def after(self, delay: float, act: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._heap, (self.now + delay, next(self._order), act, args))

    def at(self, when: float, act: Callable[..., None], *args: Any) -> None:
        """Call `act` at `when`, or now if that has passed."""
        heapq.heappush(self._heap, (max(when, self.now), next(self._order), act, args))

    def run_until(self, end: float) -> None:
        """Let every event until `end` happen, and set the time to `end`."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= end:
            self.now, _, act, args = pop(heap)
            self.events += 1
            act(*args)
        self.now = end
