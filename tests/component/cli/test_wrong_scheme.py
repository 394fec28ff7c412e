"""A command that speaks HTTP to a TLS port, or the other way round, says so (E42)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from yarl import URL

from minflinkd.cli.client import Client
from minflinkd.cli.endpoint import DaemonUnreachable
from minflinkd.cli.exits import ExitCode
from minflinkd.cli.main import main
from minflinkd.cli.speaking_tls import speaks_tls
from minflinkd.rest.identity.access import Access
from minflinkd.rest.server import Listening
from minflinkd.rest.standby import StandbyServer
from minflinkd.runtime.tls import Clients, Tls
from tests.tls import CaInTest


@asynccontextmanager
async def daemon(tls: Tls | None, leader: Callable[[], str] = str) -> AsyncIterator[int]:
    """An endpoint, of a daemon that stands by; its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    listening = Listening(host="127.0.0.1", port=0, tls=None if tls is None else tls.server(Clients.NEED_NONE))
    server = StandbyServer([listener], access=Access.open_to_all(), listening=listening, leader=leader, trouble=str)
    async with server:
        yield listener.getsockname()[1]


@pytest.fixture
def ca(tmp_path: Path) -> CaInTest:
    return CaInTest(tmp_path)


async def why(url: str, ca: CaInTest | None = None) -> DaemonUnreachable:
    async with Client(url, attempts=1, patience=0, ca_file=None if ca is None else str(ca.ca)) as client:
        with pytest.raises(DaemonUnreachable) as refused:
            await client.overview()
    return refused.value


async def test_http_to_a_port_with_tls_is_told_to_use_https(ca: CaInTest) -> None:
    async with daemon(Tls(ca.files())) as port:
        error = await why(f"http://127.0.0.1:{port}")
    assert "speaks TLS" in error.message
    assert f"use https://127.0.0.1:{port}" in error.hint


async def test_https_to_a_port_without_tls_is_told_to_use_http(ca: CaInTest) -> None:
    """And not to name a CA, which would not help."""
    async with daemon(None) as port:
        for known in (None, ca):
            error = await why(f"https://127.0.0.1:{port}", known)
            assert "does not speak TLS" in error.message
            assert f"use http://127.0.0.1:{port}" in error.hint
            assert "--ca-file" not in error.hint


async def test_of_several_daemons_the_next_is_asked_after_one_with_the_wrong_scheme(ca: CaInTest) -> None:
    """A port with TLS has not carried out what it was asked without."""
    async with (
        daemon(Tls(ca.files())) as wrong,
        daemon(None) as right,
        Client(f"http://127.0.0.1:{wrong},http://127.0.0.1:{right}", attempts=1) as client,
    ):
        assert (await client.health()).role == "standby"


async def test_a_leader_whose_address_has_the_wrong_scheme_is_named(ca: CaInTest) -> None:
    """Not the standby, which has answered well."""
    async with daemon(Tls(ca.files())) as leader, daemon(None, lambda: f"http://127.0.0.1:{leader}") as standby:
        error = await why(f"http://127.0.0.1:{standby}")
    assert f"use https://127.0.0.1:{leader}" in error.hint


async def test_the_command_line_prints_it(ca: CaInTest) -> None:
    async with daemon(Tls(ca.files())) as port:
        arguments = ["list", "--url", f"127.0.0.1:{port}"]
        result = await asyncio.to_thread(CliRunner().invoke, main, arguments)
    assert result.exit_code == ExitCode.UNREACHABLE
    assert f"Use https://127.0.0.1:{port}" in result.output


@pytest.mark.parametrize(
    ("answer", "tls"),
    [
        (b"\x15\x03\x01\x00\x02\x02\x50", True),
        (b"\x16\x03", True),
        (b"\x16", False),
        (b"", False),
        (b"HTTP/1.1", False),
    ],
    ids=["alert", "hello", "half", "nothing", "HTTP"],
)
async def test_what_a_port_answers_shows_whether_it_speaks_tls(answer: bytes, tls: bool) -> None:
    """Also if it closes a connection without TLS silently, or answers with an alert."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        for byte in answer:
            writer.write(bytes([byte]))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        assert await speaks_tls(URL(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")) is tls


async def test_a_port_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minflinkd.cli.speaking_tls.PATIENCE", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert not await speaks_tls(URL(f"http://127.0.0.1:{silent.getsockname()[1]}"))
