"""Options that users combine, requests to a daemon that has them, and what must come of a request (E40 - E42, A13).

`expected` is written from the documentation, not from the code. It knows nothing of servers.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum

OWN_HOST, ALLOWED_HOST, FOREIGN_HOST = "localhost", "cluster.example", "evil.example"


class Standby(Enum):
    """Which daemon the client asks: the leader, or one that stands by and redirects or passes on."""

    NO = "the leader"
    REDIRECT = "redirect"
    PROXY = "proxy"


class Way(Enum):
    TCP = "http"
    TLS_WITH_CA = "https, the CA is named"
    TLS_WITHOUT_CA = "https, no CA is named"
    UNIX = "Unix socket"


class Target(Enum):
    ANYBODY = "GET /health/live"
    VIEW = "GET /jobs/overview"
    SUBMIT = "POST /jobs"
    BLOBS = "GET /blobs of the BlobServer"


@dataclass(frozen=True, kw_only=True)
class Options:
    rest_tls: bool  # security.ssl.rest.enabled
    internal_tls: bool  # security.ssl.internal.enabled
    asks: bool  # not security.allow-unauthenticated
    socket: bool  # security.socket-directory is not none
    allowed_hosts: bool  # security.allowed-hosts names ALLOWED_HOST
    standby: Standby
    knows_ca: bool  # a standby has the CA of the leader's certificate


@dataclass(frozen=True, kw_only=True)
class Asked:
    target: Target
    way: Way
    host: str
    token: str  # none, wrong, view, admin; for the BlobServer, admin is its own one

    def __str__(self) -> str:
        return f"{self.target.value} by {self.way.value} as {self.host} with token: {self.token}"


NO_CONNECTION = 0


def drawn(seed: int, requests: int) -> tuple[Options, list[Asked]]:
    rng = random.Random(seed)
    options = Options(
        rest_tls=rng.random() < 0.5,
        internal_tls=rng.random() < 0.5,
        asks=rng.random() < 0.7,
        socket=rng.random() < 0.6,
        allowed_hosts=rng.random() < 0.5,
        standby=rng.choice(list(Standby)),
        knows_ca=rng.random() < 0.7,
    )
    asked = []
    for _ in range(requests):
        target = rng.choice([Target.ANYBODY, Target.VIEW, Target.VIEW, Target.SUBMIT, Target.SUBMIT, Target.BLOBS])
        right = Way.TLS_WITH_CA if (options.internal_tls if target is Target.BLOBS else options.rest_tls) else Way.TCP
        # Mostly what can succeed: one thing that is wrong hides all others.
        local = Way.UNIX if options.socket and target is not Target.BLOBS else right
        way = rng.choice([right, right, right, local, local, local, *Way])
        host = rng.choice([*4 * [OWN_HOST], ALLOWED_HOST, FOREIGN_HOST])
        token = rng.choice(["none", "wrong", "view", "admin", "none" if way is Way.UNIX else "admin"])
        asked.append(Asked(target=target, way=way, host=host, token=token))
    return options, asked


def expected(options: Options, asked: Asked) -> int:
    """Return the status of the answer, or NO_CONNECTION."""
    if asked.target is Target.BLOBS:
        if not _connects(asked.way, tls=options.internal_tls, socket=False):
            return NO_CONNECTION
        return 200 if asked.token == "admin" else 401  # whatever HTTP asks for: it has a token of its own
    if not _connects(asked.way, tls=options.rest_tls, socket=options.socket):
        return NO_CONNECTION
    if asked.host == FOREIGN_HOST or (asked.host == ALLOWED_HOST and not options.allowed_hosts):
        return 403
    if asked.target is Target.ANYBODY:
        return 200  # a standby answers this itself
    if options.standby is Standby.REDIRECT:
        return 307  # to anybody: the leader asks for the token
    if options.standby is Standby.PROXY and options.rest_tls and not options.knows_ca:
        return 503  # it does not trust the leader
    return _by_credentials(options, asked)


def _connects(way: Way, *, tls: bool, socket: bool) -> bool:
    match way:
        case Way.TCP:
            return not tls
        case Way.TLS_WITH_CA:
            return tls
        case Way.TLS_WITHOUT_CA:
            return False  # the certificate is of nobody whom the machine knows, or there is none
        case Way.UNIX:
            return socket


def _by_credentials(options: Options, asked: Asked) -> int:
    done = 202 if asked.target is Target.SUBMIT else 200
    if not options.asks:
        return done
    match asked.token:
        case "none":  # the kernel says who is at the other end of the socket
            return done if asked.way is Way.UNIX else 401
        case "wrong":
            return 401
        case "view":
            return 403 if asked.target is Target.SUBMIT else done
        case _:
            return done
