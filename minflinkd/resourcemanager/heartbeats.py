"""Who was heard of when (R10)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")


class Heartbeats(Generic[K]):
    """Parties by their ids, each heard of at some time, in seconds."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._heard: dict[K, float] = {}

    def heard(self, key: K, now: float) -> None:
        self._heard[key] = now

    def forget(self, key: K) -> None:
        """Idempotent."""
        self._heard.pop(key, None)

    def last(self, key: K, otherwise: float) -> float:
        return self._heard.get(key, otherwise)

    def take_silent(self, now: float) -> Iterator[tuple[K, float]]:
        """Those that were not heard of for the timeout, and for how long; they are forgotten."""
        for key, heard in list(self._heard.items()):
            if now - heard >= self._timeout:
                self.forget(key)
                yield key, now - heard
