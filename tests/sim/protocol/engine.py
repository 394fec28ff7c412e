"""Virtual time: a heap of events. Two events of one instant happen in the order in which they were made."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any


class Engine:
    """`now` in seconds, from 0."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0  # that have happened
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()

    def after(self, delay: float, act: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._heap, (self.now + delay, next(self._order), act, args))

    def at(self, when: float, act: Callable[..., None], *args: Any) -> None:
        """Now, where `when` has passed."""
        heapq.heappush(self._heap, (max(when, self.now), next(self._order), act, args))

    def run_until(self, end: float) -> None:
        """Let everything happen that is due until `end`, and be there then."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= end:
            self.now, _, act, args = pop(heap)
            self.events += 1
            act(*args)
        self.now = end
