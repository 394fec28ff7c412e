"""TLS between a TaskManager and its daemon: who is refused and why, and certificates that change."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from minflinkd.rpc import door, handshake
from minflinkd.rpc.door import RpcDoor
from minflinkd.rpc.handshake import AuthenticationFailed, StandsBy, introduce
from minflinkd.rpc.local import LocalNetwork
from minflinkd.rpc.messages import Done, ExitTaskManager
from minflinkd.rpc.network import Mailbox, Unreachable, task_manager
from minflinkd.rpc.tcp import ANY_PORT, RpcServer, RpcUplink
from minflinkd.runtime import tls
from minflinkd.runtime.ids import ResourceId
from minflinkd.runtime.tls import Clients, Tls, TlsFiles, UnusableCertificate
from tests.tls import CaInTest
from tests.waiting import until

SECRET = b"s" * 64
TM = task_manager(ResourceId("tm-1"))
Logs = Sequence[MutableMapping[str, Any]]


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "LOOK", 0.0)


@pytest.fixture
def ca(tmp_path: Path) -> CaInTest:
    return CaInTest(tmp_path / "tls")


@asynccontextmanager
async def running(
    daemon: TlsFiles | None, manager: TlsFiles | None, host: str = "127.0.0.1"
) -> AsyncIterator[tuple[RpcServer, RpcUplink, LocalNetwork]]:
    ours, theirs = LocalNetwork(), LocalNetwork()
    mailbox = Mailbox(TM)

    async def told(_: ExitTaskManager) -> Done:
        return Done()

    mailbox.on(ExitTaskManager, told)
    theirs.attach(mailbox)
    of_daemon, of_manager = (None if files is None else Tls(files) for files in (daemon, manager))
    async with RpcServer(ours, secret=SECRET, tls=of_daemon) as server:
        port = server.endpoint[1]
        async with RpcUplink(theirs, address=TM, secret=SECRET, daemon=(host, port), tls=of_manager) as uplink:
            yield server, uplink, ours
    await theirs.aclose()
    await ours.aclose()


async def asks(network: LocalNetwork) -> None:
    assert await network.ask(TM, ExitTaskManager(reason="x"), timeout=5) == Done()


async def refused(daemon: TlsFiles | None, manager: TlsFiles | None, host: str = "127.0.0.1") -> tuple[str, str]:
    """Return why the TaskManager is not connected, as both logs say it."""
    with capture_logs() as logs:
        async with running(daemon, manager, host) as (server, uplink, _):
            await until(lambda: said(logs, "no connection to the daemon"))
            assert not uplink.connected.is_set()
            assert not server._connections
    return said(logs, "no connection to the daemon"), said(logs, "a connection was refused")


def said(logs: Logs, event: str) -> str:
    return next((str(line["error"]) for line in logs if line["event"] == event), "")


async def test_both_sides_show_certificates_and_speak_without_seals(ca: CaInTest) -> None:
    """TLS protects the frames, and the handshake is bound to it (E42)."""
    async with running(ca.files("daemon"), ca.files("manager"), "localhost") as (server, uplink, network):
        await until(lambda: uplink.connected.is_set() and TM in server._connections)
        await asks(network)
        connection = server._connections[TM]
        assert connection._seals is None
        of_tls: ssl.SSLObject = connection._writer.get_extra_info("ssl_object")
        assert of_tls.version() in ("TLSv1.2", "TLSv1.3")
        assert of_tls.getpeercert()["subject"][0][0] == ("commonName", "manager")  # type: ignore[index]


async def test_a_certificate_of_another_ca_is_refused(ca: CaInTest, tmp_path: Path) -> None:
    """Whichever side it is. The daemon also says so to the TaskManager (E42)."""
    other = CaInTest(tmp_path / "other")
    here, _ = await refused(other.files(), ca.files())
    assert "comes from another CA" in here
    here, there = await refused(ca.files(), other.files(ca=ca.ca))
    assert "does not know the CA" in here
    assert "comes from another CA" in there


async def test_an_expired_certificate_is_refused(ca: CaInTest) -> None:
    """E42."""
    here, _ = await refused(ca.expired(), ca.files())
    assert "the certificate of the other side has expired" in here
    here, there = await refused(ca.files(), ca.expired())
    assert "says that this side's certificate has expired" in here
    assert "the certificate of the other side has expired" in there


async def test_a_certificate_for_another_host_is_refused(ca: CaInTest) -> None:
    """The TaskManager checks the name under which it reaches the daemon (E42)."""
    here, _ = await refused(ca.files(hosts=["a.example"]), ca.files("manager"))
    assert "does not name this" in here
    here, _ = await refused(ca.files(hosts=["127.0.0.1"]), ca.files("manager"), "localhost")
    assert "does not name this host" in here


async def test_who_shows_no_certificate_is_refused(ca: CaInTest) -> None:
    """E42."""
    here, there = await refused(ca.files(), TlsFiles(ca=ca.ca))
    assert "the server needs a certificate of its clients, and this one shows none" in here
    assert "the client shows no certificate" in there


async def test_who_speaks_without_tls_is_refused(ca: CaInTest) -> None:
    """In either direction (E42)."""
    here, _ = await refused(None, ca.files())
    assert "does not speak TLS" in here
    with capture_logs() as logs:
        async with running(ca.files(), None) as (server, uplink, _):
            await until(lambda: said(logs, "no connection to the daemon"))
            assert not uplink.connected.is_set()
            reader, writer = await asyncio.open_connection("127.0.0.1", server.endpoint[1])
            writer.write(b"\0\0\0\4abcd" * 10)
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
            await until(lambda: "does not speak TLS" in said(logs, "a connection was refused"))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
async def test_an_old_version_of_tls_is_refused(ca: CaInTest, version: ssl.TLSVersion) -> None:
    """TLS 1.2 is the oldest (E42)."""
    old = ssl.create_default_context(cafile=str(ca.ca))
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        old.minimum_version = old.maximum_version = version
    with capture_logs() as logs:
        async with RpcServer(LocalNetwork(), secret=SECRET, tls=Tls(ca.files())) as server:
            with pytest.raises(ssl.SSLError) as failed:
                await asyncio.open_connection("127.0.0.1", server.endpoint[1], ssl=old)
            assert "1.2 is the oldest" in tls.why_refused(failed.value)
            await until(lambda: "TLS that is older than 1.2" in said(logs, "a connection was refused"))


async def test_whoever_ends_tls_in_between_cannot_forward_the_handshake(ca: CaInTest) -> None:
    """Not even with a certificate of the same CA, such as that of another TaskManager (E42)."""
    between = Tls(ca.files("somebody"))
    async with RpcServer(LocalNetwork(), secret=SECRET, tls=Tls(ca.files("daemon"))) as server:

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, to_daemon = await asyncio.open_connection(*server.endpoint, ssl=between.client)

            async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
                while data := await source.read(4096):
                    target.write(data)
                target.close()

            await asyncio.gather(copy(reader, to_daemon), copy(there, writer), return_exceptions=True)

        relay = await asyncio.start_server(forward, "127.0.0.1", 0, ssl=between.server(Clients.NEED_A_CERTIFICATE))
        async with relay:
            port = relay.sockets[0].getsockname()[1]
            with capture_logs() as logs:
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=Tls(ca.files("manager")).client)
                async with asyncio.timeout(10):
                    with pytest.raises((Unreachable, AuthenticationFailed)):
                        await introduce(reader, writer, secret=SECRET, address=TM)
                writer.close()
                await until(lambda: "does not know the cluster's secret" in said(logs, "a connection was refused"))
            assert not server._connections


async def test_a_standby_says_over_tls_where_the_leader_is(ca: CaInTest) -> None:
    """Its proof is bound to the connection as well (A13, E42)."""
    async with RpcDoor(ANY_PORT, secret=SECRET, leader=lambda: "a.example:1", tls=Tls(ca.files("daemon"))) as door:
        context = Tls(ca.files("manager")).client
        reader, writer = await asyncio.open_connection("127.0.0.1", door.endpoint[1], ssl=context)
        with pytest.raises(StandsBy, match=r"a\.example:1"):
            async with asyncio.timeout(handshake.TIMEOUT):
                await introduce(reader, writer, secret=SECRET, address=TM)
        writer.close()


async def test_new_certificates_are_used_for_new_connections_and_old_connections_go_on(ca: CaInTest) -> None:
    """Nothing is restarted (E42)."""
    with capture_logs() as logs:
        async with running(ca.files("daemon"), ca.files("manager")) as (server, uplink, network):
            await until(lambda: uplink.connected.is_set() and TM in server._connections)
            first = server._connections[TM]
            before = shown(first)
            ca.files("daemon")
            ca.files("manager")
            await asks(network)
            assert server._connections[TM] is first
            assert not first.closed
            assert uplink._connection is not None
            uplink._connection._writer.transport.abort()
            await until(lambda: TM in server._connections and server._connections[TM] is not first)
            assert shown(server._connections[TM]) != before
            await until(lambda: uplink.connected.is_set())
            await asks(network)
    assert len([line for line in logs if line["event"] == "certificates were read again"]) == 2


def shown(connection: Any) -> bytes:
    """What the TaskManager has shown to the daemon."""
    found: bytes = connection._writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return found


async def test_another_ca_is_used_as_soon_as_its_file_changes(ca: CaInTest, tmp_path: Path) -> None:
    """The earlier one is no longer trusted (E42)."""
    other = CaInTest(tmp_path / "other")
    with capture_logs() as logs:
        async with running(ca.files("daemon"), ca.files("manager")) as (server, uplink, _):
            await until(lambda: uplink.connected.is_set() and TM in server._connections)
            first = server._connections[TM]
            os.replace(other.ca, ca.ca)
            assert uplink._connection is not None
            uplink._connection._writer.transport.abort()
            await until(lambda: "comes from another CA" in said(logs, "no connection to the daemon"))
            assert server._connections.get(TM) in (None, first)


async def test_files_that_cannot_be_used_change_nothing_until_they_can(ca: CaInTest) -> None:
    """A certificate and its key are two files, and are not replaced at the same moment (E42)."""
    files = ca.files("daemon")
    assert files.certificate is not None
    one = Tls(files)
    before = one._context(Clients.NEED_NONE).fingerprint
    new = ca.files("next")
    assert new.certificate is not None
    assert new.key is not None
    assert files.key is not None
    with capture_logs() as logs:
        os.replace(new.certificate, files.certificate)
        assert one._newest(Clients.NEED_NONE).fingerprint == before
        assert one._newest(Clients.NEED_NONE).fingerprint == before
        os.replace(new.key, files.key)
        assert one._newest(Clients.NEED_NONE).fingerprint != before
    warned, read = [line["event"] for line in logs]
    assert (warned, read) == (
        "changed certificates cannot be used; the earlier ones stay in use",
        "certificates were read again",
    )


@pytest.mark.parametrize("file", ["certificate", "key", "ca"])
@pytest.mark.parametrize("content", [None, b"", b"no PEM"])
def test_files_that_cannot_be_used_are_named_at_the_start(ca: CaInTest, file: str, content: bytes | None) -> None:
    """E42."""
    files = ca.files()
    path = getattr(files, file)
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UnusableCertificate, match=str(path)):
        Tls(files)


def test_a_key_of_another_certificate_is_refused(ca: CaInTest) -> None:
    """E42."""
    with pytest.raises(UnusableCertificate, match="key values mismatch"):
        Tls(replace(ca.files("one"), key=ca.files("other").key))


async def test_a_client_that_never_begins_tls_is_cut_off(ca: CaInTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds an open file of the daemon for a bounded time (E45)."""
    monkeypatch.setattr(door, "HANDSHAKE_TIMEOUT", 0.2)
    async with RpcServer(LocalNetwork(), secret=SECRET, tls=Tls(ca.files())) as server:
        reader, writer = await asyncio.open_connection(*server.endpoint)
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()
