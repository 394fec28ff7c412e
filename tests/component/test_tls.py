"""TLS of a whole daemon, and of the parts that serve HTTP: blobs, exchanges, the endpoint and its clients (E42)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from structlog.testing import capture_logs

from minflinkd.blob.client import BlobClient
from minflinkd.blob.errors import BlobServerUnreachable, BlobUnauthorized
from minflinkd.blob.keys import BlobKind
from minflinkd.blob.server import BlobOptions, BlobServer
from minflinkd.cli.client import Client
from minflinkd.cli.endpoint import DaemonUnreachable
from minflinkd.config import load_config
from minflinkd.daemon import Daemon
from minflinkd.ha.embedded import cluster_secret
from minflinkd.rest.identity.access import Access
from minflinkd.rest.server import Listening, place
from minflinkd.rest.standby import StandbyServer
from minflinkd.rpc.local import LocalNetwork
from minflinkd.rpc.network import task_manager
from minflinkd.rpc.tcp import RpcUplink
from minflinkd.runtime import tls
from minflinkd.runtime.ids import AttemptId, ResourceId
from minflinkd.runtime.listening import bind
from minflinkd.runtime.tls import Clients, Tls, TlsFiles
from minflinkd.taskmanager.exchange.access import ExchangeUnreachable
from minflinkd.taskmanager.exchange.endpoint import DataEndpoint
from minflinkd.taskmanager.exchange.remote_log import RemoteLog
from tests.cluster import free_port
from tests.task_manager import BareTaskManager
from tests.tls import CaInTest
from tests.waiting import until

TM = ResourceId("tm-0123456789ab")
TOKEN = "t" * 64
ATTEMPT = AttemptId("2" * 32)


@pytest.fixture
def ca(tmp_path: Path) -> CaInTest:
    return CaInTest(tmp_path / "tls")


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "LOOK", 0.0)


# --- blobs ---


async def why_no_blob(directory: Path, server: TlsFiles, client: TlsFiles | None, scheme: str = "https") -> str:
    """Return why a client does not reach the BlobServer."""
    security = Tls(server).server(Clients.MAY_HAVE_ONE)
    context = None if client is None else Tls(client).client
    with capture_logs():
        async with (
            BlobServer(options=BlobOptions(directory=directory), token=TOKEN, tls=security) as blobs,
            BlobClient(blobs.url.replace("https", scheme), token=TOKEN, retries=0, tls=context) as one,
        ):
            with pytest.raises(BlobServerUnreachable) as refused:
                await one.put_bytes(None, b"x", BlobKind.TRANSIENT)
    return refused.value.message


async def test_blobs_travel_over_tls_to_whoever_has_the_token(ca: CaInTest, tmp_path: Path) -> None:
    """A TaskManager also shows a certificate. A client of the HTTP endpoint has none, only the token (E42)."""
    security = Tls(ca.files("server")).server(Clients.MAY_HAVE_ONE)
    async with BlobServer(options=BlobOptions(directory=tmp_path / "blobs"), token=TOKEN, tls=security) as blobs:
        assert blobs.url.startswith("https://127.0.0.1:")
        for files in (ca.files("manager"), TlsFiles(ca=ca.ca)):
            async with BlobClient(blobs.url, token=TOKEN, retries=0, tls=Tls(files).client) as client:
                data = b"x" * (5 << 20)
                key = await client.put_bytes(None, data, BlobKind.TRANSIENT)
                assert await client.get_bytes(None, key) == data
        async with BlobClient(blobs.url, retries=0, tls=Tls(ca.files("manager")).client) as client:
            with pytest.raises(BlobUnauthorized):
                await client.get_bytes(None, key)


async def test_the_blobserver_and_its_clients_refuse_each_other_with_the_reason(ca: CaInTest, tmp_path: Path) -> None:
    """E42."""
    other = CaInTest(tmp_path / "other")
    blobs, good = tmp_path / "blobs", ca.files()
    assert "comes from another CA" in await why_no_blob(blobs, other.files(), good)
    assert "does not name this" in await why_no_blob(blobs, ca.files("a", hosts=["a.example"]), good)
    assert "has expired" in await why_no_blob(blobs, ca.expired(), good)
    assert "does not know the CA" in await why_no_blob(blobs, good, other.files(ca=ca.ca))
    assert await why_no_blob(blobs, good, None, scheme="http")


# --- exchanges ---


@asynccontextmanager
async def exchange(root: Path, server: TlsFiles, client: TlsFiles) -> AsyncIterator[RemoteLog]:
    security = Tls(server).server(Clients.NEED_A_CERTIFICATE)
    connector = aiohttp.TCPConnector(ssl=Tls(client).client)
    async with (
        DataEndpoint(root=root, token=TOKEN, host="127.0.0.1", ports=[0], tls=security) as endpoint,
        aiohttp.ClientSession(connector=connector) as http,
    ):
        assert endpoint.url.startswith("https://")
        yield RemoteLog(http, endpoint.url, ATTEMPT, token=TOKEN)


async def test_exchanges_are_read_over_tls(ca: CaInTest, tmp_path: Path) -> None:
    """E42."""
    async with exchange(tmp_path, ca.files("writer"), ca.files("reader")) as log:
        assert await log.schema() is None


async def test_a_taskmanager_without_a_good_certificate_reads_no_exchange(ca: CaInTest, tmp_path: Path) -> None:
    """The reason is part of the error (E42)."""
    other = CaInTest(tmp_path / "other")
    wrong = {
        "this one shows none": (ca.files("writer"), TlsFiles(ca=ca.ca)),
        "does not know the CA": (ca.files("writer"), other.files(ca=ca.ca)),
        "comes from another CA": (other.files(), ca.files("reader")),
        "does not name this": (ca.files("elsewhere", hosts=["a.example"]), ca.files("reader")),
        "side's certificate has expired": (ca.files("writer"), ca.expired()),
    }
    with capture_logs():
        for reason, (server, client) in wrong.items():
            async with exchange(tmp_path, server, client) as log:
                with pytest.raises(ExchangeUnreachable, match=reason):
                    await log.schema()


# --- a daemon ---


def options(state: Path, port: int, files: TlsFiles) -> dict[str, str]:
    certificates = {
        f"security.ssl.{which}.{name}": str(getattr(files, name))
        for which in ("internal", "rest")
        for name in ("certificate", "key", "ca")
    }
    return certificates | {
        "process.working-dir": str(state),
        "rest.port": "0",
        "resourcemanager.driver": "standalone",
        "jobmanager.rpc.port": str(port),
        "security.ssl.internal.enabled": "true",
        "security.ssl.rest.enabled": "true",
        "security.allow-unauthenticated": "true",
        "security.socket-directory": "none",  # a client on this machine would take the socket, which has no TLS
    }


async def test_a_daemon_with_tls_serves_its_taskmanagers_and_clients(ca: CaInTest, tmp_path: Path) -> None:
    """The client names the CA, and reaches the BlobServer with it as well (E42)."""
    port, files = free_port(), ca.files("daemon")
    network = LocalNetwork()
    async with Daemon(load_config(None, {}, options(tmp_path, port, files)), {}) as daemon:
        secret = cluster_secret(tmp_path / "cluster.secret")
        assert daemon.rest.url.startswith("https://")
        async with (
            RpcUplink(
                network,
                address=task_manager(TM),
                secret=secret,
                daemon=("127.0.0.1", port),
                tls=Tls(ca.files("manager")),
            ),
            BareTaskManager(TM, network, slots=2, standalone=True) as manager,
            Client(daemon.rest.url, ca_file=str(ca.ca)) as client,
        ):
            await until(lambda: manager.registered)
            assert [tm.id for tm in (await client.task_managers()).taskmanagers] == [TM]
            async with await client.blob_server() as blobs:
                key = await blobs.put_bytes(None, b"x", BlobKind.TRANSIENT)
                assert await blobs.get_bytes(None, key) == b"x"
    await network.aclose()


async def test_a_client_says_why_it_does_not_trust_the_daemon(ca: CaInTest, tmp_path: Path) -> None:
    """And how to name the CA (E42)."""
    other = CaInTest(tmp_path / "other")
    async with Daemon(load_config(None, {}, options(tmp_path, free_port(), ca.files("daemon"))), {}) as daemon:
        for ca_file in (None, str(other.ca)):
            async with Client(daemon.rest.url, ca_file=ca_file, attempts=1) as client:
                with pytest.raises(DaemonUnreachable, match="comes from another CA") as refused:
                    await client.overview()
                assert "--ca-file" in refused.value.hint
        async with Client(daemon.rest.url.replace("https", "http"), attempts=1) as client:
            with pytest.raises(DaemonUnreachable):
                await client.overview()


async def test_the_endpoint_uses_new_certificates_and_open_connections_go_on(ca: CaInTest, tmp_path: Path) -> None:
    """A client that keeps its connection notices nothing; the next connection shows the new certificate (E42)."""
    files = ca.files("daemon")
    context = Tls(TlsFiles(ca=ca.ca)).client
    async with Daemon(load_config(None, {}, options(tmp_path, free_port(), files)), {}) as daemon:
        port = int(daemon.rest.url.rpartition(":")[2])
        before = await shown_at(port, context)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as http:
            async with http.get(f"{daemon.rest.url}/health/live") as response:
                assert response.status == 200
                assert response.connection is None or response.connection.transport is not None
            ca.files("daemon")
            async with http.get(f"{daemon.rest.url}/health/live") as response:
                assert response.status == 200
        assert await shown_at(port, context) != before


async def shown_at(port: int, context: ssl.SSLContext) -> bytes:
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return found


@pytest.mark.parametrize("proxy", [False, True])
async def test_a_standby_leads_clients_over_tls_to_the_leader(ca: CaInTest, tmp_path: Path, *, proxy: bool) -> None:
    """It redirects them to the leader's https address, or asks there itself (A13, E42)."""
    files = ca.files("daemon")
    both = Tls(files)
    async with Daemon(load_config(None, {}, options(tmp_path, free_port(), files)), {}) as daemon:
        bound = await bind(place("127.0.0.1", 0))
        listening = Listening(host="127.0.0.1", port=0, tls=both.server(Clients.NEED_NONE), tls_to_leader=both.client)
        standby = StandbyServer(
            bound,
            access=Access.open_to_all(),
            listening=listening,
            leader=lambda: daemon.rest.url,
            trouble=str,
            proxy=proxy,
        )
        async with standby:
            url = f"https://127.0.0.1:{bound[0].getsockname()[1]}"
            async with Client(url, ca_file=str(ca.ca)) as client:
                assert (await client.task_managers()).taskmanagers == ()
                assert client.url == (url if proxy else daemon.rest.url)
