"""A machine is woken when something is due, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from minflinkd.runtime.clock import Clock, SystemClock
from minflinkd.runtime.machine_driver import Timer

pytestmark = pytest.mark.looptime


class Alarms:
    """A machine that only wants to be woken at these times."""

    def __init__(self, *times: float, clock: Clock | None = None) -> None:
        self.times = list(times)
        self.ticks: list[float] = []
        self.timer = Timer(clock or SystemClock(), due=self._due, tick=self._tick)

    def _due(self) -> float | None:
        return min(self.times, default=None)

    def _tick(self, now: float) -> None:
        self.ticks.append(now)
        self.times = [time for time in self.times if time > now]


@asynccontextmanager
async def running(alarms: Alarms) -> AsyncIterator[None]:
    task = asyncio.create_task(alarms.timer.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_it_ticks_when_something_is_due_and_never_where_nothing_is() -> None:
    alarms = Alarms(2.0, 5.0)
    async with running(alarms):
        await asyncio.sleep(100)
    assert alarms.ticks == [2.0, 5.0]


async def test_after_a_change_it_looks_again() -> None:
    alarms = Alarms(50.0)
    async with running(alarms):
        await asyncio.sleep(1)
        alarms.times.append(3.0)
        alarms.timer.changed()
        await asyncio.sleep(10)
    assert alarms.ticks == [3.0]


async def test_what_is_overdue_is_ticked_at_once() -> None:
    alarms = Alarms(1.0)
    await asyncio.sleep(7)
    async with running(alarms):
        await asyncio.sleep(0.5)
    assert alarms.ticks == [7.0]


async def test_a_tick_is_not_before_what_is_due_also_where_the_loop_fires_early() -> None:
    """Otherwise the machine would find nothing due, and be asked for the remaining time again and again."""

    class Behind(SystemClock):
        def monotonic(self) -> float:
            return super().monotonic() // 1

    alarms = Alarms(2.25, clock=Behind())
    async with running(alarms):
        await asyncio.sleep(100)  # the clock says 2 when the loop says 2.25
    assert alarms.ticks == [2.25]


async def test_a_change_that_leaves_what_is_due_as_it_was_wakes_nobody() -> None:
    """A party with many messages and one due time would spend as much on waking as on the messages (R31)."""
    alarms, looks = Alarms(50.0), 0

    def due() -> float | None:
        nonlocal looks
        looks += 1
        return alarms._due()

    alarms.timer = Timer(SystemClock(), due=due, tick=alarms._tick)
    async with running(alarms):
        await asyncio.sleep(1)
        looks = 0
        alarms.timer.changed()
        await asyncio.sleep(1)
        assert looks == 1
        alarms.times.append(3.0)
        alarms.timer.changed()
        await asyncio.sleep(10)
    assert alarms.ticks == [3.0]
