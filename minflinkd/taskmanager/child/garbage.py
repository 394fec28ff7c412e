"""For which share of the last minute a JVM stood still to collect garbage. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

WINDOW: Final = 60.0  # seconds
LEAST: Final = 10.0  # seconds; of a shorter time nothing is said
# ZGC and Shenandoah count two things: how long a collection takes beside the program, and how long the program waits.
_BESIDE: Final = "Cycles"


class CollectionShare:
    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()  # time in seconds, milliseconds of collections until then

    def add(self, now: float, figures: Mapping[str, float]) -> dict[str, float]:
        """Note the JVM's figures, and return them with the share, from 0 to 1, as `gc_share` once it is known."""
        spent = stopped_ms(figures)
        if spent is None:
            return dict(figures)
        self._seen.append((now, spent))
        while len(self._seen) > 2 and now - self._seen[1][0] >= WINDOW:
            self._seen.popleft()
        since, before = self._seen[0]
        if now - since < LEAST:
            return dict(figures)
        return {**figures, "gc_share": round(min(1.0, max(0.0, (spent - before) / 1000 / (now - since))), 4)}


def stopped_ms(figures: Mapping[str, float]) -> float | None:
    """Return the milliseconds for which the program waited for its collectors; None: the JVM did not say."""
    times = [
        value
        for name, value in figures.items()
        if name.startswith("gc.") and name.endswith(".time_ms") and not name.removesuffix(".time_ms").endswith(_BESIDE)
    ]
    return sum(times) if times else None
