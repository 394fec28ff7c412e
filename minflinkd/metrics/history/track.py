"""One subject's past: its rows 5 s apart for an hour, and a minute apart for a day."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from minflinkd.metrics.history.ring import Ring
from minflinkd.metrics.history.series import (
    COARSE_KEPT,
    COARSE_MS,
    FINE_KEPT,
    FINE_MS,
    PER_MINUTE,
    Layout,
    Value,
)


class Resolution(IntEnum):
    """Milliseconds between two rows."""

    FINE = FINE_MS
    COARSE = COARSE_MS

    @property
    def kept(self) -> int:
        """How many rows are kept."""
        return FINE_KEPT if self is Resolution.FINE else COARSE_KEPT


class Track:
    """A minute's row is made of those in it when the first row of another minute comes."""

    __slots__ = ("_coarse", "_fine", "layout")

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._fine = Ring(layout, FINE_KEPT)
        self._coarse = Ring(layout, COARSE_KEPT)

    @property
    def last_ms(self) -> int:
        """The time of the latest row; -1: there is none."""
        return max(self._fine.last * FINE_MS, self._coarse.last * COARSE_MS) if self._fine.last >= 0 else self._old_ms

    @property
    def _old_ms(self) -> int:
        return self._coarse.last * COARSE_MS if self._coarse.last >= 0 else -1

    def put(self, slot: int, values: Sequence[Value]) -> None:
        """Set the row of a slot of 5 s."""
        before = self._fine.last
        if before >= 0 and slot // PER_MINUTE > before // PER_MINUTE:
            self._fold(before // PER_MINUTE)
        self._fine.put(slot, self.layout.encode(values))

    def columns(self, resolution: Resolution, start: int, stop: int) -> list[Sequence[int]]:
        """Return the codes of slots of this resolution, one column for each series."""
        if resolution is Resolution.FINE:
            return self._fine.columns(start, stop)
        if (now := self._fine.last // PER_MINUTE) >= 0 and start <= now < stop:
            self._fold(now)  # as far as it has got
        return self._coarse.columns(start, stop)

    def values(self, resolution: Resolution, number: int, start: int, stop: int) -> list[Value]:
        """Return the values of one series. None: nothing is known."""
        if resolution is Resolution.FINE:
            codes = self._fine.column(number, start, stop)
        else:
            if (now := self._fine.last // PER_MINUTE) >= 0 and start <= now < stop:
                self._fold(now)
            codes = self._coarse.column(number, start, stop)
        return self.layout.decode(number, codes)

    def fill(self, resolution: Resolution, start: int, columns: Sequence[Sequence[int]]) -> None:
        """Add stored rows where nothing is known yet. Fine rows count for their minutes as well, however old."""
        rows = len(columns[0]) if columns else 0
        ring = self._fine if resolution is Resolution.FINE else self._coarse
        known = ring.columns(start, start + rows)
        for row in range(rows):
            codes = [column[row] for column in columns]
            if any(codes) and not any(column[row] for column in known):
                ring.put(start + row, codes)
        if resolution is Resolution.FINE:
            self._fill_minutes(start, columns, rows)

    def _fill_minutes(self, start: int, columns: Sequence[Sequence[int]], rows: int) -> None:
        for minute in range(start // PER_MINUTE, (start + rows - 1) // PER_MINUTE + 1):
            first = minute * PER_MINUTE
            if first >= self._fine.first:  # perhaps another part of the minute is there
                self._fold(minute)
            else:
                begin, end = max(0, first - start), max(0, first - start + PER_MINUTE)
                self._put_minute(minute, [column[begin:end] for column in columns])

    def _fold(self, minute: int) -> None:
        first = minute * PER_MINUTE
        self._put_minute(minute, self._fine.columns(first, first + PER_MINUTE))

    def _put_minute(self, minute: int, columns: Sequence[Sequence[int]]) -> None:
        if any(map(any, columns)):
            self._coarse.put(minute, self.layout.fold(columns))
