"""Clients that connect and say nothing cost little, and keep nobody out (E45)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from minflinkd.runtime.doorkeeper import Doorkeeper, SeldomTold
from minflinkd.runtime.listening import Place, bind
from minflinkd.runtime.tls import Clients as Certificates
from minflinkd.runtime.tls import Tls
from tests.tls import CaInTest


class Echo(asyncio.Protocol):
    """Answers with what it gets."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        assert isinstance(self.transport, asyncio.Transport)
        self.transport.write(data)


Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Clients:
    """`tls`: of those who do more than to open a TCP connection."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._port = port
        self._tls = tls
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self, *, mute: bool = False) -> Pair:
        """`mute`: without TLS."""
        pair = await asyncio.open_connection("127.0.0.1", self._port, ssl=None if mute else self._tls)
        self._writers.append(pair[1])
        return pair

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def kept(keeper: Doorkeeper, tls: Tls | None = None) -> AsyncIterator[Clients]:
    sockets = await bind(Place("127.0.0.1", (0,), "host", "port"))
    await keeper.serve(sockets, Echo, None if tls is None else tls.server(Certificates.NEED_NONE))
    clients = Clients(sockets[0].getsockname()[1], None if tls is None else tls.client)
    try:
        yield clients
    finally:
        clients.close()
        await keeper.aclose()


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


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    return Tls(CaInTest(tmp_path).files())


async def test_over_tls_a_client_is_let_go_that_does_not_begin_or_says_nothing_after_it(tls: Tls) -> None:
    """One that has spoken stays."""
    async with kept(Doorkeeper("tests", most=10, first_byte=1.0), tls) as clients:
        speaking, mute, silent = await clients.connect(), await clients.connect(mute=True), await clients.connect()
        assert await echoed(speaking)
        assert await closed(mute)
        assert await closed(silent)
        assert await echoed(speaking)


async def test_clients_count_from_when_they_are_accepted_not_only_after_the_handshake_of_tls(tls: Tls) -> None:
    """Otherwise those that never begin it would take all files of the process (E45)."""
    with capture_logs() as logs:
        async with kept(Doorkeeper("tests", most=8, first_byte=60), tls) as clients:
            speaking = await clients.connect()
            assert await echoed(speaking)
            mute = [await clients.connect(mute=True) for _ in range(50)]
            late = await clients.connect()
            assert await echoed(late)
            assert await echoed(speaking)
            assert all([await closed(pair) for pair in mute[:40]])
    told = next(line for line in logs if line["log_level"] == "warning")
    assert (told["event"], told["kind"], told["most"]) == ("too many connections; one is closed", "tests", 8)


async def test_places_of_handshakes_that_failed_or_were_broken_off_are_free_again(tls: Tls) -> None:
    async with kept(Doorkeeper("tests", most=2, first_byte=60), tls) as clients:
        for number in range(12):
            _, writer = pair = await clients.connect(mute=True)
            if number % 2:
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                assert await closed(pair)
            writer.close()
            await writer.wait_closed()
        speaking = [await clients.connect() for _ in range(2)]
        assert all([await echoed(pair) for pair in speaking])


async def test_what_a_client_says_together_with_the_end_of_the_handshake_is_not_lost(tls: Tls) -> None:
    """And much of it, right after."""
    async with kept(Doorkeeper("tests", most=40, first_byte=60), tls) as clients:
        for _ in range(20):
            assert await echoed(await clients.connect())
        reader, writer = await clients.connect()
        data = bytes(range(256)) * 4096
        writer.write(data)
        async with asyncio.timeout(20):
            assert await reader.readexactly(len(data)) == data


async def test_closing_ends_the_handshakes_under_way_and_leaves_other_connections_alone(tls: Tls) -> None:
    keeper = Doorkeeper("tests", most=9, first_byte=60)
    async with kept(keeper, tls) as clients:
        speaking, mute = await clients.connect(), await clients.connect(mute=True)
        assert await echoed(speaking)
        await keeper.aclose()
        assert await closed(mute)
        assert await echoed(speaking)


@pytest.mark.looptime
async def test_a_warning_is_logged_once_a_second_with_the_number_of_those_left_out() -> None:
    told = SeldomTold()
    with capture_logs() as logs:
        for _ in range(5):
            told.warn("refused", peer="x")
        await asyncio.sleep(1.5)
        told.warn("refused", peer="y")
    assert [(line["peer"], line.get("left_out")) for line in logs] == [("x", None), ("y", 4)]
