import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import StreamReader
from aiohttp.base_protocol import BaseProtocol

from minflinkd.blob.errors import BlobServerBusy
from minflinkd.blob.transfer import CHUNK, TransferGate, in_chunks, pieces, pump


async def test_more_transfers_than_allowed_wait_and_more_than_may_wait_are_refused() -> None:
    """B9"""
    gate, done = TransferGate(limit=2, backlog=3, longest_wait=20), asyncio.Event()

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
    gate = TransferGate(limit=1, backlog=1, longest_wait=20)

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


async def test_who_has_waited_for_long_is_told_to_come_again() -> None:
    """A transfer is told to come again before it would give up a silent server (B9)."""
    gate = TransferGate(limit=1, backlog=1, longest_wait=0.01)
    async with gate.transfer():
        with pytest.raises(BlobServerBusy, match="none ended for long"):
            async with gate.transfer():
                raise AssertionError
        assert (gate.running, gate.waiting) == (1, 0)
    async with gate.transfer():
        assert gate.running == 1


async def test_a_stream_comes_in_pieces_however_it_was_cut() -> None:
    """With chunked transfer encoding, the end of a chunk is not the end of the stream (B40)."""
    loop = asyncio.get_running_loop()
    protocol = BaseProtocol(loop)
    protocol.connection_made(asyncio.Transport())
    stream = StreamReader(protocol, 2**24, loop=loop)
    data = [bytes([n]) * size for n, size in enumerate([1, CHUNK // 2, CHUNK // 2, 3, CHUNK])]

    async def collect() -> list[bytes]:
        return [piece async for piece in in_chunks(pieces(stream, idle_timeout=10))]

    collecting = asyncio.create_task(collect())
    for chunk in data:
        stream.begin_http_chunk_receiving()
        stream.feed_data(chunk)
        for _ in range(10):  # the end of a chunk is read after its data
            await asyncio.sleep(0)
        stream.end_http_chunk_receiving()
    stream.feed_eof()
    found = await asyncio.wait_for(collecting, 10)
    assert b"".join(found) == b"".join(data)
    assert len(found) == 2


async def test_what_came_before_a_stream_broke_off_is_written() -> None:
    """So the next try can continue after it (B8)."""
    written = list[bytes]()

    async def source() -> AsyncIterator[bytes]:
        yield b"1"
        yield b"2"
        raise ConnectionError("broke off")

    async def write(piece: bytes) -> None:
        await asyncio.sleep(0)
        written.append(piece)

    with pytest.raises(ConnectionError, match="broke off"):
        await pump(source(), write)
    assert written == [b"1", b"2"]
