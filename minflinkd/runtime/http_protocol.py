"""The HTTP protocol of servers that only processes of a cluster talk to: blobs and exchanges.

aiohttp logs a traceback, with all that it has read, for every connection that sends something else than HTTP. Anybody
who reaches the port could fill a disk with that (E45).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import hdrs, web
from aiohttp.web_request import BaseRequest

from minflinkd.runtime.doorkeeper import SeldomTold

_SHOWN = 200  # characters of what was wrong


class _Protocol(web.RequestHandler):
    __slots__ = ("_told",)

    def __init__(self, server: web.Server, told: SeldomTold, **options: Any) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._told = told

    def handle_error(
        self, request: BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer what is no request. What a handler raises is answered and logged as aiohttp does."""
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        why = (str(exc or message or "").splitlines() or [""])[0][:_SHOWN]
        self._told.warn("what came over HTTP was no request", peer=request.remote, reason=why)
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer was sent already")
        response = web.Response(status=status, text=f"this cannot be read as a request: {why}")
        response.force_close()
        return response


def protocols(server: web.Server, **options: Any) -> Callable[[], asyncio.Protocol]:
    """Return what makes the protocol of each connection. `options`: of `aiohttp.web.RequestHandler`."""
    told, handle = SeldomTold(), server.request_handler

    async def handled(request: BaseRequest) -> web.StreamResponse:
        if request.headers.get(hdrs.EXPECT, "100-continue").lower() == "100-continue":
            return await handle(request)
        # aiohttp's answer has the header's value in it, which may be bytes that cannot be sent.
        return web.Response(status=417, text="only Expect: 100-continue can be met here")

    server.request_handler = handled
    return lambda: _Protocol(server, told, **options)
