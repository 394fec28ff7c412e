"""Work in a job's storage that may outlive the JobMaster that began it."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from minflinkd.checkpoint import turn as storage_turn
from minflinkd.checkpoint.turn import StorageTurn
from minflinkd.runtime.errors import Consequence
from minflinkd.storage.interface import StorageUnavailable

pytestmark = pytest.mark.looptime


async def test_what_has_begun_keeps_the_turn_though_nobody_waits_for_it_any_more() -> None:
    """A thread in a system call cannot be stopped (R13)."""
    turn, go, order = StorageTurn("job 1"), asyncio.Event(), list[str]()

    async def slow() -> None:
        await go.wait()
        order.append("slow")

    async def queued() -> None:
        order.append("of who has gone")

    asked = [asyncio.create_task(turn.take(work)) for work in (slow, queued)]
    await asyncio.sleep(1)
    for task in asked:
        task.cancel()
    await asyncio.wait(asked)
    with capture_logs(), pytest.raises(StorageUnavailable) as refused:
        await turn.wait()
    assert refused.value.consequence is Consequence.RETRYABLE
    assert asyncio.get_running_loop().time() == pytest.approx(1 + storage_turn.PATIENCE)
    waiting = asyncio.create_task(turn.wait())
    go.set()
    await waiting
    assert order == ["slow"]


async def test_work_that_fails_says_so_and_gives_the_turn_on() -> None:
    turn = StorageTurn("job 1")

    async def fail() -> None:
        raise StorageUnavailable("the disk is away")

    async def work() -> int:
        return 7

    with capture_logs(), pytest.raises(StorageUnavailable, match="the disk is away"):
        await turn.take(fail)
    assert await turn.take(work) == 7


async def test_work_beside_the_others_makes_nobody_wait_but_a_successor() -> None:
    """A deletion delays no write (F5), but a successor waits for it (R13)."""
    turn, go = StorageTurn("job 1"), asyncio.Event()
    deletion = asyncio.create_task(turn.beside(go.wait))
    await asyncio.sleep(1)

    async def write() -> int:
        return 7

    assert await turn.take(write) == 7
    assert asyncio.get_running_loop().time() == 1
    deletion.cancel()
    with capture_logs(), pytest.raises(StorageUnavailable):
        await turn.wait()
    go.set()
    await turn.wait()
