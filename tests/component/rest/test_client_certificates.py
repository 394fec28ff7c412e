"""Clients that show the HTTP endpoint a certificate: real handshakes, and who they are then (E42)."""

from __future__ import annotations

import contextlib
import secrets
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography import x509
from structlog.testing import capture_logs

from minflinkd.cli.client import Client
from minflinkd.cli.credentials import Credentials
from minflinkd.cli.endpoint import DaemonUnreachable
from minflinkd.rest.identity.access import Access
from minflinkd.rest.identity.proving import TokenProver
from minflinkd.rest.identity.roles import Identity, Role, written
from minflinkd.rest.identity.tokens import TokenRecord
from minflinkd.rest.passing_on import ON_BEHALF_OF, PASSED_ON
from minflinkd.rest.server import Listening, place
from minflinkd.rest.standby import StandbyServer
from minflinkd.rpc.local import LocalNetwork
from minflinkd.runtime import tls
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.listening import bind
from minflinkd.runtime.tls import Clients, Tls, TlsFiles, UnusableCertificate
from tests.component.rest.access_world import OWN, World, bearer, world
from tests.tls import CaInTest
from tests.unit.rest.parties import Dispatcher, ResourceManager, TaskManager


def entry(name: str, certificate: str, **more: Any) -> TokenRecord:
    return TokenRecord(name=name, id=secrets.token_hex(8), certificate=certificate, **{"role": "submit", **more})


PAST = datetime.now(UTC) - timedelta(days=1)
ENTRIES = (
    entry("deploy", "CN:ci"),
    entry("reader", "CN:reader", role="view"),
    entry("etl", "CN:etl", jobs=("etl-*",)),
    entry("host", "DNS:ci.example", role="operate"),
    entry("mail", "email:ann@b.example", role="operate"),
    entry("workload", "URI:spiffe://b/ci", role="operate"),
    entry("gone", "CN:gone", expires=PAST),
)


class HandClock(SystemClock):
    def __init__(self) -> None:
        self.ahead_ms = 0

    def epoch_ms(self) -> int:
        return super().epoch_ms() + self.ahead_ms


@dataclass
class Endpoint:
    """`ca` has signed the endpoint's own certificate, `clients` those of its clients."""

    world: World
    ca: CaInTest
    clients: CaInTest
    clock: HandClock

    @property
    def url(self) -> str:
        return self.world.server.url

    @contextlib.asynccontextmanager
    async def session(self, shown: TlsFiles | None) -> AsyncIterator[aiohttp.ClientSession]:
        """A client that shows this certificate."""
        files = TlsFiles(ca=self.ca.ca)
        if shown is not None:
            files = TlsFiles(certificate=shown.certificate, key=shown.key, ca=self.ca.ca)
        connector = aiohttp.TCPConnector(ssl=Tls(files).client)
        jar = aiohttp.DummyCookieJar()
        async with aiohttp.ClientSession(self.url, connector=connector, cookie_jar=jar) as http:
            yield http

    def client(self, shown: TlsFiles | None, **more: Any) -> Client:
        """The client of the command line, which finds no other proof."""
        found = Credentials(
            environ={"HOME": "/nowhere", "XDG_RUNTIME_DIR": "/nowhere"},
            cert_file=None if shown is None else shown.certificate,
            key_file=None if shown is None else shown.key,
        )
        return Client(self.url, ca_file=str(self.ca.ca), credentials=found, attempts=1, **more)

    async def who(self, shown: TlsFiles | None, **headers: str) -> tuple[int, Any]:
        """Return the status, and the name, or the first error."""
        async with self.session(shown) as http, http.get("/whoami", headers=headers) as response:
            answer = await response.json()
            return response.status, answer["name"] if response.status == 200 else answer["errors"][0]


@contextlib.asynccontextmanager
async def endpoint(network: LocalNetwork, base: Path, clients: Clients) -> AsyncIterator[Endpoint]:
    ca, of_clients, clock = CaInTest(base / "tls"), CaInTest(base / "clients"), HandClock()
    own = ca.files("rest")
    files = TlsFiles(certificate=own.certificate, key=own.key, ca=ca.ca, client_ca=of_clients.ca)
    async with world(network, base, tls=Tls(files).server(clients), more=ENTRIES, clock=clock) as found:
        yield Endpoint(found, ca, of_clients, clock)


@pytest.fixture
async def at(
    network: LocalNetwork,
    dispatcher: Dispatcher,
    resource_manager: ResourceManager,
    task_manager: TaskManager,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Endpoint]:
    monkeypatch.setattr(tls, "LOOK", 0.0)
    async with endpoint(network, tmp_path, Clients.MAY_HAVE_ONE) as found:
        yield found


# --- who it is ---------------------------------------------------------------------------------------------------


async def test_a_certificate_says_who_its_owner_is(at: Endpoint, dispatcher: Dispatcher) -> None:
    """The entry has the name, which is the owner of jobs, and the role."""
    async with at.session(at.clients.client("ci")) as http:
        async with http.get("/whoami") as response:
            assert await response.json() == {"name": "deploy", "role": "submit", "jobs": []}
        async with http.post("/jobs", json={"name": "x"}) as response:
            assert response.status == 202
        async with http.post("/cluster/handover") as response:
            assert (response.status, response.headers["Minflinkd-Error-Code"]) == (403, "forbidden")
    assert [each.owner for each in dispatcher.submissions] == ["deploy"]


async def test_roles_and_names_of_jobs_count_as_for_a_token(at: Endpoint) -> None:
    """E41."""
    async with at.session(at.clients.client("reader")) as http, http.post("/jobs", json={"name": "x"}) as response:
        assert response.status == 403
    async with at.session(at.clients.client("etl")) as http:
        for name, status in (("etl-1", 202), ("other", 403)):
            async with http.post("/jobs", json={"name": name}) as response:
                assert response.status == status


@pytest.mark.parametrize(
    ("alternative", "name"),
    [
        (x509.DNSName("ci.example"), "host"),
        (x509.RFC822Name("ann@b.example"), "mail"),
        (x509.UniformResourceIdentifier("spiffe://b/ci"), "workload"),
    ],
)
async def test_an_alternative_name_says_it_as_well(at: Endpoint, alternative: x509.GeneralName, name: str) -> None:
    assert await at.who(at.clients.client("whoever", alternative)) == (200, name)


async def test_a_name_of_another_kind_is_another_name(at: Endpoint) -> None:
    """A CA may let clients choose one of the fields."""
    for shown in (at.clients.client("ci.example"), at.clients.client("x", x509.DNSName("ci"))):
        status, error = await at.who(shown)
        assert (status, "is that of nobody who may do anything here" in error) == (401, True)


async def test_a_certificate_with_the_names_of_two_entries_is_nobodys(at: Endpoint) -> None:
    """Whichever was taken, it might be the wrong one."""
    status, error = await at.who(at.clients.client("ci", x509.DNSName("ci.example")))
    assert status == 401
    assert "is that of deploy, host: it is not certain who this is" in error


async def test_without_a_certificate_a_token_is_asked_for(at: Endpoint) -> None:
    """It is optional here."""
    status, error = await at.who(None)
    assert (status, error.startswith("this needs a token")) == (401, True)
    assert await at.who(None, **bearer("view")) == (200, "view")


async def test_a_token_counts_before_the_certificate(at: Endpoint) -> None:
    """So that somebody can use less than all their rights; and whoever has a certificate that says nothing."""
    assert await at.who(at.clients.client("ci"), **bearer("view")) == (200, "view")
    assert await at.who(at.clients.client("unknown"), **bearer("view")) == (200, "view")


async def test_a_good_certificate_of_nobody_is_refused_counted_and_logged(at: Endpoint) -> None:
    """The log has the reason."""
    with capture_logs() as logs:
        status, error = await at.who(at.clients.client("stranger"))
    assert status == 401
    assert "the certificate CN:stranger is that of nobody" in error
    (told,) = [line for line in logs if line["event"] == "a request was refused"]
    assert told["reason"] == "unknown-certificate"
    assert at.world.access.refused.counts["unknown-certificate"] == 1


async def test_a_revoked_entry_ends_at_once_also_in_an_open_connection(at: Endpoint) -> None:
    """As a revoked token does, on a reload (E41)."""
    async with at.session(at.clients.client("ci")) as http:
        async with http.get("/whoami") as response:
            assert response.status == 200
        at.world.access.replace_tokens(())
        async with http.get("/whoami") as response:
            assert response.status == 401


async def test_an_entry_that_has_expired_is_refused(at: Endpoint) -> None:
    status, error = await at.who(at.clients.client("gone"))
    assert (status, "gone has expired" in error) == (401, True)


async def test_a_certificate_that_expires_ends_in_an_open_connection(at: Endpoint) -> None:
    """TLS looks at it once, and a connection may live for days."""
    async with at.session(at.clients.client("ci", days=1)) as http:
        async with http.get("/whoami") as response:
            assert response.status == 200
        at.clock.ahead_ms = 2 * 86_400_000
        async with http.get("/whoami") as response:
            assert response.status == 401
            assert "the certificate CN:ci has expired" in (await response.json())["errors"][0]
    assert at.world.access.refused.counts["expired-certificate"] == 1


async def test_a_session_of_a_browser_ends_with_the_certificate_that_began_it(at: Endpoint) -> None:
    """`minflinkd open` as somebody with a certificate, for a browser without one."""
    async with at.session(at.clients.client("ci", days=0.1)) as http, http.post("/login/links") as response:
        path = (await response.json())["path"]
    async with at.session(None) as http:
        async with http.get(path) as response:
            cookie = {"Cookie": response.headers["Set-Cookie"].partition(";")[0]}
        async with http.get("/whoami", headers=cookie) as response:
            assert (await response.json())["name"] == "deploy"
        at.clock.ahead_ms = 4 * 3_600_000
        async with http.get("/whoami", headers=cookie) as response:
            assert response.status == 401


# --- handshakes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clients", [Clients.MAY_HAVE_ONE, Clients.NEED_A_CERTIFICATE])
@pytest.mark.parametrize(
    ("which", "logged", "told"),
    [
        ("another CA", "comes from another CA", "does not know the CA of this side's certificate"),
        ("the CA of the daemons", "comes from another CA", "does not know the CA of this side's certificate"),
        ("expired", "has expired", "says that this side's certificate has expired"),
        ("none", "the client shows no certificate", "needs a certificate of its clients, and this one shows none"),
    ],
)
async def test_who_shows_no_good_certificate_does_not_connect_and_both_sides_learn_why(
    network: LocalNetwork, dispatcher: Dispatcher, tmp_path: Path, clients: Clients, which: str, logged: str, told: str
) -> None:
    """Where one is optional, one that is shown must be good. None is refused where one is required, for /health too."""
    async with endpoint(network, tmp_path, clients) as at:
        shown = {
            "another CA": CaInTest(tmp_path / "other").client("ci"),
            "the CA of the daemons": at.ca.client("ci"),
            "expired": at.clients.expired("ci"),
            "none": None,
        }[which]
        if shown is None and clients is Clients.MAY_HAVE_ONE:
            assert (await at.who(None, **bearer("view")))[0] == 200
            return
        with capture_logs() as logs:
            async with at.client(shown) as client:
                for ask in (client.health, client.jobs):
                    with pytest.raises(DaemonUnreachable, match=told) as refused:
                        await ask()
                    assert "--cert-file" in refused.value.hint
        assert any(line["event"] == "a connection was refused" and logged in line["error"] for line in logs)
        assert dispatcher.questions == 0


async def test_where_one_is_required_a_good_certificate_is_let_in_and_the_socket_needs_none(
    network: LocalNetwork, dispatcher: Dispatcher, tmp_path: Path
) -> None:
    """Nothing of the socket leaves the machine."""
    async with endpoint(network, tmp_path, Clients.NEED_A_CERTIFICATE) as at:
        async with at.client(at.clients.client("reader")) as client:
            assert len((await client.jobs()).jobs) == 2
        async with at.world.local.get("/whoami") as response:
            assert response.status == 200


async def test_a_key_in_the_file_of_the_certificate_needs_no_other_file(at: Endpoint) -> None:
    shown = at.clients.client("reader")
    assert shown.certificate is not None
    assert shown.key is not None
    both = shown.certificate.with_name("both.pem")
    both.write_bytes(shown.certificate.read_bytes() + shown.key.read_bytes())
    async with at.client(TlsFiles(certificate=both)) as client:
        assert len((await client.jobs()).jobs) == 2


async def test_another_ca_for_clients_counts_without_a_restart(at: Endpoint, tmp_path: Path) -> None:
    """From the next connection on."""
    other = CaInTest(tmp_path / "other")
    shown = other.client("ci")
    with capture_logs(), pytest.raises(aiohttp.ClientError):
        await at.who(shown)
    at.clients.ca.write_bytes(other.ca.read_bytes())
    assert await at.who(shown) == (200, "deploy")
    with capture_logs(), pytest.raises(aiohttp.ClientError):
        await at.who(at.clients.client("ci"))


def test_a_ca_for_clients_that_cannot_be_used_is_found_at_the_start(tmp_path: Path) -> None:
    """Not with the first client."""
    files = CaInTest(tmp_path).files("rest")
    missing = TlsFiles(certificate=files.certificate, key=files.key, client_ca=tmp_path / "missing.pem")
    with pytest.raises(UnusableCertificate, match=r"missing\.pem cannot be used"):
        Tls(missing).server(Clients.MAY_HAVE_ONE)


# --- a standby that forwards requests ----------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def standby(at: Endpoint, base: Path) -> AsyncIterator[tuple[str, ssl.SSLContext]]:
    """A daemon that forwards requests to the endpoint. Its certificate is from the CA of the daemons."""
    own = at.ca.files("standby")
    both = Tls(TlsFiles(certificate=own.certificate, key=own.key, ca=at.ca.ca, client_ca=at.clients.ca))
    bound = await bind(place("127.0.0.1", 0))
    at.clients.ca.write_bytes(at.clients.ca.read_bytes() + at.ca.ca.read_bytes())  # it shows its own to the leader
    server = StandbyServer(
        bound,
        access=Access(TokenProver(OWN, ENTRIES, SystemClock())),
        listening=Listening(
            host="127.0.0.1", port=0, tls=both.server(Clients.NEED_A_CERTIFICATE), tls_to_leader=both.client
        ),
        leader=lambda: at.url,
        trouble=str,
        proxy=True,
    )
    async with server:
        yield f"https://127.0.0.1:{bound[0].getsockname()[1]}", both.client


async def test_a_standby_tells_the_leader_whose_certificate_it_was_shown(
    at: Endpoint, dispatcher: Dispatcher, tmp_path: Path
) -> None:
    """The role and the owner are those of the client, not those of the standby's token or certificate (A13)."""
    async with standby(at, tmp_path) as (url, _):
        shown = at.clients.client("ci")
        files = TlsFiles(certificate=shown.certificate, key=shown.key, ca=at.ca.ca)
        connector = aiohttp.TCPConnector(ssl=Tls(files).client)
        async with aiohttp.ClientSession(url, connector=connector) as http:
            async with http.get("/whoami", headers={ON_BEHALF_OF: "made up"}) as response:
                assert await response.json() == {"name": "deploy", "role": "submit", "jobs": []}
            async with http.post("/jobs", json={"name": "x"}) as response:
                assert response.status == 202
            async with http.post("/cluster/handover") as response:
                assert response.status == 403
            made_up = {ON_BEHALF_OF: written(Identity(name="x", role=Role.ADMIN)), **bearer(OWN)}
            async with http.get("/whoami", headers=made_up) as response:
                assert (await response.json())["name"] == "daemon", "only the standby says for whom it asks"
        assert [each.owner for each in dispatcher.submissions] == ["deploy"]


async def test_a_standbys_own_certificate_lets_in_no_client_of_it(at: Endpoint, tmp_path: Path) -> None:
    """Even if an entry has its name. Whoever needs a token needs one at a standby as well."""
    at.world.access.replace_tokens((entry("daemon-b", "CN:standby", role="admin"),))
    async with standby(at, tmp_path) as (url, context):
        connector = aiohttp.TCPConnector(ssl=context)
        async with aiohttp.ClientSession(url, connector=connector) as http, http.get("/whoami") as response:
            assert response.status == 401
    status, error = await at.who(at.ca.client("standby"), **{PASSED_ON: "1"})
    assert (status, error.startswith("this needs a token")) == (401, True)


async def test_only_the_clusters_own_token_may_say_for_whom_it_asks(at: Endpoint) -> None:
    """Otherwise each token could take the name and the role of somebody else."""
    shown = at.clients.client("ci")
    async with at.session(shown) as http:
        headers = {ON_BEHALF_OF: written(Identity(name="x", role=Role.ADMIN)), **bearer("view")}
        async with http.get("/whoami", headers=headers) as response:
            assert (await response.json())["name"] == "view"
        headers.pop("Authorization")
        async with http.get("/whoami", headers=headers) as response:
            assert (await response.json())["name"] == "deploy"
        headers |= bearer(OWN)
        async with http.get("/whoami", headers=headers) as response:
            assert (await response.json())["name"] == "x"
        headers[ON_BEHALF_OF] = "nonsense"
        async with http.get("/whoami", headers=headers) as response:
            assert response.status == 401
