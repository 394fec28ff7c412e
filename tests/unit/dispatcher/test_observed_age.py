"""Results of jobs do not expire because somebody sets the clock (E45)."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from minflinkd.dispatcher.job_results import EXPIRY_INTERVAL, ObservedAge

YEAR = 365 * 86400.0


class SetClock:
    """A clock whose wall time somebody sets."""

    def __init__(self) -> None:
        self.elapsed, self.ahead = 1000.0, 0.0

    def monotonic(self) -> float:
        return self.elapsed

    def epoch_ms(self) -> int:
        return round((1_700_000_000 + self.elapsed + self.ahead) * 1000)

    async def sleep(self, seconds: float) -> None:
        self.elapsed += seconds


@pytest.mark.parametrize("leap", [YEAR, 3600.0, 11.0])
async def test_a_clock_that_is_set_forward_makes_nothing_older(leap: float) -> None:
    clock = SetClock()
    age, began = ObservedAge(clock), clock.epoch_ms()
    await clock.sleep(EXPIRY_INTERVAL)
    clock.ahead = leap
    with capture_logs() as logs:
        assert age.now_ms() == pytest.approx(began + EXPIRY_INTERVAL * 1000)
        await clock.sleep(EXPIRY_INTERVAL)
        assert age.now_ms() == pytest.approx(began + 2 * EXPIRY_INTERVAL * 1000)
    assert [line["seconds"] for line in logs] == [round(leap)]


async def test_a_clock_that_is_set_back_again_is_believed() -> None:
    clock = SetClock()
    age, began = ObservedAge(clock), clock.epoch_ms()
    with capture_logs():
        for ahead in (YEAR, 0.0):
            clock.ahead = ahead
            assert age.now_ms() == pytest.approx(began)


async def test_a_clock_that_is_only_corrected_is_followed() -> None:
    """NTP moves a clock by a little at a time."""
    clock = SetClock()
    age = ObservedAge(clock)
    for step in range(1, 11):
        await clock.sleep(EXPIRY_INTERVAL)
        clock.ahead = step * 0.03
        assert age.now_ms() == pytest.approx(clock.epoch_ms())
