"""Waiting for a condition, in tests and benchmarks."""

from __future__ import annotations

import asyncio
import re
from functools import partial

import pytest

from tests.waiting import PATIENCE, WaitedInVain, until, until_blocking


@pytest.mark.looptime
async def test_the_first_true_answer_is_returned() -> None:
    answers = iter([None, [], ["a"], ["b"]])
    assert await until(lambda: next(answers)) == ["a"]


@pytest.mark.looptime
async def test_an_async_condition_is_awaited_at_each_look() -> None:
    """A coroutine itself is true, and would end every wait at once."""
    answers = iter([0, 0, 7])

    async def asked() -> int:
        await asyncio.sleep(1)
        return next(answers)

    assert await until(asked) == 7
    assert asyncio.get_running_loop().time() >= 3


@pytest.mark.looptime
async def test_a_wait_in_vain_ends_and_names_what_it_was_for() -> None:
    """The limit is that of a slow machine."""
    began = asyncio.get_running_loop().time()
    with pytest.raises(WaitedInVain, match="waited 30 s in vain for: free slots"):
        await until(lambda: False, "free slots", timeout=30 / PATIENCE)
    assert 30 <= asyncio.get_running_loop().time() - began < 31


@pytest.mark.looptime
async def test_without_words_the_condition_itself_is_shown() -> None:
    beats = 2
    with pytest.raises(WaitedInVain, match=re.escape("in vain for: await until(lambda: beats == 3, timeout=1)")):
        await until(lambda: beats == 3, timeout=1)

    def agreed(number: int) -> bool:
        return number == beats + 1

    with pytest.raises(WaitedInVain, match="agreed"):
        await until(partial(agreed, 2), timeout=1)


def test_a_thread_waits_without_an_event_loop() -> None:
    answers = iter(["", "x"])
    assert until_blocking(lambda: next(answers)) == "x"
    with pytest.raises(WaitedInVain, match="the end"):
        until_blocking(lambda: None, "the end", timeout=0.01)
