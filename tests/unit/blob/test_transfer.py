import asyncio

import pytest

from minflinkd.blob.errors import BlobServerBusy
from minflinkd.blob.transfer import TransferGate


async def test_more_transfers_than_allowed_wait_and_more_than_may_wait_are_refused() -> None:
    """B9"""
    gate, done = TransferGate(limit=2, backlog=3), asyncio.Event()

    async def transfer() -> None:
        async with gate.transfer():
            await done.wait()

    tasks = [asyncio.create_task(transfer()) for _ in range(7)]
    await asyncio.sleep(0)
    assert (gate.running, gate.waiting) == (2, 3)
    done.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes if outcome is not None] == [BlobServerBusy] * 2
    assert (gate.running, gate.waiting) == (0, 0)


async def test_who_gives_up_waiting_leaves_room() -> None:
    gate = TransferGate(limit=1, backlog=1)

    async def transfer() -> None:
        async with gate.transfer():
            pass

    async with gate.transfer():
        task = asyncio.create_task(transfer())
        await asyncio.sleep(0)
        with pytest.raises(BlobServerBusy):
            await transfer()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert gate.waiting == 0
    await transfer()
    assert gate.running == 0
