"""Finds out who sends a request, and whether they may (E40, E41). What it refuses is delayed, counted and logged.

In this order: a bearer token, the process at the other end of the Unix socket, a client's certificate, a session's
cookie.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from aiohttp import web

from minflinkd.metrics.refusals import RefusalCollector
from minflinkd.rest.identity import certificates
from minflinkd.rest.identity.certificates import Certificate
from minflinkd.rest.identity.proving import (
    ExpiredCertificate,
    ExpiredToken,
    TokenProver,
    Unauthenticated,
    UnknownCertificate,
    WrongToken,
)
from minflinkd.rest.identity.roles import (
    ANONYMOUS,
    Forbidden,
    Identity,
    Role,
    read,
    require_cluster,
    require_role,
    written,
)
from minflinkd.rest.identity.scheme import Scheme
from minflinkd.rest.identity.sessions import Sessions
from minflinkd.rest.identity.tokens import TokenRecord
from minflinkd.rest.passing_on import ON_BEHALF_OF, PASSED_ON
from minflinkd.rest.route import Route
from minflinkd.runtime.clock import Clock, SystemClock
from minflinkd.runtime.doorkeeper import SeldomTold
from minflinkd.runtime.local_socket import Admitted, HasOptions, peer_of

DELAY: Final = 0.5  # seconds before the answer to a token that is not valid
MOST_DELAYED: Final = 64  # such answers that wait; more are given at once, so that they cost the daemon nothing
CHALLENGE: Final = 'Bearer realm="minflinkd"'
_UNAUTHENTICATED: Final = (Unauthenticated, WrongToken, ExpiredToken, ExpiredCertificate, UnknownCertificate)
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
        self.refused = RefusalCollector(each.reason for each in _UNAUTHENTICATED)
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
            return self._for_whom(request, await self._prove(text.strip()))
        if (found := self._seen(request)) is not None:
            return found
        if (cookie := request.cookies.get(cookie_name(request))) is not None:
            return self._of_session(cookie)
        if (shown := certificate_of(request)) is not None:
            raise UnknownCertificate(
                f"the certificate {certificates.shown(shown)} is that of nobody who may do anything here",
                hint="`minflinkd token create NAME --certificate` says whose it is; or send a token",
            )
        raise Unauthenticated("this needs a token", hint=self._hint)

    def _seen(self, request: web.Request) -> Identity | None:
        """Return who is at the other end of the connection, whatever the request says; None if nobody who is known.

        Raises Unauthenticated.
        """
        if (uid := self._peer(request)) is not None:
            return Identity(name=f"uid {uid}", role=Role.ADMIN)
        shown = certificate_of(request)
        return None if shown is None else self._of_certificate(shown)

    def _of_certificate(self, shown: Certificate) -> Identity | None:
        """Return who shows a certificate; None if it is nobody's here. Raises Unauthenticated.

        TLS has checked it when the connection began, which may be long ago.
        """
        assert self.prover is not None
        found = self.prover.identity_of_certificate(certificates.names_of(shown))
        ends = certificates.ends_ms(shown)
        if ends <= self._clock.epoch_ms():
            raise ExpiredCertificate(
                f"the certificate {certificates.shown(shown)} has expired", hint="get another one, and connect again"
            )
        return None if found is None else replace(found, until_ms=ends)

    async def still(self, request: web.Request, identity: Identity) -> Identity:
        """Return who has sent a request whose answer is still going on. Nothing is proved again: a token takes time.

        Raises Unauthenticated.
        """
        if self.prover is None or "Authorization" not in request.headers:
            return await self.who(request)
        found: Identity | None = identity
        if identity.token_id and ON_BEHALF_OF not in request.headers:
            found = self.prover.identity(identity.token_id)
        if found is None or 0 < found.until_ms <= self._clock.epoch_ms():
            raise _EndedSession("the token is not valid any more", hint="use another one")
        return found

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

    def vouch(self, request: web.Request) -> Mapping[str, str]:
        """Return the headers to add to a request that is passed on to another daemon of the cluster.

        That daemon cannot see who is at the other end of the Unix socket, or whose certificate was shown. The own
        token, which the daemons of a cluster have in common, lets this one say so. Raises Unauthenticated.
        """
        if self.prover is None or "Authorization" in request.headers or (found := self._seen(request)) is None:
            return {}
        return {"Authorization": f"Bearer {self.prover.own.text}", ON_BEHALF_OF: written(found)}

    def _for_whom(self, request: web.Request, proved: Identity) -> Identity:
        """Return for whom another daemon of the cluster asks; otherwise who has proved it. Raises Unauthenticated."""
        assert self.prover is not None
        behalf = request.headers.get(ON_BEHALF_OF) if proved.token_id == self.prover.own.id else None
        if behalf is None:
            return proved
        try:
            return read(behalf)
        except ValueError as error:
            raise Unauthenticated(
                "it cannot be read for whom this was passed on", hint="upgrade all daemons"
            ) from error

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
        until = 0 if found is None else found.until_ms
        if found is not None and found.token_id and self.prover is not None:
            found = self.prover.identity(found.token_id)  # it may have been revoked, or have less rights now
        if found is None or 0 < until <= self._clock.epoch_ms():
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


def certificate_of(request: web.Request) -> Certificate | None:
    """Return the certificate that a client has shown, and that TLS has found to be good; None if there is none.

    With a request that a standby passes on, it is that of the standby, which says nothing about the client.
    """
    if request.transport is None or PASSED_ON in request.headers:
        return None
    found: Certificate | None = request.transport.get_extra_info("peercert")
    return found or None


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
