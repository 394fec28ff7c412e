"""One session with ZooKeeper, through kazoo. kazoo's threads do the work; answers come back to the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from kazoo import exceptions as zk
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry

from minflinkd.ha.service import ServiceFull, ServiceRefused, ServiceUnavailable
from minflinkd.ha.zookeeper.credentials import DIGEST_FILE, SASL_FILE, Credentials
from minflinkd.runtime.component import Component

log = structlog.get_logger(__name__)

_RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0, "max_jitter": 0.2}
# Answers about nodes, which callers handle. No other error says anything about a node.
_ANSWERS: tuple[type[Exception], ...] = (zk.NoNodeError, zk.NodeExistsError, zk.BadVersionError, zk.NotEmptyError)
_NO_ENTRY = (zk.AuthFailedError, zk.NoAuthError, zk.InvalidACLError, zk.SessionClosedRequireSaslError)
_CLOSING = 10.0  # seconds


class ZooKeeperSession(Component):
    """A session that is renewed: after it has expired, the next one begins as soon as a server answers.

    `on_disconnect` and `on_expiry` are called in the event loop. `credentials` are those of the user who owns this
    daemon's nodes.
    """

    def __init__(
        self,
        servers: str,
        *,
        session_timeout: float,
        request_timeout: float,
        credentials: Credentials | None = None,
        on_disconnect: Callable[[], None] = lambda: None,
        on_expiry: Callable[[], None] = lambda: None,
    ) -> None:
        """Times are in seconds. `servers`: host:port, separated by commas."""
        super().__init__("zookeeper session")
        self.servers = servers
        self._session_timeout = session_timeout
        self._request_timeout = request_timeout
        self._credentials = credentials or Credentials()
        self._on_disconnect = on_disconnect
        self._on_expiry = on_expiry
        self._client: Any = None
        self._granted: float | None = None  # the session timeout that the server has granted
        self._refused: Exception | None = None  # why the server refuses this daemon
        self._loop: asyncio.AbstractEventLoop | None = None

    async def _start(self) -> None:
        """Return at once. The session connects in the background, and retries until a server answers."""
        self._loop = asyncio.get_running_loop()
        quiet = logging.getLogger("kazoo")
        quiet.setLevel(logging.CRITICAL)  # it logs every attempt to connect
        self._client = client = KazooClient(
            hosts=self.servers,
            timeout=self._session_timeout,
            connection_retry=KazooRetry(**_RECONNECT),
            logger=quiet,
            **self._credentials.for_kazoo(),
        )
        self._hear(client)
        _hasten(client, self._request_timeout)
        client.add_listener(self._changed)
        await asyncio.to_thread(client.start_async)

    async def _stop(self) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def end() -> None:
            _end(client)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(ended.set)

        # Do not use the thread pool: kazoo waits for its own threads without limit, and this process waits for the
        # pool.
        threading.Thread(target=end, name="end of the ZooKeeper session", daemon=True).start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING):
                await ended.wait()

    @property
    def connected(self) -> bool:
        return self._client is not None and bool(self._client.connected)

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of kazoo's client.

        Raises ServiceUnavailable, ServiceRefused, ServiceFull, and what ZooKeeper says of a node: NoNodeError,
        NodeExistsError, BadVersionError, NotEmptyError.
        """
        return await self._answer(lambda client: getattr(client, f"{method}_async")(*args, **kwargs))

    async def transact(self, *operations: Sequence[Any]) -> None:
        """Do all operations or none. Each is a tuple: a method of kazoo's transaction, then its arguments.

        Raises what `call` raises, for the first operation that failed.
        """

        def commit(client: Any) -> Any:
            transaction = client.transaction()
            for name, *arguments in operations:
                getattr(transaction, name)(*arguments)
            return transaction.commit_async()

        for result in await self._answer(commit):
            if isinstance(result, Exception) and not isinstance(result, zk.RolledBackError | zk.RuntimeInconsistency):
                raise self._of(result) from result

    async def _answer(self, ask: Callable[[Any], Any]) -> Any:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def arrived(result: Any) -> None:  # in a thread of kazoo's
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_settle, answer, result)

        client = self._client
        if self._refused is not None:
            raise self._of(self._refused)
        if client is None or not client.connected:
            # kazoo would queue the request, and send it later, when nobody waits for it any more.
            raise self._away("there is no connection")
        if self._granted is not None and self._granted < self._session_timeout - 0.001:
            raise ServiceRefused(
                f"ZooKeeper grants a session timeout of {self._granted:g} s instead of {self._session_timeout:g} s",
                hint="raise maxSessionTimeout of the servers, or lower "
                "high-availability.zookeeper.client.session-timeout",
            )
        try:
            ask(client).rawlink(arrived)
            async with asyncio.timeout(self._request_timeout):
                return await answer
        except TimeoutError as error:
            _break_off(client)
            raise self._away(f"no answer within {self._request_timeout:g} s") from error
        except KazooException as error:
            raise self._of(error) from error

    def _of(self, error: Exception) -> Exception:
        """Return our error for one of kazoo's. An unknown error says nothing about nodes, so it counts as no answer."""
        if isinstance(error, _ANSWERS):
            return error
        if isinstance(error, _NO_ENTRY):
            return self._no_entry(error)
        if isinstance(error, zk.QuotaExceededError):
            return ServiceFull(
                f"ZooKeeper at {self.servers}: the cluster's nodes have reached their quota",
                hint="raise it with zkCli.sh (`listquota`, `setquota`); the daemon tries again",
            )
        return self._away(type(error).__name__)

    def _no_entry(self, error: Exception) -> ServiceRefused:
        mine, kind = self._credentials, type(error).__name__
        if isinstance(error, zk.AuthFailedError) or (mine.sasl and error is self._refused):
            return ServiceRefused(
                f"ZooKeeper at {self.servers} does not accept the user {mine.user} and its password ({kind})",
                hint=f"compare the file of {mine.option} with the users that the servers know (DigestLoginModule)",
            )
        if isinstance(error, zk.SessionClosedRequireSaslError):
            return ServiceRefused(
                f"ZooKeeper at {self.servers} requires a password by SASL ({kind})",
                hint=f"name a file with user:password in {SASL_FILE}",
            )
        if not mine.user:
            return ServiceRefused(
                f"ZooKeeper at {self.servers} refuses this daemon, which has no password ({kind})",
                hint=f"the cluster's nodes belong to a user: copy the file that {DIGEST_FILE} or {SASL_FILE} names on "
                "a host whose daemon leads, and set the option here, too",
            )
        return ServiceRefused(
            f"ZooKeeper at {self.servers} refuses this daemon, the user {mine.user} ({kind})",
            hint="the cluster's nodes belong to another user, or were created with another password or without one: "
            f"compare the file of {mine.option} with the one on a host whose daemon leads. "
            "docs/high-availability.md says how to change their ACL",
        )

    def _away(self, why: str) -> ServiceUnavailable:
        return ServiceUnavailable(
            f"ZooKeeper at {self.servers}: {why}",
            hint="check that a majority of its servers is up, and that this host reaches them; tasks keep running, and "
            "the daemon tries again",
        )

    def _changed(self, state: str) -> None:  # in a thread of kazoo's
        loop = self._loop
        if loop is None or self._client is None:
            return
        with contextlib.suppress(RuntimeError):
            if state == KazooState.SUSPENDED:
                loop.call_soon_threadsafe(self._on_disconnect)
            elif state == KazooState.LOST:
                loop.call_soon_threadsafe(self._on_expiry)

    def _hear(self, client: Any) -> None:
        """Keep what the server answers to each new connection. kazoo only logs this.

        kazoo's read timeout is two thirds of the session timeout that the server grants, so the timeout follows from
        it. If the server rejects a password by SASL, kazoo would give up for good. So such a connection counts as lost,
        and kazoo connects again.
        """
        connection = client._connection
        connect = connection._connect

        def connect_and_tell(*args: Any) -> Any:  # in a thread of kazoo's
            try:
                read, other = connect(*args)
            except _NO_ENTRY as error:
                self._refused = error
                raise zk.ConnectionDropped(str(error)) from error
            except Exception as error:
                self._refused = None  # now the server is away, and no longer refuses
                if isinstance(error, RuntimeError):  # malformed answers, which would end kazoo's thread
                    raise zk.ConnectionDropped(str(error)) from error
                raise
            self._refused = None
            granted, asked = read * 1.5 / 1000, self._session_timeout
            if granted > asked + 0.001 and granted != self._granted:
                log.warning(
                    "ZooKeeper grants a longer session timeout than requested: the next leader has to wait longer",
                    granted=granted,
                    asked=asked,
                    hint="see minSessionTimeout and tickTime of the servers",
                )
            self._granted = granted
            return read, other

        connection._connect = connect_and_tell


def _settle(answer: asyncio.Future[Any], result: Any) -> None:
    if answer.done():
        return
    if result.successful():
        answer.set_result(result.get_nowait())
    else:
        answer.set_exception(result.exception)


def _break_off(client: Any) -> None:
    """Have kazoo connect to the next server, in the same session.

    If a server hangs, or its host is gone, kazoo waits two thirds of the session timeout for it. A leader could then
    not ask another server in time, and would lose the lead although a majority of the servers works.
    """
    connected: socket.socket | None = client._connection._socket
    with contextlib.suppress(OSError, ValueError, AttributeError):  # kazoo may close it at any time
        if connected is not None:
            connected.shutdown(socket.SHUT_RDWR)


def _hasten(client: Any, most: float) -> None:
    """Have kazoo give up a server that it cannot connect to within `most` seconds, and try the next one.

    By itself kazoo waits as long as the session lasts: for a host that is gone, and for a server that takes the
    connection and then says nothing. A leader with three servers, of which one hangs, could lose the lead over that.
    """
    handler, connection = client.handler, client._connection
    create, invoke = handler.create_connection, connection._invoke

    def create_soon(*args: Any, timeout: float, **kwargs: Any) -> Any:
        return create(*args, timeout=min(timeout, most), **kwargs)

    def invoke_soon(timeout: float, *args: Any, **kwargs: Any) -> Any:
        return invoke(min(timeout, most), *args, **kwargs)

    handler.create_connection, connection._invoke = create_soon, invoke_soon


def _end(client: Any) -> None:
    with contextlib.suppress(Exception):  # the client may be in any state
        client.stop()
        client.close()
