"""Clients that connect and say nothing cost little, and keep nobody out (E45)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from minflinkd.runtime.doorkeeper import Doorkeeper, SeldomTold
from minflinkd.runtime.listening import Place, bind


class Echo(asyncio.Protocol):
    """Answers with what it gets."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        assert isinstance(self.transport, asyncio.Transport)
        self.transport.write(data)


Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Clients:
    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> Pair:
        pair = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers.append(pair[1])
        return pair

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def kept(keeper: Doorkeeper) -> AsyncIterator[Clients]:
    sockets = await bind(Place("127.0.0.1", (0,), "host", "port"))
    await keeper.serve(sockets, Echo)
    clients = Clients(sockets[0].getsockname()[1])
    try:
        yield clients
    finally:
        clients.close()
        keeper.close()


async def echoed(pair: Pair) -> bool:
    reader, writer = pair
    writer.write(b"hello")
    async with asyncio.timeout(5):
        return await reader.read(5) == b"hello"


async def closed(pair: Pair) -> bool:
    try:
        async with asyncio.timeout(5):
            return await pair[0].read() == b""
    except ConnectionResetError:
        return True


async def test_a_client_that_says_nothing_is_let_go_and_one_that_has_spoken_stays() -> None:
    async with kept(Doorkeeper("tests", most=10, first_byte=0.2)) as clients:
        silent, speaking = await clients.connect(), await clients.connect()
        assert await echoed(speaking)
        assert await closed(silent)
        assert await echoed(speaking)


async def test_silent_clients_do_not_keep_out_one_that_speaks() -> None:
    """The longest silent one gives its place. The log tells it once, however many there are."""
    with capture_logs() as logs:
        async with kept(Doorkeeper("tests", most=8, first_byte=60)) as clients:
            speaking = await clients.connect()
            assert await echoed(speaking)
            silent = [await clients.connect() for _ in range(50)]
            late = await clients.connect()
            assert await echoed(late)
            assert await echoed(speaking)
            assert all([await closed(pair) for pair in silent[:40]])
    (told,) = [line for line in logs if line["log_level"] == "warning"]
    assert (told["event"], told["kind"], told["most"]) == ("too many connections; one is closed", "tests", 8)


async def test_when_all_places_are_taken_by_clients_that_speak_the_next_is_refused() -> None:
    async with kept(Doorkeeper("tests", most=2, first_byte=60)) as clients:
        speaking = [await clients.connect() for _ in range(2)]
        assert all([await echoed(pair) for pair in speaking])
        assert await closed(await clients.connect())
        speaking[0][1].close()
        await speaking[0][1].wait_closed()
        assert await echoed(await clients.connect())


@pytest.mark.looptime
async def test_a_warning_is_logged_once_a_second_with_the_number_of_those_left_out() -> None:
    told = SeldomTold()
    with capture_logs() as logs:
        for _ in range(5):
            told.warn("refused", peer="x")
        await asyncio.sleep(1.5)
        told.warn("refused", peer="y")
    assert [(line["peer"], line.get("left_out")) for line in logs] == [("x", None), ("y", 4)]
