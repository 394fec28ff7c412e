"""Who may use the endpoint (E40): no page of another origin, no rebound host name, bodies within limits."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from aiohttp import web
from multidict import CIMultiDictProxy

from minflinkd.rest.errors import (
    BodyTooLarge,
    BodyTooSlow,
    CrossSite,
    Overloaded,
    UnknownHost,
    UnsupportedMediaType,
)

_LOOPBACK_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost"})
_SAME_SITE = frozenset({"same-origin", "none"})


@dataclass(frozen=True)
class Limits:
    body_bytes: int = 16 * 1024**2
    bodies_bytes: int = 256 * 1024**2  # of all bodies under way together
    body_seconds: float = 30.0  # that a client has to send its whole body
    header_bytes: int = 16 * 1024  # of one header, and of the request line
    requests: int = 512  # under way at once
    event_streams: int = 500  # open at once, besides
    keep_alive_seconds: float = 75.0


def limits_with(*, largest_body: int, event_streams: int) -> Limits:
    """Return the limits with the options of the endpoint. One body of the largest size always finds room."""
    bodies = max(largest_body, Limits.bodies_bytes)
    return Limits(body_bytes=largest_body, bodies_bytes=bodies, event_streams=event_streams)


@lru_cache(maxsize=256)  # it is asked with every request, and parsing takes as long as some answers
def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that is bound to `host`."""
    name = host.strip("[]").lower().rstrip(".")
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name in _LOOPBACK_NAMES or name.endswith(".localhost")


def own_names(address: str, more: str) -> frozenset[str]:
    """Return the names of an endpoint: `rest.address`, the host's name, and `security.allowed-hosts`."""
    names = (address, socket.gethostname(), *more.split(","))
    return frozenset(name.strip().lower().rstrip(".") for name in names) - {""}


def check_host(header: str, bound_to: str, allowed: Collection[str]) -> None:
    """Accept only names that are known to be this endpoint's. Raises UnknownHost.

    The page of evil.example may let its name point to this machine ("DNS rebinding"). Then the browser takes the
    endpoint for a part of that page, but still sends the page's name. An address cannot be rebound, so a server on the
    network accepts any address; one on loopback accepts loopback addresses and its own.
    """
    name = _host_name(header)
    if is_loopback(name) or name == bound_to or name in allowed:
        return
    if is_loopback(bound_to) or not _is_address(name):
        raise UnknownHost(
            f"this endpoint is not {header[:100]!r}",
            hint="use http://localhost or the address that it listens on, or add the name to security.allowed-hosts",
        )


def _host_name(header: str) -> str:
    """Return the host of a `Host` header, in lower case; empty if there is none."""
    try:
        return (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def check_origin(headers: CIMultiDictProxy[str], method: str) -> None:
    """Refuse requests that a page of another origin sends. Following a link to the endpoint is allowed.

    Raises CrossSite.
    """
    origin = headers.get("Origin")
    if origin is not None and _host_of_origin(origin) != headers.get("Host", "").lower():
        raise CrossSite(f"a request from {origin[:100]!r} is refused", hint="send it from the endpoint's own page")
    site = headers.get("Sec-Fetch-Site", "none")
    follows_link = method == "GET" and headers.get("Sec-Fetch-Mode") == "navigate"
    if site not in _SAME_SITE and not follows_link:
        raise CrossSite("a request from another site is refused", hint="send it from the endpoint's own page")


def _host_of_origin(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def check_encoding(headers: CIMultiDictProxy[str]) -> None:
    """Refuse compressed bodies: a few KB of them may unpack to any size. Raises UnsupportedMediaType."""
    encoding = headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise UnsupportedMediaType(
            f"a body with Content-Encoding: {encoding[:100]!r} is not taken here", hint="send it uncompressed"
        )


class BodyRoom:
    """Room for all bodies that are being received or handled, together (E45)."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._left = limits.bodies_bytes

    @contextlib.contextmanager
    def taken_by(self, request: web.Request) -> Iterator[None]:
        """Take the room of a request's body. Raises BodyTooLarge, Overloaded."""
        if not request.body_exists:
            yield
            return
        size = request.content_length
        if size is None:  # sent in chunks: it may become as large as is allowed
            size = self._limits.body_bytes
        if size > self._limits.body_bytes:
            raise _too_large(self._limits)
        if size > self._left:
            raise Overloaded("too many large requests are under way", hint="try again in a moment")
        self._left -= size
        try:
            yield
        finally:
            self._left += size


async def read_json_body(request: web.Request, limits: Limits) -> bytes:
    """Return the body of a request that must be JSON. Raises UnsupportedMediaType, BodyTooLarge, BodyTooSlow."""
    if request.content_type != "application/json":
        raise UnsupportedMediaType(
            f"a body of type {request.content_type[:100]!r} is not taken here",
            hint="send the job document as JSON, with Content-Type: application/json;"
            " artifacts go to the blob server that GET /config names",
        )
    return await read_body(request, limits)


async def read_body(request: web.Request, limits: Limits) -> bytes:
    """Return the body of a request, of whatever type. Raises BodyTooLarge, BodyTooSlow."""
    try:
        async with asyncio.timeout(limits.body_seconds):
            return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise _too_large(limits) from error
    except TimeoutError as error:
        raise BodyTooSlow(f"the body did not arrive within {limits.body_seconds:g} s", hint="send it again") from error


def _too_large(limits: Limits) -> BodyTooLarge:
    return BodyTooLarge(
        f"the body has more than {int(limits.body_bytes):,} bytes",
        hint="upload large files as artifacts; the limit is rest.server.max-content-length",
    )
