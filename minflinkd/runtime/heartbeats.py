"""Who was heard of when (R10): pure bookkeeping that all parties share. Times in seconds of the caller's clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")


class Heartbeats(Generic[K]):
    """Parties by their ids. One that is not heard of for the timeout is silent; a suspected one sooner."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._heard: dict[K, float] = {}
        self._due: dict[K, float] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._heard

    def heard(self, key: K, now: float) -> None:
        self._heard[key] = now
        self._due[key] = now + self._timeout

    def suspect(self, key: K, until: float) -> None:
        """Its connection failed: unless it is heard of, it is silent at `until`, if not before."""
        if key in self._due:
            self._due[key] = min(self._due[key], until)

    def postpone(self, seconds: float) -> None:
        """Nobody could be heard for so long, as the caller itself was held up: that is not their silence."""
        self._due = {key: due + seconds for key, due in self._due.items()}

    def forget(self, key: K) -> None:
        """Idempotent."""
        self._heard.pop(key, None)
        self._due.pop(key, None)

    def last(self, key: K, otherwise: float) -> float:
        return self._heard.get(key, otherwise)

    def next_due(self) -> float | None:
        return min(self._due.values(), default=None)

    def take_silent(self, now: float) -> Iterator[tuple[K, float]]:
        """Those that are silent, and for how long; they are forgotten."""
        for key, due in list(self._due.items()):
            if now >= due:
                silent = now - self._heard[key]
                self.forget(key)
                yield key, silent
