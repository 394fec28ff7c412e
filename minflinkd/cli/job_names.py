"""Asks a daemon for the names of its jobs and TaskManagers, for completion in a shell.

A completion must be quick, so this imports neither aiohttp nor asyncio: it sends one request by hand. That the daemon
is away, or does not answer within a second, is no error: then nothing is completed.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from minflinkd.cli.contexts import user_directory
from minflinkd.cli.target import Target
from minflinkd.cli.token_file import UnfitFile, token_in
from minflinkd.runtime import local_socket

PATIENCE: Final = 1.0  # seconds for all of it
_LARGEST: Final = 8 << 20  # bytes of an answer
_HERE: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_REDIRECTED: Final = 307  # by a standby
_HOPS: Final = 2


class Job(NamedTuple):
    id: str
    name: str
    state: str
    ended: bool


class _Place(NamedTuple):
    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> _Place:
        """Raises ValueError."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        return cls(parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))


def jobs(at: Target, environ: Mapping[str, str] = os.environ) -> list[Job]:
    """Return the jobs, or none if no daemon answers in time."""
    found = _answer(at, "/jobs/overview", environ)
    with suppress(KeyError, TypeError):
        return [Job(one["jid"], one["name"], one["state"], one["end-time"] >= 0) for one in found["jobs"]]
    return []


def task_managers(at: Target, environ: Mapping[str, str] = os.environ) -> list[str]:
    found = _answer(at, "/taskmanagers", environ)
    with suppress(KeyError, TypeError):
        return [str(one["id"]) for one in found["taskmanagers"]]
    return []


def _answer(at: Target, path: str, environ: Mapping[str, str]) -> Any:
    deadline = time.monotonic() + PATIENCE
    for url in filter(None, (part.strip() for part in at.url.split(","))):
        with suppress(OSError, ValueError):  # ValueError: no URL, or no JSON
            status, headers, body = _asked(at, url, path, environ, deadline)
            for _ in range(_HOPS):
                if status != _REDIRECTED:
                    break
                leader, _, rest = headers["location"].partition("://")
                host, slash, path_there = rest.partition("/")
                status, headers, body = _asked(at, f"{leader}://{host}", slash + path_there, environ, deadline)
            if status == 200:
                return json.loads(body)
    return None


def _asked(
    at: Target, url: str, path: str, environ: Mapping[str, str], deadline: float
) -> tuple[int, dict[str, str], bytes]:
    """Send one request. Raises OSError and ValueError."""
    if url.startswith("unix://"):
        return _exchanged(_over(Path(url.removeprefix("unix://"))), "localhost", path, None, deadline)
    place = _Place.of(url)
    port = place.port
    if (
        place.host in _HERE
        and not (at.ca_file or at.cert_file)
        and (here := local_socket.find(port, environ)) is not None
    ):
        with suppress(OSError):  # a daemon that was killed has left it
            return _exchanged(_over(here), "localhost", path, None, deadline)
    connected = socket.create_connection((place.host, port), timeout=_left(deadline))
    if place.scheme == "https":
        import ssl

        tls = ssl.create_default_context(cafile=at.ca_file)
        if at.cert_file:
            tls.load_cert_chain(at.cert_file, at.key_file)
        connected = tls.wrap_socket(connected, server_hostname=place.host)
    return _exchanged(connected, f"{place.host}:{port}", path, _token(at, environ), deadline)


def _over(path: Path) -> socket.socket:
    """Raises OSError."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.settimeout(PATIENCE)
        connected.connect(str(path))
    except OSError:
        connected.close()
        raise
    return connected


def _exchanged(
    connected: socket.socket, host: str, path: str, token: str | None, deadline: float
) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers by small name, and body. Raises OSError and ValueError."""
    with connected:
        proof = "" if token is None else f"Authorization: Bearer {token}\r\n"
        # HTTP/1.0: the answer is in one piece, and ends with the connection.
        connected.sendall(f"GET {path} HTTP/1.0\r\nHost: {host}\r\nAccept: application/json\r\n{proof}\r\n".encode())
        answer = b"".join(_pieces(connected, deadline))
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return int(first.split()[1]) if first.startswith("HTTP/") else 0, headers, body


def _pieces(connected: socket.socket, deadline: float) -> Iterator[bytes]:
    received = 0
    while received <= _LARGEST:
        connected.settimeout(_left(deadline))
        piece = connected.recv(1 << 16)
        if not piece:
            return
        received += len(piece)
        yield piece
    raise ValueError("the answer is too large")


def _left(deadline: float) -> float:
    """Raises TimeoutError."""
    if (left := deadline - time.monotonic()) <= 0:
        raise TimeoutError
    return left


def _token(at: Target, environ: Mapping[str, str]) -> str | None:
    path = Path(at.token_file) if at.token_file else user_directory(environ) / "token"
    with suppress(OSError, UnfitFile):
        return token_in(path)
    return None
