"""Records who was heard from and when (R10), for all parties. Pure; times are seconds of the caller's clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")


class Heartbeats(Generic[K]):
    """Parties by id. A party not heard from for the timeout is silent; a suspected one is silent sooner."""

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
        """The party's connection failed: unless heard from, it is silent at `until` at the latest."""
        if key in self._due:
            self._due[key] = min(self._due[key], until)

    def postpone(self, seconds: float) -> None:
        """Extend every deadline: the caller itself was held up for so long and could not hear anybody."""
        self._due = {key: due + seconds for key, due in self._due.items()}

    def forget(self, key: K) -> None:
        """Stop tracking a party. Idempotent."""
        self._heard.pop(key, None)
        self._due.pop(key, None)

    def last(self, key: K, otherwise: float) -> float:
        return self._heard.get(key, otherwise)

    def next_due(self) -> float | None:
        return min(self._due.values(), default=None)

    def take_silent(self, now: float) -> Iterator[tuple[K, float]]:
        """Yield the silent parties, each with the seconds of its silence, and forget them."""
        for key, due in list(self._due.items()):
            if now >= due:
                silent = now - self._heard[key]
                self.forget(key)
                yield key, silent
