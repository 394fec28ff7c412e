"""Limits what clients cost that connect and say nothing (E45).

Example: somebody opens 260 connections to a daemon that may have 256 files open. Without a limit the daemon can accept
nobody any more, and logs an error for each attempt. Here a connection that sends nothing is closed after a while, and
earlier if its place is needed: the longest silent one goes first, so a client that speaks at once is let in. With TLS,
a client has said something only when it has done so after the handshake.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import ssl
from collections.abc import Callable, Iterator, Sequence
from socket import AF_UNIX, socket
from typing import cast

import structlog

from minflinkd.runtime.starting_tls import Counted, StartingTls
from minflinkd.runtime.supervision import TaskOwner

log = structlog.get_logger(__name__)

FIRST_BYTE = 10.0  # seconds that a client has to say something
BACKLOG = 128  # connections that wait to be accepted
# Connections that asyncio accepts before it does anything else (it calls that number backlog, too). What was aborted is
# closed only after that, so with more, a burst would take all files that may be open.
AT_ONCE = 16
MOST = 1024  # connections of a kind
WANTED_FILES = 65536  # that a process may have open
TOLD_EVERY = 1.0  # seconds between two warnings of a kind


def raise_file_limit() -> int:
    """Let this process open as many files as it may, up to `WANTED_FILES`. Return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(hard, WANTED_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft if soft != resource.RLIM_INFINITY else WANTED_FILES


def most_connections(wanted: int = MOST) -> int:
    """Return how many connections of a kind there may be: not all files that may be open are for them."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(16, min(wanted, soft // 8))


class SeldomTold:
    """Logs a warning at most once in `TOLD_EVERY` seconds, and says how many were left out."""

    def __init__(self) -> None:
        self._next_at = 0.0
        self._left_out = 0

    def warn(self, event: str, **facts: object) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._next_at:
            self._left_out += 1
            return
        more = {"left_out": self._left_out} if self._left_out else {}
        self._next_at, self._left_out = now + TOLD_EVERY, 0
        log.warning(event, **facts, **more)


class Unproven:
    """Connections of clients that have not proved who they are. If there are too many, the oldest is cut off."""

    def __init__(self) -> None:
        self._most = most_connections()
        self._transports: dict[asyncio.WriteTransport, None] = {}

    @contextlib.contextmanager
    def having(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        self._enter(writer.transport)
        try:
            yield
        finally:
            self._leave(writer.transport)

    def handshake(self) -> Counted:
        """Return what counts one connection while its TLS handshake is under way."""
        return _Handshake(self._enter, self._leave)

    def _enter(self, transport: asyncio.WriteTransport) -> None:
        if len(self._transports) >= self._most:
            oldest = next(iter(self._transports))
            del self._transports[oldest]
            oldest.abort()
        self._transports[transport] = None

    def _leave(self, transport: asyncio.WriteTransport) -> None:
        self._transports.pop(transport, None)


class _Handshake:
    def __init__(
        self, enter: Callable[[asyncio.WriteTransport], None], leave: Callable[[asyncio.WriteTransport], None]
    ) -> None:
        self._enter = enter
        self._leave = leave
        self._transport: asyncio.WriteTransport | None = None

    def accepted(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._enter(transport)

    def ended(self, *, well: bool) -> None:
        if self._transport is not None:
            self._leave(self._transport)


class Doorkeeper:
    """Serves sockets. `kind`: what connects, for the log."""

    def __init__(self, kind: str, *, most: int | None = None, first_byte: float = FIRST_BYTE) -> None:
        self.kind = kind
        self.first_byte = first_byte
        self._most = most_connections() if most is None else most
        self._servers: list[asyncio.Server] = []
        self._connections: set[_Watched] = set()
        self._silent: dict[_Watched, None] = {}  # the longest silent first
        self._told = SeldomTold()
        self._handshakes = TaskOwner(f"TLS of {kind}")

    async def serve(
        self, sockets: Sequence[socket], make: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None = None
    ) -> None:
        """Accept connections of these sockets, and close the sockets at the end. Raises OSError: a port is taken.

        With `tls`, a connection counts from when it is accepted; its handshake may take `first_byte` seconds. Unix
        sockets have no TLS: nothing of theirs leaves this machine.
        """
        loop = asyncio.get_running_loop()
        for each in sockets:
            of_each = self._protocols(make, None if each.family == AF_UNIX else tls)
            server = await loop.create_server(of_each, sock=each, backlog=AT_ONCE)
            each.listen(BACKLOG)
            self._servers.append(server)

    def _protocols(
        self, make: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None
    ) -> Callable[[], asyncio.Protocol]:
        def secured() -> asyncio.Protocol:
            assert tls is not None
            watched = _Watched(self, make())
            return StartingTls(watched, watched, tls, timeout=self.first_byte, tasks=self._handshakes)

        return secured if tls is not None else lambda: _Watched(self, make())

    async def aclose(self) -> None:
        """Accept nothing more, and end the handshakes under way. Other connections go on. Idempotent."""
        self.close()
        await self._handshakes.aclose()

    def close(self) -> None:
        """Accept nothing more. `aclose` also waits."""
        for server in self._servers:
            server.close()
        self._servers = []

    def arrived(self, connection: _Watched) -> None:
        if len(self._connections) >= self._most:
            given_up = next(iter(self._silent), connection)
            given_up.abort()
            self._forget(given_up)
            self._told.warn("too many connections; one is closed", kind=self.kind, most=self._most)
            if given_up is connection:
                return
        self._connections.add(connection)
        self._silent[connection] = None

    def spoke(self, connection: _Watched) -> None:
        self._silent.pop(connection, None)

    def left(self, connection: _Watched) -> None:
        self._forget(connection)

    def _forget(self, connection: _Watched) -> None:
        self._connections.discard(connection)
        self._silent.pop(connection, None)


class _Watched(asyncio.Protocol):
    """Passes everything on to the protocol of the server, and watches whether the client says anything.

    With TLS, it is told first that the connection was `accepted`, and that the handshake has `ended`.
    """

    def __init__(self, keeper: Doorkeeper, inner: asyncio.Protocol) -> None:
        self._keeper = keeper
        self._inner = inner
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def accepted(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._keeper.arrived(self)

    def ended(self, *, well: bool) -> None:
        if not well:
            self._keeper.left(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        counted = self._transport is not None
        self._transport = cast(asyncio.Transport, transport)
        self._timer = asyncio.get_running_loop().call_later(self._keeper.first_byte, self.abort)
        self._inner.connection_made(transport)
        if not counted:
            self._keeper.arrived(self)

    def data_received(self, data: bytes) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._keeper.spoke(self)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._keeper.left(self)
        self._inner.connection_lost(exc)
