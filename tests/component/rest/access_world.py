"""A server that asks who sends a request, with a token for each role, and a Unix socket."""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from minflinkd.metrics.registry import Metrics
from minflinkd.rest.backend import Backend
from minflinkd.rest.cluster import About
from minflinkd.rest.guard import Limits
from minflinkd.rest.identity.access import Access
from minflinkd.rest.identity.audit import AuditLog
from minflinkd.rest.identity.proving import TokenProver
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.identity.tokens import Token, TokenRecord, hash_of
from minflinkd.rest.server import Entrance, Listening, RestServer, place
from minflinkd.rpc.local import LocalNetwork
from minflinkd.runtime import listening
from minflinkd.runtime.clock import Clock, SystemClock
from minflinkd.runtime.local_socket import Admitted, LocalSocket
from tests.component.rest.described import described

OWN = Token.new()
ROLES = tuple(role for role in Role if role is not Role.ANYBODY)
TOKENS = {str(role): Token.new() for role in ROLES} | {"limited": Token.new()}
HINT = "the token is in /somewhere/http.token"


def records() -> tuple[TokenRecord, ...]:
    """Return an entry for a token of each role, and for one that may submit jobs named `etl-*` alone."""
    return tuple(
        TokenRecord(
            name=name,
            id=token.id,
            role="submit" if name == "limited" else name,
            hash=hash_of(token.secret, b"s" * 16, (1 << 4, 8, 1)),
            jobs=("etl-*",) if name == "limited" else (),
        )
        for name, token in TOKENS.items()
    )


@dataclass(frozen=True)
class World:
    server: RestServer
    access: Access
    socket: Path
    audit: Path
    http: aiohttp.ClientSession  # without a token
    local: aiohttp.ClientSession  # over the Unix socket


def bearer(token: Token | str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[token].text if isinstance(token, str) else token.text}"}


@contextlib.asynccontextmanager
async def world(
    network: LocalNetwork,
    base: Path,
    local: Admitted | None = None,
    *,
    tls: ssl.SSLContext | None = None,
    more: Iterable[TokenRecord] = (),
    clock: Clock | None = None,
) -> AsyncIterator[World]:
    """`local`: who may use the socket; by default this process. `more`: entries besides those of `records`."""
    local = local or Admitted(os.geteuid())
    prover = TokenProver(OWN, (*records(), *more), SystemClock(), hint=HINT)
    access = Access(prover, local=local, hint=HINT, clock=clock)
    sockets = await listening.bind(place("127.0.0.1", 0))
    unix = LocalSocket.bind(base, sockets[0].getsockname()[1], local)
    audit = AuditLog(base / "audit.log")
    server = RestServer(
        Backend(network, timeout=0.2, submit_timeout=lambda: 0.2, uploads=base / "uploads"),
        listening=Listening(host="127.0.0.1", port=0, sockets=[*sockets, unix.socket], tls=tls),
        entrance=Entrance(access=access, audit=audit),
        about=About(version="0", config_items=list, blob_url=str),
        metrics=Metrics(version="0", rpc=network.figures),
        limits=Limits(body_bytes=64 * 1024, body_seconds=0.2),
    )
    async with (
        audit,
        server,
        aiohttp.ClientSession(
            server.url, cookie_jar=aiohttp.DummyCookieJar(), trace_configs=[described(server.routes)]
        ) as http,
        aiohttp.ClientSession("http://localhost", connector=aiohttp.UnixConnector(str(unix.path))) as over_socket,
    ):
        yield World(server, access, unix.path, base / "audit.log", http, over_socket)
    unix.close()
