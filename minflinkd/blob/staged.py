"""Staged cleanup (B16): what nobody needs is deleted after one to two retention intervals. Pure.

There are two lists. A rotation returns the items of the first, and the second becomes the first. The lists rotate every
`interval` seconds, however often anything else runs. A late rotation delays the next ones, so that nothing is deleted
too early.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class StagedLists(Generic[T]):
    """Times are of a monotonic clock, in seconds."""

    def __init__(self, interval: float, now: float) -> None:
        self._interval = interval
        self._first: dict[T, None] = {}  # in the order of their arrival
        self._second: dict[T, None] = {}
        self._rotates_at = now + interval

    def __contains__(self, item: T) -> bool:
        return item in self._first or item in self._second

    def __iter__(self) -> Iterator[T]:
        """Yield the items in the order of their arrival."""
        yield from (*self._first, *self._second)

    def __len__(self) -> int:
        return len(self._first) + len(self._second)

    @property
    def rotates_at(self) -> float:
        """When to call `rotate` next."""
        return self._rotates_at

    def add(self, item: T) -> None:
        """Stage an item. One that is already staged keeps its place."""
        if item not in self:
            self._second[item] = None

    def remove(self, item: T) -> None:
        """The item is needed again, or gone. It is no error if it is not staged."""
        self._first.pop(item, None)
        self._second.pop(item, None)

    def remove_where(self, matches: Callable[[T], bool]) -> None:
        for item in [item for item in self if matches(item)]:
            self.remove(item)

    def rotate(self, now: float) -> tuple[T, ...]:
        """Return what to delete now; nothing before the rotation is due."""
        if now < self._rotates_at:
            return ()
        due = tuple(self._first)
        self._first, self._second = self._second, {}
        self._rotates_at = now + self._interval
        return due
