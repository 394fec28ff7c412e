"""The time of day of what was noted by the monotonic clock."""

from __future__ import annotations

import pytest

from minflinkd.runtime.clock import WallTime


class RoughClock:
    """As of a real machine: the time of day is a whole number of milliseconds, and somebody may set it."""

    def __init__(self) -> None:
        self.now, self.ahead_ms = 100.0, 1_700_000_000_000

    def monotonic(self) -> float:
        return self.now

    def epoch_ms(self) -> int:
        return int(self.now * 1000) + self.ahead_ms

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


async def test_a_moment_has_one_time_of_day() -> None:
    """Otherwise the same failure would be a millisecond earlier in one answer than in the next, or change places."""
    clock = RoughClock()
    wall, at = WallTime(clock), 100.0004
    found = set()
    for _ in range(100):
        await clock.sleep(0.0007)
        found.add(wall.epoch_ms(at))
    assert found == {1_700_000_100_000}
    assert wall.monotonic(1_700_000_100_000) == pytest.approx(100.0)


@pytest.mark.parametrize("leap_ms", [3_600_000, -3_600_000])
def test_the_time_of_day_moves_with_a_clock_that_is_set(leap_ms: int) -> None:
    """It is shown beside that of others, who go by the clock that was set."""
    clock = RoughClock()
    wall = WallTime(clock)
    clock.ahead_ms += leap_ms
    assert wall.epoch_ms(100.0) == 1_700_000_100_000 + leap_ms
    assert wall.monotonic(1_700_000_100_000 + leap_ms) == pytest.approx(100.0)
