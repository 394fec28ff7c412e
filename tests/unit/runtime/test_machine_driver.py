"""What drivers of machines share: commands in order, time, and waiting for a state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.machine import InvariantViolated, Machine
from minflinkd.runtime.machine_driver import MachineDriver
from tests.waiting import until

pytestmark = pytest.mark.looptime
TICK = "tick"


class Countdown:
    """A machine whose state is a number. An event of words commands each word, and adds one to the state.

    A tick is due three seconds after a step. It is an event like any other.
    """

    def __init__(self, *, crash: Callable[[Exception], Exception] | None = None) -> None:
        self.fed_at: list[float] = []
        self.done: list[str] = []
        self.ticks: list[float] = []
        self.on: dict[str, Callable[[], object]] = {}
        self.ended = False
        self.driver = MachineDriver(
            Machine(0, self._step, name="countdown"),
            clock=SystemClock(),
            due=lambda _, stepped_at: stepped_at + 3 if stepped_at else None,
            tick=TICK,
            carry_out=self._carry_out,
            ended=lambda: self.ended,
            crash=crash,
        )

    def _step(self, state: int, event: str, now: float) -> tuple[int, tuple[str, ...]]:
        self.fed_at.append(now)
        if event == "broken":
            raise InvariantViolated("never")
        if event == TICK:
            self.ticks.append(now)
        return state + 1, tuple(event.split())

    def _carry_out(self, command: str) -> None:
        self.done.append(command)
        self.on.get(command, lambda: None)()


@contextmanager
def ticking(countdown: Countdown) -> Iterator[None]:
    task = asyncio.create_task(countdown.driver.run())
    try:
        yield
    finally:
        task.cancel()


async def test_a_command_that_leads_to_another_event_does_not_wait_for_its_commands() -> None:
    """They come after the commands of the first event. The state changes at once."""
    countdown = Countdown()
    states: list[int] = []

    def feed_more() -> None:
        countdown.driver.feed("c d")
        states.append(countdown.driver.state)

    countdown.on["a"] = feed_more
    countdown.driver.feed("a b")
    assert countdown.done == ["a", "b", "c", "d"]
    assert states == [2]


async def test_the_commands_after_one_that_fails_are_dropped_and_the_caller_gets_the_error() -> None:
    countdown = Countdown()

    def fail() -> None:
        raise OSError("too many open files")

    countdown.on["a"] = fail
    with pytest.raises(OSError, match="too many"):
        countdown.driver.feed("a b")
    countdown.driver.feed("c")
    assert countdown.done == ["a", "c"]


@pytest.mark.parametrize("event", ["broken", "failing"])
async def test_whoever_owns_the_machine_crashes_with_it(event: str) -> None:
    """Its state cannot be trusted (A1)."""
    errors: list[Exception] = []

    def crash(error: Exception) -> Exception:
        errors.append(error)
        return RuntimeError("crashed")

    def fail() -> None:
        raise InvariantViolated("never")

    countdown = Countdown(crash=crash)
    countdown.on["failing"] = fail
    with pytest.raises(RuntimeError, match="crashed"):
        countdown.driver.feed(event)
    assert [type(error) for error in errors] == [InvariantViolated]


async def test_events_after_the_end_are_ignored() -> None:
    countdown = Countdown()
    countdown.ended = True
    countdown.driver.feed("a")
    assert (countdown.done, countdown.driver.state) == ([], 0)


async def test_it_ticks_when_that_is_due_after_its_last_step() -> None:
    countdown = Countdown()
    clock = SystemClock()
    with ticking(countdown):
        await asyncio.sleep(10)
        assert countdown.ticks == []
        began = clock.monotonic()
        countdown.driver.feed("a")
        await asyncio.sleep(2)
        countdown.driver.feed("b")
        await asyncio.sleep(7)
    assert [round(at - began) for at in countdown.ticks] == [5, 8]


async def test_whoever_waits_for_a_state_goes_on_with_the_step_that_brings_it() -> None:
    countdown = Countdown()
    waiting = [asyncio.create_task(countdown.driver.watch.until(lambda state: state >= 2)) for _ in range(2)]
    countdown.driver.feed("a")
    await asyncio.sleep(1)
    assert not any(task.done() for task in waiting)
    countdown.driver.feed("b")
    async with asyncio.timeout(1):
        await asyncio.gather(*waiting)
    await countdown.driver.watch.until(lambda state: state == 2, timeout=0.0)


async def test_waiting_for_a_state_has_an_end() -> None:
    with pytest.raises(TimeoutError):
        await Countdown().driver.watch.until(lambda state: state > 0, timeout=5.0)


async def test_who_is_told_of_a_change_sees_what_the_commands_have_done() -> None:
    countdown, seen = Countdown(), []
    countdown.driver.watch.on_change = lambda: seen.append((countdown.driver.state, list(countdown.done)))
    countdown.driver.feed("one two")
    assert seen == [(1, ["one", "two"])]


async def test_an_event_after_an_early_tick_is_not_earlier_than_the_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a tick has made due stays due: time never goes back for a machine.

    Otherwise a job whose wait for slots had just ended was told that it had not, again and again.
    """
    exact = SystemClock.monotonic
    monkeypatch.setattr(SystemClock, "monotonic", lambda self: exact(self) // 0.7 * 0.7)  # a clock with a coarse hand
    countdown = Countdown()
    await asyncio.sleep(1)
    with ticking(countdown):
        countdown.driver.feed("a")
        await until(lambda: countdown.ticks)
        countdown.driver.feed("b")
    assert countdown.fed_at == sorted(countdown.fed_at)
    assert len(countdown.fed_at) == 3
