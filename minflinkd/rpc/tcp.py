"""TaskManager <-> daemon over TCP: one authenticated connection per TaskManager, which the TaskManager keeps up.

Before either side accepts a message, both prove that they know the cluster's secret (HMAC-SHA256 over both nonces).
The secret itself is never sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import secrets
import socket
import sys
from collections.abc import Callable, Sequence

import msgspec
import structlog

from minflinkd.rpc.codec import PROTOCOL_VERSION, ProtocolError
from minflinkd.rpc.connection import Connection, read_frame, write_frame
from minflinkd.rpc.local import LocalNetwork
from minflinkd.rpc.network import Address, Unreachable
from minflinkd.runtime.component import Component
from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.runtime.ids import parse_resource_id
from minflinkd.runtime.listening import Place, bind

log = structlog.get_logger(__name__)

HANDSHAKE_TIMEOUT = 5.0  # seconds
HANDSHAKE_LIMIT = 4096  # bytes
HANDSHAKE_FAULTS = (MinflinkError, msgspec.DecodeError, asyncio.IncompleteReadError, OSError, TimeoutError)
BACKLOG = 1024  # connections waiting to be accepted: all TaskManagers reconnect at once to a restarted daemon
RECONNECT_FIRST = 0.1  # seconds
RECONNECT_LONGEST = 3.0
HEARTBEAT_TIMEOUT = 5.0  # seconds
SILENT_TIMEOUTS = 3  # heartbeat timeouts without a sign of life from the other host
LONGEST_SILENCE = 3600.0  # seconds; the kernel accepts it, and nobody needs more
LASTING = 5.0  # seconds after which the pause is reset; longer than any pause, so that rivals for one address back off


class AuthenticationFailed(MinflinkError):
    code = "rpc-authentication"
    consequence = Consequence.FATAL


class Challenge(msgspec.Struct, frozen=True):
    version: int
    nonce: bytes


class Hello(msgspec.Struct, frozen=True):
    address: str
    nonce: bytes
    proof: bytes


class Welcome(msgspec.Struct, frozen=True):
    proof: bytes


def _proof(secret: bytes, role: bytes, challenge: Challenge, address: str, nonce: bytes) -> bytes:
    return hmac.digest(secret, b"\0".join((role, challenge.nonce, nonce, address.encode())), hashlib.sha256)


class RpcServer(Component):
    """The daemon's side: accepts connections and routes messages to each TaskManager over its own connection.

    A connection is cut if the other host gives no sign of life for a few heartbeat timeouts (seconds).

    `on_disconnect` is called when a TaskManager's connection has ended and it has no newer one (R10), but not while the
    server stops.
    """

    def __init__(
        self,
        network: LocalNetwork,
        *,
        secret: bytes,
        host: str = "127.0.0.1",
        ports: Sequence[int] = (0,),
        heartbeat_timeout: float = HEARTBEAT_TIMEOUT,
        on_disconnect: Callable[[Address], None] = lambda _: None,
    ) -> None:
        super().__init__("rpc server")
        self._network = network
        self._secret = secret
        self._host = host
        self._ports = ports  # tried in this order; 0 takes any free one
        self._silence = SILENT_TIMEOUTS * heartbeat_timeout
        self._on_disconnect = on_disconnect
        self._port = 0
        self._servers: list[asyncio.Server] = []
        self._connections: dict[Address, Connection] = {}

    @property
    def endpoint(self) -> tuple[str, int]:
        """Host and port to connect to."""
        return self._host, self._port

    async def _start(self) -> None:
        bound = await bind(Place(self._host, self._ports, "jobmanager.bind-host", "jobmanager.rpc.port"))
        self._port = bound[0].getsockname()[1]
        self._servers = [await asyncio.start_server(self._accept, sock=each, backlog=BACKLOG) for each in bound]

    async def _before_stop(self) -> None:
        for server in self._servers:  # before the tasks end, because nothing would serve a new connection
            server.close()

    async def _stop(self) -> None:
        for connection in list(self._connections.values()):
            await connection.aclose()
        for server in self._servers:
            await server.wait_closed()
        self._servers = []

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT):
                address = await self._greet(reader, writer)
        except HANDSHAKE_FAULTS as error:
            log.warning("a connection was refused", peer=writer.get_extra_info("peername"), error=str(error))
            writer.close()
            return
        if not any(server.is_serving() for server in self._servers):  # closed during the handshake
            writer.close()
            return
        _tune(writer, self._silence)
        connection = Connection(reader, writer, local=self._network.mailbox, name=address)
        if (old := self._connections.get(address)) is not None:  # the TaskManager has lost it, or was cut off
            self.tasks.job(f"close the replaced connection of {address}", old.aclose())
        self._connections[address] = connection
        self._network.route(address, connection)
        connection.start()
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

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Address:
        challenge = Challenge(PROTOCOL_VERSION, secrets.token_bytes(32))
        write_frame(writer, msgspec.msgpack.encode(challenge))
        hello = msgspec.msgpack.decode(await read_frame(reader, HANDSHAKE_LIMIT), type=Hello)
        wanted = _proof(self._secret, b"client", challenge, hello.address, hello.nonce)
        if not hmac.compare_digest(wanted, hello.proof):
            raise AuthenticationFailed(f"{hello.address[:80]!r} does not know the cluster's secret")
        kind, _, resource_id = hello.address.partition("/")
        if kind != "taskmanager":
            raise AuthenticationFailed(f"{hello.address[:80]!r} is no TaskManager's address")
        parse_resource_id(resource_id)
        reply = Welcome(_proof(self._secret, b"server", challenge, hello.address, hello.nonce))
        write_frame(writer, msgspec.msgpack.encode(reply))
        await writer.drain()
        return Address(hello.address)


class RpcUplink(Component):
    """The TaskManager's side: keeps one connection to its daemon and reconnects with backoff, forever.

    A connection is cut if the daemon's host gives no sign of life for a few heartbeat timeouts (seconds).
    """

    def __init__(
        self,
        network: LocalNetwork,
        *,
        address: Address,
        secret: bytes,
        host: str,
        port: int,
        heartbeat_timeout: float = HEARTBEAT_TIMEOUT,
    ) -> None:
        super().__init__("rpc uplink")
        self._network = network
        self._address = address
        self._secret = secret
        self._host = host
        self._port = port
        self._silence = SILENT_TIMEOUTS * heartbeat_timeout
        self._connection: Connection | None = None
        self.connected = asyncio.Event()

    async def _start(self) -> None:
        self.tasks.loop("keep connected", self._keep_connected)

    async def _stop(self) -> None:
        if self._connection is not None:
            await self._connection.aclose()
            self._connection = None

    async def _keep_connected(self) -> None:
        pause = RECONNECT_FIRST
        clock = asyncio.get_running_loop().time
        while True:
            try:
                connection = await self._connect()
            except HANDSHAKE_FAULTS as error:
                log.info("no connection to the daemon", host=self._host, port=self._port, error=str(error))
            else:
                connected = clock()
                await self._use(connection)
                log.info("the connection to the daemon ended", host=self._host, port=self._port)
                if clock() - connected > LASTING:
                    pause = RECONNECT_FIRST
                    continue
            await asyncio.sleep(pause)
            pause = min(pause * 2, RECONNECT_LONGEST)

    async def _use(self, connection: Connection) -> None:
        self._connection = connection
        self._network.default_route(connection)
        self.connected.set()
        try:
            await connection.wait_closed()
        finally:
            self.connected.clear()
            self._network.default_route(None)
            await connection.aclose()

    async def _connect(self) -> Connection:
        async with asyncio.timeout(HANDSHAKE_TIMEOUT):
            reader, writer = await asyncio.open_connection(self._host, self._port)
            try:
                await self._prove(reader, writer)
            except BaseException:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
                raise
        _tune(writer, self._silence)
        connection = Connection(reader, writer, local=self._network.mailbox, name=f"daemon {self._host}:{self._port}")
        connection.start()
        return connection

    async def _prove(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        challenge = msgspec.msgpack.decode(await read_frame(reader, HANDSHAKE_LIMIT), type=Challenge)
        if challenge.version != PROTOCOL_VERSION:
            raise ProtocolError(
                f"the daemon speaks version {challenge.version} of the protocol, this process {PROTOCOL_VERSION}",
                hint="run the same version of minflinkd on both sides",
            )
        nonce = secrets.token_bytes(32)
        proof = _proof(self._secret, b"client", challenge, self._address, nonce)
        write_frame(writer, msgspec.msgpack.encode(Hello(self._address, nonce, proof)))
        try:
            welcome = msgspec.msgpack.decode(await read_frame(reader, HANDSHAKE_LIMIT), type=Welcome)
        except asyncio.IncompleteReadError as error:
            raise Unreachable("the daemon refused the handshake", hint="is it the same cluster secret?") from error
        if not hmac.compare_digest(_proof(self._secret, b"server", challenge, self._address, nonce), welcome.proof):
            raise AuthenticationFailed("the daemon does not know the cluster's secret")


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
