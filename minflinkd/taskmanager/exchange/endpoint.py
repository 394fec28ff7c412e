"""The data endpoint of a TaskManager (J11): serves the logs that tasks here write to readers on other TaskManagers.

    GET /exchanges/<attempt>/schema               404 if there is no such log, yet or any more
    GET /exchanges/<attempt>/entries?from=k&wait=s   a JSON list of entries from k on; empty after so many seconds
    GET /exchanges/<attempt>/data/<name>
    PUT /exchanges/<attempt>/consumed/<reader>    the position up to which the reader has processed everything; with
                                                  ?begin=1, an attempt of the reader begins to read there
    PUT /exchanges/<attempt>/covered/<reader>     the position below which no attempt of the reader will read

410 means that an entry is gone or damaged. Everything is parsed before it becomes a path. The session child writes the
logs as files, and sends no notice of a new entry. So the endpoint polls for one while a request waits.
"""

from __future__ import annotations

import asyncio
import hmac
import ssl
from collections.abc import Iterable
from pathlib import Path

import msgspec
import structlog
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from minflinkd.runtime.component import Component
from minflinkd.runtime.errors import InvalidId, MinflinkError
from minflinkd.runtime.ids import parse_attempt_id, parse_vertex_id
from minflinkd.taskmanager.exchange.access import is_data_file
from minflinkd.taskmanager.exchange.log import (
    DATA,
    ENTRIES,
    Entry,
    ExchangeDamaged,
    begin_reading,
    consumed,
    covered,
    mark_consumed,
    mark_covered,
    read_entry,
    read_schema,
)

log = structlog.get_logger(__name__)

LONGEST_WAIT = 30.0  # seconds
AT_ONCE = 500  # entries per answer
FIRST_PAUSE = 0.002  # seconds between two checks for a new entry
LONGEST_PAUSE = 0.02


class DataPortsTaken(MinflinkError):
    code = "data-ports-taken"


class DataEndpoint(Component):
    """Serves the logs in `root`, each in a directory named after its attempt.

    Others reach it under the host name `reached_as`, or `host` if that is empty. `ports` are tried in order. `start`
    raises DataPortsTaken.
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
        for port in self._ports:
            try:
                await web.TCPSite(self._runner, self._host, port, ssl_context=self._tls).start()
            except OSError as error:
                log.info("port is not free", port=port, error=str(error))
                continue
            self._port = int(self._runner.addresses[0][1])
            return
        raise DataPortsTaken(
            f"the data endpoint can listen on none of the ports {self._ports} of {self._host}",
            hint="set taskmanager.data.port to 0, or to a range with a free port for each TaskManager of the host",
        )

    async def _stop(self) -> None:
        runner, self._runner, self._port = self._runner, None, 0
        if runner is not None:
            await runner.cleanup()

    # --- requests ------------------------------------------------------------------------------------------------

    @web.middleware
    async def _authenticate(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get(hdrs.AUTHORIZATION, "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
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
        if "begin" in request.query:
            await asyncio.to_thread(begin_reading, directory, reader, position)
        elif position > (await asyncio.to_thread(consumed, directory, reader) or -1):  # late requests change nothing
            await asyncio.to_thread(mark_consumed, directory, reader, position)
        return web.Response(status=204)

    async def _covered(self, request: web.Request) -> web.Response:
        directory, reader, position = await self._mark(request)
        if position > (await asyncio.to_thread(covered, directory, reader) or -1):
            await asyncio.to_thread(mark_covered, directory, reader, position)
        return web.Response(status=204)

    async def _mark(self, request: web.Request) -> tuple[Path, str, int]:
        """Return the log, the reader and the position that a request is about. Raises InvalidId, HTTPException."""
        reader, directory = parse_vertex_id(request.match_info["reader"]), self._log_of(request)
        position = _number((await request.content.read(32)).decode("ascii", "replace"))
        if not await asyncio.to_thread(directory.is_dir):
            raise web.HTTPNotFound(text="there is no such exchange")
        return directory, reader, position

    def _log_of(self, request: web.Request) -> Path:
        """Return the directory of the requested log. Raises InvalidId."""
        return self._root / parse_attempt_id(request.match_info["attempt"])


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise web.HTTPBadRequest(text=f"{text[:40]!r} is not a whole number")
    return int(text)


def _read_on(directory: Path, first: int) -> list[Entry]:
    """Return entries from `first` on, as many as fit into one answer. Raises HTTPNotFound, ExchangeDamaged."""
    if not (directory / ENTRIES).is_dir():
        raise web.HTTPNotFound(text="there is no such exchange")
    found: list[Entry] = []
    while len(found) < AT_ONCE and (entry := read_entry(directory, first + len(found))) is not None:
        found.append(entry)
    return found


def _check(directory: Path, first: int) -> None:
    """Check that the awaited entry is not missing before later ones. Raises ExchangeDamaged if it is."""
    latest = max((int(path.name) for path in (directory / ENTRIES).glob("[0-9]*")), default=-1)
    if latest > first and read_entry(directory, first) is None:
        raise ExchangeDamaged(f"entry {first} of an exchange is gone, and entry {latest} is there")
