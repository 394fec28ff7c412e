"""Whether a port speaks TLS: what a client finds out that asked over plain HTTP and got no answer."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Final

from yarl import URL

PATIENCE: Final = 3.0  # seconds
_ALERT, _HANDSHAKE = 0x15, 0x16  # types of TLS records
_VERSION = 3  # the first byte of the version of every record


async def speaks_tls(url: URL) -> bool:
    """Begin a TLS handshake at the host and port of `url`, and see whether the answer is one. Nothing else is sent."""
    if url.host is None or url.port is None:
        return False
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(PATIENCE):
            return await _answers_tls(url.host, url.port)
    return False


async def _answers_tls(host: str, port: int) -> bool:
    """Raises OSError."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(_hello(host))
        found = await reader.read(2)
        if len(found) == 1:
            found += await reader.read(1)
    finally:
        writer.transport.abort()
    return len(found) == 2 and found[0] in (_ALERT, _HANDSHAKE) and found[1] == _VERSION


def _hello(host: str) -> bytes:
    outgoing = ssl.MemoryBIO()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=host)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()
