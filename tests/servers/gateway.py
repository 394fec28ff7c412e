"""An HTTP gateway that passes requests on to a server, and does to chosen ones what a network might."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from tests.servers.process import HOST

_OF_ONE_WIRE = {"connection", "content-length", "expect", "keep-alive", "server", "transfer-encoding"}
_LARGEST = 1 << 30  # bytes of a request
Chosen = Callable[[web.Request], bool]
Serve = Callable[[web.Request], Awaitable[web.Response]]


@dataclass
class Fault:
    """What happens to the next `times` requests that are `chosen`."""

    chosen: Chosen
    times: int = 1
    status: int | None = None  # the gateway answers with it; the server never sees the request
    body: str = ""
    lost: bool = False  # the server carries the request out, and its answer is lost
    serve: Serve | None = None  # answers in place of a server that cannot
    met: int = field(default=0, init=False)


class Gateway:
    """Stands before one server. Bytes are passed on as they are, so signatures stay valid."""

    def __init__(self, endpoint: str, tls: ssl.SSLContext | None = None) -> None:
        """`tls`: what its own clients speak."""
        self._server_endpoint, self._tls = endpoint, tls
        self._faults: list[Fault] = []
        application = web.Application(client_max_size=_LARGEST)
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(application, shutdown_timeout=1)
        self._session: aiohttp.ClientSession | None = None
        self.endpoint = ""
        self.requests: list[str] = []  # method and path with query

    def fault(
        self,
        chosen: Chosen,
        *,
        times: int = 1,
        status: int | None = None,
        body: str = "",
        lost: bool = False,
        serve: Serve | None = None,
    ) -> Fault:
        fault = Fault(chosen, times, status, body, lost, serve)
        self._faults.append(fault)
        return fault

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(auto_decompress=False)
        await self._runner.setup()
        site = web.TCPSite(self._runner, HOST, 0, ssl_context=self._tls)
        await site.start()
        self.endpoint = f"{'http' if self._tls is None else 'https'}://{HOST}:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()
        assert self._session is not None
        await self._session.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.raw_path}")
        fault = next((fault for fault in self._faults if fault.met < fault.times and fault.chosen(request)), None)
        if fault is not None:
            fault.met += 1
            if fault.serve is not None:
                return await fault.serve(request)
            if fault.status is not None:
                await request.read()
                return web.Response(status=fault.status, text=fault.body, content_type="application/xml")
        answer = await self._pass_on(request)
        if fault is not None and fault.lost:
            assert request.transport is not None
            request.transport.abort()
        return answer

    async def _pass_on(self, request: web.Request) -> web.Response:
        assert self._session is not None
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _OF_ONE_WIRE}
        async with self._session.request(
            request.method,
            URL(self._server_endpoint + request.raw_path, encoded=True),
            headers=headers,
            data=await request.read() or None,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            allow_redirects=False,
        ) as answer:
            kept = CIMultiDict(pair for pair in answer.headers.items() if pair[0].lower() not in _OF_ONE_WIRE)
            if request.method == "HEAD":  # the length of the body that is not sent
                kept["Content-Length"] = answer.headers.get("Content-Length", "0")
                return web.Response(status=answer.status, headers=kept)
            return web.Response(status=answer.status, headers=kept, body=await answer.read())
