"""TaskManager <-> daemon over TCP: one authenticated connection per TaskManager, which the TaskManager keeps up.

Before either side accepts a message, both prove that they know the cluster's secret, and agree on a version of the
protocol (`rpc.handshake`).

With several daemons, only the leader accepts connections. The standbys refuse them and name the leader (`rpc.door`).
`rpc.search` decides which daemon a TaskManager tries next.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import sys
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

import structlog

from minflinkd.rpc import handshake
from minflinkd.rpc.connection import Connection
from minflinkd.rpc.door import BACKLOG, RpcDoor, server_of
from minflinkd.rpc.local import LocalNetwork
from minflinkd.rpc.network import Address, Unreachable
from minflinkd.rpc.protocol_range import SEALED, SPOKEN, ProtocolMismatch, ProtocolRange
from minflinkd.rpc.search import RECONNECT_FIRST, Hint, Place, Search, longest_pause
from minflinkd.rpc.turns import Turns
from minflinkd.runtime.component import Component
from minflinkd.runtime.doorkeeper import SeldomTold, Unproven
from minflinkd.runtime.listening import Place as PlaceToListen
from minflinkd.runtime.listening import bind
from minflinkd.runtime.tls import Tls, TlsRefused
from minflinkd.runtime.tls_faults import why_refused

log = structlog.get_logger(__name__)

R = TypeVar("R")
HEARTBEAT_TIMEOUT = 5.0  # seconds
SILENT_TIMEOUTS = 3  # heartbeat timeouts without a sign of life from the other host
LONGEST_SILENCE = 3600.0  # seconds; the kernel accepts it, and nobody needs more
ANY_PORT = PlaceToListen("127.0.0.1", (0,), "jobmanager.bind-host", "jobmanager.rpc.port")
LASTING = 5.0  # seconds after which the pause is reset; longer than any pause, so that rivals for one address back off


class RpcServer(Component):
    """The daemon's side: accepts connections and routes messages to each TaskManager over its own connection.

    With a `door`, connections come through the door, and `place` and `tls` are not used.

    A connection is cut if the other host gives no sign of life for a few heartbeat timeouts (seconds).

    `on_disconnect` is called when a TaskManager's connection has ended and it has no newer one (R10), but not while the
    server stops.
    """

    def __init__(
        self,
        network: LocalNetwork,
        *,
        secret: bytes,
        place: PlaceToListen = ANY_PORT,
        tls: Tls | None = None,
        heartbeat_timeout: float = HEARTBEAT_TIMEOUT,
        spoken: ProtocolRange = SPOKEN,
        on_disconnect: Callable[[Address], None] = lambda _: None,
        door: RpcDoor | None = None,
    ) -> None:
        super().__init__("rpc server")
        self._network = network
        self._secret = secret
        self._place = place
        self._tls = tls
        self._silence = SILENT_TIMEOUTS * heartbeat_timeout
        self._spoken = spoken
        self._on_disconnect = on_disconnect
        self._door = door
        self._port = 0
        self._servers: list[asyncio.Server] = []
        self._accepting = False
        self._unproven = Unproven()
        self._told = SeldomTold()
        self._told_of_earlier = SeldomTold()
        self._told_of_messages = SeldomTold()
        self._turns = Turns()
        self._connections: dict[Address, Connection] = {}

    @property
    def endpoint(self) -> tuple[str, int]:
        """Host and port to connect to."""
        return (self._place.host, self._port) if self._door is None else self._door.endpoint

    async def _start(self) -> None:
        self._accepting = True
        if self._door is not None:
            self._door.hand_to(self._accept)
            return
        bound = await bind(self._place)
        self._port = bound[0].getsockname()[1]
        self._servers = [
            await server_of(each, self._accept, tls=self._tls, unproven=self._unproven, tasks=self.tasks)
            for each in bound
        ]
        for each in bound:
            each.listen(BACKLOG)

    async def _before_stop(self) -> None:
        self._accepting = False  # before the tasks end, because nothing would serve a new connection
        if self._door is not None:
            self._door.take_back(self._accept)
        for server in self._servers:
            server.close()

    async def _stop(self) -> None:
        await asyncio.gather(*(connection.aclose() for connection in self._connections.values()))
        for server in self._servers:
            await server.wait_closed()
        self._servers = []

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with self._unproven.having(writer):
                async with asyncio.timeout(handshake.TIMEOUT):
                    address, peer = await handshake.greet(reader, writer, secret=self._secret, spoken=self._spoken)
        except handshake.FAULTS as error:
            self._told.warn("a connection was refused", peer=writer.get_extra_info("peername"), error=str(error))
            writer.close()
            return
        except asyncio.CancelledError:
            writer.close()
            raise
        if not self._accepting:  # closed during the handshake
            writer.close()
            return
        if peer.protocol < SEALED:
            self._told_of_earlier.warn(
                "a TaskManager of an earlier version of minflinkd connected: nothing shows if somebody on the way "
                "changes what it sends and gets, until it is upgraded",
                address=address,
            )
        _tune(writer, self._silence)
        connection = Connection(
            reader,
            writer,
            local=self._network.mailbox,
            name=address,
            peer=peer,
            unreadable=self._network.figures.unreadable,
            told=self._told_of_messages,
        )
        if (old := self._connections.get(address)) is not None:  # the TaskManager has lost it, or was cut off
            self.tasks.job(f"close the replaced connection of {address}", old.aclose())
        self._connections[address] = connection
        self._network.route(address, connection)
        connection.start(self._turns)
        self.tasks.job(f"connection of {address}", self._until_closed(address, connection))

    async def _until_closed(self, address: Address, connection: Connection) -> None:
        try:
            await connection.wait_closed()
            if self._forget(address, connection):
                self._on_disconnect(address)
        finally:
            self._forget(address, connection)
            await connection.aclose()

    def _forget(self, address: Address, connection: Connection) -> bool:
        """Remove a connection. Returns whether it was the TaskManager's current one."""
        self._network.unroute(address, connection)
        if self._connections.get(address) is not connection:
            return False
        del self._connections[address]
        return True


class RpcUplink(Component):
    """The TaskManager's side: keeps one connection to its daemon and reconnects with backoff, forever.

    A connection is cut if the daemon's host gives no sign of life for a few heartbeat timeouts (seconds).

    If there are `others`, one of all the daemons leads, and only the leader accepts TaskManagers. All are tried at the
    same time, so a daemon whose host is gone causes no delay. A standby names the leader, which is then tried as well,
    even if it is not one of these. A daemon that sends nothing for a heartbeat timeout may have been replaced: then the
    others are tried first.
    """

    def __init__(
        self,
        network: LocalNetwork,
        *,
        address: Address,
        secret: bytes,
        daemon: Place,
        heartbeat_timeout: float = HEARTBEAT_TIMEOUT,
        others: Sequence[Place] = (),
        spoken: ProtocolRange = SPOKEN,
        tls: Tls | None = None,
    ) -> None:
        super().__init__("rpc uplink")
        self._network = network
        self._address = address
        self._secret = secret
        self._tls = tls
        self._places = [daemon, *(place for place in others if place != daemon)]
        self._heartbeat_timeout = heartbeat_timeout
        self._silence = SILENT_TIMEOUTS * heartbeat_timeout
        self._found: Place | None = None  # the last daemon, if it is not one of these
        self._met_standby = False
        self._spoken = spoken
        self._connection: Connection | None = None
        self.connected = asyncio.Event()

    async def _start(self) -> None:
        self.tasks.loop("keep connected", self._keep_connected)

    async def _stop(self) -> None:
        if self._connection is not None:
            await self._connection.aclose()
            self._connection = None

    @property
    def _several(self) -> bool:
        """Whether there are several daemons, as far as this TaskManager knows."""
        return len(self._places) > 1 or self._met_standby

    async def _keep_connected(self) -> None:
        clock = asyncio.get_running_loop().time
        pause = RECONNECT_FIRST
        silent: Place | None = None  # the last daemon, if it fell silent
        while True:
            place, connection = await self._first_connection(silent)
            host, port = place
            self._found = place if place not in self._places else None
            connected = clock()
            log.info("connected to the daemon", host=host, port=port, listed=self._found is None)
            silent = place if await self._use(connection) else None
            log.info("the connection to the daemon ended", host=host, port=port)
            if clock() - connected > LASTING:
                pause = RECONNECT_FIRST
                continue
            await asyncio.sleep(pause)
            pause = min(pause * 2, longest_pause(several=self._several))

    async def _first_connection(self, silent: Place | None) -> tuple[Place, Connection]:
        """Return the first connection that a daemon accepts."""
        clock = asyncio.get_running_loop().time
        known = self._places if self._found is None else [*self._places, self._found]
        search = Search(known, now=clock(), silent=silent)
        tries: dict[asyncio.Task[Connection], Place] = {}
        accepted: asyncio.Task[Connection] | None = None
        try:
            while True:
                for place in search.due(clock()):
                    tries[asyncio.create_task(self._connect(*place))] = place
                wait = None if search.next_due is None else max(0.0, search.next_due - clock())
                if not tries:
                    await asyncio.sleep(wait or 0.0)
                    continue
                done, _ = await asyncio.wait(tries, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    if not self._failed(search, tries[each], each.exception(), clock()):
                        accepted = each
                        return tries[each], each.result()
                    del tries[each]
        finally:
            await self._give_up(tries.keys() - {accepted})

    def _failed(self, search: Search, place: Place, error: BaseException | None, now: float) -> bool:
        """Tell the search how an attempt has ended. Return False if the daemon accepted. Raises unforeseen errors."""
        if error is None:
            return False
        if not isinstance(error, handshake.FAULTS):
            raise error
        host, port = place
        tell = log.warning if isinstance(error, ProtocolMismatch) else log.info
        tell("no connection to the daemon", host=host, port=port, error=str(error))
        if not isinstance(error, handshake.StandsBy):
            search.failed(place, now)
            return True
        self._met_standby = True
        match search.refused(place, error.leader, now):
            case Hint.NEW:
                log.info("a standby names the leader", host=host, port=port, leader=error.leader)
            case Hint.UNUSABLE:
                log.warning(
                    "a standby names a leader that cannot be reached from here",
                    host=host,
                    port=port,
                    leader=error.leader,
                    hint="set jobmanager.rpc.address of the leader to a name or address that other hosts know",
                )
        return True

    async def _give_up(self, tries: Collection[asyncio.Task[Connection]]) -> None:
        """End the attempts that did not find the leader, or found it too late."""
        for each in tries:
            each.cancel()
        if tries:
            await asyncio.wait(tries)
        for each in tries:
            if not each.cancelled() and each.exception() is None:
                await each.result().aclose()  # another attempt was first

    async def _use(self, connection: Connection) -> bool:
        """Use a connection until it ends. Return True if it ended because the daemon fell silent."""
        self._connection = connection
        self._network.default_route(connection)
        self.connected.set()
        try:
            if self._several:
                return await self._wait_until_silent(connection)
            await connection.wait_closed()
            return False
        finally:
            self.connected.clear()
            self._network.default_route(None)
            await connection.aclose()

    async def _wait_until_silent(self, connection: Connection) -> bool:
        """Return True when the daemon sends nothing for a heartbeat timeout, False when the connection is closed."""
        clock = asyncio.get_running_loop().time
        began = clock()
        while not connection.closed:
            left = max(began, connection.heard_at) + self._heartbeat_timeout - clock()
            if left <= 0:
                log.warning("the daemon sends nothing; another daemon may lead", connection=connection.name)
                return True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await connection.wait_closed()
        return False

    async def _connect(self, host: str, port: int) -> Connection:
        try:
            return await self._introduced(host, port)
        except ssl.SSLError as error:
            raise TlsRefused(f"no TLS with {host}:{port}: {why_refused(error)}") from error
        except TimeoutError as error:
            raise Unreachable(
                f"{host}:{port} did not answer within {handshake.TIMEOUT:g} s",
                hint="if it answers others: do both use TLS, or neither (security.ssl.internal.enabled)?",
            ) from error

    async def _introduced(self, host: str, port: int) -> Connection:
        async with asyncio.timeout(handshake.TIMEOUT):
            reader, writer = await asyncio.open_connection(
                host, port, ssl=None if self._tls is None else self._tls.client
            )
            try:
                peer = await handshake.introduce(
                    reader, writer, secret=self._secret, address=self._address, spoken=self._spoken
                )
            except BaseException:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
                raise
        _tune(writer, self._silence)
        connection = Connection(
            reader,
            writer,
            local=self._network.mailbox,
            name=f"daemon {host}:{port}",
            peer=peer,
            unreadable=self._network.figures.unreadable,
        )
        connection.start()
        return connection


def _tune(writer: asyncio.StreamWriter, silence: float) -> None:
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # small frames must not wait for each other
    if sys.platform == "linux":  # otherwise a host that lost power stays connected for minutes, or forever if idle
        seconds = min(silence, LONGEST_SILENCE)
        between = max(1, round(seconds / 3))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, between)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, between)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(seconds * 1000))
