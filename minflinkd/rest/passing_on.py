"""Forwards requests from a standby to the leader (`rest.standby: proxy`, A13).

Bodies are streamed in both directions with backpressure, so no body is ever in memory as a whole. Every request has its
own connection: if it cannot be opened, it is certain that nothing was done.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping

import aiohttp
from aiohttp import hdrs, web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from minflinkd.rest.errors import Overloaded, RequestError
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.component import Component
from minflinkd.runtime.errors import Consequence, Kind

PASSED_ON = "Minflinkd-Passed-On"  # header: another daemon has forwarded this, so do not forward it again
ON_BEHALF_OF = "Minflinkd-On-Behalf-Of"  # header: for whom, if only that daemon can see it; see `Access.vouch`
CONNECT_TIMEOUT = 5.0  # seconds
ANSWER_TIMEOUT = 660.0  # seconds without a byte from the leader; a sweep of orphans may take 600
EVENTS = "/events"  # how the path of a stream ends
LOOK = 0.5  # seconds between two checks whether another daemon leads

_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"}
    | {"transfer-encoding", "upgrade"}
)
_OURS = frozenset({"host", "expect", "origin"})  # meant for this daemon, which has checked them
_FETCH_METADATA = "sec-fetch-"  # likewise


class NoLeader(RequestError):
    """No daemon leads at the moment, or it is not yet known which one does. The request had no effect."""

    code = "no-leader"
    status = 503
    consequence = Consequence.RETRYABLE
    kind = Kind.NO_LEADER


class LeaderLost(RequestError):
    """The leader had the request and did not answer it. It may have been carried out."""

    code = "leader-lost"
    status = 502
    consequence = Consequence.RETRYABLE
    kind = Kind.CLUSTER


class LeaderProxy(Component):
    """`leader` returns the URL of the leader; empty if none is known."""

    def __init__(
        self,
        leader: Callable[[], str],
        *,
        at_once: int,
        header_bytes: int,
        answer_timeout: float = ANSWER_TIMEOUT,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`at_once`: how many requests may be in flight; `header_bytes`: the largest header of an answer."""
        super().__init__("leader proxy")
        self._leader = leader
        self._at_once = at_once
        self._header_bytes = header_bytes
        self._answer_timeout = answer_timeout
        self._tls = tls
        self._clock = SystemClock()
        self._under_way = 0
        self._streams = 0  # of those: answers that do not end must leave room for others
        self._session: aiohttp.ClientSession | None = None

    async def _start(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True, ssl=self._tls or True),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=self._answer_timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=(hdrs.USER_AGENT, hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE),
            max_line_size=self._header_bytes,
            max_field_size=self._header_bytes,
        )

    async def _stop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def pass_on(
        self, request: web.Request, leader: str, *, vouched: Mapping[str, str] | None = None
    ) -> web.StreamResponse:
        """Send the leader's answer to the client, and return it. Raises NoLeader, LeaderLost, Overloaded.

        `vouched`: headers for a client that has no token, but whom this daemon knows.

        Raises ConnectionError if the answer breaks off, so that the client does not take a part for the whole answer.
        """
        stream = request.path.endswith(EVENTS)
        if self._under_way >= self._at_once or (stream and self._streams >= self._at_once // 2):
            what = f"{self._streams} event streams" if stream else f"{self._under_way} requests"
            raise Overloaded(
                f"{what} are being forwarded to the leader, which is the limit",
                hint=f"try again in a moment, or ask the leader itself at {leader}",
            )
        self._under_way += 1
        self._streams += stream
        try:
            return await self._passed_on(request, leader, vouched or {})
        finally:
            self._under_way -= 1
            self._streams -= stream

    async def _passed_on(self, request: web.Request, leader: str, vouched: Mapping[str, str]) -> web.StreamResponse:
        begun = asyncio.Event()  # set when the client may have a part of the answer
        passing = asyncio.create_task(self._carry(request, leader, begun, vouched), name="pass a request on")
        replaced = asyncio.create_task(self._replaced(leader), name="check whether another daemon leads")
        try:
            await asyncio.wait({passing, replaced}, return_when=asyncio.FIRST_COMPLETED)
            if not passing.done():
                if begun.is_set():
                    raise ConnectionResetError("another daemon became the leader before the answer was complete")
                raise _lost(leader, "another daemon leads now")
            return passing.result()
        finally:
            for task in (passing, replaced):
                task.cancel()
            await asyncio.gather(passing, replaced, return_exceptions=True)

    async def _carry(
        self, request: web.Request, leader: str, begun: asyncio.Event, vouched: Mapping[str, str]
    ) -> web.StreamResponse:
        assert self._session is not None
        try:
            asked = await self._session.request(
                request.method,
                URL(leader.rstrip("/") + request.rel_url.raw_path_qs, encoded=True),
                headers=_forwarded(request.headers, vouched),
                data=request.content.iter_any() if request.can_read_body else None,
                allow_redirects=False,
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NoLeader(
                f"the leader, or the previous leader, does not answer at {leader}: {error}",
                hint="nothing was done; try again in a moment. If this persists, check that this host reaches that "
                "address, which is the leader's rest.address",
            ) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _lost(leader, str(error) or type(error).__name__) from error
        async with asked:
            response = web.StreamResponse(status=asked.status, reason=asked.reason, headers=_end_to_end(asked.headers))
            begun.set()
            await response.prepare(request)
            async for piece in _pieces(asked):
                await response.write(piece)
            await response.write_eof()
            return response

    async def _replaced(self, leader: str) -> None:
        """Return when another daemon leads. A leader whose host is lost does not close its connections."""
        while self._leader() in ("", leader):
            await self._clock.sleep(LOOK)


async def _pieces(asked: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        async for piece in asked.content.iter_any():
            yield piece
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ConnectionResetError(f"the leader's answer broke off: {error}") from error


def _forwarded(headers: CIMultiDictProxy[str], vouched: Mapping[str, str]) -> CIMultiDict[str]:
    kept = _end_to_end(headers)
    kept.popall(ON_BEHALF_OF, None)  # nobody but this daemon says that
    kept.update(vouched)
    for name in list(kept):
        if name.lower() in _OURS or name.lower().startswith(_FETCH_METADATA):
            kept.popall(name, None)
    kept[PASSED_ON] = "1"
    return kept


def _end_to_end(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """Return the headers that are not about one connection alone (RFC 9110, 7.6.1)."""
    named = {name.strip().lower() for value in headers.getall(hdrs.CONNECTION, []) for name in value.split(",")}
    kept: CIMultiDict[str] = CIMultiDict()
    for name, value in headers.items():
        if name.lower() not in _HOP_BY_HOP and name.lower() not in named:
            kept.add(name, value)
    return kept


def _lost(leader: str, why: str) -> LeaderLost:
    return LeaderLost(
        f"the leader at {leader} got the request but did not answer it: {why}",
        hint="the request may have been carried out: check before you send it again",
    )
