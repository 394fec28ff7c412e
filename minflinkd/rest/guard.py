"""Who may use the endpoint (E40): no page of another origin, no rebound host name, bodies within limits."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

from aiohttp import web
from multidict import CIMultiDictProxy

from minflinkd.rest.errors import BodyTooLarge, BodyTooSlow, CrossSite, UnknownHost, UnsupportedMediaType

_LOOPBACK_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost"})
_SAME_SITE = frozenset({"same-origin", "none"})


@dataclass(frozen=True)
class Limits:
    body_bytes: int = 16 * 1024**2
    body_seconds: float = 30.0  # that a client has to send its whole body
    header_bytes: int = 16 * 1024  # of one header, and of the request line
    requests: int = 512  # under way at once
    keep_alive_seconds: float = 75.0


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that is bound to `host`."""
    name = host.strip("[]").lower().rstrip(".")
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name in _LOOPBACK_NAMES or name.endswith(".localhost")


def check_host(header: str, bound_to: str, allowed: Collection[str]) -> None:
    """On a loopback server, accept loopback names only: a page whose name was rebound to 127.0.0.1 sends its own name.

    Raises UnknownHost.
    """
    if not is_loopback(bound_to):
        return
    name = urlsplit(f"//{header}").hostname or ""
    if not is_loopback(name) and name != bound_to and name not in allowed:
        raise UnknownHost(
            f"this endpoint is not {header[:100]!r}",
            hint="use http://localhost or the address that it listens on",
        )


def check_origin(headers: CIMultiDictProxy[str], method: str) -> None:
    """Refuse requests that a page of another origin sends. Following a link to the endpoint is allowed.

    Raises CrossSite.
    """
    origin = headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc.lower() != headers.get("Host", "").lower():
        raise CrossSite(f"a request from {origin[:100]!r} is refused", hint="send it from the endpoint's own page")
    site = headers.get("Sec-Fetch-Site", "none")
    follows_link = method == "GET" and headers.get("Sec-Fetch-Mode") == "navigate"
    if site not in _SAME_SITE and not follows_link:
        raise CrossSite("a request from another site is refused", hint="send it from the endpoint's own page")


async def read_json_body(request: web.Request, limits: Limits) -> bytes:
    """Return the body of a request that must be JSON. Raises UnsupportedMediaType, BodyTooLarge, BodyTooSlow."""
    if request.content_type != "application/json":
        raise UnsupportedMediaType(
            f"a body of type {request.content_type[:100]!r} is not taken here",
            hint="send the job document as JSON, with Content-Type: application/json;"
            " artifacts go to the blob server that GET /config names",
        )
    try:
        async with asyncio.timeout(limits.body_seconds):
            return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise BodyTooLarge(
            f"the body has more than {limits.body_bytes} bytes",
            hint="upload large files as artifacts; the limit is rest.server.max-content-length",
        ) from error
    except TimeoutError as error:
        raise BodyTooSlow(f"the body did not arrive within {limits.body_seconds:g} s", hint="send it again") from error
