"""Measures whether, and for how long, the readers of a task's exchange hold it back (J10)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from minflinkd.rpc.messages import TaskMetrics

TELL_EVERY = 1.0  # seconds between two reports in which only the backlog has changed


@dataclass(frozen=True)
class Output:
    """The state of a task's output at one moment."""

    backlog: int  # bytes that a reader still needs
    replayable: bool  # as in TaskMetrics
    held: bool
    held_ms: float  # in total
    space: str = ""  # which disk is too full, if that holds it

    def within(self, metrics: TaskMetrics) -> TaskMetrics:
        return msgspec.structs.replace(
            metrics,
            output_backlog=self.backlog,
            replayable=self.replayable,
            backpressured=self.held,
            backpressured_ms=self.held_ms,
            waits_for_space=self.space,
        )


class Backpressure:
    """Measures the time for which micro-batches are held back. Thread-safe: one thread waits, another one reports."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._since: float | None = None
        self._before = 0.0  # seconds, without the current wait
        self._space = ""
        self._told_at = -TELL_EVERY

    def hold(self, space: str = "") -> None:
        """Record that a micro-batch waits for a reader, or for `space` on a disk. Idempotent."""
        with self._lock:
            self._space = space
            if self._since is None:
                self._since = self._clock()

    def let_go(self) -> None:
        with self._lock:
            self._space = ""
            if self._since is not None:
                self._before += self._clock() - self._since
                self._since = None

    def output(self, backlog: int, *, replayable: bool = False) -> Output:
        with self._lock:
            now = 0.0 if self._since is None else self._clock() - self._since
            return Output(
                backlog, replayable, self._since is not None, round((self._before + now) * 1000, 1), self._space
            )

    def is_news(self, output: Output, told: TaskMetrics) -> bool:
        """Whether to report the output although no micro-batch has finished.

        True at once if the task is held back now, or no longer is, and if its readers can restart alone now, or no
        longer can. From time to time if only the backlog has changed.
        """
        now = self._clock()
        differs = output.backlog != told.output_backlog and now - self._told_at >= TELL_EVERY
        same = output.held == told.backpressured and bool(output.space) == bool(told.waits_for_space)
        if same and output.replayable == told.replayable and not differs:
            return False
        self._told_at = now
        return True
