"""Connections of fsspec's file systems, each used by one call at a time, in a thread of that call.

Several threads may not share one: paramiko mixes up the answers. A connection on which a call failed or was given up is
closed. So a call that hangs ends, and the next one begins with a new connection.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from minflinkd.storage.fsspec_errors import Kind, kind_of, reason
from minflinkd.storage.fsspec_files import Way
from minflinkd.storage.interface import (
    InvalidPath,
    NotSupported,
    ObjectExists,
    ObjectNotFound,
    PermissionDenied,
    StorageError,
    StorageUnavailable,
)
from minflinkd.storage.own_thread import in_own_thread

T = TypeVar("T")
Action = Callable[[Any, str], T]  # gets the file system and its own form of the path

_CALLS: Final = 16  # threads at a time
_CONNECTING: Final = 4  # at a time: an sshd refuses some beyond ten
_IDLE: Final = 8  # connections kept for each host
_CREDENTIALS = "docs/storage.md says where credentials are looked for"
_KINDS: Final[dict[Kind, tuple[type[StorageError], str]]] = {
    Kind.NOT_FOUND: (ObjectNotFound, ""),
    Kind.DIRECTORY: (ObjectNotFound, "it is a directory"),
    Kind.NO_PERMISSION: (PermissionDenied, _CREDENTIALS),
    Kind.TRANSIENT: (StorageUnavailable, ""),
}
_ANSWERS: Final = (ObjectNotFound, ObjectExists, PermissionDenied, NotSupported, InvalidPath)


class Connections:
    """Those of one scheme. `way` is None if the scheme is only read."""

    def __init__(self, scheme: str, way: Way | None) -> None:
        self.scheme = scheme
        self.way = way
        self.turns = asyncio.Semaphore(_CALLS)
        self._connecting = threading.Semaphore(_CONNECTING)
        self._idle: dict[str, list[Connection]] = {}  # by host
        self._closed = False

    async def run(self, path: str, action: Action[T]) -> T:
        """Run an action in a thread, on a connection that nobody else uses. Raises StorageError."""
        connection = self.take(path)
        try:
            return await connection.run(path, action)
        finally:
            self.give(connection)

    def take(self, path: str) -> Connection:
        host = path.partition("/")[0]
        idle = self._idle.get(host)
        return idle.pop() if idle else Connection(self, host)

    def give(self, connection: Connection) -> None:
        """Keep a connection for the next call, unless it is broken."""
        idle = self._idle.setdefault(connection.host, [])
        if connection.broken:
            connection.close()
            self._close(idle)  # they are of the same server, and may be as old
        elif len(idle) < _IDLE and not self._closed:
            idle.append(connection)
        else:
            connection.close()

    def open(self, host: str) -> Any:
        """Return a new file system. Blocks."""
        from fsspec.core import url_to_fs

        options = {"client_kwargs": {"trust_env": True}} if self.scheme in ("http", "https") else {}
        with self._connecting:
            return url_to_fs(f"{self.scheme}://{host}/", skip_instance_cache=True, **options)[0]

    def close(self) -> None:
        self._closed = True
        for idle in self._idle.values():
            self._close(idle)

    def _close(self, idle: list[Connection]) -> None:
        while idle:
            idle.pop().close()


class Connection:
    """One file system. The first call makes it."""

    def __init__(self, connections: Connections, host: str) -> None:
        self.host = host
        self.broken = False
        self._connections = connections
        self._system: Any = None

    async def run(self, path: str, action: Action[T]) -> T:
        """Run an action in a thread of its own. Raises StorageError."""
        scheme = self._connections.scheme

        def work() -> T:
            url = f"{scheme}://{path}"
            try:
                return action(self._ready(), self._inner(path, url))
            except StorageError:
                raise
            except Exception as error:
                kind, hint = _KINDS.get(kind_of(error), (StorageError, ""))
                why = f"{scheme}: {path}: {reason(url, error)}"
            raise kind(why, hint=hint) from None  # the cause may have credentials in its text

        async with self._connections.turns:
            try:
                return await in_own_thread(work, f"fsspec {scheme}")
            except _ANSWERS:
                raise
            except BaseException:  # also if the caller gave up
                self.broken = True
                raise

    def close(self) -> None:
        """Close it, in a thread because that may block."""
        self.broken = True
        system, way = self._system, self._connections.way
        if system is not None and way is not None:

            def close() -> None:
                with suppress(Exception):
                    way.close(system)

            in_own_thread(close, f"fsspec {self._connections.scheme}")

    def _ready(self) -> Any:
        if self._system is None:
            self._system = self._connections.open(self.host)
            if self.broken:  # given up meanwhile, when there was nothing to close
                if self._connections.way is not None:
                    self._connections.way.close(self._system)
                raise StorageUnavailable(f"{self._connections.scheme}: {self.host}: connected too late")
        self._system.invalidate_cache()  # of listings
        return self._system

    def _inner(self, path: str, url: str) -> str:
        way = self._connections.way
        return str(self._system._strip_protocol(url)) if way is None else way.inner(path)
