"""One question to a party answers everybody who asks at nearly the same time (E4)."""

from __future__ import annotations

import asyncio

import pytest

from minflinkd.rest.backend import Shared
from minflinkd.rpc.network import Unreachable


class StandingClock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def epoch_ms(self) -> int:
        return int(self.now * 1000)

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


class Party:
    """Answers with the number of the question, when the test lets it."""

    def __init__(self) -> None:
        self.questions = 0
        self.error: Exception | None = None
        self.free = asyncio.Event()
        self.free.set()

    async def ask(self) -> int:
        self.questions += 1
        answer = self.questions
        await self.free.wait()
        if self.error is not None:
            raise self.error
        return answer


@pytest.fixture
def clock() -> StandingClock:
    return StandingClock()


async def test_an_answer_serves_until_it_is_too_old(clock: StandingClock) -> None:
    party = Party()
    shared = Shared(party.ask, clock, max_age=1.0)
    assert [await shared.get(), await shared.get()] == [1, 1]
    clock.now = 1.1
    assert await shared.get() == 2


async def test_who_asks_together_waits_for_one_question(clock: StandingClock) -> None:
    party = Party()
    party.free.clear()
    shared = Shared(party.ask, clock)
    asking = [asyncio.ensure_future(shared.get()) for _ in range(10)]
    await asyncio.sleep(0)
    party.free.set()
    assert set(await asyncio.gather(*asking)) == {1}


async def test_a_failure_is_shared_but_not_kept(clock: StandingClock) -> None:
    party = Party()
    party.error = Unreachable("away")
    party.free.clear()
    shared = Shared(party.ask, clock)
    asking = [asyncio.ensure_future(shared.get()) for _ in range(10)]
    await asyncio.sleep(0)
    party.free.set()
    assert all(isinstance(error, Unreachable) for error in await asyncio.gather(*asking, return_exceptions=True))
    assert party.questions == 1
    party.error = None
    assert await shared.get() == 2


async def test_after_a_change_no_answer_of_before_it_is_given(clock: StandingClock) -> None:
    """A question that was under way during the change may have been answered without it."""
    party = Party()
    party.free.clear()
    shared = Shared(party.ask, clock)
    before = asyncio.ensure_future(shared.get())
    await asyncio.sleep(0)
    shared.forget()
    after = asyncio.ensure_future(shared.get())
    await asyncio.sleep(0)
    party.free.set()
    assert (await before, await after) == (1, 2)
    assert await shared.get() == 2


async def test_a_cancelled_request_leaves_the_next_one_to_ask(clock: StandingClock) -> None:
    party = Party()
    party.free.clear()
    shared = Shared(party.ask, clock)
    first = asyncio.ensure_future(shared.get())
    await asyncio.sleep(0)
    second = asyncio.ensure_future(shared.get())
    await asyncio.sleep(0)
    first.cancel()
    party.free.set()
    assert await second == 2
