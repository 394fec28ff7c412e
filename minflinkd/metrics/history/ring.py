"""The last rows of some series, by the number of their time slot. It grows to its capacity, then forgets the oldest."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final

from minflinkd.metrics.history.encoding import UNKNOWN
from minflinkd.metrics.history.series import Layout

FIRST_SIZE: Final = 45  # rows; 16 times as many are an hour, 32 times as many a day


class Ring:
    """Codes in columns. A slot that was never put, or is no longer kept, has UNKNOWN in all of them."""

    __slots__ = ("_capacity", "_first", "_last", "_layout", "_narrow", "_size", "_wide")

    def __init__(self, layout: Layout, capacity: int) -> None:
        self._layout = layout
        self._capacity = capacity
        self._size = min(FIRST_SIZE, capacity)
        self._first = 0
        self._last = -1  # nothing was put
        self._wide, self._narrow = self._empty(self._size)

    @property
    def last(self) -> int:
        """The latest slot that was put; -1: none."""
        return self._last

    @property
    def first(self) -> int:
        """The earliest slot that is kept."""
        return max(self._first, self._last - self._size + 1)

    def put(self, slot: int, codes: Sequence[int]) -> None:
        """Set the row of a slot, in any order. One that is too old is dropped."""
        if not self._make_room(slot):
            return
        at, size = slot % self._size, self._size
        for column, number in enumerate(self._layout.wide):
            self._wide[column * size + at] = codes[number]
        for column, number in enumerate(self._layout.narrow):
            self._narrow[column * size + at] = codes[number]

    def columns(self, start: int, stop: int) -> list[Sequence[int]]:
        """Return the codes of slots from `start` to before `stop`, one column for each series."""
        return [self.column(number, start, stop) for number in range(len(self._layout.series))]

    def column(self, number: int, start: int, stop: int) -> Sequence[int]:
        """Return the codes of one series."""
        begin, end = max(start, self.first), min(stop, self._last + 1)
        if self._last < 0 or begin >= end:
            return [UNKNOWN] * max(0, stop - start)
        is_wide, column = self._layout.places[number]
        store: array[int] | bytearray = self._wide if is_wide else self._narrow
        base, at, count = column * self._size, begin % self._size, end - begin
        codes = list(store[base + at : base + min(at + count, self._size)])
        codes += store[base : base + count - len(codes)]
        return [UNKNOWN] * (begin - start) + codes + [UNKNOWN] * (stop - end)

    def _make_room(self, slot: int) -> bool:
        """Make the slot one of those that are kept. False: it is too old."""
        if self._last < 0:
            self._first = self._last = slot
            return True
        if slot <= self._last - self._capacity:
            return False
        first, last = min(self._first, slot), max(self._last, slot)
        if last - max(first, last - self._capacity + 1) >= self._size:
            self._grow(last - first + 1)
        if slot > self._last:
            for skipped in range(max(self._last + 1, slot - self._size + 1), slot + 1):
                self._clear(skipped % self._size)
        self._first, self._last = first, last
        return True

    def _grow(self, rows: int) -> None:
        size = self._size
        while size < min(rows, self._capacity):
            size = min(2 * size, self._capacity)
        begin, end = self.first, self._last + 1
        kept = self.columns(begin, end)
        wide, narrow = self._empty(size)
        at = begin % size
        fits = min(end - begin, size - at)
        for number, codes in enumerate(kept):
            is_wide, column = self._layout.places[number]
            store: Any = wide if is_wide else narrow
            base = column * size
            for where, part in ((base + at, codes[:fits]), (base, codes[fits:])):
                store[where : where + len(part)] = array("H", part) if is_wide else bytes(part)
        self._wide, self._narrow, self._size = wide, narrow, size
        self._first = begin

    def _clear(self, at: int) -> None:
        for column in range(len(self._layout.wide)):
            self._wide[column * self._size + at] = UNKNOWN
        for column in range(len(self._layout.narrow)):
            self._narrow[column * self._size + at] = UNKNOWN

    def _empty(self, size: int) -> tuple[array[int], bytearray]:
        # Not of bytes: an array made of those takes more than it needs.
        return array("H", [UNKNOWN]) * (size * len(self._layout.wide)), bytearray(size * len(self._layout.narrow))
