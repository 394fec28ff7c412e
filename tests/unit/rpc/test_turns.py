"""What arrives over many connections leaves the event loop to others in between (A4)."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from minflinkd.rpc.turns import Turns


class Messages:
    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.handled: list[int] = []

    async def arrive(self, number: int) -> None:
        await self._turns.admitted()
        self.handled.append(number)


async def test_a_burst_is_spread_over_turns_of_the_loop_in_its_order() -> None:
    messages, counts = Messages(Turns(3)), [0]
    arriving = asyncio.gather(*map(messages.arrive, range(10)))
    while not arriving.done():
        await asyncio.sleep(0)
        counts.append(len(messages.handled))
    assert messages.handled == list(range(10))
    assert max(later - earlier for earlier, later in pairwise(counts)) == 3


async def test_what_does_not_come_in_a_burst_is_handled_at_once() -> None:
    messages = Messages(Turns(3))
    for number in range(20):
        arriving = asyncio.ensure_future(messages.arrive(number))
        await asyncio.sleep(0)
        assert arriving.done()


async def test_a_connection_that_ends_while_it_waits_takes_no_turn() -> None:
    messages = Messages(Turns(1))
    arriving = [asyncio.ensure_future(messages.arrive(number)) for number in range(4)]
    await asyncio.sleep(0)
    arriving[1].cancel()
    await asyncio.wait(arriving)
    assert messages.handled == [0, 2, 3]
