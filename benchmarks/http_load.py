"""The client of `benchmarks.http_overview`, in a process of its own: it asks for one path over and over.

Each connection stays open, and asks again as soon as it has its answer. What the options say comes as JSON on stdin,
because it holds a token. Prints the `Asked` of it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass, field
from functools import partial

import msgspec


class Asking(msgspec.Struct, frozen=True):
    """`connections` ask at once, for so many seconds."""

    host: str
    port: int
    path: str
    headers: dict[str, str]
    connections: int
    seconds: float


class Asked(msgspec.Struct, frozen=True):
    """`latencies`: seconds of each request, from its sending to the end of its answer. `cpu`: seconds of this process.

    `size`: bytes of the last answer's body.
    """

    latencies: tuple[float, ...]
    seconds: float
    cpu: float
    size: int


@dataclass
class _Load:
    request: bytes
    until: float
    latencies: list[float] = field(default_factory=list)
    size: int = 0


class _Connection(asyncio.Protocol):
    def __init__(self, load: _Load) -> None:
        self._load = load
        self._head = b""
        self._left = 0  # bytes of the body that are still to come
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        if self._left:
            self._left -= len(data)
        else:
            self._head += data
            head, end, body = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            self._head = b""
            if not head.startswith(b"HTTP/1.1 200 "):
                self.over.set_exception(RuntimeError(head.decode(errors="replace")))
                self._transport.abort()
                return
            self._load.size = _length(head)
            self._left = self._load.size - len(body)
        if not self._left:
            self._load.latencies.append(time.perf_counter() - self._asked)
            self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self.over.set_exception(ConnectionError(f"the daemon has closed the connection: {exc}"))

    def _ask(self) -> None:
        if (now := time.perf_counter()) < self._load.until:
            self._asked = now
            self._transport.write(self._load.request)
        else:
            self.over.set_result(None)
            self._transport.close()


def _length(head: bytes) -> int:
    lines = (line.partition(b":") for line in head.split(b"\r\n"))
    return next(int(value) for name, _, value in lines if name.lower() == b"content-length")


async def ask(what: Asking) -> Asked:
    headers = {"Host": f"{what.host}:{what.port}", "Accept": "application/json", **what.headers}
    lines = [f"GET {what.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    began, cpu = time.perf_counter(), time.process_time()
    load = _Load("\r\n".join(lines).encode(), until=began + what.seconds)
    loop = asyncio.get_running_loop()
    connect = partial(loop.create_connection, lambda: _Connection(load), what.host, what.port)
    made = [await connect() for _ in range(what.connections)]
    await asyncio.gather(*(connection.over for _, connection in made))
    return Asked(tuple(load.latencies), time.perf_counter() - began, time.process_time() - cpu, load.size)


def main() -> None:
    found = asyncio.run(ask(msgspec.json.decode(sys.stdin.buffer.read(), type=Asking)))
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
