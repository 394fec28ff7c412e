"""Binds the ports on which a process listens, before it starts anything else, and finds out who holds a taken port.

A socket is only bound here. It listens when its server is ready; until then clients are refused, as without a daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from minflinkd.runtime.errors import MinflinkError

_INTERPRETER = "python"
_ANY = frozenset({"0.0.0.0", "::"})  # noqa: S104  # only compared with, not bound to
_TRIES = 5  # of any free port, which may be taken at another address of the same name
_WORDS = 2  # of a command line that are shown; the rest may hold secrets


class PortTaken(MinflinkError):
    """Other processes hold every port that the option allows."""

    code = "port-taken"


class UnusableAddress(MinflinkError):
    """The address is not one of this machine, or the process may not listen on the port."""

    code = "unusable-address"


@dataclass(frozen=True)
class Place:
    """Where to listen, and the options that say so, such as `rest.bind-address` and `rest.port`."""

    host: str
    ports: Sequence[int]  # tried in this order; 0 takes any free one
    host_option: str
    port_option: str


async def bind(place: Place) -> list[socket.socket]:
    """Return a socket for each address of the host, all bound to the same port. They do not listen yet.

    Raises PortTaken, UnusableAddress.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            place.host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise UnusableAddress(
            f"{place.host_option} is {place.host}, which is not an address of this machine: {error.strerror or error}",
            hint=f"set {place.host_option} to an address that `ip address` shows, or to 127.0.0.1",
        ) from error
    addresses = list(dict.fromkeys((family, address[0]) for family, _, _, _, address in found))
    for port in place.ports:
        for _ in range(1 if port else _TRIES):
            try:
                return _bind(addresses, port)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise _unusable(place, port, error) from error
    raise await taken(place)


def _bind(addresses: Sequence[tuple[int, str | int]], port: int) -> list[socket.socket]:
    """Raises OSError; EADDRNOTAVAIL only if this machine has none of the addresses."""
    bound: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, address in addresses:
            with contextlib.ExitStack() as unless_bound:
                try:
                    new = unless_bound.enter_context(socket.socket(family, socket.SOCK_STREAM))
                    new.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # an earlier daemon may have used it
                    if family == socket.AF_INET6:
                        new.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                    new.bind((address, bound[0].getsockname()[1] if bound else port))
                except OSError as error:
                    if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                        raise
                    missing = error  # `localhost` may have an address of a disabled family
                    continue
                new.setblocking(False)
                unless_bound.pop_all()
                bound.append(new)
    except BaseException:
        close(bound)
        raise
    if not bound:
        raise missing or OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    return bound


def close(bound: Sequence[socket.socket]) -> None:
    for each in bound:
        each.close()


def _unusable(place: Place, port: int, error: OSError) -> UnusableAddress:
    why = os.strerror(error.errno) if error.errno else str(error)
    if error.errno == errno.EACCES:
        hint = f"ports below 1024 need root: set {place.port_option} to another one"
    else:
        hint = f"set {place.host_option} to an address that `ip address` shows, or to 127.0.0.1"
    where = f"{place.host} ({place.host_option}), port {port} ({place.port_option})"
    return UnusableAddress(f"cannot listen on {where}: {why}", hint=hint)


async def taken(place: Place) -> PortTaken:
    """Return the error to raise.

    Also used when listening fails: two processes can bind a port while neither listens on it, and the second one to
    listen is refused.
    """
    ports = sorted(set(place.ports))
    one = len(ports) == 1
    which = f"port {ports[0]}" if one else f"each of the ports {ports[0]}-{ports[-1]}"
    holder = await asyncio.to_thread(holder_of, place.host, ports[0]) if one else None
    return PortTaken(
        f"{which} of {place.host} is taken ({place.port_option})" + (f" by {holder}" if holder else ""),
        hint=(f"end {holder}, or set" if holder else "`ss -ltnp` as root shows who has it; set")
        + f" {place.port_option} to {'another port' if one else 'a range with a free one'}, or to 0 for any free one",
    )


def holder_of(host: str, port: int) -> str | None:
    """Return e.g. `minflinkd serve (pid 4711)`; None if this user may not know, or nobody listens there."""
    try:
        listening = [
            (c.laddr.ip, c.pid)
            for c in psutil.net_connections("tcp")
            if c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port and c.pid is not None
        ]
        listening.sort(key=lambda found: found[0] not in {host, *_ANY})
        return _named(listening[0][1]) if listening else None
    except (psutil.Error, OSError):
        return None


def _named(pid: int) -> str:
    with contextlib.suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        return f"{command_name(process.cmdline()) or process.name()} (pid {pid})"
    return f"the process {pid}"


def command_name(argv: Sequence[str]) -> str:
    """Return a command without options, which may be secret: `nginx`, `minflinkd serve`, `python -m http.server`."""
    words = [Path(word).name if word.startswith("/") else word for word in argv]
    if words and words[0].startswith(_INTERPRETER):
        if words[1:2] == ["-m"]:
            return " ".join([_INTERPRETER, *words[1:3]]) if words[2:3] != ["minflinkd"] else " ".join(words[2:4])
        words = words[1:] if words[1:] and not words[1].startswith("-") else [_INTERPRETER]
    second = [word for word in words[1:_WORDS] if words[0] == "minflinkd" and not word.startswith("-")]
    return " ".join([*words[:1], *second])
