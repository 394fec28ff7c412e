"""Options that users combine, drawn from a seed, against what the documentation says of each (E40 - E42, A13)."""

from __future__ import annotations

import contextlib
import os
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from structlog.testing import capture_logs

from minflinkd.blob.server import BlobOptions, BlobServer
from minflinkd.metrics.registry import Metrics
from minflinkd.rest.backend import Backend
from minflinkd.rest.cluster import About
from minflinkd.rest.identity import access as access_module
from minflinkd.rest.identity.access import Access
from minflinkd.rest.identity.proving import TokenProver
from minflinkd.rest.identity.tokens import Token
from minflinkd.rest.server import Entrance, Listening, RestServer, place
from minflinkd.rest.standby import StandbyServer
from minflinkd.rpc.local import LocalNetwork
from minflinkd.runtime import listening
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.local_socket import Admitted, LocalSocket
from minflinkd.runtime.tls import Clients, Tls, TlsFiles
from tests.component.rest.access_world import OWN, TOKENS, records
from tests.component.rest.combined_options import (
    ALLOWED_HOST,
    NO_CONNECTION,
    Asked,
    Options,
    Standby,
    Target,
    Way,
    drawn,
    expected,
)
from tests.tls import CaInTest
from tests.unit.rest.parties import Dispatcher, ResourceManager

SEEDS, REQUESTS = 80, 12
BLOB_TOKEN = "b" * 64
WRONG = Token.new()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return CaInTest(tmp_path_factory.mktemp("tls")).files()


@pytest.fixture(autouse=True)
def wrong_tokens_are_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_module, "DELAY", 0.0)


@dataclass(frozen=True)
class World:
    """Where the daemon is. `local` is the path of its Unix socket, whether or not it has one."""

    url: str
    blob_url: str
    local: Path
    files: TlsFiles


def access(options: Options) -> Access:
    prover = TokenProver(OWN, records(), SystemClock()) if options.asks else None
    return Access(prover, local=Admitted(os.geteuid()) if options.socket else None)


@contextlib.asynccontextmanager
async def world(options: Options, network: LocalNetwork, base: Path, files: TlsFiles) -> AsyncIterator[World]:
    tls = Tls(files)
    hosts = {ALLOWED_HOST} if options.allowed_hosts else frozenset[str]()
    sockets = await listening.bind(place("127.0.0.1", 0))
    local = LocalSocket.bind(base / "minflinkd", sockets[0].getsockname()[1], Admitted(os.geteuid()))
    if options.socket:
        sockets.append(local.socket)
    front = Listening(
        host="127.0.0.1",
        port=0,
        allowed_hosts=hosts,
        sockets=sockets,
        tls=tls.server(Clients.NEED_NONE) if options.rest_tls else None,
        tls_to_leader=tls.client if options.knows_ca else None,
    )
    leader = RestServer(
        Backend(network, timeout=5, submit_timeout=lambda: 5),
        listening=front if options.standby is Standby.NO else Listening(host="127.0.0.1", port=0, tls=front.tls),
        entrance=Entrance(access=access(options)),
        about=About(version="0", config_items=list, blob_url=str),
        metrics=Metrics(version="0"),
    )
    blobs = BlobServer(
        options=BlobOptions(directory=base / "blobs"),
        token=BLOB_TOKEN,
        tls=tls.server(Clients.MAY_HAVE_ONE) if options.internal_tls else None,
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(local.close)
        await stack.enter_async_context(blobs)
        await stack.enter_async_context(leader)
        if options.standby is not Standby.NO:
            standby = StandbyServer(
                sockets,
                listening=front,
                access=access(options),
                leader=lambda: leader.url,
                trouble=str,
                proxy=options.standby is Standby.PROXY,
            )
            await stack.enter_async_context(standby)
        url = f"{front.scheme}://127.0.0.1:{sockets[0].getsockname()[1]}"
        yield World(url, blobs.url, local.path, files)


async def answer(at: World, asked: Asked) -> int:
    base = at.blob_url if asked.target is Target.BLOBS else at.url
    scheme = "http" if asked.way in (Way.TCP, Way.UNIX) else "https"
    trusted: ssl.SSLContext | bool = Tls(TlsFiles(ca=at.files.ca)).client if asked.way is Way.TLS_WITH_CA else True
    unix = asked.way is Way.UNIX and asked.target is not Target.BLOBS
    connector: aiohttp.BaseConnector = aiohttp.TCPConnector(ssl=trusted)
    if asked.way is Way.UNIX:
        connector = aiohttp.UnixConnector(str(at.local if unix else at.local.with_name("of no BlobServer")))
    headers = {"Host": asked.host}
    if asked.token != "none":
        own = {"wrong": "c" * 64, "view": TOKENS["view"].text, "admin": BLOB_TOKEN}
        of_http = {"wrong": WRONG.text, "view": TOKENS["view"].text, "admin": TOKENS["admin"].text}
        token = (own if asked.target is Target.BLOBS else of_http)[asked.token]
        headers["Authorization"] = f"Bearer {token}"
    method, path = asked.target.value.split(" ")[:2]
    body = {"json": {"name": "x"}} if method == "POST" else {}
    url = f"{scheme}://{base.partition('://')[2]}{path}"
    async with aiohttp.ClientSession(connector=connector) as http:
        try:
            async with http.request(method, url, headers=headers, allow_redirects=False, **body) as response:
                await response.read()
                return response.status
        except aiohttp.ClientConnectionError:
            return NO_CONNECTION


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_a_request_is_answered_as_the_options_say(
    network: LocalNetwork,
    dispatcher: Dispatcher,
    resource_manager: ResourceManager,
    tmp_path: Path,
    files: TlsFiles,
    seed: int,
) -> None:
    """Whatever is combined, each option does what it does alone."""
    options, requests = drawn(seed, REQUESTS)
    with capture_logs():
        async with world(options, network, tmp_path, files) as at:
            got = {str(asked): await answer(at, asked) for asked in requests}
    assert got == {str(asked): expected(options, asked) for asked in requests}, options


def test_the_seeds_draw_every_outcome_often_enough() -> None:
    """A generator that draws only refusals would prove nothing."""
    outcomes, decided = Counter[int](), Counter[tuple[Standby, bool, str]]()
    for seed in range(SEEDS):
        options, requests = drawn(seed, REQUESTS)
        for asked in requests:
            status = expected(options, asked)
            outcomes[status] += 1
            if options.asks and asked.target in (Target.VIEW, Target.SUBMIT) and status in (200, 202, 401):
                decided[options.standby, asked.way is Way.UNIX, asked.token] += 1
    assert min(outcomes[status] for status in (NO_CONNECTION, 200, 202, 307, 401, 403, 503)) >= 5, outcomes
    assert outcomes[NO_CONNECTION] < SEEDS * REQUESTS / 3
    for standby in (Standby.NO, Standby.PROXY):
        for local in (False, True):
            for token in ("none", "wrong", "view", "admin"):
                assert decided[standby, local, token], (standby, local, token)
