"""One question to a party answers everybody who waits for it, and nobody with what was before they came (E4)."""

from __future__ import annotations

import asyncio

import pytest

from minflinkd.rest.backend import Lasting, Shared
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


async def test_who_asks_alone_gets_an_answer_of_now() -> None:
    shared = Shared(Party().ask)
    assert [await shared.get(), await shared.get()] == [1, 2]


async def test_who_asks_together_waits_for_one_question() -> None:
    """The first question may have been answered before the others came, so they share the next one (E4)."""
    party = Party()
    party.free.clear()
    shared = Shared(party.ask)
    first = asyncio.ensure_future(shared.get())
    await asyncio.sleep(0)
    others = [asyncio.ensure_future(shared.get()) for _ in range(10)]
    await asyncio.sleep(0)
    party.free.set()
    assert await first == 1
    assert set(await asyncio.gather(*others)) == {2}


async def test_a_failure_is_shared_but_not_kept() -> None:
    party = Party()
    party.error = Unreachable("away")
    party.free.clear()
    shared = Shared(party.ask)
    asking = [asyncio.ensure_future(shared.get()) for _ in range(10)]
    await asyncio.sleep(0)
    party.free.set()
    assert all(isinstance(error, Unreachable) for error in await asyncio.gather(*asking, return_exceptions=True))
    assert party.questions == 2
    party.error = None
    assert await shared.get() == 3


async def test_a_cancelled_request_leaves_the_next_one_to_ask() -> None:
    """Also where others came before its question, and would have shared its answer."""
    party = Party()
    party.free.clear()
    shared = Shared(party.ask)
    first = asyncio.ensure_future(shared.get())
    await asyncio.sleep(0)
    second, third = (asyncio.ensure_future(shared.get()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait({first})
    await asyncio.sleep(0)  # the second asks
    assert party.questions == 2
    second.cancel()
    party.free.set()
    assert await third == 3


async def test_an_answer_that_may_last_serves_until_it_is_too_old(clock: StandingClock) -> None:
    party = Party()
    lasting = Lasting(party.ask, clock, 1.0)
    assert [await lasting.get(), await lasting.get()] == [1, 1]
    clock.now = 1.1
    assert await lasting.get() == 2


async def test_a_failure_does_not_last(clock: StandingClock) -> None:
    party = Party()
    party.error = Unreachable("away")
    lasting = Lasting(party.ask, clock, 1.0)
    with pytest.raises(Unreachable):
        await lasting.get()
    party.error = None
    assert await lasting.get() == 2
