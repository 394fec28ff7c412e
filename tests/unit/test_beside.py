"""Work next to a measurement ends with it, and its failure is not lost."""

from __future__ import annotations

import asyncio
import re

import pytest

from tests.beside import beside


async def test_work_is_cancelled_and_awaited_at_the_end_of_the_block() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with beside("work", work()):
        await begun.wait()
    assert ended.is_set()


async def test_work_that_is_told_of_the_end_comes_to_its_own() -> None:
    over, done = asyncio.Event(), list[str]()

    async def work() -> None:
        await over.wait()
        done.append("the last piece")

    async with beside("work", work(), over=over):
        assert not done
    assert done == ["the last piece"]


async def test_a_failure_of_the_work_ends_the_block_and_is_raised_there() -> None:
    async def work() -> None:
        raise ValueError("no more events")

    with pytest.raises(ValueError, match="no more events"):
        async with beside("work", work()):
            await asyncio.Event().wait()


async def test_a_failure_of_the_block_is_raised_as_it_is_and_ends_the_work() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def block() -> None:
        async with beside("work", work()):
            await asyncio.sleep(0)
            raise AssertionError("the job has failed")

    with pytest.raises(AssertionError, match=re.escape("the job has failed")):
        await block()
    assert ended.is_set()


async def test_a_cancelled_block_ends_the_work() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def block() -> None:
        async with beside("work", work()):
            await asyncio.Event().wait()

    measuring = asyncio.create_task(block())
    await begun.wait()
    measuring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await measuring
    assert ended.is_set()
