"""Server-sent events of a daemon, for commands that show what happens (E16).

A connection that is lost is opened again, to whichever daemon leads then, and goes on where it was. The daemon begins
with the complete state; `reset` says that it begins anew, and that what was known is to be forgotten.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from minflinkd.cli.endpoint import FIRST_PAUSE, LONGEST_PAUSE, DaemonUnreachable, Refused, Stream, refusal
from minflinkd.runtime.errors import Consequence, MinflinkError

if TYPE_CHECKING:
    from minflinkd.cli.endpoint import Endpoint

T = TypeVar("T")

SILENCE: Final = 45.0  # seconds; the daemon says something every 15 s
PATIENCE: Final = 60.0  # seconds without a daemon, which may be restarting, before giving up
LARGEST: Final = 256 << 20  # bytes of an event

_LATER: Final = (502, 503)


@dataclass(frozen=True)
class ServerEvent:
    name: str
    data: bytes  # JSON

    def read_as(self, kind: type[T]) -> T:
        return msgspec.json.decode(self.data, type=kind)


@dataclass
class EventParser:
    """Makes events of the bytes of a stream, wherever these are cut. Pure."""

    last_id: str | None = None
    _rest: bytearray = field(default_factory=bytearray)
    _seen: int = 0  # bytes of the rest that have no end of an event

    def fed(self, piece: bytes) -> Iterator[ServerEvent]:
        """Raises ValueError if an event does not end."""
        self._rest += piece
        while (end := self._rest.find(b"\n\n", max(0, self._seen - 1))) >= 0:
            block, self._seen = bytes(self._rest[:end]), 0
            del self._rest[: end + 2]
            if (event := self._read(block)) is not None:
                yield event
        self._seen = len(self._rest)
        if self._seen > LARGEST:
            raise ValueError(f"an event has more than {LARGEST} bytes")

    def broke_off(self) -> None:
        """Forget what has come of an event that was not complete."""
        self._rest.clear()
        self._seen = 0

    def _read(self, block: bytes) -> ServerEvent | None:
        name, data = "message", list[bytes]()
        for line in block.split(b"\n"):
            key, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            match key:
                case b"id":
                    self.last_id = value.decode()
                case b"event":
                    name = value.decode()
                case b"data":
                    data.append(value)
                case _:  # a comment, or a field that this client has no use for
                    pass
        return ServerEvent(name, b"\n".join(data)) if data else None


def ignore(_: MinflinkError, __: float) -> None:
    """For those who do not show that a connection is lost."""


async def events(
    endpoint: Endpoint,
    path: str,
    *,
    patience: float = PATIENCE,
    lost: Callable[[MinflinkError, float], None] = ignore,
) -> AsyncGenerator[ServerEvent, None]:
    """Yield the events of a path for ever.

    `lost` is told why there is no connection, and since how many seconds, with each attempt that fails. Raises Refused
    for what another attempt does not change, and DaemonUnreachable or Refused after `patience` seconds.
    """
    parser, connection, pause = EventParser(), _Connection(time.monotonic()), FIRST_PAUSE
    while True:
        try:
            async with aclosing(_until_lost(endpoint, path, parser, connection)) as connected:
                async for event in connected:
                    pause = FIRST_PAUSE
                    yield event
            error: MinflinkError = DaemonUnreachable(f"the daemon at {endpoint.url} has ended the stream")
        except (DaemonUnreachable, Refused) as failed:
            if isinstance(failed, Refused) and failed.status not in _LATER:
                raise
            error = failed
        away = time.monotonic() - connection.heard_at
        if away > patience:
            raise error
        lost(error, away)
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


@dataclass
class _Connection:
    heard_at: float  # when the daemon last said anything


async def _until_lost(
    endpoint: Endpoint, path: str, parser: EventParser, connection: _Connection
) -> AsyncGenerator[ServerEvent, None]:
    """Raises DaemonUnreachable, Refused."""
    parser.broke_off()
    headers = {"Accept": "text/event-stream"}
    if parser.last_id is not None:
        headers["Last-Event-ID"] = parser.last_id
    async with endpoint.ask("GET", path, stream=Stream(headers, SILENCE)) as response:
        if response.status != 200:
            raise refusal(response.status, await response.read())
        if response.content_type != "text/event-stream":
            raise NoEvents(f"{endpoint.url}{path} does not answer with events", hint="is there a proxy before it?")
        async for piece in response.content.iter_any():
            for event in parser.fed(piece):
                yield event
            connection.heard_at = time.monotonic()  # after what was done with the events: that is not the daemon's time


class NoEvents(MinflinkError):
    """Something else than a stream of events was answered."""

    code = "no-events"
    consequence = Consequence.REFUSED
