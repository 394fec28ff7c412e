"""The RPC port of a daemon that is one of several. It answers whether or not this daemon leads (A13).

While the daemon leads, its `RpcServer` takes the connections. At all other times it refuses TaskManagers of this
cluster, and tells them where the leader is. The port is bound once and then kept, so nobody else can take it. And no
connection has to wait while a daemon begins or stops leading.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from socket import socket
from typing import Any

import structlog

from minflinkd.rpc import handshake
from minflinkd.rpc.protocol_range import SPOKEN, ProtocolRange
from minflinkd.runtime.component import Component
from minflinkd.runtime.doorkeeper import AT_ONCE, SeldomTold, Unproven
from minflinkd.runtime.listening import Place, bind, close, taken
from minflinkd.runtime.starting_tls import StartingTls
from minflinkd.runtime.supervision import TaskOwner
from minflinkd.runtime.tls import HANDSHAKE_TIMEOUT, Clients, Tls

log = structlog.get_logger(__name__)

BACKLOG = 1024  # connections waiting to be accepted: all TaskManagers reconnect at once to a restarted daemon
Taker = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]
Arrived = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None] | None]


class RpcDoor(Component):
    """Ready when it listens. `leader` returns the leader's `host:port` for TaskManagers, or nothing if none is known.

    `start` raises PortTaken, UnusableAddress.
    """

    def __init__(
        self,
        place: Place,
        *,
        secret: bytes,
        leader: Callable[[], str],
        spoken: ProtocolRange = SPOKEN,
        tls: Tls | None = None,
    ) -> None:
        super().__init__("rpc door")
        self._place = place
        self._secret = secret
        self._leader = leader
        self._spoken = spoken
        self._tls = tls
        self._port = 0
        self._servers: list[asyncio.Server] = []
        self._taker: Taker | None = None
        self._unproven = Unproven()
        self._told = SeldomTold()

    @property
    def endpoint(self) -> tuple[str, int]:
        """Host and port on which it listens."""
        return self._place.host, self._port

    def hand_to(self, taker: Taker) -> None:
        """Give all connections to `taker` from now on."""
        self._taker = taker

    def take_back(self, taker: Taker) -> None:
        """Refuse connections from now on, unless another taker has replaced this one. Idempotent."""
        if self._taker == taker:  # not `is`: a bound method is a new object each time
            self._taker = None

    async def _start(self) -> None:
        bound = await bind(self._place)
        self._port = bound[0].getsockname()[1]
        try:
            for each in bound:
                self._servers.append(await self._server(each))
                each.listen(BACKLOG)
        except OSError as error:
            close(bound)
            raise await taken(self._place) from error

    async def _server(self, each: socket) -> asyncio.Server:
        return await server_of(each, self._arrived, tls=self._tls, unproven=self._unproven, tasks=self.tasks)

    async def _before_stop(self) -> None:
        for server in self._servers:  # before the tasks end, because nothing would serve a new connection
            server.close()

    async def _stop(self) -> None:
        for server in self._servers:
            server.close()
            await server.wait_closed()
        self._servers = []

    def _arrived(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.tasks.closed:
            writer.close()
            return
        serve = self._taker or self._refuse
        self.tasks.job(f"connection of {writer.get_extra_info('peername')}", serve(reader, writer))

    async def _refuse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        leader = self._leader()
        try:
            with self._unproven.having(writer):
                async with asyncio.timeout(handshake.TIMEOUT):
                    address = await handshake.refuse(
                        reader, writer, secret=self._secret, leader=leader, spoken=self._spoken
                    )
            log.debug("a TaskManager was told where the leader is", address=address, leader=leader)
        except handshake.FAULTS as error:
            self._told.warn("a connection was refused", peer=writer.get_extra_info("peername"), error=str(error))
        finally:
            writer.close()


async def server_of(
    each: socket, arrived: Arrived, *, tls: Tls | None, unproven: Unproven, tasks: TaskOwner
) -> asyncio.Server:
    """Return a server of TaskManagers: each must show a certificate, if there is TLS. Raises OSError: a port is taken.

    `unproven` counts connections already during the TLS handshake; `tasks` are those of the handshakes.
    """
    if tls is None:
        return await asyncio.start_server(arrived, sock=each, backlog=AT_ONCE)
    loop, context = asyncio.get_running_loop(), tls.server(Clients.NEED_A_CERTIFICATE)

    def made() -> asyncio.Protocol:
        streams = asyncio.StreamReaderProtocol(asyncio.StreamReader(loop=loop), arrived, loop=loop)
        return StartingTls(streams, unproven.handshake(), context, timeout=HANDSHAKE_TIMEOUT, tasks=tasks)

    return await loop.create_server(made, sock=each, backlog=AT_ONCE)
