"""Starts TLS on a connection after it was accepted, so that it counts from then on (E45).

asyncio's servers tell nobody about a connection before its TLS handshake is done. Whoever opens hundreds of connections
and says nothing would take all files that a daemon may have open, and no limit would see them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Protocol, cast

from minflinkd.runtime.supervision import TaskOwner


class Counted(Protocol):
    """What counts a connection whose handshake is under way."""

    def accepted(self, transport: asyncio.Transport) -> None:
        """It was accepted. To give it up, abort the transport."""

    def ended(self, *, well: bool) -> None:
        """Its handshake has ended. `well`: `connection_made` of its protocol follows."""


class StartingTls(asyncio.Protocol):
    """The protocol of one connection until its handshake is done. Then `inner` has it, over TLS.

    If the handshake fails, or takes longer than `timeout` seconds, `inner` never hears of the connection.
    """

    def __init__(
        self, inner: asyncio.Protocol, counted: Counted, tls: ssl.SSLContext, *, timeout: float, tasks: TaskOwner
    ) -> None:
        self._inner = inner
        self._counted = counted
        self._tls = tls
        self._timeout = timeout
        self._tasks = tasks
        # What comes before `inner` has the connection: asyncio decrypts the first bytes at once.
        self._early: list[Callable[[], object]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        plain = cast(asyncio.Transport, transport)
        plain.pause_reading()  # the first bytes are for TLS
        if self._tasks.closed:
            plain.abort()
            return
        self._counted.accepted(plain)
        task = self._tasks.job(f"handshake with {plain.get_extra_info('peername')}", self._handshake(plain))
        # One that is cancelled before its first step would leave the connection to nobody.
        task.add_done_callback(lambda done: plain.abort() if done.cancelled() else None)

    async def _handshake(self, plain: asyncio.Transport) -> None:
        secured = None
        try:
            if not plain.is_closing():  # otherwise its place was needed at once
                secured = await self._secured(plain)
        finally:
            if secured is None:
                plain.abort()
            self._counted.ended(well=secured is not None)
        if secured is not None:
            self._inner.connection_made(secured)
            for event in self._early:
                event()
            secured.set_protocol(self._inner)

    async def _secured(self, plain: asyncio.Transport) -> asyncio.Transport | None:
        """Return the connection over TLS, or None if it fails. `runtime.tls` logs why."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):  # as are all errors of TLS
            return await loop.start_tls(plain, self, self._tls, server_side=True, ssl_handshake_timeout=self._timeout)
        return None

    def data_received(self, data: bytes) -> None:
        self._early.append(lambda: self._inner.data_received(data))

    def eof_received(self) -> bool | None:
        self._early.append(self._inner.eof_received)
        return None

    def pause_writing(self) -> None:
        self._early.append(self._inner.pause_writing)

    def resume_writing(self) -> None:
        self._early.append(self._inner.resume_writing)

    def connection_lost(self, exc: Exception | None) -> None:
        self._early.append(lambda: self._inner.connection_lost(exc))
