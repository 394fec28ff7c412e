"""Finds out who sends a request, and whether they may (E40, E41). What it refuses is delayed, counted and logged.

In this order: a bearer token, the process at the other end of the Unix socket, a session's cookie.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from typing import Final

from aiohttp import web

from minflinkd.metrics.refusals import RefusalCollector
from minflinkd.rest.identity.proving import ExpiredToken, TokenProver, Unauthenticated
from minflinkd.rest.identity.roles import ANONYMOUS, Forbidden, Identity, Role, require_cluster, require_role
from minflinkd.rest.identity.scheme import Scheme
from minflinkd.rest.identity.sessions import Sessions
from minflinkd.rest.identity.tokens import TokenRecord
from minflinkd.rest.route import Route
from minflinkd.runtime.clock import Clock, SystemClock
from minflinkd.runtime.doorkeeper import SeldomTold
from minflinkd.runtime.local_socket import Admitted, HasOptions, peer_of

DELAY: Final = 0.5  # seconds before the answer to a token that is not valid
MOST_DELAYED: Final = 64  # such answers that wait; more are given at once, so that they cost the daemon nothing
CHALLENGE: Final = 'Bearer realm="minflinkd"'
_IDENTITY: Final = web.RequestKey("identity", Identity)


class Access:
    """Shared by the endpoints of one process. Without a `prover` it lets everybody do everything.

    `hint` says where a token is.
    """

    def __init__(
        self,
        prover: TokenProver | None,
        *,
        local: Admitted | None = None,
        schemes: Sequence[Scheme] = (),
        hint: str = "",
        clock: Clock | None = None,
    ) -> None:
        clock = clock or SystemClock()
        self.prover = prover
        self.sessions = Sessions(clock)
        self.refused = RefusalCollector()
        self._local = local
        self._schemes = schemes
        self._hint = hint
        self._clock = clock
        self._delayed = 0
        self._told: dict[str, SeldomTold] = {}

    @classmethod
    def open_to_all(cls) -> Access:
        """Let everybody do everything (`security.allow-unauthenticated`)."""
        return cls(None)

    @property
    def asks(self) -> bool:
        return self.prover is not None

    def replace_tokens(self, records: Iterable[TokenRecord]) -> None:
        if self.prover is not None:
            self.prover.replace(records)

    async def admit(self, request: web.Request, route: Route | None) -> Identity:
        """Return who sends the request. None: there is no such route. `identity_of` returns the same from now on.

        Raises Unauthenticated, Forbidden, Overloaded.
        """
        role = Role.VIEW if route is None else route.role
        if role is Role.ANYBODY:
            identity = Identity(name=ANONYMOUS.name, role=Role.ANYBODY)
        else:
            identity = await self.who(request)
            note_identity(request, identity)  # also if it is refused now, for the audit log
            require_role(identity, role)
            if route is not None and route.of_cluster:
                require_cluster(identity, f"{route.method} {route.path}")
        note_identity(request, identity)
        return identity

    async def who(self, request: web.Request) -> Identity:
        """Raises Unauthenticated, Overloaded."""
        if self.prover is None:
            return ANONYMOUS
        if (header := request.headers.get("Authorization")) is not None:
            scheme, _, text = header.partition(" ")
            if scheme.lower() != "bearer":
                raise Unauthenticated("only tokens are taken here", hint="send Authorization: Bearer TOKEN")
            return await self._prove(text.strip())
        if (uid := self._peer(request)) is not None:
            return Identity(name=f"uid {uid}", role=Role.ADMIN)
        if (cookie := request.cookies.get(cookie_name(request))) is not None:
            return self._of_session(cookie)
        raise Unauthenticated("this needs a token", hint=self._hint)

    async def log_in(self, token: str) -> Identity:
        """Raises Unauthenticated, Overloaded."""
        return ANONYMOUS if self.prover is None else await self._prove(token)

    async def _prove(self, token: str) -> Identity:
        """Raises Unauthenticated, Overloaded, SchemeUnavailable."""
        assert self.prover is not None
        if not self.prover.knows(token):
            for scheme in self._schemes:
                if (found := await scheme.identify(token)) is not None:
                    return found
        return await self.prover.prove(token)

    def voucher(self, request: web.Request) -> str:
        """Return the token to send with a request that is passed on to another daemon of the cluster.

        Empty, unless it came over the Unix socket without a token: the other daemon cannot see who that was.
        """
        if self.prover is None or "Authorization" in request.headers or self._peer(request) is None:
            return ""
        return self.prover.own.text

    def _peer(self, request: web.Request) -> int | None:
        """Return the uid of the process at the other end of the Unix socket, if it may use it."""
        if self._local is None or (connected := local_end(request)) is None:
            return None
        try:
            peer = peer_of(connected)
        except OSError:
            return None
        return peer.uid if self._local.admits(peer) else None

    def _of_session(self, cookie: str) -> Identity:
        """Raises Unauthenticated."""
        found = self.sessions.open.find(cookie)
        if found is not None and found.token_id and self.prover is not None:
            found = self.prover.identity(found.token_id)  # it may have been revoked, or have less rights now
        if found is None or 0 < found.until_ms <= self._clock.epoch_ms():
            raise _EndedSession("the session has ended", hint="log in again")
        return found

    def tell(self, request: web.Request, error: Unauthenticated | Forbidden) -> None:
        """Count and log a refusal, without the token."""
        reason = error.reason if isinstance(error, Unauthenticated) else error.code
        self.refused.counts[reason] += 1
        self._told.setdefault(reason, SeldomTold()).warn(
            "a request was refused", reason=reason, peer=sender(request), method=request.method, path=request.path[:200]
        )

    async def delay(self, error: Unauthenticated | Forbidden) -> None:
        """Wait before a wrong token is answered. A request without a token is no guess."""
        if not isinstance(error, Unauthenticated) or error.reason == Unauthenticated.reason:
            return
        if self._delayed >= MOST_DELAYED:
            return
        self._delayed += 1
        try:
            await self._clock.sleep(DELAY)
        finally:
            self._delayed -= 1


class _EndedSession(ExpiredToken):
    reason = "ended-session"


def local_end(request: web.Request) -> HasOptions | None:
    """Return the socket of a request that came over the Unix socket."""
    transport = request.transport
    connected = None if transport is None else transport.get_extra_info("socket")
    return connected if connected is not None and connected.family == socket.AF_UNIX else None


def note_identity(request: web.Request, identity: Identity) -> None:
    """Let `identity_of` return it."""
    request[_IDENTITY] = identity


def identity_of(request: web.Request) -> Identity:
    """Return who sends the request; ANYBODY if it is not known."""
    found: Identity = request.get(_IDENTITY, Identity(name=ANONYMOUS.name, role=Role.ANYBODY))
    return found


def cookie_name(request: web.Request) -> str:
    """Return a name of this endpoint alone: a browser sends the cookies of all ports of a host to each of them."""
    return f"minflinkd-{request.url.port or 0}"


def sender(request: web.Request) -> str:
    """Return where a request comes from: an address, or the process of a Unix socket's other end."""
    if request.remote:
        return request.remote
    connected = local_end(request)
    if connected is None:
        return "?"
    try:
        return f"uid {peer_of(connected).uid}"
    except OSError:
        return "?"
