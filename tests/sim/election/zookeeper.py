"""A model of ZooKeeper, as minflinkd uses it: nodes, sessions that expire, transactions, watches, three servers.

Writes go through the quorum. Reads are answered by the server to which the client is connected, from what that server
knows. A server that is cut off from the others answers reads for a while before it notices, and what it says is old.
An answer can be lost after the write was done. Requests of one client are carried out in their order.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from kazoo import exceptions as zk

from minflinkd.ha.service import ServiceUnavailable
from tests.sim.election.process import Process
from tests.sim.protocol.universe import Universe

SERVERS = 3
DELAYS = (0.001, 0.01)  # seconds, in one direction
RECONNECT = (0.05, 0.6)  # seconds between two tries to connect
NOTICED_BY_SERVERS = (0.5, 2.5)  # session timeouts until a server notices that the others are gone (syncLimit)


@dataclass(frozen=True)
class Node:
    data: bytes
    version: int = 0
    mtime: int = 0  # in ms
    owner: int = 0  # the session of an ephemeral node
    children: int = 0  # made so far; numbers those in a sequence


@dataclass(eq=False)
class Session:
    number: int
    expires: float  # in true seconds
    alive: bool = True


@dataclass(eq=False)
class Server:
    number: int
    old: dict[str, Node] | None = None  # what it knows, if it is cut off from the others
    serves_until: float = 0.0  # when it notices that it is cut off


@dataclass(frozen=True)
class Applied:
    """A transaction or write that counts."""

    session: int
    operations: tuple[tuple[Any, ...], ...]


@dataclass(eq=False)
class Request:
    act: Callable[[dict[str, Node]], Any] | None  # a read
    operations: tuple[tuple[Any, ...], ...] = ()
    answer: asyncio.Future[Any] | None = None
    watch: Callable[[object], None] | None = None
    watched: str = ""
    connection: int = 0


class Ensemble:
    """The servers together. `applied` is told of each write that counts, in the order of the writes."""

    def __init__(self, universe: Universe, timeout: float) -> None:
        self.universe = universe
        self.timeout = timeout
        self.nodes: dict[str, Node] = {}
        self.servers = [Server(i) for i in range(SERVERS)]
        self.quorum = True
        self.applied: list[Callable[[Applied], None]] = []
        self.clients: list[Client] = []
        self._gone_at = 0.0
        self._held: list[tuple[Client, Request]] = []  # sent while there was no quorum
        self._sessions: dict[int, Session] = {}
        self._watches: dict[str, list[tuple[Client, int, Callable[[object], None]]]] = {}

    # --- sessions ----------------------------------------------------------------------------------------------------

    def new_session(self) -> Session:
        session = Session(len(self._sessions) + 1, self.universe.now + self.timeout)
        self._sessions[session.number] = session
        self._expire_later(session)
        return session

    def touch(self, session: Session) -> None:
        session.expires = self.universe.now + self.timeout

    def _expire_later(self, session: Session) -> None:
        tick = self.timeout / 3 * self.universe.rng.random()  # servers look at intervals
        self.universe.engine.at(session.expires + tick, self._expire, session, session.expires)

    def _expire(self, session: Session, due: float) -> None:
        if not session.alive:
            return
        if not self.quorum or session.expires > due:  # without a leader, nobody counts
            session.expires = session.expires if self.quorum else self.universe.now + self.timeout
            self._expire_later(session)
            return
        self.universe.note("SESSION {} expires", session.number)
        self.end(session)

    def end(self, session: Session) -> None:
        session.alive = False
        for path in [path for path, node in self.nodes.items() if node.owner == session.number]:
            self._remove(path)

    # --- servers -----------------------------------------------------------------------------------------------------

    def cut_off(self, server: Server) -> None:
        if server.old is None and self.quorum and all(other.old is None for other in self.servers):
            self.universe.note("SERVER {} is cut off from the others", server.number)
            server.old = dict(self.nodes)
            serves = self.timeout * self.universe.rng.uniform(*NOTICED_BY_SERVERS)
            server.serves_until = self.universe.now + serves
            self.universe.engine.at(server.serves_until, self._notices, server)

    def _notices(self, server: Server) -> None:
        if server.old is not None:
            for client in self.clients:
                if client.server is server:
                    client.drop("its server has lost the others")

    def heal(self, server: Server) -> None:
        if server.old is not None:
            self.universe.note("SERVER {} is back", server.number)
            self._notices(server)
            server.old = None

    def lose_quorum(self) -> None:
        if self.quorum:
            self.universe.note("the QUORUM is lost")
            self.quorum, self._gone_at = False, self.universe.now
            self.universe.engine.after(self.timeout * self.universe.rng.random(), self._everybody_dropped)

    def _everybody_dropped(self) -> None:
        if not self.quorum:
            for client in self.clients:
                client.drop("the servers have no quorum")

    def regain_quorum(self) -> None:
        """The new leader knows what was written, and perhaps what was only asked. Sessions get all their time again."""
        if self.quorum:
            return
        self.universe.note("the QUORUM is back")
        self._everybody_dropped()
        self.quorum = True
        for session in self._sessions.values():
            self.touch(session)
        held, self._held = self._held, []
        for client, request in held:
            if self.universe.rng.random() < 0.5:
                self._outcome(client, request)

    def serves(self, server: Server) -> bool:
        """Whether clients can connect there."""
        return self.quorum and server.old is None

    # --- requests ----------------------------------------------------------------------------------------------------

    def handle(self, client: Client, request: Request) -> None:
        """A request arrives at the client's server."""
        if request.connection != client.connection or client.server is None or client.session is None:
            return
        view = client.server.old
        if view is None and self.quorum:
            if not client.session.alive:
                client.drop("its session has expired")
                return
            self.touch(client.session)
        if request.act is None:
            if view is not None:
                return  # the server forwards it to nobody; what waits is dropped with the connection
            if not self.quorum:
                self._held.append((client, request))
                return
            client.reply(request, self._outcome(client, request))
            return
        try:
            outcome = request.act(self.nodes if view is None else view)
        except zk.NoNodeError as error:
            outcome = error
        if request.watch is not None and view is None:
            self._watches.setdefault(request.watched, []).append((client, client.connection, request.watch))
        client.reply(request, outcome)

    def _outcome(self, client: Client, request: Request) -> Any:
        session = client.session
        if session is None or not session.alive:
            return zk.SessionExpiredError()
        before = dict(self.nodes)
        done: list[Any] = []
        try:
            done += [self._do(session, *operation) for operation in request.operations]
        except zk.KazooException as error:
            self.nodes.clear()
            self.nodes.update(before)
            return error
        self._tell_watches(before)
        for hear in self.applied:
            hear(Applied(session.number, request.operations))
        return done

    def _do(self, session: Session, name: str, path: str, *args: Any) -> Any:
        nodes = self.nodes
        match name, args:
            case "check", _:
                _there(nodes, path)
            case "create", (data, ephemeral, sequence):
                parent = path.rpartition("/")[0]
                if parent:
                    above = _there(nodes, parent)
                    if sequence:
                        path = f"{path}{above.children:010d}"
                    if path in nodes:
                        raise zk.NodeExistsError
                    nodes[parent] = replace(above, children=above.children + 1)
                elif path in nodes:
                    raise zk.NodeExistsError
                nodes[path] = Node(data, 0, self._ms(), session.number if ephemeral else 0)
                return path
            case "create", (data,):
                return self._do(session, "create", path, data, False, False)
            case "set_data", (data, *version):
                node = _there(nodes, path)
                if version and version[0] not in (-1, node.version):
                    raise zk.BadVersionError
                nodes[path] = replace(node, data=data, version=node.version + 1, mtime=self._ms())
            case "delete", _:
                _there(nodes, path)
                if any(other.startswith(f"{path}/") for other in nodes):
                    raise zk.NotEmptyError
                del nodes[path]
        return None

    def _ms(self) -> int:
        return round(self.universe.now * 1000)

    def _remove(self, path: str) -> None:
        before = dict(self.nodes)
        del self.nodes[path]
        self._tell_watches(before)

    def _tell_watches(self, before: dict[str, Node]) -> None:
        for path in [path for path in self._watches if before.get(path) != self.nodes.get(path)]:
            for client, connection, watch in self._watches.pop(path):
                client.fire(connection, watch)


@dataclass(eq=False)
class Client:
    """One daemon's session. It offers what `ha.zookeeper.session.ZooKeeperSession` does."""

    ensemble: Ensemble
    process: Process
    on_disconnect: Callable[[], None]
    on_expiry: Callable[[], None]
    session: Session | None = None
    server: Server | None = None
    connection: int = 0  # grows with each
    cut: bool = False  # nothing gets through
    late: float = 0.0  # seconds that answers take longer
    loses: int = 0  # so many answers are lost, and the connection with them
    closed: bool = False
    _heard: float = 0.0  # when a server last answered, by the true clock
    _pending: list[Request] = field(default_factory=list)
    _arrives: float = 0.0  # when the last request arrives: those after it come later
    _returns: float = 0.0

    def __post_init__(self) -> None:
        self.ensemble.clients.append(self)
        self._universe = self.ensemble.universe
        self._request_timeout = max(1.0, self.ensemble.timeout / 3)

    @property
    def connected(self) -> bool:
        return self.server is not None

    # --- connection --------------------------------------------------------------------------------------------------

    def _try_to_connect(self) -> None:
        if self.server is not None or self.closed:
            return
        rng, ensemble = self._universe.rng, self.ensemble
        server = rng.choice(ensemble.servers)
        if self.cut or not ensemble.serves(server):
            self.process.after(rng.uniform(*RECONNECT), self._try_to_connect)
            return
        if self.session is not None and not self.session.alive:
            self.session = None
            self._universe.note("{} hears that its session has EXPIRED", self.process.name)
            self.on_expiry()
        if self.session is None:
            self.session = ensemble.new_session()
            self._universe.note("{} has SESSION {}", self.process.name, self.session.number)
        ensemble.touch(self.session)
        self.server, self._heard = server, self._universe.now
        self.connection += 1
        self._ping(self.connection)

    def _ping(self, connection: int) -> None:
        """Say that it lives, as often as kazoo does. Give the connection up if no server has answered for long."""
        if connection != self.connection or self.server is None:
            return
        if self._universe.now - self._heard > self.ensemble.timeout * 2 / 3:
            self.drop("no server answers")
            return
        if not self.cut:
            self._send(Request(lambda _: None, connection=connection))
        self.process.after(self.ensemble.timeout / 6, self._ping, connection)

    def drop(self, why: str) -> None:
        """The connection breaks. The process learns it when it runs."""
        if self.server is not None:
            self.server = None
            self.connection += 1
            self.process.after(0.001, self._dropped, why)

    def _dropped(self, why: str) -> None:
        self._universe.note("{} has lost ZooKeeper: {}", self.process.name, why)
        pending, self._pending = self._pending, []
        for request in pending:
            if request.answer is not None and not request.answer.done():
                request.answer.set_exception(zk.ConnectionLoss())
        self.on_disconnect()
        self._try_to_connect()

    def die(self) -> None:
        """The process has ended. Its session lasts until it expires."""
        if not self.closed:
            self.closed, self.server = True, None
            self.connection += 1
            self.ensemble.clients.remove(self)

    # --- requests ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self._try_to_connect()

    async def aclose(self) -> None:
        """End the session in good order."""
        if self.server is not None and not self.cut and self.session is not None and self.session.alive:
            self.ensemble.end(self.session)
        self.die()

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        path = args[0]
        match method:
            case "exists" | "get" | "get_children":
                act = {"exists": _exists, "get": _get, "get_children": _children}[method]
                watch = kwargs.get("watch")
                return await self._answer(Request(lambda nodes: act(nodes, path), watch=watch, watched=path))
            case "ensure_path":
                for end in [i for i, c in enumerate(path) if c == "/" and i] + [len(path)]:
                    if await self.call("exists", path[:end]) is None:
                        with contextlib.suppress(zk.NodeExistsError):
                            await self._write(("create", path[:end], b""))
                return None
            case "create":
                data = args[1] if len(args) > 1 else b""
                made = ("create", path, data, kwargs.get("ephemeral", False), kwargs.get("sequence", False))
                return (await self._write(made))[0]
            case "set":
                return await self._write(("set_data", *args))
            case "delete":
                return await self._write(("delete", *args))
        raise AssertionError(method)

    async def transact(self, *operations: Sequence[Any]) -> None:
        await self._write(*map(tuple, operations))

    async def _write(self, *operations: tuple[Any, ...]) -> Any:
        return await self._answer(Request(None, operations))

    async def _answer(self, request: Request) -> Any:
        if self.server is None:
            raise ServiceUnavailable("there is no connection")
        request.answer = self.process.create_future()
        request.connection = self.connection
        self._pending.append(request)
        self._send(request)
        try:
            async with asyncio.timeout(self._request_timeout):
                return await request.answer
        except TimeoutError as error:
            self.drop("an answer did not come in time")  # another server may answer
            raise ServiceUnavailable("no answer in time") from error
        except (zk.ConnectionLoss, zk.SessionExpiredError) as error:
            raise ServiceUnavailable(type(error).__name__) from error

    def _send(self, request: Request) -> None:
        if self.cut:
            return
        self._arrives = max(self._arrives, self._universe.now + self._universe.rng.uniform(*DELAYS))
        self._universe.engine.at(self._arrives, self.ensemble.handle, self, request)

    def reply(self, request: Request, outcome: Any) -> None:
        if self.cut:
            return
        if self.loses and request.answer is not None and request.act is None:
            self.loses -= 1
            self._universe.note("the ANSWER to {} of {} is lost", request.operations, self.process.name)
            self.drop("the connection was reset")
            return
        self._returns = max(self._returns, self._universe.now + self.late + self._universe.rng.uniform(*DELAYS))
        self._universe.engine.at(self._returns, self._back, request, outcome)

    def _back(self, request: Request, outcome: Any) -> None:
        if request.connection == self.connection and not self.cut:
            self.process.gate(self._take, request, outcome)

    def _take(self, request: Request, outcome: Any) -> None:
        self._heard = self._universe.now
        if request.answer is None:
            return
        if request in self._pending:
            self._pending.remove(request)
        if not request.answer.done():
            if isinstance(outcome, Exception):
                request.answer.set_exception(outcome)
            else:
                request.answer.set_result(outcome)

    def fire(self, connection: int, watch: Callable[[object], None]) -> None:
        if connection == self.connection and not self.cut:
            delay = self._universe.rng.uniform(*DELAYS)
            self.process.after(delay, watch, None)


def _there(nodes: dict[str, Node], path: str) -> Node:
    if path not in nodes:
        raise zk.NoNodeError
    return nodes[path]


def _exists(nodes: dict[str, Node], path: str) -> Node | None:
    return nodes.get(path)


def _get(nodes: dict[str, Node], path: str) -> tuple[bytes, SimpleNamespace]:
    node = _there(nodes, path)
    stat = SimpleNamespace(version=node.version, mtime=node.mtime, numChildren=len(_children(nodes, path)))
    return node.data, stat


def _children(nodes: dict[str, Node], path: str) -> list[str]:
    _there(nodes, path)
    return [name.removeprefix(f"{path}/") for name in nodes if name.rpartition("/")[0] == path]
