"""The HTTP protocol of a connection: what cannot be read as a request is answered in JSON too (E3)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from aiohttp import web
from aiohttp.web_request import BaseRequest

from minflinkd.rest.error_form import error_response
from minflinkd.rest.errors import ExpectationFailed, InvalidRequest, error_answer
from minflinkd.rest.guard import Limits
from minflinkd.runtime.doorkeeper import SeldomTold

_NOWHERE = logging.Logger("nowhere", logging.CRITICAL + 1)  # requests are logged by `RestServer`


class _Protocol(web.RequestHandler):
    """aiohttp's, which would answer in plain text and log a traceback for each connection."""

    __slots__ = ("_told",)

    def __init__(self, server: web.Server, told: SeldomTold, limits: Limits, *, auto_decompress: bool) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=_NOWHERE,
            keepalive_timeout=limits.keep_alive_seconds,
            max_line_size=limits.header_bytes,
            max_field_size=limits.header_bytes,
            auto_decompress=auto_decompress,
        )
        self._told = told

    def handle_error(
        self, request: BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer what is no request. The handlers' own errors never come here: `RestServer` has answered them."""
        why = (str(exc or message or "").splitlines() or [""])[0][:200]
        self._told.warn("what came over HTTP was no request", peer=request.remote, reason=why)
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer was sent already")
        refused = InvalidRequest(f"this cannot be read as a request: {why}", hint="send HTTP/1.1")
        response = error_response(request, error_answer(refused), max(400, min(status, 499)))
        response.force_close()
        return response


def protocols(server: web.Server, limits: Limits, *, auto_decompress: bool = True) -> Callable[[], asyncio.Protocol]:
    """Return what makes the protocol of each connection."""
    told, handle = SeldomTold(), server.request_handler

    async def handled(request: BaseRequest) -> web.StreamResponse:
        wanted = request.headers.get("Expect", "100-continue")  # aiohttp answers this one, for each path
        if wanted.lower() == "100-continue":
            return await handle(request)
        refused = ExpectationFailed(f"this endpoint cannot do {wanted[:100]!r}", hint="leave the header Expect out")
        return error_response(request, error_answer(refused), refused.status)

    server.request_handler = handled
    return lambda: _Protocol(server, told, limits, auto_decompress=auto_decompress)
