"""The data endpoint of a TaskManager (J11): serves the logs that tasks here write to readers on other TaskManagers.

    GET /exchanges/<attempt>/schema               404 if there is no such log, yet or any more
    GET /exchanges/<attempt>/entries?from=k&wait=s   a JSON list of entries from k on; empty after so many seconds
    GET /exchanges/<attempt>/data/<name>
    PUT /exchanges/<attempt>/consumed/<reader>    the position up to which the reader has processed everything; with
                                                  ?begin=1, an attempt of the reader begins to read there
    PUT /exchanges/<attempt>/covered/<reader>     the position below which no attempt of the reader will read

410 means that an entry is gone or damaged. Everything is parsed before it becomes a path, and nothing is written for a
reader that the log does not have. The session child writes the logs as files, and sends no notice of a new entry. So
the endpoint polls for one while a request waits.
"""

from __future__ import annotations

import asyncio
import hmac
import ssl
from collections.abc import Iterable
from pathlib import Path

import msgspec
from aiohttp import hdrs, web
from aiohttp.http import HttpProcessingError
from aiohttp.typedefs import Handler

from minflinkd.runtime.component import Component
from minflinkd.runtime.doorkeeper import Doorkeeper, most_connections
from minflinkd.runtime.errors import InvalidId, MinflinkError
from minflinkd.runtime.http_protocol import protocols
from minflinkd.runtime.ids import parse_attempt_id, parse_vertex_id
from minflinkd.runtime.listening import Place, PortTaken, bind
from minflinkd.taskmanager.exchange.access import AT_ONCE, is_data_file
from minflinkd.taskmanager.exchange.log import (
    DATA,
    ENTRIES,
    Entry,
    ExchangeDamaged,
    begin_reading,
    consumed,
    covered,
    has_reader,
    mark_consumed,
    mark_covered,
    read_entry,
    read_schema,
)

LONGEST_WAIT = 30.0  # seconds
ANSWER_BYTES = 1024**2  # of entries, after which no other one is added: `remote_log` takes no answer of any size
CONNECTIONS = 4096  # each reader elsewhere has a few
POSITION_BYTES = 32  # that the body of a request may have
BODY_PATIENCE = 10.0  # seconds that a client has to send it
FIRST_PAUSE = 0.002  # seconds between two checks for a new entry
LONGEST_PAUSE = 0.02


class DataPortsTaken(MinflinkError):
    code = "data-ports-taken"


class DataEndpoint(Component):
    """Serves the logs in `root`, each in a directory named after its attempt.

    Others reach it under the host name `reached_as`, or `host` if that is empty. `ports` are tried in order. `start`
    raises DataPortsTaken, UnusableAddress.
    """

    def __init__(
        self,
        *,
        root: Path,
        token: str,
        host: str,
        ports: Iterable[int],
        reached_as: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__("data endpoint")
        self._root = root
        self._token = token
        self._host = host
        self._ports = ports
        self._reached_as = reached_as or host
        self._tls = tls
        self._runner: web.AppRunner | None = None
        self._keeper = Doorkeeper("exchanges", most=most_connections(CONNECTIONS))
        self._marking = asyncio.Lock()  # of two positions that come at once, the higher one stays
        self._port = 0

    @property
    def url(self) -> str:
        """The base URL, or empty before the start."""
        host = f"[{self._reached_as}]" if ":" in self._reached_as else self._reached_as
        return f"{'https' if self._tls else 'http'}://{host}:{self._port}" if self._port else ""

    async def _start(self) -> None:
        app = web.Application(middlewares=[self._authenticate])
        app.router.add_get("/exchanges/{attempt}/schema", self._schema)
        app.router.add_get("/exchanges/{attempt}/entries", self._entries)
        app.router.add_get("/exchanges/{attempt}/data/{name}", self._data)
        app.router.add_put("/exchanges/{attempt}/consumed/{reader}", self._consumed)
        app.router.add_put("/exchanges/{attempt}/covered/{reader}", self._covered)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.5)
        await self._runner.setup()
        place = Place(self._host, tuple(self._ports), "taskmanager.bind-host", "taskmanager.data.port")
        try:
            bound = await bind(place)
        except PortTaken as error:
            raise DataPortsTaken(error.message, hint=error.hint) from error
        server = self._runner.server
        assert server is not None
        made = protocols(server, access_log=None, auto_decompress=False)
        await self._keeper.serve(bound, made, self._tls)
        self._port = int(bound[0].getsockname()[1])

    async def _stop(self) -> None:
        runner, self._runner, self._port = self._runner, None, 0
        await self._keeper.aclose()
        if runner is not None:
            await runner.cleanup()

    # --- requests ------------------------------------------------------------------------------------------------

    @web.middleware
    async def _authenticate(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get(hdrs.AUTHORIZATION, "")
        # Bytes that are no UTF-8 arrive as surrogates.
        if not hmac.compare_digest(given.encode(errors="replace"), f"Bearer {self._token}".encode()):
            return web.Response(status=401, text="the token of this cluster's data endpoints is missing")
        try:
            return await handler(request)
        except InvalidId as error:
            return web.Response(status=400, text=str(error))
        except ExchangeDamaged as error:
            return web.Response(status=410, text=str(error))

    async def _schema(self, request: web.Request) -> web.Response:
        schema = await asyncio.to_thread(read_schema, self._log_of(request))
        if schema is None:
            raise web.HTTPNotFound(text="there is no such exchange")
        return web.Response(text=schema, content_type="application/json")

    async def _entries(self, request: web.Request) -> web.Response:
        directory, first = self._log_of(request), _number(request.query.get("from", "0"))
        wait = min(_number(request.query.get("wait", "0")), LONGEST_WAIT)
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + wait, FIRST_PAUSE
        if not (found := await asyncio.to_thread(_read_on, directory, first)):
            await asyncio.to_thread(_check, directory, first)
        while not found and loop.time() < until:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE)
            found = await asyncio.to_thread(_read_on, directory, first)
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")

    async def _data(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if not is_data_file(name):
            raise web.HTTPBadRequest(text="that is not the name of a data file")
        path = self._log_of(request) / DATA / name
        if not await asyncio.to_thread(path.is_file):
            raise web.HTTPNotFound(text="there is no such file")
        return web.FileResponse(path)

    async def _consumed(self, request: web.Request) -> web.Response:
        directory, reader, position = await self._mark(request)
        async with self._marking:
            if "begin" in request.query:
                await asyncio.to_thread(begin_reading, directory, reader, position)
            elif position > _or_none(await asyncio.to_thread(consumed, directory, reader)):
                await asyncio.to_thread(mark_consumed, directory, reader, position)  # late requests change nothing
        return web.Response(status=204)

    async def _covered(self, request: web.Request) -> web.Response:
        directory, reader, position = await self._mark(request)
        async with self._marking:
            if position > _or_none(await asyncio.to_thread(covered, directory, reader)):
                await asyncio.to_thread(mark_covered, directory, reader, position)
        return web.Response(status=204)

    async def _mark(self, request: web.Request) -> tuple[Path, str, int]:
        """Return the log, the reader and the position that a request is about. Raises InvalidId, HTTPException."""
        reader, directory = parse_vertex_id(request.match_info["reader"]), self._log_of(request)
        position = _number(await _short_body(request))
        if not await asyncio.to_thread(has_reader, directory, reader):
            raise web.HTTPNotFound(text="there is no such exchange, or it has no such reader")
        return directory, reader, position

    def _log_of(self, request: web.Request) -> Path:
        """Return the directory of the requested log. Raises InvalidId."""
        return self._root / parse_attempt_id(request.match_info["attempt"])


async def _short_body(request: web.Request) -> str:
    """Return the whole body. Raises HTTPException if it is long, comes slowly, or is encoded in some way."""
    encoding = request.headers.get(hdrs.CONTENT_ENCODING, "identity")
    if encoding.lower() != "identity":
        raise web.HTTPUnsupportedMediaType(text=f"a body with Content-Encoding: {encoding[:40]!r} is not taken here")
    body = b""
    try:
        async with asyncio.timeout(BODY_PATIENCE):
            while len(body) <= POSITION_BYTES and (piece := await request.content.read(POSITION_BYTES + 1)):
                body += piece
    except TimeoutError as error:
        raise web.HTTPRequestTimeout(text="the position did not come in time") from error
    except (web.RequestPayloadError, HttpProcessingError) as error:
        raise web.HTTPBadRequest(text="the body is no sound HTTP") from error
    if len(body) > POSITION_BYTES:
        raise web.HTTPRequestEntityTooLarge(POSITION_BYTES, len(body), text="a position has fewer digits")
    return body.decode("ascii", "replace")


def _or_none(position: int | None) -> int:
    """Return a position that can be compared; without one, any that is told is further."""
    return -1 if position is None else position


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise web.HTTPBadRequest(text=f"{text[:40]!r} is not a whole number")
    return int(text)


def _read_on(directory: Path, first: int) -> list[Entry]:
    """Return entries from `first` on, as many as fit into one answer. Raises HTTPNotFound, ExchangeDamaged."""
    if not (directory / ENTRIES).is_dir():
        raise web.HTTPNotFound(text="there is no such exchange")
    found: list[Entry] = []
    size = 0
    while len(found) < AT_ONCE and size < ANSWER_BYTES:
        if (entry := read_entry(directory, first + len(found))) is None:
            break
        found.append(entry)
        size += len(msgspec.json.encode(entry))
    return found


def _check(directory: Path, first: int) -> None:
    """Check that the awaited entry is not missing before later ones. Raises ExchangeDamaged if it is."""
    latest = max((int(path.name) for path in (directory / ENTRIES).glob("[0-9]*")), default=-1)
    if latest > first and read_entry(directory, first) is None:
        raise ExchangeDamaged(f"entry {first} of an exchange is gone, and entry {latest} is there")
