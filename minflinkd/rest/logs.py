"""A TaskManager's log files over HTTP, by byte range. They are streamed, never held in memory as a whole (E31)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import structlog
from aiohttp import hdrs, web

from minflinkd.rest import route
from minflinkd.rest.backend import Backend, json_answer
from minflinkd.rest.declared import LOG_NAME, MOST, TASK_MANAGER_ID, InQuery, whole
from minflinkd.rest.ended_logs import EndedLogs
from minflinkd.rest.errors import RangeNotSatisfiable
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.log_copies import LogCopies
from minflinkd.rest.route import Text
from minflinkd.rest.schemas import Log, Logs
from minflinkd.rpc.messages import ListLogs, LogFile
from minflinkd.runtime.errors import MinflinkError, NotFound
from minflinkd.runtime.ids import ResourceId

log = structlog.get_logger(__name__)

SIZE_HEADER = "X-Log-Size"  # current size of the whole file, so that a reader can follow it
OFFSET_HEADER = "X-Log-Offset"  # position of the answer's first byte in the file

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)
OFFSET = InQuery("offset", "The first byte; a negative one counts from the end", whole(least=-MOST), 0)
LENGTH = InQuery[int | None]("length", "How many bytes, at most; without it, all that follow", whole(), None)
_TEXT = dict.fromkeys(
    (200, 206),
    Text("text/plain", {SIZE_HEADER: "Bytes of the whole file", OFFSET_HEADER: "Where in it the answer begins"}),
)


@dataclass(frozen=True)
class Slice:
    """A requested part. A negative offset counts from the end."""

    offset: int = 0
    length: int | None = None  # None: to the end
    partial: bool = False  # requested by a Range header, answered with 206

    def within(self, size: int) -> tuple[int, int]:
        """Return (first, end) in a file of `size` bytes."""
        first = max(0, size + self.offset) if self.offset < 0 else min(self.offset, size)
        return first, size if self.length is None else min(size, first + self.length)


class LogRoutes:
    """Logs of registered TaskManagers, and of those that have ended on this host."""

    def __init__(self, backend: Backend, copies: LogCopies, ended: EndedLogs) -> None:
        self._backend = backend
        self._copies = copies
        self._ended = ended

    def routes(self) -> list[route.Route]:
        return [
            route.get(
                "/taskmanagers/{taskmanagerid}/logs",
                self.list,
                Role.VIEW,
                "The TaskManager's log files",
                {200: Logs},
            ),
            route.get(
                "/taskmanagers/{taskmanagerid}/logs/{filename}",
                self.read,
                Role.VIEW,
                "One log file, or the part that offset and length, or a Range, select",
                _TEXT,
                query=(OFFSET, LENGTH),
                errors=(416,),
            ),
            route.get(
                "/taskmanagers/{taskmanagerid}/log",
                self.main,
                Role.VIEW,
                "The supervisor's log, or the part that offset and length, or a Range, select",
                _TEXT,
                query=(OFFSET, LENGTH),
                errors=(416,),
            ),
            route.get(
                "/taskmanagers/{taskmanagerid}/stdout",
                self.stdout,
                Role.VIEW,
                "What the TaskManager has printed, or the part that offset and length, or a Range, select",
                _TEXT,
                query=(OFFSET, LENGTH),
                errors=(416,),
            ),
        ]

    async def list(self, request: web.Request) -> web.Response:
        files = await self._files(TASK_MANAGER_ID.of(request))
        return json_answer(
            Logs(logs=tuple(Log(name=file.name, size=file.size, mtime=file.modified_ms) for file in files))
        )

    async def read(self, request: web.Request) -> web.StreamResponse:
        return await self._send(request, TASK_MANAGER_ID.of(request), LOG_NAME.of(request))

    async def main(self, request: web.Request) -> web.StreamResponse:
        """Answer the supervisor's own log: the one named after the TaskManager, otherwise the first."""
        task_manager = TASK_MANAGER_ID.of(request)
        if name := await self._with_suffix(task_manager, ".log"):
            return await self._send(request, task_manager, name)
        raise NotFound(f"TaskManager {task_manager} has no *.log file", hint="GET .../logs lists its logs")

    async def stdout(self, request: web.Request) -> web.StreamResponse:
        """Answer what was printed: nothing, if there is no file of it."""
        task_manager = TASK_MANAGER_ID.of(request)
        if name := await self._with_suffix(task_manager, ".out"):
            return await self._send(request, task_manager, name)
        return await _stream(request, "stdout", wanted_slice(request), 0, _nothing)

    async def _with_suffix(self, task_manager: ResourceId, suffix: str) -> str | None:
        names = [file.name for file in await self._files(task_manager) if file.name.endswith(suffix)]
        return min(names, key=lambda name: (not name.startswith("taskmanager"), name), default=None)

    async def _files(self, task_manager: ResourceId) -> Sequence[LogFile]:
        if not await self._is_registered(task_manager):
            return await self._ended.list(task_manager)
        files = await self._backend.task_manager(task_manager, ListLogs())
        return sorted(files, key=lambda file: file.name)

    async def _send(self, request: web.Request, task_manager: ResourceId, name: str) -> web.StreamResponse:
        """Send what is in the file when the answer begins. Pieces are fetched as the client reads them."""
        wanted = wanted_slice(request)
        if not await self._is_registered(task_manager):
            return await self._send_ended(request, task_manager, name, wanted)
        reading = await self._copies.open(task_manager, name)
        try:
            return await _stream(request, name, wanted, reading.size, reading.pieces)
        finally:
            reading.close()

    async def _send_ended(
        self, request: web.Request, task_manager: ResourceId, name: str, wanted: Slice
    ) -> web.StreamResponse:
        size = await self._ended.size(task_manager, name)

        def pieces(first: int, end: int) -> AsyncIterator[bytes]:
            return self._ended.pieces(task_manager, name, first, end)

        return await _stream(request, name, wanted, size, pieces)

    async def _is_registered(self, task_manager: ResourceId) -> bool:
        return any(info.resource_id == task_manager for info in await self._backend.task_managers.get())


async def _nothing(_: int, __: int) -> AsyncIterator[bytes]:
    return
    yield b""


async def _stream(
    request: web.Request, name: str, wanted: Slice, size: int, pieces: Callable[[int, int], AsyncIterator[bytes]]
) -> web.StreamResponse:
    first, end = wanted.within(size)
    if wanted.partial and first >= end:
        raise RangeNotSatisfiable(f"{name} has {size} bytes", hint="ask for a range within it")
    response = _head(wanted, first, end, size)
    await response.prepare(request)
    try:
        async for data in pieces(first, end):
            await response.write(data)
    except MinflinkError as error:  # the head is already sent: only closing the connection can tell the client
        log.info("a log broke off", path=request.path, error=str(error))
        if request.transport is not None:
            request.transport.abort()
        return response
    await response.write_eof()
    return response


def _head(wanted: Slice, first: int, end: int, size: int) -> web.StreamResponse:
    response = web.StreamResponse(status=206 if wanted.partial else 200)
    response.content_type = "text/plain"
    response.charset = "utf-8"
    response.content_length = end - first
    response.headers[hdrs.ACCEPT_RANGES] = "bytes"
    response.headers[SIZE_HEADER], response.headers[OFFSET_HEADER] = str(size), str(first)
    if wanted.partial:
        response.headers[hdrs.CONTENT_RANGE] = f"bytes {first}-{end - 1}/{size}"
    return response


def wanted_slice(request: web.Request) -> Slice:
    """Parse `?offset=&length=`, or a Range header with one range. Raises InvalidRequest, RangeNotSatisfiable."""
    if OFFSET.is_in(request) or LENGTH.is_in(request):
        return Slice(OFFSET.of(request), LENGTH.of(request))
    header = request.headers.get(hdrs.RANGE)
    match = _RANGE.fullmatch(header.replace(" ", "")) if header is not None else None
    if match is None:  # several ranges, or another unit: answering the whole file is correct
        return Slice()
    first, last = match[1], match[2]
    if not first:
        if not last or int(last) == 0:
            raise RangeNotSatisfiable(f"the range {header!r} is empty", hint="bytes=FIRST-LAST, or bytes=-COUNT")
        return Slice(-int(last), partial=True)
    if last and int(last) < int(first):
        raise RangeNotSatisfiable(f"the range {header!r} is empty", hint="bytes=FIRST-LAST, or bytes=-COUNT")
    return Slice(int(first), int(last) - int(first) + 1 if last else None, partial=True)
