"""Staged cleanup (B16): what nobody needs goes after at least one and at most two retention intervals. Pure.

Two lists. A rotation takes what is on the first, and makes the second the first. They rotate every `interval` seconds,
whatever else runs how often; a rotation that comes late delays the next ones, so that nothing goes too early.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class StagedLists(Generic[T]):
    """Times are of a monotonic clock, in seconds."""

    def __init__(self, interval: float, now: float) -> None:
        self._interval = interval
        self._first: dict[T, None] = {}  # in the order in which they came
        self._second: dict[T, None] = {}
        self._rotates_at = now + interval

    def __contains__(self, item: T) -> bool:
        return item in self._first or item in self._second

    def __len__(self) -> int:
        return len(self._first) + len(self._second)

    @property
    def rotates_at(self) -> float:
        """When `rotate` is to be called next."""
        return self._rotates_at

    def add(self, item: T) -> None:
        """One that is staged already keeps its place."""
        if item not in self:
            self._second[item] = None

    def remove(self, item: T) -> None:
        """It is needed again, or gone; one that is not staged is no error."""
        self._first.pop(item, None)
        self._second.pop(item, None)

    def remove_where(self, matches: Callable[[T], bool]) -> None:
        for item in [item for item in (*self._first, *self._second) if matches(item)]:
            self.remove(item)

    def rotate(self, now: float) -> tuple[T, ...]:
        """What is to be deleted now; nothing before the time has come."""
        if now < self._rotates_at:
            return ()
        due = tuple(self._first)
        self._first, self._second = self._second, {}
        self._rotates_at = now + self._interval
        return due
