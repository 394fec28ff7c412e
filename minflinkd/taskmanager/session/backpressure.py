"""Whether the readers of a task's exchange hold it back, and for how long they have (J10)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from minflinkd.rpc.messages import TaskMetrics

TELL_EVERY = 1.0  # seconds between two reports of nothing but another backlog


@dataclass(frozen=True)
class Output:
    """Of a task, at one moment."""

    backlog: int  # bytes that a reader still needs
    held: bool
    held_ms: float  # altogether

    def within(self, metrics: TaskMetrics) -> TaskMetrics:
        return msgspec.structs.replace(
            metrics, output_backlog=self.backlog, backpressured=self.held, backpressured_ms=self.held_ms
        )


class Backpressure:
    """Thread-safe: a micro-batch waits on one thread, another one reports."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._since: float | None = None
        self._before = 0.0  # seconds, of earlier times
        self._told_at = -TELL_EVERY

    def hold(self) -> None:
        """A micro-batch waits for a reader. Idempotent."""
        with self._lock:
            if self._since is None:
                self._since = self._clock()

    def let_go(self) -> None:
        with self._lock:
            if self._since is not None:
                self._before += self._clock() - self._since
                self._since = None

    def output(self, backlog: int) -> Output:
        with self._lock:
            now = 0.0 if self._since is None else self._clock() - self._since
            return Output(backlog, self._since is not None, round((self._before + now) * 1000, 1))

    def is_news(self, output: Output, told: TaskMetrics) -> bool:
        """Whether to tell of it although no micro-batch has finished: at once where the task is held back, or no

        longer, and now and then of another backlog.
        """
        now = self._clock()
        differs = output.backlog != told.output_backlog and now - self._told_at >= TELL_EVERY
        if output.held == told.backpressured and not differs:
            return False
        self._told_at = now
        return True
