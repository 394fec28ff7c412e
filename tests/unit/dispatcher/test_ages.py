"""Results of jobs do not expire because somebody sets the clock (E45)."""

from __future__ import annotations

import pytest

from minflinkd.dispatcher.job_results import Ages
from minflinkd.runtime.ids import JobId

JOB, LATER = JobId("1" * 32), JobId("2" * 32)
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


@pytest.mark.parametrize("leap", [YEAR, 3600.0, -YEAR])
async def test_a_clock_that_is_set_makes_nothing_older_or_younger(leap: float) -> None:
    """Neither what ended before the leap, nor what ends after it."""
    clock = SetClock()
    ages, ended = Ages(clock), clock.epoch_ms()
    await clock.sleep(60)
    assert ages.of(JOB, ended) == pytest.approx(60)
    clock.ahead = leap
    later = clock.epoch_ms()
    await clock.sleep(60)
    assert ages.of(JOB, ended) == pytest.approx(120)
    assert ages.of(LATER, later) == pytest.approx(60)


async def test_a_daemon_that_starts_believes_the_clock() -> None:
    """It cannot know what has elapsed before. A result from the future is new."""
    clock = SetClock()
    ages = Ages(clock)
    assert ages.of(JOB, clock.epoch_ms() - 7_200_000) == pytest.approx(7200)
    assert ages.of(LATER, clock.epoch_ms() + 7_200_000) == 0


async def test_a_job_that_is_forgotten_begins_anew() -> None:
    clock = SetClock()
    ages = Ages(clock)
    ages.of(JOB, clock.epoch_ms())
    await clock.sleep(100)
    ages.forget(JOB)
    assert ages.of(JOB, clock.epoch_ms()) == 0
