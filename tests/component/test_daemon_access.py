"""A daemon without any configuration asks who sends a request, and its own commands need no token (E40, E41)."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from structlog.testing import capture_logs

from minflinkd.cli.client import Client
from minflinkd.cli.credentials import Credentials, UnusableTokenFile
from minflinkd.cli.endpoint import Refused
from minflinkd.config import load_config
from minflinkd.daemon import Daemon
from minflinkd.daemon_access import UnknownGroup
from minflinkd.rest.identity.own_token import FILE
from minflinkd.rest.identity.tokens import Token, TokenRecord, UnusableTokens, new_hash, write_tokens
from minflinkd.runtime import local_socket
from tests.tokens import bearer


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The sockets of this test are in a directory of its own. Its name is short, as a socket's must be."""
    with tempfile.TemporaryDirectory(prefix="run-") as run:
        monkeypatch.setenv("XDG_RUNTIME_DIR", run)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "MINFLINKD_TOKEN_FILE"):
            monkeypatch.delenv(name, raising=False)
        yield Path(run) / "minflinkd"


@asynccontextmanager
async def running(state: Path, **more: str) -> AsyncIterator[Daemon]:
    settings = {
        "process.working-dir": str(state),
        "rest.port": "0",
        "resourcemanager.min-taskmanagers": "0",
        "resourcemanager.standby-taskmanagers": "0",
        **{key.replace("__", ".").replace("_", "-"): value for key, value in more.items()},
    }
    async with Daemon(load_config(None, {}, settings), os.environ) as daemon:
        yield daemon


def add_token(state: Path, name: str, role: str) -> Token:
    token = Token.new()
    write_tokens(state / "tokens.json", (TokenRecord(name=name, id=token.id, role=role, hash=new_hash(token.secret)),))
    return token


async def answer(url: str, **headers: str) -> int:
    async with aiohttp.ClientSession(url) as http, http.get("/jobs", headers=headers) as response:
        return response.status


async def test_without_any_configuration_http_is_closed_and_the_daemons_user_is_let_in(
    tmp_path: Path, place: Path
) -> None:
    """Safe without configuration, also on a host with other users (E40)."""
    state = tmp_path / "state"
    async with running(state) as daemon:
        url = daemon.info.url
        assert daemon.info.asks
        assert await answer(url) == 401
        assert await answer(url, **bearer(state)) == 200
        port = int(url.rpartition(":")[2])
        assert (place / f"http-{port}.sock").is_socket()
        assert (state / FILE).stat().st_mode & 0o777 == 0o600
        async with Client(url) as client:
            assert (await client.jobs()).jobs == ()
        before = bearer(state)
        for address in (f"unix://{place}/http-{port}.sock", f"{url},http://127.0.0.1:9"):
            async with Client(address, attempts=1) as client:
                assert (await client.jobs()).jobs == ()
    assert list(place.iterdir()) == []
    async with running(state) as daemon:
        assert bearer(state) == before
        assert await answer(daemon.info.url, **before) == 200


async def test_who_reaches_an_open_daemon_needs_nothing_and_the_log_says_so(tmp_path: Path) -> None:
    """`security.allow-unauthenticated` leaves the log-in off, said at the start (E40)."""
    with capture_logs() as logs:
        async with running(tmp_path / "state", security__allow_unauthenticated="true") as daemon:
            assert not daemon.info.asks
            assert await answer(daemon.info.url) == 200
            assert not (tmp_path / "state" / FILE).exists()
    assert [line["log_level"] for line in logs if line["event"].startswith("HTTP asks nobody")] == ["warning"]


async def test_tokens_are_read_again_and_revoked_ones_end(tmp_path: Path) -> None:
    """Reloaded on SIGHUP (E41)."""
    state = tmp_path / "state"
    async with running(state) as daemon:
        token = add_token(state, "prometheus", "view")
        headers = {"Authorization": f"Bearer {token.text}"}
        assert await answer(daemon.info.url, **headers) == 401
        await daemon.read_tokens_again()
        assert await answer(daemon.info.url, **headers) == 200
        (state / "tokens.json").write_text("{")
        with capture_logs() as logs:
            await daemon.read_tokens_again()
        assert any(line["log_level"] == "error" for line in logs)
        assert await answer(daemon.info.url, **headers) == 200, "a wrong file ends no token"
        (state / "tokens.json").unlink()
        await daemon.read_tokens_again()
        assert await answer(daemon.info.url, **headers) == 401


async def test_systemds_credential_has_the_tokens_if_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by systemd's LoadCredential (E41)."""
    (tmp_path / "credentials").mkdir()
    token = add_token(tmp_path / "credentials", "ci", "view")
    (tmp_path / "credentials" / "tokens.json").rename(tmp_path / "credentials" / "tokens")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "credentials"))
    async with running(tmp_path / "state") as daemon:
        assert await answer(daemon.info.url, Authorization=f"Bearer {token.text}") == 200


async def test_a_daemon_with_wrong_tokens_does_not_start(tmp_path: Path) -> None:
    """It would let nobody in, or the wrong ones (E41)."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / "tokens.json").write_text("[]")
    with pytest.raises(UnusableTokens):
        async with running(state):
            pass
    with pytest.raises(UnknownGroup):
        async with running(tmp_path / "other", security__socket_group="no-such-group-here"):
            pass


async def test_without_a_place_for_the_socket_the_daemon_starts_and_its_token_works(
    tmp_path: Path, place: Path
) -> None:
    """In /tmp another user may have made the directory (E40)."""
    place.mkdir(mode=0o700)
    place.chmod(0o777)
    (tmp_path / "file").touch()
    with capture_logs() as logs:
        async with running(tmp_path / "state", security__socket_directory=str(tmp_path / "file" / "x")) as daemon:
            assert await answer(daemon.info.url, **bearer(tmp_path / "state")) == 200
            with pytest.raises(Refused) as refused:
                async with Client(daemon.info.url, attempts=1) as client:
                    await client.jobs()
            assert str(tmp_path / "state" / FILE) in refused.value.info().hint
            named = Credentials(tmp_path / "state" / FILE)
            async with Client(daemon.info.url, credentials=named) as client:
                assert (await client.jobs()).jobs == ()
    assert any("there is no Unix socket" in line["event"] for line in logs)


async def test_a_socket_that_a_killed_daemon_left_is_replaced(tmp_path: Path, place: Path) -> None:
    """The next daemon at this port has its own; a client that is too early uses TCP (E40)."""
    state = tmp_path / "state"
    async with running(state) as daemon:
        port = int(daemon.info.url.rpartition(":")[2])
        path = place / f"http-{port}.sock"
        assert local_socket.find(port, os.environ) == path
        path.unlink()
        left = local_socket.LocalSocket.bind(place, port, local_socket.admitted())
        left.socket.close()  # the file stays, and nobody listens
        with pytest.raises(Refused):  # by TCP, without a token
            async with Client(daemon.info.url, attempts=1) as client:
                await client.jobs()
        again = local_socket.LocalSocket.bind(place, port, local_socket.admitted())
        left.close()
        assert path.is_socket(), "the file belongs to the later one"
        again.close()
        assert not path.exists()


async def test_the_command_line_finds_the_token_of_a_daemon_in_the_default_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The own token goes to the daemon that runs at this port, and to nobody else who listens there (E40)."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    state = tmp_path / "minflinkd"
    async with running(state, security__socket_directory="none") as daemon:
        async with Client(daemon.info.url) as client:
            assert (await client.jobs()).jobs == ()
        seen: list[bytes] = []

        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            writer.close()

        other = await asyncio.start_server(listen, "127.0.0.1", 0)
        async with other, Client(f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}", attempts=1) as client:
            with pytest.raises(Refused):
                await client.jobs()
        assert b"GET /jobs/overview" in seen[0]
        assert b"Authorization" not in seen[0]


async def test_a_token_file_is_named_by_option_or_variable_and_must_be_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never a token on a command line (E40)."""
    state, file = tmp_path / "state", tmp_path / "token"
    async with running(state) as daemon:
        token = add_token(state, "alice", "view")
        await daemon.read_tokens_again()
        file.write_text(f"{token.text}\n")
        file.chmod(0o600)
        monkeypatch.setenv("MINFLINKD_TOKEN_FILE", str(file))
        async with Client(daemon.info.url, attempts=1) as client:
            assert (await client.jobs()).jobs == ()
            with pytest.raises(Refused, match="needs the role admin, and alice has view"):
                await client.hand_over()
        file.chmod(0o644)
        with pytest.raises(UnusableTokenFile, match="every user of this machine can read"):
            async with Client(daemon.info.url, attempts=1) as client:
                await client.jobs()
        with pytest.raises(UnusableTokenFile, match="cannot be read"):
            async with Client(daemon.info.url, attempts=1, credentials=Credentials(tmp_path / "none")) as client:
                await client.jobs()
